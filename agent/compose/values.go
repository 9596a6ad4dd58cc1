package compose

import (
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"
)

// maxList bounds lists of small things of one service: capabilities, devices, limits.
const maxList = 256

// text is a scalar; "" when there is nothing.
func (d *document) text(n *node) string {
	if n == nil {
		return ""
	}
	if n.kind != scalarKind {
		d.fault(n, "", "must be text")
		return ""
	}
	s := n.str()
	if strings.ContainsRune(s, 0) {
		d.fault(n, "", "holds a zero byte")
		return ""
	}
	return s
}

// elements are the scalars of a list, or the one scalar in place of it.
func (d *document) elements(n *node) []*node {
	if !n.isNull() && n.kind == scalarKind {
		return []*node{n}
	}
	var out []*node
	for _, item := range d.list(n, maxList) {
		if item.kind != scalarKind || item.isNull() || strings.ContainsRune(item.str(), 0) {
			d.fault(item, "", "must be text")
			continue
		}
		out = append(out, item)
	}
	return out
}

// texts are elements as text, each once; nil when there are none.
func (d *document) texts(n *node) []string {
	var out []string
	for _, item := range d.elements(n) {
		if s := item.str(); !slices.Contains(out, s) {
			out = append(out, s)
		}
	}
	return out
}

// pair is one entry of a mapping that may be written as a list of "key=value".
type pair struct {
	at         *node
	key, value string
	set        bool // there is a value, even if it is empty
}

func (d *document) pairsOf(n *node) []pair {
	if n.isNull() {
		return nil
	}
	if n.kind == scalarKind {
		d.fault(n, "", "must be a list or a mapping")
		return nil
	}
	var out []pair
	for _, k := range n.keys {
		v := n.fields[k]
		if k == "" || strings.ContainsAny(k, "=\x00") {
			d.fault(v, "", "%q is no name", k)
			continue
		}
		p := pair{at: v, key: k, value: d.text(v), set: !v.isNull()}
		if p.set && v.kind == scalarKind {
			p.value = fmt.Sprint(v.value) // as Compose has it: 0x10 is 16
		}
		out = append(out, p)
	}
	for _, item := range n.items {
		k, v, ok := strings.Cut(item.str(), "=")
		switch name := strings.TrimSpace(k); {
		case item.kind != scalarKind || item.isNull() || strings.ContainsRune(item.str(), 0):
			d.fault(item, "write NAME=value, or leave the dash out", "must be text")
		case name == "":
			d.fault(item, "write NAME=value", "there is no name") // the value may be a secret
		case !strings.HasSuffix(k, name):
			d.fault(item, "write NAME=value", "the name %q ends with a space", clipped(k))
		default:
			out = append(out, pair{item, name, v, ok})
		}
	}
	return out
}

// mapping is pairsOf as a map; nil when there are none.
func (d *document) mapping(n *node) map[string]string {
	var out map[string]string
	for _, p := range d.pairsOf(n) {
		if out == nil {
			out = map[string]string{}
		}
		out[p.key] = p.value
	}
	return out
}

// isMapping reports whether there is a mapping; anything else but nothing is a fault.
func (d *document) isMapping(n *node) bool {
	if !n.isNull() && n.kind != mapKind {
		d.fault(n, "", "must be a mapping")
	}
	return n != nil && n.kind == mapKind
}

// list is the entries of a list of at most so many; none where there is nothing, or another kind of value.
func (d *document) list(n *node, most int) []*node {
	switch {
	case n.isNull():
		return nil
	case n.kind != listKind:
		d.fault(n, "", "must be a list")
	case len(n.items) > most:
		d.fault(n, "", "more than %d entries", most)
	default:
		return n.items
	}
	return nil
}

// command is text, which is split as a shell would, or a list; nil when there is nothing.
func (d *document) command(n *node) []string {
	switch {
	case n.isNull():
		return nil
	case n.kind == mapKind:
		d.fault(n, "", "must be text or a list")
		return nil
	case n.kind == listKind:
		out := make([]string, 0, len(n.items))
		for _, item := range n.items {
			if item.kind != scalarKind || item.isNull() {
				d.fault(item, "", "must be text")
			}
			out = append(out, d.text(item))
		}
		return out
	}
	out := types.ShellCommand{}
	if err := out.DecodeMapstructure(d.text(n)); err != nil {
		d.fault(n, "", "%v", err)
	}
	return out
}

