// Package printable makes foreign text safe to show. A terminal obeys control characters, and it and a browser reorder lines
// by bidirectional controls: text from a registry, a Compose file, a device or a container may hold both.
//
// What is escaped becomes \u and four hexadecimal digits, \x and two for a byte that is not UTF-8. In a JSON string that means
// the same character, so that JSON may pass through a [Writer] too.
//
// [Digest] and [Bytes] shorten what people cannot read.
package printable

import (
	"cmp"
	"fmt"
	"io"
	"strings"
	"sync"
	"unicode/utf8"
)

// unsafe reports whether a terminal or a browser obeys a character: C0 but tab and line feed, DEL, C1, and the
// bidirectional controls of Unicode (UAX 9), with its separators of lines and paragraphs.
func unsafe(r rune) bool {
	switch {
	case r == '\n', r == '\t':
		return false
	case r < ' ', r >= 0x7f && r <= 0x9f:
		return true
	case r == 0x061c, r >= 0x200e && r <= 0x200f, r >= 0x2028 && r <= 0x202e, r >= 0x2066 && r <= 0x2069:
		return true
	}
	return false
}

// Safe reports whether [Text] leaves a text as it is.
func Safe(s string) bool {
	return utf8.ValidString(s) && !strings.ContainsFunc(s, unsafe)
}

// Text escapes what a terminal would obey. A carriage return before a line feed is left out.
func Text(s string) string {
	if Safe(s) {
		return s
	}
	out, rest := escape(nil, []byte(s))
	return string(finish(out, rest))
}

// escape appends what is safe of in, and returns what cannot be decided without what follows.
func escape(out, in []byte) (escaped, rest []byte) {
	for len(in) > 0 {
		r, n := utf8.DecodeRune(in)
		switch {
		case r == utf8.RuneError && n == 1 && !utf8.FullRune(in):
			return out, in
		case r == utf8.RuneError && n == 1:
			out = fmt.Appendf(out, `\x%02x`, in[0])
		case r == '\r' && len(in) == 1:
			return out, in
		case r == '\r' && in[1] == '\n': // the end of a line on other systems
		case unsafe(r):
			out = fmt.Appendf(out, `\u%04x`, r)
		default:
			out = append(out, in[:n]...)
		}
		in = in[n:]
	}
	return out, nil
}

// finish escapes what is left at the end.
func finish(out, rest []byte) []byte {
	for _, b := range rest {
		if b == '\r' {
			out = append(out, `\u000d`...)
		} else {
			out = fmt.Appendf(out, `\x%02x`, b)
		}
	}
	return out
}

// Writer escapes what is written to it as [Text] does, also a character that comes in pieces. It is safe for concurrent use.
type Writer struct {
	to io.Writer

	mu   sync.Mutex
	rest []byte // the beginning of a character, or a carriage return
	err  error  // the first of Write
}

// NewWriter makes a [Writer] to another one. Flush it at the end.
func NewWriter(to io.Writer) *Writer { return &Writer{to: to} }

// Write implements [io.Writer]. It writes at once, but for at most three bytes.
func (w *Writer) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	in := p
	if len(w.rest) > 0 {
		in = append(w.rest, p...)
	}
	out, rest := escape(make([]byte, 0, len(in)), in)
	w.rest = append([]byte(nil), rest...)
	if len(out) > 0 {
		if _, err := w.to.Write(out); err != nil {
			w.err = cmp.Or(w.err, err)
			return 0, err
		}
	}
	return len(p), nil
}

// Flush writes what waits for the rest of its character. It returns the first error since the last Flush, also one of a Write whose
// caller ignored it.
func (w *Writer) Flush() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	err, out := w.err, finish(nil, w.rest)
	w.err, w.rest = nil, nil
	if err != nil || len(out) == 0 {
		return err
	}
	_, err = w.to.Write(out)
	return err
}

// Flush flushes what is a [Writer]; any other writer has nothing to flush.
func Flush(w io.Writer) error {
	if p, ok := w.(*Writer); ok {
		return p.Flush()
	}
	return nil
}

// Raw is the writer below a [Writer], for bytes that are our own or wanted as they are; any other writer is its own.
func Raw(w io.Writer) io.Writer {
	if p, ok := w.(*Writer); ok {
		return p.to
	}
	return w
}
