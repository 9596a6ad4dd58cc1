package main

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var listed = regexp.MustCompile(`(?m)^   ([a-z][a-z-]*)(?:, [a-z])?  `)

// helps writes the help of a command and of those below it.
func helps(t *testing.T, b *bytes.Buffer, path ...string) (commands int) {
	t.Helper()
	code, out, errs := command(t, append(path, "--help")...)
	if code != 0 || out == "" || errs != "" {
		t.Errorf("%v --help = %d\n%s", path, code, errs)
	}
	fmt.Fprintf(b, "$ longshore-fleet %s\n%s\n", strings.Join(append(path, "--help"), " "), out)
	_, below, _ := strings.Cut(out, "\nCOMMANDS:\n")
	below, _, _ = strings.Cut(below, "\n\n")
	for _, m := range listed.FindAllStringSubmatch(below, -1) {
		if m[1] != "help" {
			commands += 1 + helps(t, b, append(path[:len(path):len(path)], m[1])...)
		}
	}
	return commands
}

// The help of every command is as it was looked at last.
func TestHelp(t *testing.T) {
	var b bytes.Buffer
	if n := helps(t, &b); n < 6 {
		t.Errorf("%d commands:\n%s", n, b.String())
	}
	golden(t, "help.golden", b.Bytes())
}

var when = regexp.MustCompile(`[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:.]+Z`)

// What the token commands say; a server says its log.
func TestOutputs(t *testing.T) {
	db := filepath.Join(t.TempDir(), "fleet.db")
	var b bytes.Buffer
	var id string
	for _, line := range []string{"token create --device press-07", "token list", "token list -o json", "token revoke --device press-07", "token list", "token list -o json"} {
		code, out, errs := command(t, append(strings.Fields(line), "--database", db)...)
		if strings.HasPrefix(line, "token create") {
			id = regexp.MustCompile(`token (\S+) for`).FindStringSubmatch(errs)[1]
			out = "TOKEN\n"
		}
		text := strings.ReplaceAll(when.ReplaceAllString(out+errs, "2026-11-20T12:00:00Z"), id, "ID")
		fmt.Fprintf(&b, "$ longshore-fleet %s\n%s--- exit %d\n\n", line, text, code)
	}
	golden(t, "outputs.golden", b.Bytes())
}

// golden compares with testdata/NAME, which UPDATE_GOLDEN=1 rewrites.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", file, d)
	}
}
