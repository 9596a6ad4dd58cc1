package composefile

import (
	"bytes"
	"fmt"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Limits of a Compose file. Real files are far below them; a signature is no reason to trust a file's size.
const (
	maxFile  = 1 << 20 // bytes of compose.yaml
	maxDepth = 32      // nesting, aliases expanded; Compose itself needs 8
	maxNodes = 50_000  // nodes, aliases expanded: stops "billion laughs"
)

type Kind int

const (
	Scalar Kind = iota
	Map
	List
)

// Node is one value of the file with aliases and merge keys expanded, so that the checked value is the translated one.
type Node struct {
	Kind   Kind
	File   string // "": the document's
	Path   string
	Line   int // of the key when there is one, else of the value
	Column int
	Keys   []string // mapKind, in order of the file
	Fields map[string]*Node
	Items  []*Node
	Value  any    // scalarKind: nil, bool, int, uint64, float64 or string
	Raw    string // scalarKind: as written
	reset  string // resetTag or overrideTag, of a file as it was read when packing
}

// Tags of a value that replaces that of files below it, and of what it extends or includes, instead of being merged; a reset value is also
// removed itself. They are resolved when a component is packed.
const (
	resetTag    = "!reset"
	overrideTag = "!override"
)

// Get follows keys down; nil when there is nothing.
func (n *Node) Get(keys ...string) *Node {
	for _, k := range keys {
		if n == nil || n.Kind != Map {
			return nil
		}
		n = n.Fields[k]
	}
	return n
}

// Drop removes a field, so that later steps do not report a refused one again.
func (n *Node) Drop(key string) {
	delete(n.Fields, key)
	for i, k := range n.Keys {
		if k == key {
			n.Keys = append(n.Keys[:i:i], n.Keys[i+1:]...)
			return
		}
	}
}

// IsNull reports whether there is no value.
func (n *Node) IsNull() bool { return n == nil || n.Kind == Scalar && n.Value == nil }

// Text is the text of a scalar; numbers and booleans as they were written.
func (n *Node) Text() string {
	if n == nil || n.Kind != Scalar || n.Value == nil {
		return ""
	}
	if s, ok := n.Value.(string); ok {
		return s
	}
	return n.Raw
}

// Nearest is the deepest node on a dotted path, for messages that have a path only.
func (n *Node) Nearest(path string) *Node {
	for rest := path; rest != ""; {
		var next *Node
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

func (n *Node) child(key string) *Node {
	switch n.Kind {
	case Map:
		return n.Fields[key]
	case List:
		if i, err := strconv.Atoi(strings.Trim(key, "[]")); err == nil && i >= 0 && i < len(n.Items) {
			return n.Items[i]
		}
	}
	return nil
}

// parser reads bytes as a tree and collects faults.
type parser struct {
	file    string // of every node and fault; "": the document's
	layers  bool   // tags that say how one file is laid over another are allowed
	layered bool   // there were some
	faults  []strict.Fault
	nodes   int
}

// parse reads one YAML document with the parser that compose-go uses.
func parse(data []byte) (*Node, []strict.Fault) {
	p := &parser{}
	return p.parse(data)
}

func (p *parser) parse(data []byte) (*Node, []strict.Fault) {
	root, faults := p.document(data)
	for i := range faults {
		faults[i].File = p.file
	}
	return root, faults
}

func (p *parser) document(data []byte) (*Node, []strict.Fault) {
	whole := func(format string, args ...any) (*Node, []strict.Fault) {
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
	top, faults := strict.Document(data)
	switch {
	case len(faults) > 0:
		return nil, faults
	case top == nil:
		return whole("empty")
	}
	root := p.build(top, "", 0, false)
	if p.nodes > maxNodes {
		return whole("more than %d values once aliases are expanded", maxNodes)
	}
	if len(p.faults) == 0 && (root == nil || root.Kind != Map) {
		return whole("must be a mapping with \"services\"")
	}
	return root, p.faults
}

func (p *parser) fault(y *yaml.Node, path, format string, args ...any) {
	p.faults = append(p.faults, strict.Fault{Line: y.Line, Column: y.Column, Path: path, Message: fmt.Sprintf(format, args...)})
}

// build returns nil for a fault. ext: the value is part of an extension, where every key is allowed.
func (p *parser) build(y *yaml.Node, path string, depth int, ext bool) *Node {
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
	n := &Node{File: p.file, Path: path, Line: y.Line, Column: y.Column}
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
		n.Kind, n.Fields = Map, map[string]*Node{}
		p.mapping(n, y, depth, ext)
	case yaml.SequenceNode:
		n.Kind = List
		for i, item := range y.Content {
			if c := p.build(item, fmt.Sprintf("%s[%d]", path, i), depth+1, ext); c != nil {
				n.Items = append(n.Items, c)
			}
		}
	default:
		n.Raw = y.Value
		if !p.scalar(n, y) {
			return nil
		}
	}
	return n
}

func (p *parser) scalar(n *Node, y *yaml.Node) bool {
	if tag := y.ShortTag(); tag == "!!str" || tag == "!!timestamp" {
		n.Value = y.Value
		return true
	}
	if err := y.Decode(&n.Value); err != nil {
		p.fault(y, n.Path, "%s", strings.TrimPrefix(err.Error(), "yaml: "))
		return false
	}
	switch v := n.Value.(type) {
	case nil, bool, int, uint64, float64, string:
	case int64: // where int has 32 bits
		n.Value = float64(v)
	default:
		p.fault(y, n.Path, "a value of type %T is not possible here", v)
		return false
	}
	return true
}

func (p *parser) mapping(n *Node, y *yaml.Node, depth int, ext bool) {
	var merges []*yaml.Node
	seen := map[string]int{}
	for i := 0; i+1 < len(y.Content); i += 2 {
		k, v := y.Content[i], y.Content[i+1]
		if k.Kind == yaml.AliasNode {
			k = k.Alias
		}
		if k.Kind != yaml.ScalarNode {
			p.fault(k, n.Path, "keys must be plain text")
			continue
		}
		path := k.Value
		if n.Path != "" {
			path = n.Path + "." + k.Value
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
			c.Line, c.Column = k.Line, k.Column
			n.Keys, n.Fields[k.Value] = append(n.Keys, k.Value), c
		}
	}
	for _, m := range merges {
		p.merge(n, m, depth, ext)
	}
}

// merge copies the keys of "<<" that the mapping does not have; of several sources the first wins.
func (p *parser) merge(n *Node, y *yaml.Node, depth int, ext bool) {
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
		from := p.build(y, n.Path, depth+1, ext)
		if from == nil {
			return
		}
		for _, k := range from.Keys {
			if _, ok := n.Fields[k]; !ok {
				n.Keys, n.Fields[k] = append(n.Keys, k), from.Fields[k]
			}
		}
	default:
		p.fault(y, n.Path, "\"<<\" needs a mapping")
	}
}
