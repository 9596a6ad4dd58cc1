package strict

import (
	"bytes"
	"cmp"
	"slices"
	"unicode/utf8"
)

// Replacement is a text in the place of a part of a document.
type Replacement struct {
	From, To int // bytes
	Text     string
}

// Replace returns a document with replacements, of which no two overlap. Everything else stays as it is.
func Replace(data []byte, all []Replacement) []byte {
	slices.SortFunc(all, func(a, b Replacement) int { return cmp.Compare(a.From, b.From) })
	var out []byte
	at := 0
	for _, r := range all {
		out = append(append(out, data[at:r.From]...), r.Text...)
		at = r.To
	}
	return append(out, data[at:]...)
}

// Offset is the byte at which the character of a line and a column begins; -1: there is none.
func Offset(data []byte, line, column int) int {
	at := 0
	for ; line > 1; line-- {
		i := bytes.IndexByte(data[at:], '\n')
		if i < 0 {
			return -1
		}
		at += i + 1
	}
	for ; column > 1 && at < len(data); column-- {
		_, size := utf8.DecodeRune(data[at:])
		at += size
	}
	if at >= len(data) {
		return -1
	}
	return at
}
