package main

import (
	"bytes"
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// testProgram is the program, but for keys: unlockOnce has those.
func testProgram(stdout, stderr *bytes.Buffer) *program {
	p := newProgram(strings.NewReader(""), stdout, stderr, nothingSet)
	p.unlock = unlockOnce
	return p
}

func nothingSet(string) (string, bool) {
	return "", false
}

// Every flag of every command has a variable of its own, and tells it.
func TestFlags(t *testing.T) {
	var out, errs bytes.Buffer
	var walk func(path string, all []cmdline.Command)
	walk = func(path string, all []cmdline.Command) {
		for _, c := range all {
			name := strings.TrimSpace(path + " " + c.Name)
			walk(name, c.Commands)
			if c.Commands != nil {
				continue
			}
			if !strings.Contains(c.About, "Exit codes") || strings.Count(c.About, "longshore "+name) < 2 {
				t.Errorf("%s: --help has no exit codes or not two examples:\n%s", name, c.About)
			}
			seen := map[string]bool{}
			for _, f := range c.Flags {
				if f.Env == "" || seen[f.Env] {
					t.Errorf("%s --%s: variable %q is taken or none", name, f.Name, f.Env)
				}
				seen[f.Env] = true
			}
		}
	}
	walk("", testProgram(&out, &errs).app().Commands)
}

// Whatever bytes are checked as whatever kind: faults, no panic, and a code for usage.
func FuzzCheck(f *testing.F) {
	for _, name := range []string{"vision.yaml", "trust.yaml", "agent.yaml", "state.json", "capabilities.json", "status.json", "problem.json", "line-monitor/compose.yaml", "broken/what.yaml"} {
		data, err := os.ReadFile("testdata/" + name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(data)
	}
	f.Add([]byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 0xff})
	f.Fuzz(func(t *testing.T, data []byte) {
		c := &call{program: testProgram(&bytes.Buffer{}, &bytes.Buffer{}), flags: &cmdline.Context{Context: t.Context()}}
		all := c.readers()
		if kind, err := detect("document", data); err == nil && all[kind] == nil {
			t.Errorf("detect = %s, which no reader accepts", kind)
		}
		for kind, read := range all {
			if err := read("document", data); err != nil && outcome.Code(err) == outcome.Other {
				t.Errorf("%s: %v is of no kind", kind, err)
			}
		}
	})
}
