package trust

import (
	"bytes"
	"encoding/json"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"
	"github.com/santhosh-tekuri/jsonschema/v6"
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
	var v any
	if err := yaml.Unmarshal([]byte(text), &v); err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(v)
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