// integer is a whole number within bounds; 0 when there is nothing or it was refused.
func (d *document) integer(n *node, least, most int64) int64 {
	if n.isNull() {
		return 0
	}
	v, err := strconv.ParseInt(d.text(n), 0, 64)
	if err != nil || n.kind != scalarKind {
		f, ferr := strconv.ParseFloat(n.str(), 64) // 1e6, 5.0
		if ferr != nil || f != math.Trunc(f) || math.Abs(f) > 1<<53 {
			d.fault(n, "", "%q is no whole number", clipped(n.str()))
			return 0
		}
		v = int64(f)
	}
	if v < least || v > most {
		d.fault(n, "", "%d is not within %d and %d", v, least, most)
		return 0
	}
	return v
}

// bytes is a size: a number, or with a unit of 1024.
func (d *document) bytes(n *node) int64 {
	if n.isNull() {
		return 0
	}
	v, err := parseBytes(d.text(n))
	if err != nil {
		d.fault(n, "write a number of bytes, or with a unit: 64m", "%q is no size", clipped(n.str()))
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

// maxSpan keeps what a file asks to wait for within what an agent can count.
const maxSpan = 365 * 24 * time.Hour

// span is a duration.
func (d *document) span(n *node) time.Duration {
	if n.isNull() {
		return 0
	}
	var v types.Duration
	err := v.DecodeMapstructure(d.text(n))
	switch span := time.Duration(v); {
	case err != nil || span > maxSpan:
		d.fault(n, "write it with a unit: 90s, 1m30s", "%q is no duration", clipped(n.str()))
	case span < 0:
		d.fault(n, "", "must not be negative")
	default:
		return span
	}
	return 0
}

// choice is a word out of some; "" when there is nothing.
func (d *document) choice(n *node, among ...string) string {
	s := d.text(n)
	if s != "" && !slices.Contains(among, s) {
		d.fault(n, "", "%q is none of %s", clipped(s), strings.Join(among, ", "))
		return ""
	}
	return s
}

// truth is a boolean, also as YAML 1.1 wrote it.
func (d *document) truth(n *node, otherwise bool) (value, ok bool) {
	if n.isNull() {
		return otherwise, true
	}
	switch strings.ToLower(n.str()) {
	case "true":
		return true, true
	case "false":
		return false, true
	case "yes", "y", "on":
		d.notice(n, "%q is taken as true: YAML 1.2 has true and false alone", n.str())
		return true, true
	case "no", "n", "off":
		d.notice(n, "%q is taken as false: YAML 1.2 has true and false alone", n.str())
		return false, true
	}
	d.fault(n, "", "must be true or false")
	return false, false
}

func (d *document) flag(n *node) bool {
	v, _ := d.truth(n, false)
	return v
}

// cores is a number of CPU cores in billionths, rounded to a millionth.
func (d *document) cores(n *node) int64 {
	if n.isNull() {
		return 0
	}
	v, ok := d.number(n)
	if ok && (v < 0 || v > 1<<16) {
		d.fault(n, "", "%q is no number of cores", clipped(n.str()))
		return 0
	}
	return int64(v*1e6+0.5) * 1000
}

// number is any number; not ok when it was refused.
func (d *document) number(n *node) (float64, bool) {
	v, err := strconv.ParseFloat(d.text(n), 64)
	if err != nil || math.IsNaN(v) || math.IsInf(v, 0) {
		d.fault(n, "", "%q is no number", clipped(n.str()))
		return 0, false
	}
	return v, true
}

// octal is a mode: a number of YAML (0o440), or octal digits as text.
func (d *document) octal(n *node, most uint32) uint32 {
	if n.isNull() {
		return 0
	}
	if n.kind != scalarKind {
		d.fault(n, "", "must be a number")
		return 0
	}
	v, err := parseOctal(mode(n))
	if err != nil || v > most {
		d.fault(n, "write it octal: 0o440", "%q is no file mode", clipped(n.str()))
		return 0
	}
	return v
}

func parseOctal(s string) (uint32, error) {
	v, err := strconv.ParseUint(strings.TrimPrefix(s, "0o"), 8, 32)
	return uint32(v), err
}

// mode is a YAML number as octal digits: 0o1777 and 1023 both are "1777".
func mode(n *node) string {
	if n != nil {
		if v, ok := n.value.(int); ok {
			return strconv.FormatInt(int64(v), 8)
		}
	}
	return n.str()
}
