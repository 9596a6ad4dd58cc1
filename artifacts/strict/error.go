package strict

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Fault is one thing wrong in a document. Line and Column count from 1; 0 when the whole document is meant.
type Fault struct {
	Line    int
	Column  int
	Path    string // "spec.components[0].name"; "" at the root
	Message string
	Hint    string // "": none
	Missing string // member that is missing at Path; "": it is about what is there
	File    string // "": the error's; another where a document is made of several files
	Also    string // FILE:LINE:COLUMN of what it clashes with, for the end of Message; "": with nothing
}

// Text is the whole message.
func (f Fault) Text() string {
	if f.Also != "" {
		return f.Message + ", at " + f.Also
	}
	return f.Message
}

// Error is everything that is wrong with one document. It is a fault.ErrInvalid.
type Error struct {
	File   string
	Faults []Fault
}

// Error tells each fault on a line of its own: "file:line:column: path: message".
func (e *Error) Error() string {
	var b strings.Builder
	for i, f := range e.Faults {
		if i > 0 {
			b.WriteByte('\n')
		}
		b.WriteString(cmp.Or(f.File, e.File))
		if f.Line > 0 {
			fmt.Fprintf(&b, ":%d:%d", f.Line, f.Column)
		}
		b.WriteString(": ")
		if f.Path != "" {
			b.WriteString(f.Path + ": ")
		}
		b.WriteString(f.Text())
	}
	return b.String()
}

// Unwrap makes the error a fault.ErrInvalid that carries the hint of the first fault that has one.
func (e *Error) Unwrap() error {
	for _, f := range e.Faults {
		if f.Hint != "" {
			return fault.WithHint(fault.ErrInvalid, f.Hint)
		}
	}
	return fault.ErrInvalid
}

func (e *Error) sort() {
	slices.SortStableFunc(e.Faults, func(a, b Fault) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}
