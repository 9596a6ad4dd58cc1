package main

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/testenv"
)

// What is in a registry is shown, ours and others', with who says to have signed it.
func TestInspect(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	component, state := monitor+":1.4.0", states+":press-07"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.do(outcome.OK, "bundle", "push", "-q", "vision.yaml", host+"/plant/bundles/press:2026.11")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", host+"/plant/components/vision:0.9.2")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--expires", "2099-01-01T00:00:00Z",
		"--component", component, states)
	s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "legacy", "-a", "approved=yes", component)
	s.do(outcome.OK, "inspect", state)
	s.do(outcome.OK, "inspect", "-o", "json", state)
	s.do(outcome.OK, "inspect", component)
	s.do(outcome.OK, "inspect", "-o", "yaml", component)
	s.do(outcome.OK, "inspect", host+"/plant/bundles/press:2026.11")
	s.do(outcome.OK, "inspect", host+"/library/caddy:2.10")
	s.do(outcome.OK, "inspect", "-q", host+"/library/caddy:2.10")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-08", "--unsigned", "--empty", "oci-layout:stick")
	s.do(outcome.OK, "inspect", "oci-layout:stick:press-08")
	s.do(outcome.NotFound, "inspect", states+":press-09")
	s.do(outcome.Misused, "inspect", states)
	s.golden(golden)
}

// A signature is an artifact too, and one image of an index.
func TestInspectBelow(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	component := monitor + ":1.4.0"
	s.do(outcome.OK, "component", "push", "-q", "--key", "release.key", "./line-monitor", component)
	var shown struct {
		Referrers []struct {
			Digest     string
			Statements []struct{ Kind, Key string }
		}
		Manifests  []struct{ Digest, Platform string }
		Statements []struct{ Kind, Key string }
		Image      struct{ Platform string }
	}
	read := func(ref string) {
		t.Helper()
		if err := json.Unmarshal([]byte(s.do(outcome.OK, "inspect", "-o", "json", ref)), &shown); err != nil {
			t.Fatal(err)
		}
	}
	key := strings.TrimSpace(s.do(outcome.OK, "verify", "--key", "release.pub", "-o", "json", component))
	read(component)
	if len(shown.Referrers) != 1 || len(shown.Referrers[0].Statements) != 1 || shown.Referrers[0].Statements[0].Kind != "signature" ||
		!strings.Contains(key, shown.Referrers[0].Statements[0].Key) {
		t.Fatalf("referrers = %+v, want the signature by %s", shown.Referrers, key)
	}
	read(monitor + "@" + shown.Referrers[0].Digest)
	if len(shown.Statements) != 1 || shown.Statements[0].Kind != "signature" {
		t.Errorf("statements of a signature = %+v", shown.Statements)
	}
	read(host + "/library/caddy:2.10")
	if len(shown.Manifests) != 2 || shown.Manifests[0].Platform != "linux/amd64" {
		t.Fatalf("manifests = %+v, want two platforms", shown.Manifests)
	}
	read(host + "/library/caddy@" + shown.Manifests[0].Digest)
	if shown.Image.Platform != "linux/amd64" {
		t.Errorf("image = %+v", shown.Image)
	}
}

// Types are foreign text as well.
func TestInspectForeignTypes(t *testing.T) {
	var b strings.Builder
	inspectResult{"x.example/y:1", &audit.Inspection{ArtifactType: "a/b\x1b[2J", MediaType: "c/d\x1b]0;owned\a"}}.text(&b)
	if out := b.String(); strings.ContainsAny(out, "\x1b\a") || !strings.Contains(out, `"a/b\x1b[2J"`) || !strings.Contains(out, `"c/d\x1b]0;owned\a"`) {
		t.Errorf("inspect writes\n%q", out)
	}
}

// What the terminal would obey is shown as text.
func TestOneLine(t *testing.T) {
	for in, want := range map[string]string{
		"plain":                             "plain",
		"Prüfstand 7 → 8":                   "Prüfstand 7 → 8",
		"\x1b[2Jgone":                       `"\x1b[2Jgone"`,
		"two\nlines":                        `"two\nlines"`,
		"":                                  `""`,
		"turn\u202earound":                  `"turn\u202earound"`,
		strings.Repeat("x", maxShownText+1): strings.Repeat("x", maxShownText) + "…",
	} {
		if got := oneLine(in); got != want {
			t.Errorf("oneLine(%q) = %s, want %s", in, got, want)
		}
	}
}
