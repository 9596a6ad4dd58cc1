package composefile

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	// maxFaults is how many faults, and how many notices, of one project are listed: more do not help.
	maxFaults = 100
	// MaxList bounds lists of small things of one service: capabilities, devices, limits.
	MaxList = 256
)

// Report collects the faults and notices of one project at their positions.
type Report struct {
	File string // name of the Compose file in errors

	faults  []strict.Fault
	notices []strict.Fault
	merged  int // values that were merged so far
}

// Fault reports an error at the position of n.
func (r *Report) Fault(n *Node, hint, format string, args ...any) {
	f := faultAt(n)
	f.Message, f.Hint = fmt.Sprintf(format, args...), hint
	r.faults = append(r.faults, f)
}

// Notice reports something that has another effect than its author may expect.
func (r *Report) Notice(n *Node, format string, args ...any) {
	f := faultAt(n)
	f.Message = fmt.Sprintf(format, args...)
	r.notices = append(r.notices, f)
}

// Add adds faults.
func (r *Report) Add(faults ...strict.Fault) { r.faults = append(r.faults, faults...) }

// Failed reports whether there are faults.
func (r *Report) Failed() bool { return len(r.faults) > 0 }

// Err returns all faults in order of the file as a strict.Error; nil when there are none.
func (r *Report) Err() error {
	if len(r.faults) == 0 {
		return nil
	}
	return &strict.Error{File: r.File, Faults: listed(r.faults, "faults")}
}

// Notices returns the notices in order of the file.
func (r *Report) Notices() []strict.Fault { return listed(slices.Clone(r.notices), "notices") }

// listed sorts faults in order of the file and removes repetitions. Instead of those beyond maxFaults it has their number.
func listed(found []strict.Fault, what string) []strict.Fault {
	slices.SortStableFunc(found, func(a, b strict.Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	seen := make(map[strict.Fault]bool, len(found))
	found = slices.DeleteFunc(found, func(f strict.Fault) bool { // an anchor used twice is wrong once
		again := seen[f]
		seen[f] = true
		return again
	})
	if more := len(found) - maxFaults; more > 0 {
		found = append(found[:maxFaults:maxFaults], strict.Fault{Message: fmt.Sprintf("and %d more %s", more, what)})
	}
	return found
}

func faultAt(n *Node) strict.Fault {
	if n == nil {
		return strict.Fault{Line: 1, Column: 1}
	}
	return strict.Fault{Line: n.Line, Column: n.Column, Path: n.Path, File: n.File}
}

// Text returns a scalar as text; "" when there is nothing.
func (r *Report) Text(n *Node) string {
	if n == nil {
		return ""
	}
	if n.Kind != Scalar {
		r.Fault(n, "", "must be text")
		return ""
	}
	s := n.Text()
	if strings.ContainsRune(s, 0) {
		r.Fault(n, "", "holds a zero byte")
		return ""
	}
	return s
}

// Elements returns the scalars of a list. A scalar in place of a list is a list of one.
func (r *Report) Elements(n *Node) []*Node {
	if !n.IsNull() && n.Kind == Scalar {
		return []*Node{n}
	}
	var out []*Node
	for _, item := range r.List(n, MaxList) {
		if item.Kind != Scalar || item.IsNull() || strings.ContainsRune(item.Text(), 0) {
			r.Fault(item, "", "must be text")
			continue
		}
		out = append(out, item)
	}
	return out
}

// List returns the entries of a list of at most limit; none when there is nothing or a value of another kind.
func (r *Report) List(n *Node, limit int) []*Node {
	switch {
	case n.IsNull():
		return nil
	case n.Kind != List:
		r.Fault(n, "", "must be a list")
	case len(n.Items) > limit:
		r.Fault(n, "", "more than %d entries", limit)
	default:
		return n.Items
	}
	return nil
}

// Clip shortens text for a message.
func Clip(s string) string {
	const n = 40
	if len(s) <= n {
		return s
	}
	return strings.ToValidUTF8(s[:n], "") + "…"
}
