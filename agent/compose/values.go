package compose

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// refuse reports a fault, and is false.
func (t *translation) refuse(n *composefile.Node, hint, format string, args ...any) bool {
	t.Fault(n, hint, format, args...)
	return false
}

// texts are elements as text, each once; nil if there are none.
func (d *document) texts(n *composefile.Node) []string {
	var out []string
	for _, item := range d.Elements(n) {
		if s := item.Text(); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// matching are the elements that are valid, as text; nil if there are none. what names such an element in a fault.
func (d *document) matching(n *composefile.Node, valid func(string) bool, hint, what string) []string {
	var out []string
	for _, item := range d.Elements(n) {
		if s := item.Text(); valid(s) {
			out = append(out, s)
		} else {
			d.Fault(item, hint, "%q is no %s", composefile.Clip(s), what)
		}
	}
	return out
}

// pair is one entry of a mapping that may be written as a list of "key=value".
type pair struct {
	at         *composefile.Node
	key, value string
	set        bool // there is a value, even if it is empty
}

func (d *document) pairsOf(n *composefile.Node) []pair {
	if n.IsNull() {
		return nil
	}
	if n.Kind == composefile.Scalar {
		d.Fault(n, "", "must be a list or a mapping")
		return nil
	}
	var out []pair
	for _, k := range n.Keys {
		v := n.Fields[k]
		if k == "" || strings.ContainsAny(k, "=\x00") {
			d.Fault(v, "", "%q is no name", k)
			continue
		}
		p := pair{at: v, key: k, value: d.Text(v), set: !v.IsNull()}
		if p.set && v.Kind == composefile.Scalar {
			p.value = fmt.Sprint(v.Value) // as in Compose: 0x10 is 16
		}
		out = append(out, p)
	}
	for _, item := range n.Items {
		k, v, ok := strings.Cut(item.Text(), "=")
		switch name := strings.TrimSpace(k); {
		case item.Kind != composefile.Scalar || item.IsNull() || strings.ContainsRune(item.Text(), 0):
			d.Fault(item, "write NAME=value, or leave the dash out", "must be text")
		case name == "":
			d.Fault(item, "write NAME=value", "there is no name") // the value may be a secret
		case !strings.HasSuffix(k, name):
			d.Fault(item, "write NAME=value", "the name %q ends with a space", composefile.Clip(k))
		default:
			out = append(out, pair{item, name, v, ok})
		}
	}
	return out
}

// mapping is pairsOf as a map; nil when there are none.
func (d *document) mapping(n *composefile.Node) map[string]string {
	var out map[string]string
	for _, p := range d.pairsOf(n) {
		if out == nil {
			out = map[string]string{}
		}
		out[p.key] = p.value
	}
	return out
}

// isMapping reports whether there is a mapping; any other value is a fault.
func (d *document) isMapping(n *composefile.Node) bool {
	if !n.IsNull() && n.Kind != composefile.Map {
		d.Fault(n, "", "must be a mapping")
	}
	return n != nil && n.Kind == composefile.Map
}

// command is text, which is split as a shell would, or a list; nil when there is nothing.
func (d *document) command(n *composefile.Node) []string {
	switch {
	case n.IsNull():
		return nil
	case n.Kind == composefile.Map:
		d.Fault(n, "", "must be text or a list")
		return nil
	case n.Kind == composefile.List:
		out := make([]string, 0, len(n.Items))
		for _, item := range n.Items {
			if item.Kind != composefile.Scalar || item.IsNull() {
				d.Fault(item, "", "must be text")
			}
			out = append(out, d.Text(item))
		}
		return out
	}
	out := types.ShellCommand{}
	if err := out.DecodeMapstructure(d.Text(n)); err != nil {
		d.Fault(n, "", "%v", err)
	}
	return out
}

// integer is a whole number within bounds; 0 if it is missing or was rejected.
func (d *document) integer(n *composefile.Node, least, most int64) int64 {
	if n.IsNull() {
		return 0
	}
	v, err := strconv.ParseInt(d.Text(n), 0, 64)
	if err != nil || n.Kind != composefile.Scalar {
		f, ferr := strconv.ParseFloat(n.Text(), 64) // 1e6, 5.0
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			d.Fault(n, "", "%q is no whole number", composefile.Clip(n.Text()))
			return 0
		}
		v = int64(f)
	}
	if v < least || v > most {
		d.Fault(n, "", "%d is not within %d and %d", v, least, most)
		return 0
	}
	return v
}

// bytes is a size: a number, or with a unit of 1024.
func (d *document) bytes(n *composefile.Node) int64 {
	if n.IsNull() {
		return 0
	}
	v, err := parseBytes(d.Text(n))
	if err != nil {
		d.Fault(n, "write a number of bytes, or with a unit: 64m", "%q is no size", composefile.Clip(n.Text()))
		return 0
	}
	return v
}

func parseBytes(s string) (int64, error) {
	var v types.UnitBytes
	err := v.DecodeMapstructure(s)
	if err == nil && v < 0 {
		err = strconv.ErrRange
	}
	return int64(v), err
}

// maxDuration bounds a duration.
const maxDuration = 365 * 24 * time.Hour

// duration reads a duration in Compose's syntax.
func (d *document) duration(n *composefile.Node) time.Duration {
	if n.IsNull() {
		return 0
	}
	var v types.Duration
	err := v.DecodeMapstructure(d.Text(n))
	switch span := time.Duration(v); {
	case err != nil || span > maxDuration:
		d.Fault(n, "write it with a unit: 90s, 1m30s", "%q is no duration", composefile.Clip(n.Text()))
	case span < 0:
		d.Fault(n, "", "must not be negative")
	default:
		return span
	}
	return 0
}

// choice is one of some words; "" if it is missing.
func (d *document) choice(n *composefile.Node, among ...string) string {
	s := d.Text(n)
	if s != "" && !slices.Contains(among, s) {
		d.Fault(n, "", "%q is none of %s", composefile.Clip(s), strings.Join(among, ", "))
		return ""
	}
	return s
}

// boolean is a boolean, also in the forms of YAML 1.1.
func (d *document) boolean(n *composefile.Node, otherwise bool) (value, ok bool) {
	if n.IsNull() {
		return otherwise, true
	}
	switch strings.ToLower(n.Text()) {
	case "true":
		return true, true
	case "false":
		return false, true
	case "yes", "y", "on":
		d.Notice(n, "%q is taken as true: YAML 1.2 has true and false alone", n.Text())
		return true, true
	case "no", "n", "off":
		d.Notice(n, "%q is taken as false: YAML 1.2 has true and false alone", n.Text())
		return false, true
	}
	d.Fault(n, "", "must be true or false")
	return false, false
}

func (d *document) flag(n *composefile.Node) bool {
	v, _ := d.boolean(n, false)
	return v
}

// cores is a number of CPU cores in billionths, rounded to a millionth.
func (d *document) cores(n *composefile.Node) int64 {
	if n.IsNull() {
		return 0
	}
	v, ok := d.number(n)
	if ok && (v < 0 || v > 1<<16) {
		d.Fault(n, "", "%q is no number of cores", composefile.Clip(n.Text()))
		return 0
	}
	return int64(v*1e6+0.5) * 1000
}

// number is any number; not ok if it was rejected.
func (d *document) number(n *composefile.Node) (float64, bool) {
	v, err := strconv.ParseFloat(d.Text(n), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		d.Fault(n, "", "%q is no number", composefile.Clip(n.Text()))
		return 0, false
	}
	return v, true
}

// octal is a mode: a number of YAML (0o440), or octal digits as text.
func (d *document) octal(n *composefile.Node, most uint32) uint32 {
	if n.IsNull() {
		return 0
	}
	if n.Kind != composefile.Scalar {
		d.Fault(n, "", "must be a number")
		return 0
	}
	v, err := parseOctal(mode(n))
	if err != nil || v > most {
		d.Fault(n, "write it octal: 0o440", "%q is no file mode", composefile.Clip(n.Text()))
		return 0
	}
	return v
}

func parseOctal(s string) (uint32, error) {
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	return uint32(v), err
}

// mode is a YAML number as octal digits: 0o1777 and 1023 both are "1777".
func mode(n *composefile.Node) string {
	if n != nil {
		if v, ok := n.Value.(int); ok {
			return strconv.FormatInt(int64(v), 8)
		}
	}
	return n.Text()
}
