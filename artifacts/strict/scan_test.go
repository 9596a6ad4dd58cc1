package strict_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"testing"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// The scan sees the collections and values that the library sees: with their number as the limit it finds nothing, with one
// level less it finds the deepest.
func FuzzScan(f *testing.F) {
	for _, s := range scanned {
		f.Add([]byte(s))
	}
	f.Fuzz(check)
}

func check(t *testing.T, data []byte) {
	first, ok := library(data)
	if !ok {
		return
	}
	if fault := strict.Scan(data, 1<<20, 1<<20); fault != nil {
		if fault.Message != "keys must be strings" && fault.Message != "tags are not allowed" && fault.Message != "directives are not allowed" {
			t.Fatalf("%q has the fault %v", data, *fault)
		}
		return
	}
	m := &measure{lines: strings.Split(string(data), "\n")}
	m.node(first.Content[0], nil, 0)
	if m.unsure {
		return
	}
	if fault := strict.Scan(data, m.deepest, m.values); fault != nil {
		t.Errorf("%q has %d levels and %d values, the fault %v", data, m.deepest, m.values, *fault)
	}
	if m.deepest > 0 && strict.Scan(data, m.deepest-1, m.values) == nil {
		t.Errorf("%q has %d levels, of which not all are found", data, m.deepest)
	}
	if strict.Scan(data, m.deepest, m.values/2-1) == nil && m.values > 2 && !m.nulls {
		t.Errorf("%q has %d values, of which not half are found", data, m.values)
	}
}

// library is what the library reads a document of.
func library(data []byte) (first yaml.Node, ok bool) {
	if _, err := strict.YAML("f", data); err != nil && strings.Contains(err.Error(), "cannot be read") {
		return first, false // the library panics
	}
	var second yaml.Node
	d := yaml.NewDecoder(bytes.NewReader(data))
	ok = utf8.Valid(data) && !bytes.ContainsAny(data, ambiguous) && !strings.Contains(strings.ReplaceAll(string(data), "\r\n", ""), "\r") &&
		d.Decode(&first) == nil && errors.Is(d.Decode(&second), io.EOF)
	return first, ok
}

const ambiguous = "\u0085\u2028\u2029\ufeff"

// measure counts what the library made of a document.
type measure struct {
	lines           []string
	deepest, values int
	unsure, nulls   bool
}

func (m *measure) node(v, parent *yaml.Node, depth int) {
	m.values++
	if v.Kind == yaml.SequenceNode || v.Kind == yaml.MappingNode {
		flow, named := v.Style&yaml.FlowStyle != 0, v.Anchor != "" || v.Style&yaml.TaggedStyle != 0
		switch {
		case named:
			m.unsure = true // where it begins is where its name does
		case flow && !strings.ContainsRune("[{", []rune(m.lines[v.Line-1])[v.Column-1]): // [a: b]
		case !flow && v.Kind == yaml.SequenceNode && parent != nil && parent.Kind == yaml.MappingNode && parent.Column == v.Column:
			// "-" below its key
		default:
			depth++
		}
	}
	m.deepest = max(m.deepest, depth)
	for i, c := range v.Content {
		if v.Kind == yaml.MappingNode && i%2 == 0 {
			m.values-- // a key
			m.nulls = m.nulls || c.Kind == yaml.ScalarNode && c.Value == ""
		}
		m.node(c, v, depth)
	}
}

var scanned = []string{
	"a: 1\nb: [x, {y: z}]\n", "a: &x 1\nb: *x\n", "- |\n  x\n- >-\n  y\n", "{\"a\": \"\\u00e4\"}", "a: b\r\n\r\nc: 'd\n  e'\n", "? a\n: b\n", "a: !!str 1",
	"---\na: b\n...\n", "a:\n- b\n-\n- - c\n  -\n", "a:\n  b: |2+ # c\n\n      [[[\n   {{{\n  # [\n\nc: d\n", "- - - a: '[[[''[['\n", "[a: b, c d: [e], \"f\":g, {h, i: }]",
	"# [[[\na: b # [[[\n\t# [[[\n", "a: b c\n  [d] {e}\n  f#g\nh: i\n", "? - a\n  - b\n: c\n", "a: \"x\\\n  [[[\\\"[[\"\n", "- # c\n  - a\n -  b\n", "{a: b, c: , d}", "a: >\n\n\n  b\n",
	"&a a: &b\n  &c d: *a\n", "a: !x\n  b: !y [c]\n", "a:\nb:\nc:\n- d:\n  e:\n- f:\n", "--- |\n[[[\n", "--- a\n", "? a\n? b\n", "[{a: [b: {}]}, [],\n\n c\n d]\n", "[\n#\n?\n:\n]", "'a':\n \"b\": c",
}
