package composefile

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// copyOf is a deep copy of a tree, with paths that begin at a path.
func copyOf(n *Node, path string) *Node {
	left := maxNodes
	return copyWithin(n, path, &left)
}

// copyWithin stops with left below zero when a tree that shares its parts would become too large.
func copyWithin(n *Node, path string, left *int) *Node {
	if *left--; *left < 0 || n == nil {
		return nil
	}
	c := *n
	c.Path, c.reset = path, ""
	c.Items, c.Keys, c.Fields = nil, nil, nil
	if n.Kind == Map {
		c.Fields = map[string]*Node{}
	}
	for _, item := range n.Items {
		if item.reset == resetTag {
			continue
		}
		if i := copyWithin(item, fmt.Sprintf("%s[%d]", path, len(c.Items)), left); i != nil {
			c.Items = append(c.Items, i)
		}
	}
	for _, k := range n.Keys {
		if n.Fields[k].reset == resetTag {
			continue
		}
		if i := copyWithin(n.Fields[k], join(path, k), left); i != nil {
			c.Keys, c.Fields[k] = append(c.Keys, k), i
		}
	}
	return &c
}

// encode writes a tree as YAML, and reads it again to check that a device will read what was resolved.
func encode(root *Node) ([]byte, error) {
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
		return nil, fmt.Errorf("the result does not read as what was resolved: %w", fault.ErrUnsupported)
	}
	return b.Bytes(), nil
}

// plain is a value as YAML decodes it.
func plain(n *Node) any {
	switch n.Kind {
	case Map:
		m := make(map[string]any, len(n.Keys))
		for _, k := range n.Keys {
			m[k] = plain(n.Fields[k])
		}
		return m
	case List:
		l := make([]any, len(n.Items))
		for i, item := range n.Items {
			l[i] = plain(item)
		}
		return l
	}
	return n.Value
}

func yamlNode(n *Node) *yaml.Node {
	switch n.Kind {
	case Map:
		y := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		for _, k := range n.Keys {
			y.Content = append(y.Content, textNode(k), yamlNode(n.Fields[k]))
		}
		return y
	case List:
		y := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, item := range n.Items {
			y.Content = append(y.Content, yamlNode(item))
		}
		return y
	}
	y := textNode(n.Text())
	switch n.Value.(type) {
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

// ambiguous is text that needs double quotes to be the same for all readers of YAML: older ones read some words as booleans, and some
// characters end a line or are skipped.
var ambiguous = strict.Expression(`^(?i:y|n|yes|no|on|off)$|[\r\x{85}\x{2028}\x{2029}\x{feff}]`)

func join(pattern, key string) string {
	if pattern == "" {
		return key
	}
	return pattern + "." + key
}
