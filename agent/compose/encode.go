package compose

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"regexp"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// copyOf is a tree that shares nothing with another, with paths that begin at a path.
func copyOf(n *node, path string) *node {
	left := maxNodes
	return copyWithin(n, path, &left)
}

// copyWithin stops copying, with left below zero, where a tree that shares its parts would grow too large.
func copyWithin(n *node, path string, left *int) *node {
	if *left--; *left < 0 || n == nil {
		return nil
	}
	c := *n
	c.path, c.reset = path, ""
	c.items, c.keys, c.fields = nil, nil, nil
	if n.kind == mapKind {
		c.fields = map[string]*node{}
	}
	for _, item := range n.items {
		if item.reset == resetTag {
			continue
		}
		if i := copyWithin(item, fmt.Sprintf("%s[%d]", path, len(c.items)), left); i != nil {
			c.items = append(c.items, i)
		}
	}
	for _, k := range n.keys {
		if n.fields[k].reset == resetTag {
			continue
		}
		if i := copyWithin(n.fields[k], join(path, k), left); i != nil {
			c.keys, c.fields[k] = append(c.keys, k), i
		}
	}
	return &c
}

// encode writes a tree as YAML, and reads it again: what a device will see is what was resolved.
func encode(root *node) ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := errors.Join(e.Encode(yamlNode(root)), e.Close()); err != nil {
		return nil, err
	}
	again, faults := parse(b.Bytes())
	if len(faults) > 0 {
		return nil, fmt.Errorf("line %d: %s: %w", faults[0].Line, faults[0].Message, fault.ErrTooLarge)
	}
	if !reflect.DeepEqual(plain(root), plain(again)) {
		return nil, fmt.Errorf("the result reads otherwise than what was resolved: %w", fault.ErrUnsupported)
	}
	return b.Bytes(), nil
}

// plain is a value as YAML decodes it.
func plain(n *node) any {
	switch n.kind {
	case mapKind:
		m := make(map[string]any, len(n.keys))
		for _, k := range n.keys {
			m[k] = plain(n.fields[k])
		}
		return m
	case listKind:
		l := make([]any, len(n.items))
		for i, item := range n.items {
			l[i] = plain(item)
		}
		return l
	}
	return n.value
}

func yamlNode(n *node) *yaml.Node {
	switch n.kind {
	case mapKind:
		y := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, k := range n.keys {
			y.Content = append(y.Content, textNode(k), yamlNode(n.fields[k]))
		}
		return y
	case listKind:
		y := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range n.items {
			y.Content = append(y.Content, yamlNode(item))
		}
		return y
	}
	y := textNode(n.str())
	switch n.value.(type) {
	case string:
		return y
	case nil:
		y.Tag, y.Value = "!!null", "null"
	case bool:
		y.Tag = "!!bool"
	case int, uint64:
		y.Tag = "!!int"
	case float64:
		y.Tag = "!!float"
	}
	y.Style = 0
	return y
}

func textNode(text string) *yaml.Node {
	y := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: text}
	if ambiguous.MatchString(text) {
		y.Style = yaml.DoubleQuotedStyle
	}
	return y
}

// ambiguous is text that only double quotes make the same to all readers of YAML: older ones take some words for a truth
// value, and some characters end a line or are skipped.
var ambiguous = regexp.MustCompile(`^(?i:y|n|yes|no|on|off)$|[\r\x{85}\x{2028}\x{2029}\x{feff}]`)
