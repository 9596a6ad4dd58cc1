package main

import (
	"encoding/json"
	"strings"
	"testing"

	"go.yaml.in/yaml/v4"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// What a terminal obeys is in foreign documents and artifacts, and reaches none: escaped as text, and in JSON and YAML so that
// they still say the same.
func TestForeignTextIsEscaped(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	const evil = "\x1b]0;owned\a\u009b31m\u202etxt.exe\u2066"
	quoted, err := json.Marshal(evil)
	if err != nil {
		t.Fatal(err)
	}
	s.write("evil/compose.yaml", "services: {web: {image: "+string(quoted)+", restart: "+string(quoted)+"}}\n")
	s.write("capabilities.json", `{"properties":{"id":"a","vendor":"v","modelNumber":"m","serialNumber":"s"},"`+strings.Trim(string(quoted), `"`)+`":1}`)
	for _, args := range [][]string{
		{"check", "evil"},
		{"check", "-o", "json", "evil"},
		{"check", "-o", "yaml", "evil/compose.yaml"},
		{"check", "--kind", "capabilities", "capabilities.json"},
		{"check", evil},
		{evil},
		{"check", "--kind", evil, "evil"},
	} {
		code, stdout, stderr := s.try(args...)
		if code == outcome.OK || !printable.Safe(stdout) || !printable.Safe(stderr) || !strings.Contains(stdout+stderr, `202e`) {
			t.Errorf("%q = %d\n%q\n%q", args, code, stdout, stderr)
		}
	}
	s.forge(artifacts.StateOptions{Device: "press-07", Generation: 1, Annotations: map[string]string{"com.example.note": evil}}, "evil")
	for format, read := range map[string]func([]byte, any) error{"text": nil, "json": json.Unmarshal, "yaml": yaml.Unmarshal} {
		out := s.do(outcome.OK, "inspect", "-o", format, states+":evil")
		var shown struct{ Annotations map[string]string }
		if read != nil {
			if err := read([]byte(out), &shown); err != nil || shown.Annotations["com.example.note"] != evil {
				t.Errorf("%s says %q, %v", format, shown.Annotations, err)
			}
		}
		if !printable.Safe(out) || !strings.Contains(out, "202e") {
			t.Errorf("%s: %q", format, out)
		}
	}
}
