package compose

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"sort"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/schema"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// formsOf lists what the schema of compose-go allows at every path: its short and long forms.
func formsOf(t *testing.T) map[string][]string {
	t.Helper()
	var root map[string]any
	if err := json.Unmarshal([]byte(schema.Schema), &root); err != nil {
		t.Fatal(err)
	}
	defs := root["$defs"].(map[string]any)
	forms := map[string]map[string]bool{}
	active := map[string]bool{}
	var walk func(n map[string]any, path string)
	note := func(path, form string) {
		if forms[path] == nil {
			forms[path] = map[string]bool{}
		}
		forms[path][form] = true
	}
	walk = func(n map[string]any, path string) {
		if ref, ok := n["$ref"].(string); ok {
			name := strings.TrimPrefix(ref, "#/$defs/")
			if active[name+" "+path] || strings.Count(path, ".") > 12 {
				return
			}
			active[name+" "+path] = true
			walk(defs[name].(map[string]any), path)
			return
		}
		for _, k := range []string{"oneOf", "anyOf", "allOf"} {
			all, _ := n[k].([]any)
			for _, c := range all {
				walk(c.(map[string]any), path)
			}
		}
		types, _ := n["type"].([]any)
		if s, ok := n["type"].(string); ok {
			types = []any{s}
		}
		for _, s := range types {
			note(path, map[string]string{
				"object": "mapping", "array": "list", "string": "text", "number": "number", "integer": "number", "boolean": "boolean", "null": "null",
			}[s.(string)])
		}
		if props, ok := n["properties"].(map[string]any); ok {
			for k, c := range props {
				walk(c.(map[string]any), joined(path, k))
			}
		}
		if props, ok := n["patternProperties"].(map[string]any); ok {
			for k, c := range props {
				if sub, ok := c.(map[string]any); ok && !strings.HasPrefix(k, "^x-") {
					walk(sub, joined(path, "*"))
				}
			}
		}
		if c, ok := n["additionalProperties"].(map[string]any); ok {
			walk(c, joined(path, "*"))
		}
		if c, ok := n["items"].(map[string]any); ok {
			walk(c, joined(path, "[]"))
		}
	}
	walk(root, "")
	out := map[string][]string{}
	for p, f := range forms {
		for k := range f {
			out[p] = append(out[p], k)
		}
		slices.Sort(out[p])
	}
	return out
}

// decision finds the row of a path: its own, that of something refused above it, or, for containers before a service,
// the service's.
func decision(rows map[string]*key, path string) *key {
	for p := path; p != ""; p = p[:max(strings.LastIndexByte(p, '.'), 0)] {
		k := rows[p]
		if k != nil && (p == path || k.verdict == refused || k.verdict == packed) {
			return k
		}
	}
	if rest, ok := strings.CutPrefix(path, preStart+"."); ok && !slices.Contains(notInPreStart(), strings.Split(rest, ".")[0]) {
		return decision(rows, "services.*."+rest)
	}
	return nil
}

func keyRows() map[string]*key {
	all := keys()
	rows := map[string]*key{}
	for i := range all {
		for _, p := range all[i].paths {
			rows[p] = &all[i]
		}
	}
	return rows
}

// Every key that the schema of compose-go knows has its decision, in each of its forms: a key that a newer library
// brings fails here until somebody decided.
func TestEveryKeyIsDecided(t *testing.T) {
	rows, forms := keyRows(), formsOf(t)
	paths := map[string]bool{}
	for _, p := range schema.AttributePaths() {
		paths[string(p)] = true
	}
	for p := range forms {
		if p != "" && !strings.HasSuffix(p, "[]") {
			paths[p] = true
		}
	}
	var lines []string
	for p := range paths {
		k := decision(rows, p)
		if k == nil {
			t.Errorf("%s: nobody decided what becomes of it on a device: add it to keys.txt", p)
			continue
		}
		form := strings.Join(forms[p], " or ")
		if element := forms[p+".[]"]; element != nil {
			form = strings.Replace(form, "list", "list of "+strings.Join(element, " and "), 1)
		}
		lines = append(lines, strings.TrimRight(fmt.Sprintf("%s | %s | %s | %s", p, form, k.verdict, k.how), " |"))
	}
	for p := range rows {
		if !paths[p] {
			t.Errorf("%s: keys.txt decides on a key that Compose does not have", p)
		}
	}
	sort.Strings(lines)
	golden(t, filepath.Join("testdata", "keys.golden"), "# key | forms | what a device does with it | how, or why not\n"+strings.Join(lines, "\n")+"\n")
}

func golden(t *testing.T, file, got string) {
	t.Helper()
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		t.Errorf("%s (-want +got):\n%s\nUPDATE_GOLDEN=1 writes it", file, diff)
	}
}

