package emit_test

import (
	"encoding/json"
	"math"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts/emit"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

func TestYAML(t *testing.T) {
	got, err := emit.YAML(emit.Of(
		"name", "line-monitor",
		"empty", emit.Object{},
		"none", []any{},
		"yes", "yes",
		"numbers", []any{1, int64(-2), uint64(math.MaxUint64), 2.5, json.Number("1e3"), "1", nil, true},
		"list", []any{[]any{"a", []any{}}, emit.Of("k", "v", "l", []any{"w: x"}), map[string]any{}},
		"pem", emit.Text("-----BEGIN X-----\nAA==\n\n-----END X-----\n"),
		"text", emit.Text("no line feed at the end"),
		"url", "oci://harbor.acme.example/plant",
		"red", "\x1b[31m\u202e",
	))
	if err != nil {
		t.Fatal(err)
	}
	want := `name: line-monitor
empty: {}
none: []
"yes": "yes"
numbers:
  - 1
  - -2
  - 18446744073709551615
  - 2.5
  - 1.0e+3
  - "1"
  - null
  - true
list:
  - - a
    - []
  - k: v
    l:
      - "w: x"
  - {}
pem: |
  -----BEGIN X-----
  AA==

  -----END X-----
text: "no line feed at the end"
url: oci://harbor.acme.example/plant
red: "\u001b[31m\u202e"
`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("YAML (-want +got):\n%s", diff)
	}
	for _, bad := range []any{math.Inf(1), struct{}{}, emit.Of("a", []any{make(chan int)})} {
		if out, err := emit.YAML(bad); err == nil {
			t.Errorf("YAML(%T) = %q", bad, out)
		}
	}
}

func TestFromJSON(t *testing.T) {
	got, err := emit.FromJSON([]byte(`{"b":"x","a":[1,{"c":"2"}],"m":18446744073709551615}`))
	if want := "b: x\na:\n  - 1\n  - c: \"2\"\nm: 18446744073709551615\n"; err != nil || string(got) != want {
		t.Errorf("FromJSON = %q, %v, want %q", got, err, want)
	}
	for _, bad := range []string{"", "{", `{"a":1}{}`, `[1,]`} {
		if got, err := emit.FromJSON([]byte(bad)); err == nil {
			t.Errorf("FromJSON(%q) = %q", bad, got)
		}
	}
}

// YAML 1.1 and 1.2, strict and lenient readers, read the same value.
func TestReadersAgree(t *testing.T) {
	value := map[string]any{
		"numbers": []any{1e21, 1e-7, -2.5e300, 0.5, json.Number("1e3"), json.Number("1E+3"), json.Number("2.5e-3")},
		"text":    []any{"a\ufeffb", "\ufffe", "\uffff", "\u0085\u2028\u2029\r", "a\tb", "1e3", "1.0e+3"},
		"block":   []any{emit.Text("\ta\n"), emit.Text("a\tb\n"), emit.Text("a\ufeff\n"), emit.Text("a\uffff\nb\n"), emit.Text("a\u2028\n"), emit.Text("a\n b\n")},
		"k\ufeff": "v",
	}
	want := map[string]any{
		"numbers": []any{1e21, 1e-7, -2.5e300, 0.5, 1000.0, 1000.0, 0.0025},
		"text":    value["text"],
		"block":   []any{"\ta\n", "a\tb\n", "a\ufeff\n", "a\uffff\nb\n", "a\u2028\n", "a\n b\n"},
		"k\ufeff": "v",
	}
	out, err := emit.YAML(value)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strict.YAML("f", out)
	if diff := cmp.Diff(want, n.Value()); err != nil || diff != "" {
		t.Errorf("strict reads %q (-want +got):\n%s%v", out, diff, err)
	}
	var library any
	err = yaml.Unmarshal(out, &library)
	if diff := cmp.Diff(any(want), library); err != nil || diff != "" {
		t.Errorf("the library reads %q (-want +got):\n%s%v", out, diff, err)
	}
	float11 := regexp.MustCompile(`^[-+]?[0-9]+\.[0-9]*([eE][-+][0-9]+)?$`) // yaml.org/type/float.html, base 10
	for _, line := range strings.Split(string(out), "\n") {
		if value, is := strings.CutPrefix(line, "  - "); is && !strings.HasPrefix(value, `"`) && !strings.HasPrefix(value, "|") && !float11.MatchString(value) {
			t.Errorf("%s is no number to YAML 1.1", value)
		}
	}
}

// What is written of a JSON document says the same, to the strict reader and to the library, and is safe to show.
func FuzzFromJSON(f *testing.F) {
	for _, s := range []string{
		`{"a\u202eb":["\u001b[31m","x\ny\u009bz","it's \u2066: #","plain"],"n":18446744073709551615,"z":null}`,
		`[[],[[1]],{"":{"":[]}},"~","=","<<","0x1f","1_0",".5","2026-11-23","- a","? b","é","` + "\u00a0" + `"]`, `"x"`, `0`, `{"on":"off","1":2}`,
		`[1e3,1E-7,1.5e+300,-0.0,1e21,"a\ufeff\ufffe\uffffb","\u0085\u2028\u2029\r",{"\ufeff":"\t"}]`, "[\"\ufeff\ufffe\uffff\"]",
	} {
		f.Add([]byte(s))
	}
	f.Fuzz(func(t *testing.T, document []byte) {
		root, err := strict.JSON("f", document)
		if err != nil {
			return
		}
		text, err := emit.FromJSON(document)
		if err != nil || !printable.Safe(string(text)) {
			t.Fatalf("FromJSON(%q) = %q, %v", document, text, err)
		}
		again, err := strict.YAML("f", text)
		if err != nil {
			t.Fatalf("%q is written as %q, which is refused: %v", document, text, err)
		}
		if diff := cmp.Diff(root.Value(), again.Value()); diff != "" {
			t.Errorf("%q is written as %q (-want +got):\n%s", document, text, diff)
		}
		var v any
		if err := yaml.Unmarshal(text, &v); err != nil {
			t.Errorf("%q is written as %q, which the library refuses: %v", document, text, err)
		}
	})
}
