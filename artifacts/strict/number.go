package strict

import (
	"math"
	"strconv"
	"strings"
)

// Uint64 is a whole number from 0 to 2^64-1, without loss.
func (n *Node) Uint64() uint64 {
	if !n.is(Number) {
		return 0
	}
	u, err := strconv.ParseUint(n.text, 10, 64)
	if err != nil {
		n.Faultf("%s is no whole number from 0 to 18446744073709551615", quoted(n.text))
	}
	return u
}

// Int64 is a whole number from -2^63 to 2^63-1.
func (n *Node) Int64() int64 {
	if !n.is(Number) {
		return 0
	}
	i, err := strconv.ParseInt(n.text, 10, 64)
	if err != nil {
		n.Faultf("%s is no whole number from -9223372036854775808 to 9223372036854775807", quoted(n.text))
	}
	return i
}

// Float64 is a finite number.
func (n *Node) Float64() float64 {
	if !n.is(Number) {
		return 0
	}
	f, err := strconv.ParseFloat(n.text, 64)
	if err != nil || math.IsInf(f, 0) || math.IsNaN(f) {
		n.Faultf("%s is no number that can be held", quoted(n.text))
		return 0
	}
	return f
}

// Value is the value as plain Go: nil, bool, string, int64 where it fits, else uint64, else float64, []any, map[string]any.
// Members and elements count as known to [Node.Close].
func (n *Node) Value() any {
	switch n.Kind() {
	case Bool:
		return n.truth
	case String:
		return n.text
	case Number:
		return n.number()
	case List:
		out := make([]any, 0, len(n.items))
		for _, i := range n.items {
			out = append(out, i.Value())
		}
		return out
	case Object:
		out := make(map[string]any, len(n.items))
		for _, m := range n.items {
			n.ask(m.key)
			out[m.key] = m.Value()
		}
		return out
	}
	return nil
}

func (n *Node) number() any {
	if !strings.ContainsAny(n.text, ".eE") {
		if i, err := strconv.ParseInt(n.text, 10, 64); err == nil {
			return i
		}
		if u, err := strconv.ParseUint(n.text, 10, 64); err == nil {
			return u
		}
	}
	return n.Float64()
}
