package fleet_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	_ "time/tzdata"

	"github.com/santhosh-tekuri/jsonschema/v6"

	"github.com/longshore-dev/longshore/fleet"
)

// complete has every member that there is.
const complete = `{
  "fleet": "acme", "namespace": "plant", "registry": "harbor.example/plant", "states": "state", "include": ["a.yaml"],
  "windows": [{"days": "Mon-Fri", "hours": "22:00-05:00", "zone": "Europe/Berlin", "only": ["2027-03-01/2027-12-31", "12-01"], "except": ["12-24/01-02"]}],
  "endpoint": "https://fleet.example", "reports": {"keys": "keys", "repository": "reports"}, "rollout": {"onFailure": "halt", "waves": [{"name": "one", "percent": 10, "soak": "1h30m", "success": 95, "deadline": "4h"}, {"name": "two", "select": "*"}]},
  "applications": {"line": {"package": "apps/line", "version": "~1.4", "profile": "small"}, "sensor": {"component": "c/sensor", "channel": "stable"}},
  "groups": {"a": {"select": "site=graz", "parameters": {"line": {"poll": 1, "list": [1, "a", true]}}, "capabilities": "c.json", "windows": [{"cron": "0 2 1 * *", "duration": "4h", "zone": "UTC"}], "rollout": {"waves": [{"name": "all", "percent": 100}]}}},
  "deployments": {"line": {"application": "line", "profile": "p", "select": "*", "exclude": "spare", "parameters": {"level": "info"}}},
  "devices": [{"id": "gateway/press-07", "labels": {"site": "graz"}, "parameters": {"line": {"poll": 2.5}}, "capabilities": "unchecked", "windows": "none"}]
}`

// mutations are the document with one thing changed: left out, of another kind, or too much.
func mutations(t *testing.T, complete string) map[string]any {
	t.Helper()
	out := map[string]any{}
	values := []any{json.Number("1"), json.Number("-7"), true, []any{}, []any{map[string]any{}}, map[string]any{}, "", "ok-1", "Not: OK"}
	parse := func() any {
		var v any
		d := json.NewDecoder(bytes.NewReader([]byte(complete)))
		d.UseNumber()
		if err := d.Decode(&v); err != nil {
			t.Fatal(err)
		}
		return v
	}
	// walk visits every place below v; at it, change is called with a way to set the place, or to delete it.
	var walk func(path string, v any, visit func(path string, set func(any), remove func()))
	walk = func(path string, v any, visit func(string, func(any), func())) {
		switch v := v.(type) {
		case map[string]any:
			for _, k := range slices.Sorted(maps.Keys(v)) {
				visit(path+"/"+k, func(x any) { v[k] = x }, func() { delete(v, k) })
				walk(path+"/"+k, v[k], visit)
			}
			visit(path+"/surprise", func(x any) { v["surprise"] = x }, nil)
		case []any:
			for i := range v {
				visit(fmt.Sprintf("%s/%d", path, i), func(x any) { v[i] = x }, nil)
				walk(fmt.Sprintf("%s/%d", path, i), v[i], visit)
			}
		}
	}
	var places []string
	walk("", parse(), func(path string, _ func(any), _ func()) { places = append(places, path) })
	for _, place := range places {
		for i := -1; i < len(values); i++ {
			doc, done := parse(), false
			walk("", doc, func(path string, set func(any), remove func()) {
				if path != place || done {
					return
				}
				done = true
				if i >= 0 {
					set(values[i])
				} else if remove != nil {
					remove()
				}
			})
			out[fmt.Sprintf("%s %d", place, i)] = doc
		}
	}
	return out
}

// schemaOf compiles a schema.
func schemaOf(t *testing.T, text []byte) *jsonschema.Schema {
	t.Helper()
	parsed, err := jsonschema.UnmarshalJSON(bytes.NewReader(text))
	if err != nil {
		t.Fatal(err)
	}
	c := jsonschema.NewCompiler()
	if err := c.AddResource("fleet.json", parsed); err != nil {
		t.Fatal(err)
	}
	schema, err := c.Compile("fleet.json")
	if err != nil {
		t.Fatal(err)
	}
	return schema
}

func encoded(t *testing.T, doc any) []byte {
	t.Helper()
	text, err := json.Marshal(doc)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// The schema and the parser say the same about every part of a file.
func TestSchema(t *testing.T) {
	schema := schemaOf(t, fleet.Schema())
	valid := 0
	for name, doc := range mutations(t, complete) {
		text := encoded(t, doc)
		bySchema := schema.Validate(doc)
		faults := fleet.Structure(fstest.MapFS{fleet.File: {Data: text}})
		if (bySchema == nil) != (len(faults) == 0) {
			t.Errorf("%s: schema: %v\nparser: %v", name, bySchema, faults)
		}
		if bySchema == nil {
			valid++
		}
	}
	for _, duration := range []string{"90s", "1d12h", "1d0s", "0", "1.5h", "1d0", "1d+2h", "+2h", ".5h", "1d.5h", "-2h"} {
		text := strings.Replace(complete, `"1h30m"`, strconv.Quote(duration), 1)
		doc, err := jsonschema.UnmarshalJSON(strings.NewReader(text))
		bySchema, faults := schema.Validate(doc), fleet.Structure(fstest.MapFS{fleet.File: {Data: []byte(text)}})
		if err != nil || (bySchema == nil) != (len(faults) == 0) {
			t.Errorf("soak %s: schema: %v\nparser: %v; %v", duration, bySchema, faults, err)
		}
	}
	if valid < 20 {
		t.Errorf("only %d documents are valid: nothing is compared", valid)
	}
}
