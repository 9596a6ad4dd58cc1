package compose

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Limits on what a Compose file may cost. Real files are far below them; a signed file is no reason to trust its size.
const (
	maxFile  = 1 << 20 // bytes of compose.yaml
	maxDepth = 32      // nesting, aliases expanded; Compose itself needs 8
	maxNodes = 50_000  // nodes, aliases expanded: stops "billion laughs"
)

type kind int

const (
	scalarKind kind = iota
	mapKind
	listKind
)

// node is one value of the file with aliases and merge keys expanded, so that what was checked is what is translated.
type node struct {
	kind   kind
	file   string // "": the document's
	path   string
	line   int // of the key when there is one, else of the value
	column int
	keys   []string // mapKind, in order of the file
	fields map[string]*node
	items  []*node
	value  any    // scalarKind: nil, bool, int, uint64, float64 or string
	text   string // scalarKind: as written
	reset  string // resetTag or overrideTag, of a file as it was read when packing
}

// Tags of a value in place of which files below it, and what it extends or includes, are to have nothing. One that is reset
// is nothing itself. They are resolved when a component is packed.
const (
	resetTag    = "!reset"
	overrideTag = "!override"
)

// get follows keys down; nil when there is nothing.
func (n *node) get(keys ...string) *node {
	for _, k := range keys {
		if n == nil || n.kind != mapKind {
			return nil
		}
		n = n.fields[k]
	}
	return n
}

// drop forgets a field, so that later steps do not stumble over what has been refused.
func (n *node) drop(key string) {
	delete(n.fields, key)
	for i, k := range n.keys {
		if k == key {
			n.keys = append(n.keys[:i:i], n.keys[i+1:]...)
			return
		}
	}
}

// isNull reports whether there is no value.
func (n *node) isNull() bool { return n == nil || n.kind == scalarKind && n.value == nil }

// str is the text of a scalar; numbers and booleans as they were written.
func (n *node) str() string {
	if n == nil || n.kind != scalarKind || n.value == nil {
		return ""
	}
	if s, ok := n.value.(string); ok {
		return s
	}
	return n.text
}

// nearest is the deepest node on a dotted path, for messages of a library that knows no positions.
func (n *node) nearest(path string) *node {
	for rest := path; rest != ""; {
		var next *node
		var used int
		for end := len(rest); end > 0; end = strings.LastIndexByte(rest[:end], '.') {
			next, used = n.child(rest[:end]), end
			if next != nil {
				break
			}
		}
		if next == nil {
			return n
		}
		n, rest = next, strings.TrimPrefix(rest[used:], ".")
	}
	return n
}

func (n *node) child(key string) *node {
	switch n.kind {
	case mapKind:
		return n.fields[key]
	case listKind:
		if i, err := strconv.Atoi(strings.Trim(key, "[]")); err == nil && i >= 0 && i < len(n.items) {
			return n.items[i]
		}
	}
	return nil
}

// parser turns bytes into a tree and collects what is wrong with them.
type parser struct {
	file    string // of every node and fault; "": the document's
	layers  bool   // tags that say how one file is laid over another are allowed
	layered bool   // there were some
	faults  []strict.Fault
	nodes   int
}

// parse reads one YAML document with the parser that compose-go uses.
func parse(data []byte) (*node, []strict.Fault) {
	p := &parser{}
	return p.parse(data)
}

func (p *parser) parse(data []byte) (*node, []strict.Fault) {
	root, faults := p.document(data)
	for i := range faults {
		faults[i].File = p.file
	}
	return root, faults
}

func (p *parser) document(data []byte) (*node, []strict.Fault) {
	whole := func(format string, args ...any) (*node, []strict.Fault) {
		return nil, []strict.Fault{{Line: 1, Column: 1, Message: fmt.Sprintf(format, args...)}}
	}
	switch {
	case len(data) > maxFile:
		return whole("larger than %d bytes", maxFile)
	case !utf8.Valid(data):
		return whole("not UTF-8")
	case len(bytes.TrimSpace(data)) == 0:
		return whole("empty")
	}
	if faults := strict.CheckYAML(data); len(faults) > 0 {
		return nil, faults
	}
	var doc, second yaml.Node
	dec := yaml.NewDecoder(bytes.NewReader(data))
	switch err := dec.Decode(&doc); {
	case errors.Is(err, io.EOF): // comments alone
		return whole("empty")
	case err != nil:
		return nil, []strict.Fault{strict.SyntaxFault(data, err)}
	}
	switch err := dec.Decode(&second); {
	case err == nil:
		return nil, []strict.Fault{{Line: max(second.Line, 1), Column: max(second.Column, 1), Message: "a second document: a Compose file is one document"}}
	case !errors.Is(err, io.EOF):
		return nil, []strict.Fault{strict.SyntaxFault(data, err)}
	}
	if doc.Kind != yaml.DocumentNode || len(doc.Content) != 1 {
		return whole("empty")
	}
	root := p.build(doc.Content[0], "", 0, false)
	if p.nodes > maxNodes {
		return whole("more than %d values once aliases are expanded", maxNodes)
	}
	if len(p.faults) == 0 && (root == nil || root.kind != mapKind) {
		return whole("must be a mapping with \"services\"")
	}
	return root, p.faults
}

