package strict

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"time"
	"unicode/utf8"
)

// Node is one value of a document. A nil Node is a value that is not there.
type Node struct {
	doc    *document
	parent *Node
	key    string // in an Object
	index  int    // in a List
	kind   Kind

	Line, Column       int // where the value begins, from 1, in characters
	KeyLine, KeyColumn int // where the member's key begins; 0 when the value is no member

	text    string // String: the value; Number: as JSON would write it
	truth   bool
	items   []*Node          // List: elements; Object: members in order
	members map[string]*Node // Object
	asked   map[string]bool  // Object: keys that a reader knows
}

type document struct {
	file    string
	yaml    bool
	values  int
	faults  []Fault
	dropped int
}

const (
	markMessage = "begins with a byte order mark"
	markHint    = "save the file as UTF-8 without a byte order mark"
)

// open starts a document with the checks that come before reading; its err reports whether there is use in reading on.
func open(file string, data []byte, yaml bool, limit int) *document {
	d := &document{file: file, yaml: yaml}
	switch bad := invalidUTF8(data); {
	case len(data) > limit:
		d.fault(Fault{Message: fmt.Sprintf("has %d bytes, more than the %d that are allowed", len(data), limit)})
	case bad >= 0:
		line, column := position(data, bad)
		d.fault(Fault{Line: line, Column: column, Message: "is not UTF-8 text"})
	case bytes.HasPrefix(data, []byte("\ufeff")):
		d.fault(Fault{Line: 1, Column: 1, Message: markMessage, Hint: markHint})
	case len(bytes.TrimSpace(data)) == 0:
		d.fault(Fault{Message: "is empty"})
	}
	return d
}

// value takes a node into account; false when there are too many of them.
func (d *document) value(line, column int) bool {
	d.values++
	if d.values == maxValues+1 {
		d.fault(Fault{Line: line, Column: column, Message: fmt.Sprintf("more than %d values", maxValues)})
	}
	return d.values <= maxValues
}

// member adds m to the object n; a key that is there already is a fault.
func (n *Node) member(m *Node) {
	if first := n.members[m.key]; first != nil {
		m.keyFaultf("duplicate key, first at line %d", first.KeyLine)
		return
	}
	n.members[m.key] = m
	n.items = append(n.items, m)
}

func invalidUTF8(data []byte) int {
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		if r == utf8.RuneError && size == 1 {
			return i
		}
		i += size
	}
	return -1
}

// position counts lines and characters up to a byte.
func position(data []byte, offset int) (line, column int) {
	before := data[:offset]
	return 1 + bytes.Count(before, []byte("\n")), 1 + utf8.RuneCount(before[bytes.LastIndexByte(before, '\n')+1:])
}

// Kind of the value; Null when it is not there.
func (n *Node) Kind() Kind {
	if n == nil {
		return Null
	}
	return n.kind
}

// Key is the member's name when the value is a member of an object.
func (n *Node) Key() string {
	if n == nil {
		return ""
	}
	return n.key
}

// Path leads from the root to the value: "spec.components[0].name". The root's is "".
func (n *Node) Path() string {
	if n == nil || n.parent == nil {
		return ""
	}
	p := n.parent.Path()
	if n.parent.kind == List {
		return p + "[" + strconv.Itoa(n.index) + "]"
	}
	if p == "" {
		return n.key
	}
	return p + "." + n.key
}

// Faultf records that something is wrong with the value.
func (n *Node) Faultf(format string, args ...any) { n.HintFaultf("", format, args...) }

