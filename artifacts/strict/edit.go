package strict

import (
	"bytes"
	"fmt"
	"slices"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Tree is a YAML document that is changed and written again. What is not changed keeps its order, its comments and its style;
// spaces and line breaks inside a line may differ.
//
// A path leads from the root to a value: a string is the key of a member, an int is the index of a list element.
type Tree struct {
	document yaml.Node
	spaced   map[string]bool // members of the root with an empty line above
}

// Field is a key of a mapping and its value.
type Field struct{ Key, Value string }

// EditYAML reads a document to be changed. It refuses what [YAML] refuses.
func EditYAML(file string, data []byte) (*Tree, error) {
	if _, err := YAML(file, data); err != nil {
		return nil, err
	}
	t := &Tree{spaced: map[string]bool{}}
	if err := yaml.Unmarshal(data, &t.document); err != nil {
		return nil, fmt.Errorf("%s: %w: %w", file, fault.ErrInvalid, err)
	}
	t.spaces(data, func(key string, lines [][]byte, above int) {
		t.spaced[key] = above > 0 && len(bytes.TrimSpace(lines[above-1])) == 0
	})
	return t, nil
}

// spaces calls found for each member of the root: above is the index of the line with which it begins, with its comment.
func (t *Tree) spaces(data []byte, found func(key string, lines [][]byte, above int)) {
	var document yaml.Node
	if err := yaml.Unmarshal(data, &document); err != nil || len(document.Content) == 0 || document.Content[0].Style&yaml.FlowStyle != 0 {
		return
	}
	lines := bytes.Split(data, []byte("\n"))
	members := document.Content[0].Content
	for i := 0; i+1 < len(members); i += 2 {
		above := members[i].Line - 1
		for above > 0 && bytes.HasPrefix(lines[above-1], []byte("#")) {
			above--
		}
		found(members[i].Value, lines, above)
	}
}

// Bytes writes the document, indented by two spaces.
func (t *Tree) Bytes() ([]byte, error) {
	var b bytes.Buffer
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(&t.document); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	if err := e.Close(); err != nil {
		return nil, fmt.Errorf("write YAML: %w", err)
	}
	var out [][]byte
	from := 0
	t.spaces(b.Bytes(), func(key string, lines [][]byte, above int) {
		if out = append(out, lines[from:above]...); t.spaced[key] && above > 0 && len(lines[above-1]) > 0 {
			out = append(out, nil)
		}
		from = above
	})
	out = append(out, bytes.Split(b.Bytes(), []byte("\n"))[from:]...)
	return bytes.Join(out, []byte("\n")), nil
}

// at finds a value; nil: it is not there.
func (t *Tree) at(path []any) *yaml.Node {
	n := t.document.Content[0]
	for _, step := range path {
		switch s := step.(type) {
		case string:
			i := member(n, s)
			if i < 0 {
				return nil
			}
			n = n.Content[i+1]
		case int:
			if n.Kind != yaml.SequenceNode || s < 0 || s >= len(n.Content) {
				return nil
			}
			n = n.Content[s]
		default:
			return nil
		}
	}
	return n
}

// member is the index of a key of a mapping; -1: it is not there.
func member(n *yaml.Node, key string) int {
	if n.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// Set gives the member of a mapping a number. A member that is not there is added.
func (t *Tree) Set(number uint64, path ...any) error {
	n := &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: fmt.Sprint(number)}
	if old := t.at(path); old != nil {
		n.HeadComment, n.LineComment, n.FootComment = old.HeadComment, old.LineComment, old.FootComment
		*old = *n
		return nil
	}
	return t.put(n, path)
}

// put adds the member that ends the path.
func (t *Tree) put(n *yaml.Node, path []any) error {
	last := len(path) - 1
	key, ok := path[last].(string)
	parent := t.at(path[:last])
	if !ok || parent == nil || parent.Kind != yaml.MappingNode {
		return fmt.Errorf("YAML member %v: %w", path, fault.ErrNotFound)
	}
	if i := member(parent, key); i >= 0 { // empty
		parent.Content[i+1] = n
		return nil
	}
	parent.Content = append(parent.Content, text(key), n)
	return nil
}

// text is a string as a value, of several lines as a literal block.
func text(s string) *yaml.Node {
	n := &yaml.Node{}
	n.SetString(s)
	return n
}

// Append adds a string to the list at a path. A list that is not there is added.
func (t *Tree) Append(value string, path ...any) error { return t.push(text(value), path) }

// AppendFields adds a mapping to the list at a path. A list that is not there is added.
func (t *Tree) AppendFields(fields []Field, path ...any) error {
	n := &yaml.Node{Kind: yaml.MappingNode}
	for _, f := range fields {
		n.Content = append(n.Content, text(f.Key), text(f.Value))
	}
	return t.push(n, path)
}

func (t *Tree) push(n *yaml.Node, path []any) error {
	list := t.at(path)
	if list == nil || list.Kind == yaml.ScalarNode && list.ShortTag() == "!!null" {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		if err := t.put(list, path); err != nil {
			return err
		}
	}
	if list.Kind != yaml.SequenceNode {
		return fmt.Errorf("YAML list %v: %w", path, fault.ErrNotFound)
	}
	list.Content = append(list.Content, n)
	return nil
}

// Remove takes away a member of a mapping or an element of a list, with its comments. What is not there is no error.
func (t *Tree) Remove(path ...any) {
	parent := t.at(path[:len(path)-1])
	if parent == nil {
		return
	}
	switch last := path[len(path)-1].(type) {
	case string:
		if i := member(parent, last); i >= 0 {
			parent.Content = slices.Delete(parent.Content, i, i+2)
		}
	case int:
		if parent.Kind == yaml.SequenceNode && last >= 0 && last < len(parent.Content) {
			parent.Content = slices.Delete(parent.Content, last, last+1)
		}
	}
}
