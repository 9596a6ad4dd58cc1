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

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
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

// What the commands print; a server prints its log.
func TestOutputs(t *testing.T) {
	dir := t.TempDir()
	db, file := filepath.Join(dir, "fleet.db"), filepath.Join(dir, "devices.txt")
	write := func(text string) {
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	var b bytes.Buffer
	hide := func(text string) string {
		text = when.ReplaceAllString(strings.ReplaceAll(text, dir+"/", ""), "2026-11-20T12:00:00Z")
		return tokenID.ReplaceAllString(tokenText.ReplaceAllString(text, "TOKEN"), "id-of-16-letters")
	}
	do := func(lines ...string) {
		t.Helper()
		for _, line := range lines {
			args := strings.Fields(strings.ReplaceAll(line, "devices.txt", file))
			if args[0] == "token" {
				args = append(args, "--database", db)
			}
			code, out, errs := command(t, args...)
			fmt.Fprintf(&b, "$ longshore-fleet %s\n%s--- exit %d\n\n", line, hide(out+errs), code)
		}
	}
	do("token create --device press-07", "token list", "token list -o json", "token revoke --device press-07", "token list", "token list -o json",
		"token create press-08 press-09", "token create -o json line-a/press-10", "token create --device press-11 press-12", "token create press-11 press-11")
	write("# line a\npress-11\n\npress-12\n")
	do("token create --devices devices.txt")
	write("press-13\npress 14\npress-13\n")
	do("token create --devices devices.txt", "token list --device press-13", "token create --devices -",
		"unit", "completion bash", "completion zsh", "completion fish", "completion csh")
	golden(t, "outputs.golden", b.Bytes())
}

var tokenText, tokenID = regexp.MustCompile(`lsf_[a-z2-7]{16}_[a-z2-7]+`), regexp.MustCompile(`\b[a-z2-7]{16}\b`)

// A token of a batch lets its own device in, and no other.
func TestTokensOfABatch(t *testing.T) {
	db := filepath.Join(t.TempDir(), "fleet.db")
	var out, errs bytes.Buffer
	args := []string{"longshore-fleet", "token", "create", "--devices", "-", "--database", db}
	if code := run(t.Context(), args, strings.NewReader("press-07\r\npress-08"), &out, &errs); code != 0 {
		t.Fatalf("token create = %d\n%s", code, &errs)
	}
	c := client(t)
	url, _, _ := serve(t, "--database", db)
	for _, line := range strings.Split(strings.TrimSpace(out.String()), "\n") {
		device, token, _ := strings.Cut(line, " ")
		for _, other := range []string{"press-07", "press-08"} {
			want := 403
			if device == other {
				want = 201
			}
			if code, body := do(t, c, "PUT", url+"/api/v1/capabilities/"+other, token, strings.ReplaceAll(gateway, "press-07", other)); code != want {
				t.Errorf("the token of %s for %s: %d %s, want %d", device, other, code, body, want)
			}
		}
	}
}

// The completion knows the commands and what they offer.
func TestCompletion(t *testing.T) {
	for line, want := range map[string]string{
		"to": "token\n", "token ": "create\nlist\nrevoke\n", "token list -o ": "text\njson\n", "serve --tls": "--tls-cert\n--tls-key\n",
		"completion ": "bash\nfish\nzsh\n", "serve --tls-cert ": "",
	} {
		if _, out, _ := command(t, append([]string{cmdline.CompleteCommand}, strings.Split(line, " ")...)...); out != want {
			t.Errorf("%q: %q, want %q", line, out, want)
		}
	}
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
