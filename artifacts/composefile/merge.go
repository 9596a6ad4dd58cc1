package composefile

import (
	"errors"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/override"
	"github.com/compose-spec/compose-go/v2/tree"
)

// maxMerged bounds the values of all merges of one project together: services that extend one another repeat them.
const maxMerged = 20 * maxNodes

// removeTagged is base without the values that have a !reset or !override tag in the file that is merged over it. It changes neither.
func removeTagged(base, tags *Node) *Node {
	if base == nil || tags == nil || base.Kind != Map || tags.Kind != Map {
		return base
	}
	out := *base
	out.Keys, out.Fields = nil, make(map[string]*Node, len(base.Keys))
	for _, k := range base.Keys {
		if t := tags.Fields[k]; t == nil || t.reset == "" {
			out.Keys, out.Fields[k] = append(out.Keys, k), removeTagged(base.Fields[k], t)
		}
	}
	return &out
}

// Merge merges over onto base by the rules of compose-go for several files, extends, include and init containers. pattern says what
// both are: "" for files, else "services.*", "volumes.*" and so on. It changes neither, and neither has tags. Every value of the
// result has the position of its source.
func (r *Report) Merge(base, over *Node, pattern string) *Node {
	if r.merged > maxMerged {
		return over
	}
	if r.merged += base.size() + over.size(); r.merged > maxMerged {
		r.Fault(over, "", "more than %d values are merged", maxMerged)
		return over
	}
	parts := strings.FieldsFunc(pattern, func(r rune) bool { return r == '.' })
	merged, err := mergeValues(plain(base), plain(over), tree.NewPath(parts...))
	if err != nil {
		r.conflicts(base, over, tree.NewPath(parts...))
		return over
	}
	unique(merged, parts)
	return withPositions(merged, over, base)
}

// conflicts adds a fault for each value that cannot be merged. The library stops at the first that it finds, which differs from run to
// run.
func (r *Report) conflicts(base, over *Node, path tree.Path) {
	before := len(r.faults)
	for _, k := range over.Keys {
		below, above := base.Get(k), over.Fields[k]
		if below == nil {
			continue
		}
		if _, err := mergeValues(plain(below), plain(above), path.Next(k)); err != nil {
			r.conflicts(below, above, path.Next(k))
		}
	}
	if len(r.faults) == before {
		r.Fault(over, "", "cannot be merged over %s, which has another form", base.Path)
	}
}

// mergeValues is the library's merge, which panics on some values of the wrong kind: a project must not stop the agent.
func mergeValues(base, over any, path tree.Path) (merged any, err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("compose-go: %v", r)
		}
	}()
	switch {
	case path == "":
		networks, _ := field(over, "networks").(map[string]any)
		for name, network := range networks {
			err = errors.Join(err, mergeSubnets(field(base, "networks", name), network))
		}
	case path.Matches("networks.*"):
		err = mergeSubnets(base, over)
	}
	if err != nil {
		return nil, err
	}
	return override.MergeYaml(base, over, path)
}

// mergeSubnets merges the subnets of a network. As with docker compose, the later file's subnets are those of the network, and one that
// the earlier file has too keeps fields that the later does not set. The library does so for one subnet; of several it mixes the
// fields.
func mergeSubnets(base, over any) error {
	ipam, _ := field(base, "ipam").(map[string]any)
	earlier, ok := ipam["config"].([]any)
	later, too := field(over, "ipam", "config").([]any)
	if !ok || !too {
		return nil
	}
	bySubnet := map[string]any{}
	for _, entry := range earlier {
		if subnet, ok := field(entry, "subnet").(string); ok {
			bySubnet[subnet] = entry
		}
	}
	for i, entry := range later {
		subnet, _ := field(entry, "subnet").(string)
		known, ok := bySubnet[subnet]
		if !ok {
			continue
		}
		delete(bySubnet, subnet)
		var err error
		if later[i], err = override.MergeYaml(known, entry, tree.NewPath("networks.*.ipam.config.[]")); err != nil {
			return err
		}
	}
	delete(ipam, "config")
	return nil
}

// field follows keys of mappings down; nil where there is nothing.
func field(value any, keys ...string) any {
	for _, k := range keys {
		mapping, _ := value.(map[string]any)
		value = mapping[k]
	}
	return value
}

