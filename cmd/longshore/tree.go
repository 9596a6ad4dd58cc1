package main

import (
	"fmt"
	"io"
)

// branch is a line of a tree and what hangs below it.
type branch struct {
	line  string
	below []*branch
}

// add hangs a line below, and returns where it hangs.
func (b *branch) add(format string, args ...any) *branch {
	child := &branch{line: fmt.Sprintf(format, args...)}
	b.below = append(b.below, child)
	return child
}

// write draws a tree whose root has been written.
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
