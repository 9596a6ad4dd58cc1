// Package emit writes YAML that every reader of YAML understands alike: block style, strings in double quotes where they
// could be taken for something else, nothing that a terminal obeys. The same value gives the same bytes.
//
// A value is nil, a bool, an int, int64 or uint64, a float64, a [json.Number], a string, a [Text], a list ([]any) or a mapping
// ([Object] in its order, map[string]any with its keys sorted).
package emit

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

// Object is a mapping with an order.
type Object []Member

// Member is a key of an [Object] and its value.
type Member struct {
	Key   string
	Value any
}

// Of is a mapping of keys, which are strings, and values in turn.
func Of(pairs ...any) Object {
	o := make(Object, 0, len(pairs)/2)
	for i := 0; i+1 < len(pairs); i += 2 {
		o = append(o, Member{fmt.Sprint(pairs[i]), pairs[i+1]})
	}
	return o
}

// Text is a string of several lines that people read: as a literal block where it can be.
type Text string

// Sorted is a mapping in the order of its keys.
func Sorted[V any, M ~map[string]V](m M) Object {
	o := make(Object, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		o = append(o, Member{k, m[k]})
	}
	return o
}

// Strings is a list of strings as a value.
func Strings(all []string) []any {
	out := make([]any, len(all))
	for i, s := range all {
		out[i] = s
	}
	return out
}

// YAML writes one document.
func YAML(v any) ([]byte, error) {
	w := &writer{}
	switch v := normal(v).(type) {
	case Object:
		if len(v) > 0 {
			w.object(v, 0)
			break
		}
		w.WriteString("{}\n")
	case []any:
		if len(v) > 0 {
			w.list(v, 0)
			break
		}
		w.WriteString("[]\n")
	default:
		w.WriteString(w.scalar(v) + "\n")
	}
	return w.Bytes(), w.err
}

// FromJSON is a JSON document as YAML, its members in the same order, its numbers without loss.
func FromJSON(document []byte) ([]byte, error) {
	d := json.NewDecoder(bytes.NewReader(document))
	d.UseNumber()
	v, err := ordered(d)
	if err == nil {
		if _, err = d.Token(); err == io.EOF {
			return YAML(v)
		}
		err = fmt.Errorf("%w: more than one JSON document", fault.ErrInvalid)
	}
	return nil, err
}

// ordered reads the next value.
func ordered(d *json.Decoder) (any, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t {
	case json.Delim('{'):
		o := Object{}
		for d.More() {
			key, err := d.Token()
			if err != nil {
				return nil, err
			}
			v, err := ordered(d)
			if err != nil {
				return nil, err
			}
			o = append(o, Member{fmt.Sprint(key), v})
		}
		_, err = d.Token()
		return o, err
	case json.Delim('['):
		list := []any{}
		for d.More() {
			v, err := ordered(d)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		_, err = d.Token()
		return list, err
	}
	return t, nil
}

type writer struct {
	bytes.Buffer
	err error
}

// normal gives every mapping one type.
func normal(v any) any {
	if m, ok := v.(map[string]any); ok {
		return Sorted(m)
	}
	return v
}

func (w *writer) indent(n int) {
	for range n {
		w.WriteByte(' ')
	}
}

// object writes members; the first one stands where the writer is.
func (w *writer) object(o Object, indent int) {
	for i, m := range o {
		if i > 0 {
			w.indent(indent)
		}
		w.WriteString(Word(m.Key) + ":")
		w.value(m.Value, indent)
	}
}

// list writes elements; the first one stands where the writer is.
func (w *writer) list(all []any, indent int) {
	for i, v := range all {
		if i > 0 {
			w.indent(indent)
		}
		w.WriteByte('-')
		switch v := normal(v).(type) {
		case Object:
			if len(v) > 0 {
				w.WriteByte(' ')
				w.object(v, indent+2)
				continue
			}
		case []any:
			if len(v) > 0 {
				w.WriteByte(' ')
				w.list(v, indent+2)
				continue
			}
		}
		w.value(v, indent)
	}
}

// value writes what follows a key or a dash, up to the end of its lines.
func (w *writer) value(v any, indent int) {
	switch v := normal(v).(type) {
	case Object:
		if len(v) == 0 {
			w.WriteString(" {}\n")
			return
		}
		w.WriteByte('\n')
		w.indent(indent + 2)
		w.object(v, indent+2)
	case []any:
		if len(v) == 0 {
			w.WriteString(" []\n")
			return
		}
		w.WriteByte('\n')
		w.indent(indent + 2)
		w.list(v, indent+2)
	case Text:
		w.text(string(v), indent)
	default:
		w.WriteString(" " + w.scalar(v) + "\n")
	}
}

// text writes a literal block where that says the same.
func (w *writer) text(s string, indent int) {
	body, ended := strings.CutSuffix(s, "\n")
	if !ended || body == "" || strings.HasPrefix(s, " ") || strings.HasPrefix(s, "\n") || strings.HasSuffix(body, "\n") ||
		!printable.Safe(s) || strings.ContainsAny(s, "\t"+unread) {
		w.WriteString(" " + Word(s) + "\n")
		return
	}
	w.WriteString(" |\n")
	for line := range strings.Lines(s) {
		if line != "\n" {
			w.indent(indent + 2)
		}
		w.WriteString(line)
	}
}

func (w *writer) scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return Word(v)
	case Text:
		return Word(string(v))
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case json.Number:
		return number(v.String())
	case float64:
		if b, err := json.Marshal(v); err == nil && !math.IsInf(v, 0) {
			return number(string(b))
		}
	}
	w.err = fmt.Errorf("a value of type %T: %w", v, fault.ErrInvalid)
	return "null"
}

// number is a number of JSON. YAML 1.1 reads 1e3 as text: it asks for a fraction, and for a sign of the exponent.
func number(s string) string {
	e := strings.IndexAny(s, "eE")
	if e < 0 {
		return s
	}
	mantissa, exponent := s[:e], s[e+1:]
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if !strings.HasPrefix(exponent, "-") && !strings.HasPrefix(exponent, "+") {
		exponent = "+" + exponent
	}
	return mantissa + "e" + exponent
}

// unread are characters that YAML readers skip or refuse: the byte order mark and what Unicode has no characters for.
const unread = "\ufeff\ufffe\uffff"

var escapeUnread = strings.NewReplacer("\ufeff", `\ufeff`, "\ufffe", `\ufffe`, "\uffff", `\uffff`)

// Word is a string: plain where that means nothing else to any reader, else in double quotes, with escapes that JSON and YAML
// share.
func Word(s string) string {
	plain := s != "" && (s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z' || s[0] == '/')
	for i := 0; plain && i < len(s); i++ {
		c := s[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_./@", c) >= 0 ||
			c == ':' && i+1 < len(s)
	}
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
		plain = false
	}
	if plain {
		return s
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil { // strings always encode
		return `""`
	}
	return escapeUnread.Replace(printable.Text(strings.TrimSuffix(b.String(), "\n")))
}
