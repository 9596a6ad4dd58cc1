package margo_test

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

func TestConfigurationSchemaCheck(t *testing.T) {
	whole := func(i int64) *int64 { return &i }
	real := func(f float64) *float64 { return &f }
	text := margo.ConfigurationSchema{DataType: "string", MinLength: whole(2), MaxLength: whole(4), RegexMatch: "^[a-zä]+$"}
	integer := margo.ConfigurationSchema{DataType: "integer", MinValue: real(1), MaxValue: real(9007199254740993)}
	double := margo.ConfigurationSchema{DataType: "double", MinValue: real(-0.5), MaxValue: real(10), MinPrecision: whole(1), MaxPrecision: whole(2)}
	choice := margo.ConfigurationSchema{DataType: "string", Options: []any{"low", "high"}}
	several := margo.ConfigurationSchema{DataType: "string", Options: []any{"low", "high"}, Multiselect: true}
	numbers := margo.ConfigurationSchema{DataType: "integer", Options: []any{int64(1), int64(2)}}
	list := margo.ConfigurationSchema{DataType: "array[integer]", MinValue: real(0)}
	optional := func(s margo.ConfigurationSchema) margo.ConfigurationSchema { s.AllowEmpty = true; return s }
	for _, c := range []struct {
		name   string
		schema margo.ConfigurationSchema
		value  any
		want   string // "": allowed
	}{
		{"text", text, "abc", ""},
		{"characters, not bytes", text, "ääää", ""},
		{"too short", text, "a", "at least 2"},
		{"too long", text, "abcde", "has 5 characters, at most 4"},
		{"no match", text, "a1", "does not match"},
		{"empty", text, "", "must not be empty"},
		{"empty allowed", optional(text), "", ""},
		{"no value", text, nil, "a value is needed"},
		{"no value allowed", optional(text), nil, ""},
		{"a number is no text", text, int64(3), "must be a string, is the number 3"},
		{"an object is none", text, map[string]any{}, "is an object"},
		{"a regexp that is none", margo.ConfigurationSchema{DataType: "string", RegexMatch: "("}, "x", "not understood"},
		{"boolean", margo.ConfigurationSchema{DataType: "boolean"}, true, ""},
		{"no boolean", margo.ConfigurationSchema{DataType: "boolean"}, "true", "must be true or false, is a string"},
		{"boolean, no value", margo.ConfigurationSchema{DataType: "boolean"}, nil, "a value is needed"},
		{"integer", integer, int64(1), ""},
		{"integer, written as a float", integer, 5.0, ""},
		{"below", integer, int64(0), "0 is below 1"},
		{"above, beyond what a float can hold", integer, uint64(9007199254740994), "is above"},
		{"no integer", integer, 1.5, "must be a whole number, is the number 1.5"},
		{"double", double, 1.25, ""},
		{"double, whole", double, int64(3), ""},
		{"double below", double, -0.75, "-0.75 is below -0.5"},
		{"too precise", double, 1.125, "has 3 digits behind the point, at most 2"},
		{"no double", double, false, "must be a number, is a boolean"},
		{"one of", choice, "low", ""},
		{"none of", choice, "mid", `"mid" is none of "low", "high"`},
		{"one of numbers", numbers, 2.0, ""},
		{"none of numbers", numbers, int64(3), "3 is none of 1, 2"},
		{"a list where one is asked for", choice, []any{"low"}, "must be a string, is a list"},
		{"several", several, []any{"high", "low"}, ""},
		{"several, one twice", several, []any{"low", "low"}, `element 1: "low" is there already`},
		{"several, a stranger", several, []any{"low", "mid"}, `element 1: "mid" is none of`},
		{"several, none", several, []any{}, "a value is needed"},
		{"several, none allowed", optional(several), []any{}, ""},
		{"several, not a list", several, "low", "must be a list"},
		{"list", list, []any{int64(0), int64(7)}, ""},
		{"list, wrong element", list, []any{int64(0), "7"}, "element 1: must be a whole number"},
		{"list, element too small", list, []any{int64(-1)}, "element 0: -1 is below 0"},
		{"list, empty", list, []any{}, "a value is needed"},
	} {
		t.Run(c.name, func(t *testing.T) {
			got := c.schema.Check(c.value)
			if (c.want == "") != (got == "") || !strings.Contains(got, c.want) {
				t.Errorf("Check(%v) = %q, want %q", c.value, got, c.want)
			}
		})
	}
}

func TestSetting(t *testing.T) {
	const text = `apiVersion: v1
id: a
metadata: {name: A, version: 1.0.0, catalog: {organization: [{name: Acme}]}}
deploymentProfiles: [{type: compose, id: c, components: [{name: web, properties: {repository: "oci://r.example/web", revision: 1.0.0}}]}]
parameters: {level: {targets: [{pointer: LEVEL, components: [web]}]}, free: {targets: [{pointer: FREE, components: [web]}]}}
configuration:
  sections: [{name: S, settings: [{parameter: level, name: Level, immutable: true, schema: optional}]}]
  schema: [{name: optional, dataType: integer, allowNoValue: true}]
`
	d, err := margo.ParseApplicationDescription("margo.yaml", []byte(text))
	if err != nil {
		t.Fatal(err)
	}
	set, schema, ok := d.Configuration.Setting("level")
	if !ok || !set.Immutable || schema.DataType != "integer" || !schema.AllowEmpty {
		t.Errorf("Setting = %+v, %+v, %v", set, schema, ok)
	}
	if _, _, ok := d.Configuration.Setting("free"); ok {
		t.Error("a parameter without a setting has one")
	}
	if _, _, ok := (*margo.Configuration)(nil).Setting("level"); ok {
		t.Error("no configuration has a setting")
	}
}