// HintFaultf records that something is wrong with the value, and what a person can do.
func (n *Node) HintFaultf(hint, format string, args ...any) {
	if n == nil {
		return
	}
	n.fault(Fault{Line: n.Line, Column: n.Column, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// keyFaultf records that something is wrong with the member as such.
func (n *Node) keyFaultf(format string, args ...any) {
	n.fault(Fault{Line: n.KeyLine, Column: n.KeyColumn, Message: fmt.Sprintf(format, args...)})
}

// fault records f with the value's path. That may be as long as the document, and is not made for faults that are only counted.
func (n *Node) fault(f Fault) {
	if n.kind != Object && n.kind != List && n.doc.faulty(f) {
		return // what cannot be read is not also out of range
	}
	same := func(other Fault) bool {
		other.Path = ""
		return other == f
	}
	if !n.doc.full() || slices.ContainsFunc(n.doc.faults, same) {
		f.Path = n.Path()
	}
	n.doc.fault(f)
}

// faulty reports whether there is a fault at this place already.
func (d *document) faulty(f Fault) bool {
	return slices.ContainsFunc(d.faults, func(o Fault) bool { return o.Line == f.Line && o.Column == f.Column && o.Missing == "" })
}

func (d *document) fault(f Fault) {
	if slices.Contains(d.faults, f) {
		return // a value of the wrong kind is asked for several members, and has one fault
	}
	if d.full() {
		d.dropped++
		return
	}
	d.faults = append(d.faults, f)
}

// full reports whether further faults are only counted.
func (d *document) full() bool { return len(d.faults) >= maxFaults }

// Err is everything recorded so far on the value's document, as an *[Error] in order of position; nil when nothing is.
func (n *Node) Err() error {
	if n == nil {
		return nil
	}
	return n.doc.err()
}

// Result is v, read from a document, or what Err says of the document.
func Result[T any](root *Node, v T) (T, error) {
	if err := root.Err(); err != nil {
		var none T
		return none, err
	}
	return v, nil
}

func (d *document) err() error {
	if len(d.faults) == 0 {
		return nil
	}
	e := &Error{File: d.file, Faults: append([]Fault(nil), d.faults...)}
	e.sort()
	if d.dropped > 0 {
		e.Faults = append(e.Faults, Fault{Message: fmt.Sprintf("and %d more faults", d.dropped)})
	}
	return e
}

func (n *Node) is(k Kind) bool {
	if n == nil {
		return false
	}
	if n.kind == k {
		return true
	}
	hint := ""
	if k == String && n.doc.yaml && (n.kind == Number || n.kind == Bool) {
		hint = "put the value in quotes"
	}
	n.HintFaultf(hint, "must be %s, is %s", k, n.kind)
	return false
}

// Get returns a member that may be missing: nil when it is, and also when it is left empty in YAML ("key:").
func (n *Node) Get(key string) *Node {
	if n == nil || n.kind != Object && !n.is(Object) {
		return nil
	}
	n.ask(key)
	m := n.members[key]
	if m != nil && m.kind == Null && n.doc.yaml {
		return nil
	}
	return m
}

// Need returns a member that must be there. When it is not, that is recorded, and the result is nil.
func (n *Node) Need(key string) *Node {
	if n == nil || n.kind != Object && !n.is(Object) {
		return nil
	}
	n.ask(key)
	m := n.members[key]
	if m == nil {
		n.fault(Fault{Line: n.Line, Column: n.Column, Message: key + " is missing", Missing: key})
	}
	return m
}

func (n *Node) ask(key string) {
	if n.asked == nil {
		n.asked = make(map[string]bool)
	}
	n.asked[key] = true
}

// Members are the members of an object in their order. They stay unknown to [Node.Close] until asked for.
func (n *Node) Members() []*Node {
	if !n.is(Object) {
		return nil
	}
	return n.items
}

// Texts is an object of strings; nil where there is none.
func (n *Node) Texts() map[string]string {
	if n == nil {
		return nil
	}
	out := make(map[string]string)
	for _, m := range n.Members() {
		out[m.Key()] = m.Text()
	}
	return out
}

// Items are the elements of a list.
func (n *Node) Items() []*Node {
	if !n.is(List) {
		return nil
	}
	return n.items
}

// Close records every member of an object that no Get or Need asked for and that known, which may be nil, does not know.
func (n *Node) Close(known ...func(key string) bool) {
	if n == nil || n.kind != Object {
		return
	}
next:
	for _, m := range n.items {
		if n.asked[m.key] {
			continue
		}
		for _, k := range known {
			if k(m.key) {
				continue next
			}
		}
		if n.doc.full() {
			m.keyFaultf("unknown key") // counted; to look for what was meant takes time
		} else if near := Nearest(m.key, slices.Sorted(maps.Keys(n.asked))); near != "" {
			n.doc.faults = slices.DeleteFunc(n.doc.faults, func(f Fault) bool { // it is there, under another name
				return f.Missing == near && f.Line == n.Line && f.Column == n.Column && f.Path == n.Path()
			})
			m.keyFaultf("unknown key, did you mean %q?", near)
		} else {
			m.keyFaultf("unknown key")
		}
	}
}

// Text is a string.
func (n *Node) Text() string {
	if !n.is(String) {
		return ""
	}
	return n.text
}

// Bool is a boolean.
func (n *Node) Bool() bool { return n.is(Bool) && n.truth }

// Filled is a string that must not be empty.
func (n *Node) Filled() string {
	s := n.Text()
	if n.Kind() == String && s == "" {
		n.Faultf("must not be empty")
	}
	return s
}

// Matching is a string that p must match; what says in words what is asked for.
func (n *Node) Matching(p Pattern, what string) string {
	s := n.Text()
	if n.Kind() == String && !p.MatchString(s) {
		n.Faultf("%s is not %s", quoted(s), what)
	}
	return s
}

// OneOf is a string out of a closed set.
func (n *Node) OneOf(values ...string) string {
	s := n.Text()
	if n.Kind() != String {
		return s
	}
	if slices.Contains(values, s) {
		return s
	}
	if near := Nearest(s, values); near != "" {
		n.Faultf("%s is none of %s, did you mean %q?", quoted(s), list(values), near)
	} else {
		n.Faultf("%s is none of %s", quoted(s), list(values))
	}
	return s
}

// Strings is a list of strings; nil when it is not there.
func (n *Node) Strings() []string {
	items := n.Items()
	if items == nil {
		return nil
	}
	out := make([]string, 0, len(items))
	for _, i := range items {
		out = append(out, i.Text())
	}
	return out
}

// Duration is a string like "1m30s" or "7d", not negative; see [ParseDuration].
func (n *Node) Duration() time.Duration {
	s := n.Text()
	if n.Kind() != String {
		return 0
	}
	d, err := ParseDuration(s)
	if err != nil || d < 0 || s[0] == '+' || s[0] == '.' {
		n.HintFaultf(`write it like "90s", "1m30s" or "7d"`, "%s is no duration", quoted(s))
		return 0
	}
	return d
}