// unique removes repeated entries of lists in a mapping: the last one replaces the first. It calls the library for each list, because it
// stops at the first that it refuses.
func unique(mapping any, path []string) {
	fields, _ := mapping.(map[string]any)
	for k, value := range fields {
		if _, ok := value.([]any); ok {
			uniqueIn(map[string]any{k: value}, fields, path)
			continue
		}
		unique(value, append(slices.Clip(path), k))
	}
}

// uniqueIn sets fields to the library's result for one list. A list that it refuses, or panics on, stays as it is and is refused with its
// position when the service is read.
func uniqueIn(mapping, fields map[string]any, path []string) {
	defer func() { _ = recover() }()
	whole := mapping
	for _, part := range slices.Backward(path) {
		whole = map[string]any{part: whole}
	}
	if _, err := override.EnforceUnicity(whole); err == nil { // in place
		maps.Copy(fields, mapping)
	}
}

// size is the number of values in a tree, including the root.
func (n *Node) size() int {
	size := 1
	for _, item := range n.Items {
		size += item.size()
	}
	for _, c := range n.Fields {
		size += c.size()
	}
	return size
}

// withPositions is a merged value as a tree, with the positions and the order of keys of its sources, the later first.
func withPositions(value any, from ...*Node) *Node {
	from = slices.DeleteFunc(from, func(n *Node) bool { return n == nil })
	at := from[0]
	if i := slices.IndexFunc(from, func(n *Node) bool { return !n.IsNull() }); i > 0 && value != nil {
		at = from[i] // what is null says nothing
	}
	n := &Node{File: at.File, Path: at.Path, Line: at.Line, Column: at.Column}
	switch v := value.(type) {
	case map[string]any:
		n.Kind, n.Fields = Map, make(map[string]*Node, len(v))
		names := slices.Sorted(maps.Keys(v))
		for _, source := range from { // the order of the earliest, and then what others add to it
			names = slices.Concat(source.names(), names)
		}
		for _, k := range names {
			c, ok := v[k]
			if !ok || n.Fields[k] != nil {
				continue
			}
			n.Keys, n.Fields[k] = append(n.Keys, k), fieldWithPositions(c, k, from)
		}
	case []any:
		n.Kind = List
		for _, item := range v {
			n.Items = append(n.Items, itemWithPositions(item, from))
		}
	default:
		n.Value, n.Raw = value, fmt.Sprint(value)
		for _, source := range from {
			if source.Kind == Scalar && source.Value == n.Value {
				n.Raw = source.Raw
				break
			}
		}
	}
	return n
}

// fieldWithPositions is placed for the value of a key. A value that only one source has is used as it is.
func fieldWithPositions(value any, key string, from []*Node) *Node {
	var below []*Node
	for _, source := range from {
		if c := source.named(key); c != nil {
			below = append(below, c)
		}
	}
	if len(below) == 1 && slices.ContainsFunc(from, func(source *Node) bool { return source.Get(key) == below[0] }) {
		return below[0]
	}
	return withPositions(value, append(below, from[0])...)
}

// itemWithPositions is placed for an element of a list, which may have been a key and its value. In a list names are interpolated too, so their
// dollar signs are doubled.
func itemWithPositions(value any, from []*Node) *Node {
	for _, source := range from {
		for _, item := range source.Items {
			if reflect.DeepEqual(plain(item), value) {
				return withPositions(value, item)
			}
		}
	}
	if text, ok := value.(string); ok {
		name, _, _ := strings.Cut(text, "=")
		for _, source := range from {
			if c := source.Get(name); c != nil {
				return withPositions(strings.ReplaceAll(name, "$", "$$")+text[len(name):], c)
			}
		}
	}
	return withPositions(value, from...)
}

// names are the keys of a mapping, or the texts of a list that stands for one.
func (n *Node) names() []string {
	out := slices.Clone(n.Keys)
	for _, item := range n.Items {
		out = append(out, item.Text())
	}
	return out
}

// named is the value of one of the names; nil when there is none.
func (n *Node) named(name string) *Node {
	i := slices.IndexFunc(n.Items, func(item *Node) bool { return item.Text() == name })
	if i >= 0 {
		return n.Items[i]
	}
	return n.Get(name)
}