func (p *parser) fault(y *yaml.Node, path, format string, args ...any) {
	p.faults = append(p.faults, strict.Fault{Line: y.Line, Column: y.Column, Path: path, Message: fmt.Sprintf(format, args...)})
}

// build returns nil for what it reported. ext: only an extension is read, where anything goes.
func (p *parser) build(y *yaml.Node, path string, depth int, ext bool) *node {
	if p.nodes++; p.nodes > maxNodes {
		return nil
	}
	if depth > maxDepth {
		p.fault(y, path, "nested deeper than %d, or an alias that holds itself", maxDepth)
		return nil
	}
	if y.Kind == yaml.AliasNode {
		return p.build(y.Alias, path, depth+1, ext)
	}
	n := &node{file: p.file, path: path, line: y.Line, column: y.Column}
	switch tag := y.ShortTag(); tag {
	case "!!map", "!!seq", "!!str", "!!int", "!!float", "!!bool", "!!null", "!!timestamp":
	case resetTag, overrideTag:
		if !p.layers {
			p.fault(y, path, "tag %s is not possible in a released file", tag)
			return nil
		}
		n.reset, p.layered = tag, true
		plain := *y
		plain.Tag = ""
		y = &plain
	default:
		p.fault(y, path, "tag %s is not possible in a released file", tag)
		return nil
	}
	switch y.Kind {
	case yaml.MappingNode:
		n.kind, n.fields = mapKind, map[string]*node{}
		p.mapping(n, y, depth, ext)
	case yaml.SequenceNode:
		n.kind = listKind
		for i, item := range y.Content {
			if c := p.build(item, fmt.Sprintf("%s[%d]", path, i), depth+1, ext); c != nil {
				n.items = append(n.items, c)
			}
		}
	default:
		n.text = y.Value
		if !p.scalar(n, y) {
			return nil
		}
	}
	return n
}

func (p *parser) scalar(n *node, y *yaml.Node) bool {
	if tag := y.ShortTag(); tag == "!!str" || tag == "!!timestamp" {
		n.value = y.Value
		return true
	}
	if err := y.Decode(&n.value); err != nil {
		p.fault(y, n.path, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return false
	}
	switch v := n.value.(type) {
	case nil, bool, int, uint64, float64, string:
	case int64: // where int has 32 bits
		n.value = float64(v)
	default:
		p.fault(y, n.path, "a value of type %T is not possible here", v)
		return false
	}
	return true
}

func (p *parser) mapping(n *node, y *yaml.Node, depth int, ext bool) {
	var merges []*yaml.Node
	seen := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode {
			p.fault(k, n.path, "keys must be plain text")
			continue
		}
		path := k.Value
		if n.path != "" {
			path = n.path + "." + k.Value
		}
		if line, ok := seen[k.Value]; ok {
			p.fault(k, path, "written twice, first on line %d", line)
			continue
		}
		seen[k.Value] = k.Line
		if k.ShortTag() == "!!merge" {
			merges = append(merges, v)
			continue
		}
		if tag := k.ShortTag(); tag != "!!str" && !ext {
			p.fault(k, path, "the key is not text: write it in quotes")
			continue
		}
		if c := p.build(v, path, depth+1, ext || strings.HasPrefix(k.Value, "x-")); c != nil {
			c.line, c.column = k.Line, k.Column
			n.keys, n.fields[k.Value] = append(n.keys, k.Value), c
		}
	}
	for _, m := range merges {
		p.merge(n, m, depth, ext)
	}
}

// merge copies what "<<" names, where the mapping itself says nothing; of several sources the first wins.
func (p *parser) merge(n *node, y *yaml.Node, depth int, ext bool) {
	if depth > maxDepth || p.nodes > maxNodes {
		return
	}
	if y.Kind == yaml.AliasNode {
		y = y.Alias
	}
	switch y.Kind {
	case yaml.SequenceNode:
		for _, item := range y.Content {
			p.merge(n, item, depth+1, ext)
		}
	case yaml.MappingNode:
		from := p.build(y, n.path, depth+1, ext)
		if from == nil {
			return
		}
		for _, k := range from.keys {
			if _, ok := n.fields[k]; !ok {
				n.keys, n.fields[k] = append(n.keys, k), from.fields[k]
			}
		}
	default:
		p.fault(y, n.path, "\"<<\" needs a mapping")
	}
}
