package strict

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// JSON reads one JSON document (RFC 8259). file is its name in errors. The error is an *[Error].
func JSON(file string, data []byte) (*Node, error) {
	d := open(file, data, false, MaxJSON)
	if err := d.err(); err != nil {
		return nil, err
	}
	if !json.Valid(data) {
		d.fault(jsonFault(data, json.Unmarshal(data, new(json.RawMessage)))) // slower, and has the place
		return nil, d.err()
	}
	r := &jsonReader{doc: d, data: data, line: 1, column: 1}
	root := &Node{}
	r.value(root, r.next(), 1)
	if err := d.err(); err != nil {
		return nil, err
	}
	return root, nil
}

// jsonWords says in the words of this package what the library says after a character that it does not take.
var jsonWords = map[string]string{
	"looking for beginning of value":             "a value must follow",
	"looking for beginning of object key string": "a key in double quotes must follow",
	"after object key":                           `":" must follow`,
	"after object key:value pair":                `"," or "}" must follow`,
	"after array element":                        `"," or "]" must follow`,
	"in numeric literal":                         "a digit must follow",
	"after decimal point in numeric literal":     "a digit must follow",
	"in exponent of numeric literal":             "a digit must follow",
	"in string escape code":                      "an escape must follow",
	`in \u hexadecimal character escape`:         "four hexadecimal digits must follow",
}

// jsonFault takes the place out of an error of the JSON library about data.
func jsonFault(data []byte, err error) Fault {
	var syntax *json.SyntaxError
	if !errors.As(err, &syntax) {
		return Fault{Message: err.Error()}
	}
	at, message := len(data), "the document ends too early"
	said, found := strings.CutPrefix(syntax.Error(), "invalid character ")
	if char, err := strconv.QuotedPrefix(said); found && err == nil && (char != "' '" || data[syntax.Offset-1] == ' ') { // at the end it tells a space
		at = int(syntax.Offset) - 1
		c, _ := utf8.DecodeRune(data[at:])
		switch after := said[len(char)+1:]; after {
		case "after top-level value":
			message = "more data after the document"
		case "in string literal":
			message = "control characters in strings must be escaped"
		case "exceeded max depth":
			message = fmt.Sprintf("nested deeper than %d", MaxDepth)
		default:
			message = fmt.Sprintf("%q is not allowed here, %s", c, cmp.Or(jsonWords[after], after))
		}
	}
	line, column := position(data, at)
	return Fault{Line: line, Column: column, Message: message}
}

// jsonReader goes over the tokens of a valid document once and knows where it is.
type jsonReader struct {
	doc          *document
	data         []byte
	at           int // where the last token begins
	line, column int
	end          int // of the last token
}

// next is how the next token is written.
func (r *jsonReader) next() []byte {
	begin := r.end
	for strings.IndexByte(" \t\r\n,:", r.data[begin]) >= 0 {
		begin++
	}
	r.move(begin)
	switch r.end = begin + 1; r.data[begin] {
	case '{', '}', '[', ']':
	case '"':
		for ; r.data[r.end] != '"'; r.end++ {
			if r.data[r.end] == '\\' {
				r.end++
			}
		}
		r.end++
	default:
		for r.end < len(r.data) && strings.IndexByte(" \t\r\n,]}", r.data[r.end]) < 0 {
			r.end++
		}
	}
	return r.data[begin:r.end]
}

// move goes on to a place.
func (r *jsonReader) move(to int) {
	for ; r.at < to; r.at++ {
		switch b := r.data[r.at]; {
		case b == '\n':
			r.line, r.column = r.line+1, 1
		case utf8.RuneStart(b):
			r.column++
		}
	}
}

func (r *jsonReader) fail(format string, args ...any) bool {
	r.doc.fault(Fault{Line: r.line, Column: r.column, Message: fmt.Sprintf(format, args...)})
	return false
}

// value reads into n what begins with a token; false: there is no use in reading on.
func (r *jsonReader) value(n *Node, token []byte, depth int) (ok bool) {
	n.doc, n.Line, n.Column = r.doc, r.line, r.column
	if !r.doc.value(r.line, r.column) {
		return false
	}
	if depth > MaxDepth {
		return r.fail("nested deeper than %d", MaxDepth)
	}
	switch token[0] {
	case '{':
		n.kind, n.members = Object, make(map[string]*Node)
		for token = r.next(); token[0] != '}'; token = r.next() {
			m := &Node{doc: r.doc, parent: n, KeyLine: r.line, KeyColumn: r.column}
			if m.key, ok = r.text(token); !ok || !r.value(m, r.next(), depth+1) {
				return false
			}
			n.member(m)
		}
	case '[':
		n.kind = List
		for token = r.next(); token[0] != ']'; token = r.next() {
			item := &Node{parent: n, index: len(n.items)}
			if !r.value(item, token, depth+1) {
				return false
			}
			n.items = append(n.items, item)
		}
	case '"':
		n.kind = String
		n.text, ok = r.text(token)
		return ok
	case 't', 'f':
		n.kind, n.truth = Bool, token[0] == 't'
	case 'n':
	default:
		n.kind, n.text = Number, string(token)
	}
	return true
}

// text reads a string; false: it has half of a surrogate pair, which the library would replace.
func (r *jsonReader) text(token []byte) (text string, ok bool) {
	if bytes.IndexByte(token, '\\') < 0 {
		return string(token[1 : len(token)-1]), true
	}
	unit := func(i int) rune { // of the escape that begins there; 0: none does
		if i+6 > len(token) || token[i] != '\\' || token[i+1] != 'u' {
			return 0
		}
		u, _ := strconv.ParseUint(string(token[i+2:i+6]), 16, 16) // the document is valid
		return rune(u)
	}
	for i := 0; i < len(token); i++ {
		if token[i] != '\\' {
			continue
		}
		switch c := unit(i); {
		case !utf16.IsSurrogate(c):
			i++
		case utf16.DecodeRune(c, unit(i+6)) == utf8.RuneError:
			r.move(r.at + i + 6)
			return "", r.fail("half of a surrogate pair")
		default:
			i += 11
		}
	}
	err := json.Unmarshal(token, &text)
	return text, err == nil
}
