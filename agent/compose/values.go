package compose

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	units "github.com/docker/go-units"
	"github.com/xhit/go-str2duration/v2"
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
	switch {
	case n.isNull():
		return nil
	case n.kind == scalarKind:
		return []*node{n}
	case n.kind != listKind:
		d.fault(n, "", "must be a list")
		return nil
	case len(n.items) > maxList:
		d.fault(n, "", "more than %d entries", maxList)
		return nil
	}
	out := make([]*node, 0, len(n.items))
	for _, item := range n.items {
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
	var out []pair
	if n.kind == mapKind {
		for _, k := range n.keys {
			v := n.fields[k]
			if k == "" || strings.ContainsAny(k, "=\x00") {
				d.fault(v, "", "%q is no name", k)
				continue
			}
			out = append(out, pair{v, k, d.text(v), !v.isNull()})
		}
		return out
	}
	for _, item := range d.elements(n) {
		k, v, ok := strings.Cut(item.str(), "=")
		if k = strings.TrimSpace(k); k == "" {
			d.fault(item, "write KEY=value", "%q has no name", clipped(item.str()))
			continue
		}
		out = append(out, pair{item, k, v, ok})
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
	v, err := units.RAMInBytes(d.text(n))
	if err != nil || v < 0 {
		d.fault(n, "write a number of bytes, or with a unit: 64m", "%q is no size", clipped(n.str()))
		return 0
	}
	return v
}

// maxSpan keeps what a file asks to wait for within what an agent can count.
const maxSpan = 365 * 24 * time.Hour

// span is a duration.
func (d *document) span(n *node) time.Duration {
	if n.isNull() {
		return 0
	}
	v, err := str2duration.ParseDuration(d.text(n))
	if err != nil || v < 0 || v > maxSpan {
		d.fault(n, "write it with a unit: 90s, 1m30s", "%q is no duration", clipped(n.str()))
		return 0
	}
	return v
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

// truth is a boolean.
func (d *document) truth(n *node, otherwise bool) (value, ok bool) {
	switch {
	case n.isNull():
		return otherwise, true
	case n.str() == "true":
		return true, true
	case n.str() == "false":
		return false, true
	}
	d.fault(n, "", "must be true or false")
	return false, false
}

func (d *document) flag(n *node) bool {
	v, _ := d.truth(n, false)
	return v
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
