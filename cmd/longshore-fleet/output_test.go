package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	margoclient "github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

var listed = regexp.MustCompile(`(?m)^  ([a-z][a-z-]*)  `)

// helps writes the help of a command and of those below it.
func helps(t *testing.T, b *bytes.Buffer, path ...string) (commands int) {
	t.Helper()
	code, out, errs := command(t, append(path, "--help")...)
	if code != 0 || out == "" || errs != "" {
		t.Errorf("%v --help = %d\n%s", path, code, errs)
	}
	fmt.Fprintf(b, "$ longshore-fleet %s\n%s\n", strings.Join(append(path, "--help"), " "), out)
	_, below, _ := strings.Cut(out, "\nCommands:\n")
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
		text = tokenID.ReplaceAllString(tokenText.ReplaceAllString(text, "TOKEN"), "id-of-16-letters")
		return strings.ReplaceAll(text, `id: "id-of-16-letters"`, "id: id-of-16-letters") // YAML has quotes around one that begins with a digit
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
	do("token create --device press-07", "token list", "token list -o json", "token list -o yaml", "token revoke --device press-07", "token list", "token list -o json",
		"token create press-08 press-09", "token create -o json line-a/press-10", "token create --device press-11 press-12", "token create press-11 press-11",
		"token create --shared press-21 press-22", "token create --shared -o json press-21 press-22 press-23 press-24 press-25", "token list --device press-22",
		"token list --device press-25 -o json", "token create --shared press-21", "token revoke --device press-22", "token list --device press-21")
	write("# line a\npress-11\n\npress-12\n")
	do("token create --devices devices.txt")
	write("press-13\npress 14\npress-13\n")
	do("token create --devices devices.txt", "token list --device press-13", "token create --devices -",
		"unit", "completion bash", "completion zsh", "completion fish", "completion csh")
	golden(t, "outputs.golden", b.Bytes())
}

var tokenText, tokenID = regexp.MustCompile(`lsf_[a-z2-7]{16}_[a-z2-7]+`), regexp.MustCompile(`\b[a-z2-7]{16}\b`)

// With one token two devices report by their own agents, and each is itself.
func TestSharedToken(t *testing.T) {
	dir := t.TempDir()
	db := filepath.Join(dir, "fleet.db")
	code, token, errs := command(t, "token", "create", "--shared", "press-07", "press-08", "--database", db)
	if code != 0 {
		t.Fatal(errs)
	}
	file := filepath.Join(dir, "line-a.token")
	if err := os.WriteFile(file, []byte(token), 0o600); err != nil {
		t.Fatal(err)
	}
	url, _, _ := serve(t, "--database", db)
	const deployment = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	for i, device := range []string{"press-07", "press-08", "press-09"} {
		c, err := margoclient.New(margoclient.Options{URL: url, Device: device, Epoch: "0195f6a0-0000-7000-8000-00000000000" + fmt.Sprint(i), TokenFile: file})
		if err != nil {
			t.Fatal(err)
		}
		_, capable := c.Deliver(t.Context(), store.Report{Sequence: 1, Kind: "capabilities", Subject: device, Body: []byte(about(device))})
		_, state := c.Deliver(t.Context(), store.Report{
			Sequence: 2, Kind: "status", Subject: deployment,
			Body: []byte(`{"deploymentId":"` + deployment + `","adoptedManifestVersion":1,"status":{"state":"installed"},"components":[{"name":"web","state":"installed"}]}`),
		})
		c.Close()
		if in := device != "press-09"; in != (capable == nil) || in != (state == nil) || !in && !errors.Is(state, fault.ErrUnauthenticated) {
			t.Errorf("%s: %v, %v", device, capable, state)
		}
	}
	_, body := do(t, client(t), "GET", url+"/fleet/v1/deployments", "", "")
	if strings.Count(body, deployment) != 2 || !strings.Contains(body, "press-07") || !strings.Contains(body, "press-08") {
		t.Errorf("deployments:\n%s", body)
	}
}

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
		"to": "token\n", "token ": "create\nlist\nrevoke\n", "token list -o ": "text\njson\nyaml\n", "serve --tls": "--tls-cert\n--tls-key\n",
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
