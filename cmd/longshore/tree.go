package main

import (
	"fmt"
	"io"
)

// branch is a line of a tree with the lines below it.
type branch struct {
	line  string
	below []*branch
}

// add adds a line below b, and returns it.
func (b *branch) add(format string, args ...any) *branch {
	child := &branch{line: fmt.Sprintf(format, args...)}
	b.below = append(b.below, child)
	return child
}

// some adds a line about a text, if there is one.
func (b *branch) some(format, text string) {
	if text != "" {
		b.add(format, text)
	}
}

// write draws what is below b.
func (b *branch) write(w io.Writer, indent string) {
	for i, child := range b.below {
		stem, deeper := "├─ ", "│  "
		if i == len(b.below)-1 {
			stem, deeper = "└─ ", "   "
		}
		fmt.Fprintf(w, "%s%s%s\n", indent, stem, child.line)
		child.write(w, indent+deeper)
	}
}
