package trust

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

func compiledSchema(t testing.TB) *jsonschema.Schema {
	t.Helper()
	document, err := jsonschema.UnmarshalJSON(bytes.NewReader(Schema()))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("trust.json", document); err != nil {
		t.Fatal(err)
	}
	s, err := c.Compile("trust.json")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// bySchema holds a YAML document against the schema.
func bySchema(t testing.TB, s *jsonschema.Schema, text string) error {
	t.Helper()
	root, err := strict.YAML("f", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(root.Value())
	if err != nil {
		t.Fatal(err)
	}
	x, err := jsonschema.UnmarshalJSON(bytes.NewReader(data))
	if err != nil {
		t.Fatal(err)
	}
	return s.Validate(x)
}

// The schema has a property for every name that the parser asks for, and no other.
func TestSchemaNamesWhatTheParserReads(t *testing.T) {
	var parser []string
	for _, file := range []string{"parse.go", "signers.go"} {
		source, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range regexp.MustCompile(`\b(?:Get|Need)\("(\w+)"\)|\br\.text\(n, "(\w+)"\)|\br\.pattern\(n, "(\w+)"\)`).FindAllStringSubmatch(string(source), -1) {
			parser = append(parser, m[1]+m[2])
			if m[3] != "" {
				parser = append(parser, m[3], m[3]+"Pattern")
			}
		}
	}
	var properties []string
	var walk func(v any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			for k, x := range v {
				if inner, ok := x.(map[string]any); ok && k == "properties" {
					for name := range inner {
						properties = append(properties, name)
					}
				}
				walk(x)
			}
		case []any:
			for _, x := range v {
				walk(x)
			}
		}
	}
	var document any
	if err := json.Unmarshal(Schema(), &document); err != nil {
		t.Fatal(err)
	}
	walk(document)
	tidy := func(s []string) []string {
		slices.Sort(s)
		return slices.DeleteFunc(slices.Compact(s), func(s string) bool { return s == "" })
	}
	if diff := cmp.Diff(tidy(parser), tidy(properties)); diff != "" {
		t.Errorf("names (-parser +schema):\n%s", diff)
	}
}

// What the parser takes the schema takes, and what the schema can see is wrong both refuse.
func TestSchema(t *testing.T) {
	s := compiledSchema(t)
	for _, c := range goodPolicies(t) {
		parsePolicy(t, c)
		if err := bySchema(t, s, c); err != nil {
			t.Errorf("the schema refuses %s: %v", c, err)
		}
	}
	seen := 0
	for _, c := range badPolicies(t) {
		if strings.ContainsRune(c.text, '\xff') || strings.Contains(c.text, "false\n    reject") || strings.TrimSpace(c.text) == "" || c.meaning || strings.Count(c.text, "reject: ") > 1 {
			continue
		}
		seen++
		if err := bySchema(t, s, c.text); err == nil {
			t.Errorf("%s: the schema takes %s", c.name, c.text)
		}
	}
	if seen < 30 {
		t.Errorf("only %d documents were held against the schema", seen)
	}
}

// docs/configuration.md has a row for every key of the schema, and no other.
func TestConfigurationPageHasEveryKey(t *testing.T) {
	var schema struct {
		Properties map[string]any
		Defs       map[string]struct{ Properties map[string]any } `json:"$defs"`
	}
	if err := json.Unmarshal(Schema(), &schema); err != nil {
		t.Fatal(err)
	}
	var keys []string
	var walk func(path string, properties map[string]any)
	walk = func(path string, properties map[string]any) {
		for name, v := range properties {
			at, node := path+name, v.(map[string]any)
			if items, list := node["items"].(map[string]any); list {
				if node = items; items["$ref"] != nil {
					at += "[]"
				}
			}
			def, _ := node["$ref"].(string)
			inner := schema.Defs[strings.TrimPrefix(def, "#/$defs/")].Properties
			switch {
			case at == "rules[].keys[]": // a row of its own tells that they are as the others
				inner = nil
			case at == "rules[]": // one that tells what is needed
				keys = append(keys, "rules")
			}
			if len(inner) == 0 {
				keys = append(keys, at)
				continue
			}
			walk(at+".", inner)
		}
	}
	walk("", schema.Properties)
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "\n## trust.yaml\n")
	table, _, _ = strings.Cut(table, "\n## ")
	var rows []string
	for line := range strings.Lines(table) {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		before := ""
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(strings.SplitN(line, "|", 3)[1], -1) {
			key := m[1]
			if strings.HasPrefix(key, ".") {
				key = before[:strings.LastIndexByte(before, '.')] + key
			}
			rows, before = append(rows, key), key
		}
	}
	slices.Sort(keys)
	slices.Sort(rows)
	if diff := cmp.Diff(keys, rows); diff != "" {
		t.Errorf("keys of docs/configuration.md (-schema +page):\n%s", diff)
	}
}
