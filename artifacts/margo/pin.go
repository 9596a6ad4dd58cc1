package margo

import (
	"bytes"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// PinExtension is the extension of a component in which its publisher writes the digest that the tag meant.
const PinExtension = "x-longshore-extensions"

// Pinned is the digest that the publisher resolved for the component; false when there is none.
func (c Component) Pinned() (digest.Digest, bool, error) {
	x, ok := c.Extensions[PinExtension].(map[string]any)
	if !ok || x["digest"] == nil {
		return "", false, nil
	}
	s, ok := x["digest"].(string)
	if !ok || !digestFormat.MatchString(s) {
		return "", false, fmt.Errorf("component %q: %s.digest %q is no digest: %w", c.Name, PinExtension, fmt.Sprint(x["digest"]), fault.ErrInvalid)
	}
	return digest.Digest(s), true, nil
}

// Pin writes the digests of components, by component name, into an ApplicationDeployment. Every other byte stays as it
// is: comments, order, quotes, line ends. A pin that is there already is replaced. The result is read again and must say
// the same as before, pins aside.
func Pin(file string, deployment []byte, pins map[string]digest.Digest) ([]byte, error) {
	before, err := ParseApplicationDeployment(file, deployment)
	if err != nil {
		return nil, err
	}
	root, err := strict.YAML(file, deployment)
	if err != nil {
		return nil, err
	}
	nodes := root.Get("spec").Get("deploymentProfile").Get("components").Items()
	names := make([]string, 0, len(nodes))
	var edits []strict.Replacement
	for i, n := range nodes {
		c := &before.Spec.DeploymentProfile.Components[i]
		names = append(names, c.Name)
		d, ok := pins[c.Name]
		if !ok {
			continue
		}
		if !digestFormat.MatchString(d.String()) {
			return nil, fmt.Errorf("pin component %q to %q: %w", c.Name, d, fault.ErrInvalid)
		}
		if now, ok, _ := c.Pinned(); ok && now == d { // Parse has checked it
			continue
		}
		e, err := pinEdit(deployment, n, d)
		if err != nil {
			return nil, fmt.Errorf("pin component %q in %s: %w", c.Name, file, err)
		}
		edits = append(edits, e)
		x, _ := c.Extensions[PinExtension].(map[string]any)
		if x == nil {
			x = make(map[string]any)
		}
		if c.Extensions == nil {
			c.Extensions = make(Extensions)
		}
		x["digest"] = d.String()
		c.Extensions[PinExtension] = x
	}
	for _, name := range slices.Sorted(maps.Keys(pins)) {
		if !slices.Contains(names, name) {
			return nil, fmt.Errorf("pin component %q in %s: there is none of that name (there are: %s): %w", name, file, strings.Join(names, ", "), fault.ErrInvalid)
		}
	}
	out := strict.Replace(deployment, edits)
	after, err := ParseApplicationDeployment(file, out)
	if err != nil || !reflect.DeepEqual(before, after) {
		return nil, fault.WithHint(fmt.Errorf("pin components in %s: the notation of the document is not understood: %w", file, fault.ErrUnsupported),
			"write the components in plain block style, one key a line")
	}
	return out, nil
}

func notUnderstood(line int) error {
	return fmt.Errorf("line %d: the notation of the document is not understood: %w", line, fault.ErrUnsupported)
}

func pinEdit(data []byte, component *strict.Node, d digest.Digest) (strict.Replacement, error) {
	newline := "\n"
	if bytes.Contains(data, []byte("\r\n")) {
		newline = "\r\n"
	}
	object, member := component, func(indent string) string {
		return fmt.Sprintf("%s:%s%s  digest: %q%s%s", PinExtension, newline, indent, d, newline, indent)
	}
	flow := fmt.Sprintf("%q: {%q: %q}", PinExtension, "digest", d)
	if x := component.Get(PinExtension); x != nil {
		if old := x.Get("digest"); old != nil {
			return replaceScalar(data, old, d)
		}
		object, flow = x, fmt.Sprintf("%q: %q", "digest", d)
		member = func(indent string) string { return fmt.Sprintf("digest: %q%s%s", d, newline, indent) }
	}
	at := strict.Offset(data, object.Line, object.Column)
	if at < 0 {
		return strict.Replacement{}, notUnderstood(object.Line)
	}
	if data[at] == '{' {
		if len(object.Members()) > 0 {
			flow += ", "
		}
		return strict.Replacement{From: at + 1, To: at + 1, Text: flow}, nil
	}
	indent := strings.Repeat(" ", object.Column-1)
	if object == component {
		if after, ok := lineAfter(data, component.Get("name")); ok {
			text := indent + strings.TrimSuffix(member(indent), indent)
			if after == len(data) && !bytes.HasSuffix(data, []byte("\n")) {
				text = newline + strings.TrimSuffix(text, newline)
			}
			return strict.Replacement{From: after, To: after, Text: text}, nil
		}
	}
	return strict.Replacement{From: at, To: at, Text: member(indent)}, nil
}

// replaceScalar changes a digest that stands there plain or in quotes.
func replaceScalar(data []byte, n *strict.Node, d digest.Digest) (strict.Replacement, error) {
	at := strict.Offset(data, n.Line, n.Column)
	if at >= 0 && (data[at] == '"' || data[at] == '\'') {
		at++
	}
	if at < 0 || !bytes.HasPrefix(data[at:], []byte(n.Text())) {
		return strict.Replacement{}, notUnderstood(n.Line)
	}
	return strict.Replacement{From: at, To: at + len(n.Text()), Text: d.String()}, nil
}

// lineAfter is the offset of the line that follows a scalar which ends its line; false when that is not so simple.
func lineAfter(data []byte, n *strict.Node) (int, bool) {
	at := strict.Offset(data, n.Line, n.Column)
	if at < 0 || n.KeyLine != n.Line {
		return 0, false
	}
	line := data[at:]
	end := len(data)
	if i := bytes.IndexByte(line, '\n'); i >= 0 {
		line, end = line[:i], at+i+1
	}
	for _, quote := range []string{"", `"`, "'"} {
		rest, ok := bytes.CutPrefix(line, []byte(quote+n.Text()+quote))
		if rest = bytes.TrimRight(rest, " \t\r"); ok && (len(rest) == 0 || bytes.HasPrefix(bytes.TrimLeft(rest, " \t"), []byte("#")) && (rest[0] == ' ' || rest[0] == '\t')) {
			return end, true
		}
	}
	return 0, false
}
