package main

import (
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// rewrite changes a file.
func (s *shell) rewrite(name string, pairs ...string) {
	s.t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		s.t.Fatal(err)
	}
	text := strings.NewReplacer(pairs...).Replace(string(data))
	if text == string(data) {
		s.t.Fatalf("%s has nothing of %q", name, pairs)
	}
	s.write(name, text)
}

// A policy on its way through a registry: what people type, what they see, and what scripts branch on.
func TestTrust(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	const at = host + "/plant/trust"
	s.do(outcome.Misused, "trust", "init", "--key", "release.pub", at)
	s.do(outcome.Misused, "trust", "init", "--signer", "release.pub", "--threshold", "2", "--key", "release.pub", at)
	s.do(outcome.Misused, "trust", "init", "--signer", "release.pub", "--key", "release.pub", at+":v1")
	s.do(outcome.OK, "trust", "init", "--signer", "release.pub", "--signer", "root.pub", "--threshold", "2", "--key", "release.pub", "--file", "policy.yaml", at)
	s.do(outcome.Refused, "trust", "init", "--signer", "release.pub", "--key", "release.pub", "--file", "policy.yaml", at)
	s.do(outcome.OK, "trust", "check", "policy.yaml")
	s.do(outcome.OK, "trust", "check", "-o", "json", "policy.yaml")
	s.do(outcome.NotFound, "trust", "history", at)
	s.do(outcome.NotFound, "trust", "sign", "--key", "release.key", at)
	s.do(outcome.OK, "trust", "push", "policy.yaml", at)
	s.do(outcome.OK, "trust", "sign", "--key", "release.key", at)
	s.do(outcome.OK, "trust", "sign", "-o", "json", "--key", "root.key", at)
	s.do(outcome.Misused, "trust", "sign", at)
	s.do(outcome.OK, "trust", "show", at)
	s.do(outcome.OK, "trust", "show", "-o", "json", at+":v1")
	s.do(outcome.NotFound, "trust", "show", at+":v2")

	s.rewrite("policy.yaml", "version: 1", "version: 3")
	s.do(outcome.Misused, "trust", "push", "--key", "release.key", "policy.yaml", at)
	s.rewrite("policy.yaml", "version: 3", "version: 2")
	s.do(outcome.OK, "trust", "push", "--key", "release.key", "policy.yaml", at)
	s.write("second.yaml", "# the same, by somebody else\n")
	data, err := os.ReadFile("policy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	s.write("second.yaml", "# by somebody else\n"+string(data))
	s.do(outcome.Refused, "trust", "push", "--key", "root.key", "second.yaml", at)
	s.do(outcome.Refused, "trust", "sign", "--key", "root.key", at+"@sha256:"+strings.Repeat("0", 64))
	s.do(outcome.OK, "trust", "history", at)
	s.do(outcome.OK, "trust", "push", "--replace", "-a", "org.opencontainers.image.revision=4be2d1c", "--key", "root.key", "second.yaml", at)
	s.do(outcome.OK, "trust", "sign", "-q", "--key", "release.key", at)
	s.do(outcome.OK, "trust", "history", "-o", "json", at)
	s.do(outcome.Refused, "trust", "push", "--key", "root.key", "policy.yaml", at)

	s.rewrite("policy.yaml", "version: 2", "version: 3\nexpires: 2020-01-01T00:00:00Z")
	s.do(outcome.Refused, "trust", "check", "policy.yaml")
	s.rewrite("policy.yaml", "expires: 2020-01-01T00:00:00Z", "revoked: [{key: \"sha256:"+strings.Repeat("0", 64)+"\", reason: test}]")
	s.do(outcome.OK, "trust", "check", "policy.yaml")
	s.rewrite("policy.yaml", "\ntrust:", "\ntrusty:")
	s.do(outcome.Misused, "trust", "check", "policy.yaml")
	s.do(outcome.OK, "key", "show", "release.pub")
	s.golden(golden)
}

// Whoever may write to the registry puts other content under the version that is published. No command makes a next version of it,
// and who looks at a proposal that follows it is told.
func TestTrustOfAReplacedVersion(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--key", "release.pub", "--file", "policy.yaml", states)
	s.do(outcome.OK, "trust", "push", "-q", "--key", "root.key", "policy.yaml", states)
	s.do(outcome.OK, "trust", "set-threshold", "-q", "--dry-run", "--key", "root.key", "--policy-signers", "1", states)
	s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--key", "release.pub", "--key", "other.pub", "--file", "stranger.yaml", states)
	put := func(version uint64, tag string) {
		t.Helper()
		a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: version, Policy: mustRead(t, "stranger.yaml")})
		if err == nil {
			_, err = release.Publish(t.Context(), s.repository(), a, release.PublishOptions{Tags: []string{tag}})
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	put(1, "v1")
	s.refuses(outcome.Verification, []string{states + ":v1", "compare it with"}, "trust", "set-threshold", "--key", "root.key", "--policy-signers", "1", states)
	s.rewrite("stranger.yaml", "version: 1", "version: 2")
	s.refuses(outcome.Verification, []string{states + ":v1", "compare it with"}, "trust", "push", "--key", "root.key", "stranger.yaml", states)
	s.do(outcome.NotFound, "trust", "show", states+":v2.proposal")
	put(2, "v2.proposal")
	s.refuses(outcome.Verification, []string{states + ":v1", "compare it with"}, "trust", "sign", "--key", "root.key", states)
	if out := s.do(outcome.OK, "trust", "show", states+":v2.proposal"); !strings.Contains(out, "version 1, which lacks valid signatures") {
		t.Errorf("trust show does not tell that version 1 is not signed:\n%s", out)
	}
}

// Private keys come from LONGSHORE_KEY, one a line, as for every other command that signs; the public keys of other commands
// in the same environment are not taken for them.
func TestTrustKeysFromTheEnvironment(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	const at = host + "/plant/trust"
	s.env["LONGSHORE_PUBLIC_KEY"] = "release.pub"
	s.do(outcome.OK, "trust", "init", "--signer", "release.pub", "--signer", "root.pub", "--threshold", "2", "--file", "policy.yaml", at)
	s.env["LONGSHORE_KEY"] = "release.key"
	s.do(outcome.OK, "trust", "push", "policy.yaml", at)
	s.env["LONGSHORE_KEY"] = "root.key"
	if out := s.do(outcome.OK, "trust", "sign", at); !strings.Contains(out, "published") {
		t.Errorf("trust sign = %s, want both signatures", out)
	}
	s.rewrite("policy.yaml", "version: 1", "version: 2")
	s.env["LONGSHORE_KEY"] = "release.key\nroot.key"
	if out := s.do(outcome.OK, "trust", "push", "policy.yaml", at); !strings.Contains(out, "published") {
		t.Errorf("trust push = %s, want both signatures", out)
	}
}

// Several keys of one person sign at once, each with its own password, and what a version does to generations is told to
// whoever signs it.
func TestTrustBySeveralKeys(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	const at = host + "/plant/trust"
	s.env["LONGSHORE_KEY_PASSWORD"] = "another"
	s.do(outcome.OK, "key", "generate", "second")
	delete(s.env, "LONGSHORE_KEY_PASSWORD")
	s.write("first.txt", "longshore\n")
	s.write("second.txt", "another\n")
	s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--signer", "second.pub", "--threshold", "2", "--key", "release.pub", "--file", "policy.yaml", at)
	both := []string{"trust", "push", "--key", "root.key", "--key", "second.key"}
	if code, _, stderr := s.try(append(both, "policy.yaml", at)...); code != outcome.Auth || !strings.Contains(stderr, "second.key") {
		t.Errorf("one password for two keys: %d\n%s", code, stderr)
	}
	s.do(outcome.NotFound, "trust", "show", at)
	s.do(outcome.Misused, append(both, "--key-password-file", "first.txt", "--key-password-file", "second.txt", "--key-password-file", "first.txt", "policy.yaml", at)...)
	both = append(both, "--key-password-file", "first.txt", "--key-password-file", "second.txt")
	if out := s.do(outcome.OK, append(both, "policy.yaml", at)...); !strings.Contains(out, "published") {
		t.Errorf("trust push = %s", out)
	}
	s.rewrite("policy.yaml", "version: 1 ", "# \u202e\ngenerations: {resetTo: 1000, version: 2}\nversion: 2 ")
	const says = "above 1000 counts as 1000, once, with version 2"
	s.do(outcome.OK, "trust", "push", "policy.yaml", at)
	if data, err := os.ReadFile("policy.yaml"); err != nil || s.do(outcome.OK, "trust", "show", "--document", at+":v2.proposal") != string(data) {
		t.Errorf("trust show --document is another document than %q, %v", data, err)
	}
	for _, args := range [][]string{
		{"trust", "check", "policy.yaml"},
		{"trust", "show", at + ":v2.proposal"},
		{"trust", "sign", "--key", "root.key", at},
	} {
		if out := s.do(outcome.OK, args...); !strings.Contains(out, says) {
			t.Errorf("%s does not tell what happens to generations:\n%s", strings.Join(args, " "), out)
		}
	}
	s.do(outcome.OK, append([]string{"trust", "sign"}, append(both[2:], at)...)...)
	s.rewrite("policy.yaml", "resetTo: 1000", "resetTo: 5", "version: 2 ", "version: 3 ")
	if code, _, stderr := s.try("trust", "push", "policy.yaml", at); code != outcome.Misused || !strings.Contains(stderr, "version 2 had no such reset") {
		t.Errorf("a reset in the name of a version that is past: %d\n%s", code, stderr)
	}
}

// A policy that would lock devices out is told on a laptop, with its place in the file.
func TestTrustCheckTellsWhatLocksDevicesOut(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	const policy = `version: 2
keys:
  - {name: root, file: root.pub}
  - {name: other, file: other.pub}
  - {name: release, file: release.pub}
rules:
  - scope: harbor.example/plant/**
    signers: [release]
trust:
  repository: harbor.example/plant/trust
  signers: [root, other]
  threshold: 2
`
	s.write("p.yaml", policy)
	s.do(outcome.OK, "trust", "check", "--offline", "p.yaml")
	root := strings.TrimSpace(s.do(outcome.OK, "key", "show", "-q", "root.pub"))
	release := strings.TrimSpace(s.do(outcome.OK, "key", "show", "-q", "release.pub"))
	over := ", notAfter: 2020-01-01T00:00:00Z}"
	for _, c := range []struct {
		name  string
		edits []string
		code  int
		says  string
	}{
		{"its own repository rejected", []string{"trust:\n", "  - {scope: harbor.example/plant/trust, artifacts: [trust], reject: true}\ntrust:\n"}, outcome.Misused, "p.yaml:11:15: trust.repository: is rejected by rules[1]"},
		{"everything rejected", []string{"trust:\n", "  - {scope: \"**\", artifacts: [trust], reject: true}\ntrust:\n"}, outcome.Misused, "p.yaml:11:15: trust.repository: is rejected by rules[1]"},
		{"threshold above the signers", []string{"threshold: 2", "threshold: 3"}, outcome.Misused, "p.yaml:12:14: trust.threshold: asks for 3 different signers of 2"},
		{"one key under two names", []string{"other.pub", "root.pub"}, outcome.Misused, "p.yaml:12:14: trust.threshold: asks for 2 different signers, and the 2 names are 1 signer"},
		{"a signer revoked", []string{"rules:\n", "revoked: [{key: \"" + root + "\"}]\nrules:\n"}, outcome.Misused, "p.yaml:13:14: trust.threshold: asks for 2 different signers, and root is revoked"},
		{"the key of releases revoked", []string{"rules:\n", "revoked: [{key: \"" + release + "\"}]\nrules:\n"}, outcome.Misused, "p.yaml:9:14: rules[0].signers: asks for 1 signer, and release is revoked"},
		{"a signer's time over", []string{"root.pub}", "root.pub" + over}, outcome.Refused, "p.yaml:11:12: trust: 2 must sign the next one, and only 1 of its signers could"},
		{"every window over", []string{"root.pub}", "root.pub" + over, "other.pub}", "other.pub" + over, "release.pub}", "release.pub" + over}, outcome.Refused, "p.yaml:11:12: trust: 2 must sign the next one, and only 0 of its signers could"},
		{"the time of the key of releases over", []string{"release.pub}", "release.pub" + over}, outcome.Refused, "p.yaml:7:12: rules[0] (harbor.example/plant/**): signers: 1 must sign, and only 0 of release"},
		{"a window that ends before it begins", []string{"root.pub}", "root.pub, notBefore: 2027-01-01T00:00:00Z, notAfter: 2026-01-01T00:00:00Z}"}, outcome.Misused, "p.yaml:3:77: keys[0].notAfter: ends before it begins"},
		{"expired", []string{"version: 2", "expires: 2020-01-01T00:00:00Z\nversion: 2"}, outcome.Refused, "p.yaml:1:10: it expired 2020-01-01"},
		{"two rules for one scope", []string{"trust:\n", "  - {scope: harbor.example/plant/**, reject: true}\ntrust:\n"}, outcome.Misused, "p.yaml:9:13: rules[1].scope: rules[0] already speaks about every state"},
		{"reject beside signers", []string{"    signers: [release]", "    signers: [release]\n    reject: true"}, outcome.Misused, "p.yaml:7:5: rules[0]: reject stands alone"},
		{"nobody for the next one", []string{"trust:\n  repository: harbor.example/plant/trust\n  signers: [root, other]\n  threshold: 2\n", ""}, outcome.Refused, "p.yaml: a trust policy that cannot be used: it has no trust section"},
	} {
		s.write("p.yaml", strings.NewReplacer(c.edits...).Replace(policy))
		if code, _, stderr := s.try("trust", "check", "--offline", "p.yaml"); code != c.code || !strings.Contains(stderr, c.says) {
			t.Errorf("%s: %d, want %d with %q\n%s", c.name, code, c.code, c.says, stderr)
		}
	}
}

// A typing error in the repository of the next version is told before anything is signed, and a move has to be said.
func TestTrustMoves(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	const at = host + "/plant/trust"
	s.do(outcome.OK, "trust", "init", "--signer", "root.pub", "--key", "release.pub", "--file", "p.yaml", at)
	s.do(outcome.OK, "trust", "check", "p.yaml")
	s.do(outcome.OK, "trust", "push", "--key", "root.key", "p.yaml", at)
	s.rewrite("p.yaml", "version: 1", "version: 2")
	s.do(outcome.OK, "trust", "check", "p.yaml")
	s.rewrite("p.yaml", "/plant/trust\n", "/plant/turst\n")
	for _, args := range [][]string{{"trust", "check", "p.yaml"}, {"trust", "push", "--key", "root.key", "p.yaml", at}, {"trust", "push", "p.yaml", at}} {
		if code, _, stderr := s.try(args...); code != outcome.Refused || !strings.Contains(stderr, "plant/turst") || !strings.Contains(stderr, "--move") {
			t.Errorf("%v: %d, want %d with the name and a hint\n%s", args, code, outcome.Refused, stderr)
		}
	}
	if code, _, _ := s.try("trust", "show", at+":v2.proposal"); code != outcome.NotFound {
		t.Error("a version that leads nowhere was proposed")
	}
	s.rewrite("p.yaml", "/plant/turst\n", "/plant/trust-2\n")
	s.do(outcome.OK, "trust", "push", "--move", "--key", "root.key", "p.yaml", at)
	s.do(outcome.OK, "trust", "history", at)
	s.do(outcome.OK, "trust", "history", host+"/plant/trust-2")
	s.rewrite("p.yaml", "version: 2", "version: 3")
	s.do(outcome.OK, "trust", "check", "p.yaml")
	s.do(outcome.Misused, "trust", "push", "--key", "root.key", "p.yaml", at)
	s.do(outcome.OK, "trust", "push", "--key", "root.key", "p.yaml", host+"/plant/trust-2")
}

// A policy is changed without an editor: what changes is told before it is signed, and nothing is proposed that locks devices out.
func TestTrustChange(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Referrers)
	const at = host + "/plant/trust"
	s.do(outcome.OK, "trust", "init", "--signer", "release.pub", "--signer", "root.pub", "--threshold", "2", "--key", "release.pub", "--file", "policy.yaml", at)
	s.do(outcome.NotFound, "trust", "add", "other.pub", at)
	s.do(outcome.OK, "trust", "push", "-q", "--key", "release.key", "--key", "root.key", "policy.yaml", at)
	s.do(outcome.OK, "trust", "add", "--dry-run", "other.pub", at)
	s.do(outcome.OK, "trust", "add", "--key", "release.key", "other.pub", at)
	s.do(outcome.OK, "trust", "show", at+":v2.proposal")
	s.do(outcome.Refused, "trust", "set-threshold", "1", "--policy-signers", at) // another one is proposed
	s.do(outcome.OK, "trust", "sign", "-q", "--key", "root.key", at)
	s.do(outcome.OK, "trust", "set-threshold", "-o", "json", "--key", "release.key", "--key", "root.key", "2", at)
	s.do(outcome.Refused, "trust", "remove", "root", at)
	s.do(outcome.Refused, "trust", "remove", "other", at)
	s.do(outcome.NotFound, "trust", "remove", "rot", at)
	s.do(outcome.OK, "trust", "remove", "-o", "json", "--successor", "root", "--dry-run", "other", at)
	s.do(outcome.OK, "trust", "revoke", "-o", "json", "--successor", "root", "--dry-run", "other", at)
	s.do(outcome.OK, "trust", "add", "--policy-signers", "--key", "release.key", "--key", "root.key", "other", at)
	s.do(outcome.OK, "trust", "revoke", "--reason", "laptop stolen", "--successor", "root", "-a", "org.opencontainers.image.revision=5cf3e2d", "--key", "release.key", "--key", "root.key", "other.pub", at)
	s.do(outcome.Verification, "trust", "add", "other.pub", at)
	s.do(outcome.OK, "trust", "show", "--document", at)
	s.do(outcome.OK, "trust", "history", at)
	s.do(outcome.Misused, "trust", "add", "other.pub")
	s.do(outcome.Misused, "trust", "set-threshold", "two", at)
	s.do(outcome.Misused, "trust", "set-threshold", "--file", "policy.yaml", "--key", "root.key", "1")
	s.do(outcome.OK, "trust", "add", "-o", "json", "--file", "trust.yaml", "root.pub")
	s.do(outcome.OK, "trust", "set-threshold", "--file", "trust.yaml", "2")
	s.do(outcome.OK, "check", "trust.yaml")
	s.golden(golden)
}

// A message names a layout as the command line does.
func TestTrustHistoryOfALayout(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", "oci-layout:stick:1.4.0")
	s.refuses(outcome.NotFound, []string{"oci-layout:stick: there is no trust policy"}, "trust", "history", "oci-layout:stick")
}
