package strict

import (
	"errors"
	"fmt"
	"strconv"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON reads one JSON document (RFC 8259). file is its name in errors. The error is an *[Error].
func JSON(file string, data []byte) (*Node, error) {
	d := open(file, data, false, MaxJSON)
	if err := d.err(); err != nil {
		return nil, err
	}
	r := &jsonReader{doc: d, data: data, line: 1, column: 1}
	root := &Node{}
	err := r.value(root, 1)
	if err == nil {
		r.space()
		if r.at < len(data) {
			err = r.fail("more data after the document")
		}
	}
	if err != nil && !errors.Is(err, errStop) {
		return nil, err
	}
	if err := d.err(); err != nil {
		return nil, err
	}
	return root, nil
}

// errStop ends reading after a fault that leaves nothing to go on with.
var errStop = errors.New("stop")

// jsonReader goes over the bytes once and knows where it is.
type jsonReader struct {
	doc          *document
	data         []byte
	at           int
	line, column int
}

func (r *jsonReader) fail(format string, args ...any) error {
	r.doc.fault(Fault{Line: r.line, Column: r.column, Message: fmt.Sprintf(format, args...)})
	return errStop
}

// peek is the next byte, 0 at the end (which is no byte that JSON allows outside of strings).
func (r *jsonReader) peek() byte {
	if r.at < len(r.data) {
		return r.data[r.at]
	}
	return 0
}

func (r *jsonReader) step() {
	switch b := r.data[r.at]; {
	case b == '\n':
		r.line, r.column = r.line+1, 1
	case utf8.RuneStart(b):
		r.column++
	}
	r.at++
}

func (r *jsonReader) space() {
	for {
		switch r.peek() {
		case ' ', '\t', '\r', '\n':
			r.step()
		default:
			return
		}
	}
}

func (r *jsonReader) unexpected(wanted string) error {
	if r.at >= len(r.data) {
		return r.fail("the document ends too early, %s must follow", wanted)
	}
	c, _ := utf8.DecodeRune(r.data[r.at:])
	return r.fail("%q is not allowed here, %s must follow", c, wanted)
}

// value reads into n, which has its place already.
func (r *jsonReader) value(n *Node, depth int) error {
	r.space()
	n.doc, n.Line, n.Column = r.doc, r.line, r.column
	if !r.doc.value(r.line, r.column) {
		return errStop
	}
	if depth > MaxDepth {
		return r.fail("nested deeper than %d", MaxDepth)
	}
	switch b := r.peek(); {
	case b == '{':
		return r.object(n, depth)
	case b == '[':
		return r.list(n, depth)
	case b == '"':
		n.kind = String
		var err error
		n.text, err = r.text()
		return err
	case b == '-' || b >= '0' && b <= '9':
		return r.number(n)
	case b == 't':
		n.kind, n.truth = Bool, true
		return r.word("true")
	case b == 'f':
		n.kind = Bool
		return r.word("false")
	case b == 'n':
		return r.word("null")
	}
	return r.unexpected("a value")
}

func (r *jsonReader) word(w string) error {
	for i := range len(w) {
		if r.peek() != w[i] {
			return r.unexpected(strconv.Quote(w))
		}
		r.step()
	}
	return nil
}

func (r *jsonReader) object(n *Node, depth int) error {
	n.kind, n.members = Object, make(map[string]*Node)
	r.step()
	for first := true; ; first = false {
		r.space()
		if first && r.peek() == '}' {
			r.step()
			return nil
		}
		if r.peek() != '"' {
			return r.unexpected("a key in double quotes")
		}
		m := &Node{doc: r.doc, parent: n, KeyLine: r.line, KeyColumn: r.column}
		var err error
		if m.key, err = r.text(); err != nil {
			return err
		}
		if r.space(); r.peek() != ':' {
			return r.unexpected(`":"`)
		}
		r.step()
		if err := r.value(m, depth+1); err != nil {
			return err
		}
		n.member(m)
		if r.space(); r.peek() == '}' {
			r.step()
			return nil
		}
		if r.peek() != ',' {
			return r.unexpected(`"," or "}"`)
		}
		r.step()
	}
}

func (r *jsonReader) list(n *Node, depth int) error {
	n.kind = List
	r.step()
	for first := true; ; first = false {
		r.space()
		if first && r.peek() == ']' {
			r.step()
			return nil
		}
		item := &Node{parent: n, index: len(n.items)}
		if err := r.value(item, depth+1); err != nil {
			return err
		}
		n.items = append(n.items, item)
		if r.space(); r.peek() == ']' {
			r.step()
			return nil
		}
		if r.peek() != ',' {
			return r.unexpected(`"," or "]"`)
		}
		r.step()
	}
}

func (r *jsonReader) number(n *Node) error {
	n.kind = Number
	from := r.at
	digits := func() bool {
		had := r.at
		for b := r.peek(); b >= '0' && b <= '9'; b = r.peek() {
			r.step()
		}
		return r.at > had
	}
	if r.peek() == '-' {
		r.step()
	}
	if r.peek() == '0' {
		r.step()
	} else if !digits() {
		return r.unexpected("a digit")
	}
	if r.peek() == '.' {
		if r.step(); !digits() {
			return r.unexpected("a digit")
		}
	}
	if b := r.peek(); b == 'e' || b == 'E' {
		r.step()
		if b := r.peek(); b == '-' || b == '+' {
			r.step()
		}
		if !digits() {
			return r.unexpected("a digit")
		}
	}
	n.text = string(r.data[from:r.at])
	return nil
}

// text reads a string, quotes included.
func (r *jsonReader) text() (string, error) {
	r.step()
	var out []byte
	for r.at < len(r.data) {
		b := r.data[r.at]
		switch {
		case b == '"':
			r.step()
			return string(out), nil
		case b < ' ':
			return "", r.fail("control characters in strings must be escaped")
		case b != '\\':
			out = append(out, b)
			r.step()
			continue
		}
		r.step()
		escape := r.peek()
		if escape == 'u' {
			c, err := r.unicode()
			if err != nil {
				return "", err
			}
			out = utf8.AppendRune(out, c)
			continue
		}
		plain, ok := map[byte]byte{'"': '"', '\\': '\\', '/': '/', 'b': '\b', 'f': '\f', 'n': '\n', 'r': '\r', 't': '\t'}[escape]
		if !ok {
			return "", r.unexpected("an escape")
		}
		out = append(out, plain)
		r.step()
	}
	return "", r.fail("the document ends inside a string")
}

// unicode reads "uXXXX", and the second half of a surrogate pair where the first needs one.
func (r *jsonReader) unicode() (rune, error) {
	unit := func() (rune, error) {
		r.step() // u
		if r.at+4 > len(r.data) {
			return 0, r.unexpected("four hexadecimal digits")
		}
		u, err := strconv.ParseUint(string(r.data[r.at:r.at+4]), 16, 16)
		if err != nil {
			return 0, r.unexpected("four hexadecimal digits")
		}
		for range 4 {
			r.step()
		}
		return rune(u), nil
	}
	c, err := unit()
	if err != nil || !utf16.IsSurrogate(c) {
		return c, err
	}
	if r.peek() == '\\' && r.at+1 < len(r.data) && r.data[r.at+1] == 'u' {
		r.step()
		low, err := unit()
		if err != nil {
			return 0, err
		}
		if both := utf16.DecodeRune(c, low); both != utf8.RuneError {
			return both, nil
		}
	}
	return 0, r.fail("half of a surrogate pair")
}
