package main

import (
	"os"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
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
	s.do(outcome.OK, "trust", "push", "--replace", "--key", "root.key", "second.yaml", at)
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