// Whatever the table says is honoured stands in one of the accepted files, whose translation is held by golden files.
func TestWhatTheTableHonoursIsShown(t *testing.T) {
	shown := map[string]bool{}
	var walk func(n *composefile.Node, s *shape, path string)
	walk = func(n *composefile.Node, s *shape, path string) {
		shown[path] = true
		for _, item := range n.Items {
			if s.list != nil {
				walk(item, s.list, joined(path, "[]"))
			}
		}
		for _, k := range n.Keys {
			if sub := s.fields[k]; sub != nil {
				walk(n.Fields[k], sub, joined(path, k))
			} else if s.each != nil {
				walk(n.Fields[k], s.each, joined(path, "*"))
			}
		}
	}
	for _, name := range []string{"line", "least", "all"} {
		data, err := os.ReadFile(filepath.Join("testdata", "accepted", name+".yaml"))
		if err != nil {
			t.Fatal(err)
		}
		p, err := composefile.Parse(name, data)
		if err != nil {
			t.Fatal(err)
		}
		walk(p.Root, supported(), "")
	}
	for _, k := range keys() {
		for _, p := range k.paths {
			if k.verdict == handled && !shown[p] {
				t.Errorf("%s is said to be honoured, and no accepted file shows it", p)
			}
		}
	}
}

// instance is a file with one key set to something.
func instance(path string) (file string, at string) {
	var b strings.Builder
	parts := strings.Split(path, ".")
	indent := ""
	for i, p := range parts {
		name := p
		if p == "*" {
			name = "a"
		}
		switch {
		case p == "[]":
			b.WriteString(indent + "-\n")
		case i == len(parts)-1:
			b.WriteString(indent + name + ": x\n")
		default:
			b.WriteString(indent + name + ":\n")
		}
		if p == "[]" {
			at += "[0]"
		} else {
			at = joined(at, name)
		}
		indent += "  "
	}
	if parts[0] != "services" {
		b.WriteString("services: {a: {image: x}}\n")
	}
	return b.String(), at
}

// Whatever the table refuses is refused with its path, its position, the reason and the hint.
func TestWhatTheTableRefusesIsRefused(t *testing.T) {
	rows := keyRows()
	for _, p := range schema.AttributePaths() {
		path := string(p)
		k := decision(rows, path)
		if k == nil || k.verdict != refused && k.verdict != packed {
			continue
		}
		for parent := path; strings.Contains(parent, "."); { // the topmost of what is refused
			parent = parent[:strings.LastIndexByte(parent, '.')]
			if up := decision(rows, parent); up != nil && (up.verdict == refused || up.verdict == packed) {
				path = parent
			}
		}
		file, at := instance(path)
		_, err := CheckFile(t.Context(), "f", []byte(file), nil)
		if err == nil || !strings.Contains(err.Error(), at+": "+k.how) {
			t.Errorf("%s: %v, want a fault at %s\n%s", path, err, at, file)
		}
	}
}

// The page of the manual is made of the same table.
func TestManual(t *testing.T) {
	const file, begin, end = "../../docs/compose.md", "<!-- keys: written by a test -->\n", "<!-- end of keys -->\n"
	page, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	head, rest, ok := strings.Cut(string(page), begin)
	_, tail, ok2 := strings.Cut(rest, end)
	if !ok || !ok2 {
		t.Fatalf("%s has no place for the table", file)
	}
	golden(t, file, head+begin+manual()+end+tail)
}

func manual() string {
	var b strings.Builder
	title := map[string]string{
		"services": "Services", "networks": "Networks", "volumes": "Volumes", "configs": "Configs", "secrets": "Secrets", "": "Top level",
	}
	for _, section := range []string{"", "services", "networks", "volumes", "configs", "secrets"} {
		fmt.Fprintf(&b, "\n### %s\n\n| field | on a device | |\n|---|---|---|\n", title[section])
		for _, k := range keys() {
			prefix, of := section+".*.", strings.Contains(k.paths[0], ".*.")
			if section == "" && of || section != "" && !strings.HasPrefix(k.paths[0], prefix) {
				continue
			}
			var names []string
			for _, p := range k.paths {
				name := strings.TrimPrefix(p, prefix)
				parent := name[:max(strings.LastIndexByte(name, '.'), 0)]
				if strings.HasSuffix(name, "*") || k.verdict == metadata && slices.Contains(k.paths, prefix+parent) && section != "" {
					continue
				}
				names = append(names, "`"+strings.ReplaceAll(name, ".[]", "[]")+"`")
			}
			verdict := map[verdict]string{handled: "yes", refused: "refused", metadata: "no effect", packed: "when packed"}[k.verdict]
			how := k.how
			if k.hint != "" {
				how += "; " + k.hint
			}
			fmt.Fprintf(&b, "| %s | %s | %s |\n", strings.Join(names, ", "), verdict, strings.ReplaceAll(how, "|", "\\|"))
		}
	}
	b.WriteString("\n")
	return b.String()
}

func joined(path, key string) string { return strings.TrimPrefix(path+"."+key, ".") }
