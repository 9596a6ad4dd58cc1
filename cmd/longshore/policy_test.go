package main

import (
	"encoding/json"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/testenv"
)

const plantPolicy = `expires: 2027-06-01T00:00:00Z
keys:
  - {name: release, file: release.pub, notAfter: 2027-01-01T00:00:00Z}
  - {name: other, file: other.pub}
rules:
  - {scope: harbor.acme.example/plant/state, signers: [release, other]}
  - scope: harbor.acme.example/plant/components/**
    artifacts: [component]
    signers: [release]
    attestations:
      - {type: "https://spdx.dev/Document", signers: [release]}
  - {scope: "**", reject: true}
`

// What a device would decide is explained: which rule, which signers, what is missing, also at another time.
func TestPolicyTest(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Referrers)
	component, state := monitor+":1.4.0", states+":press-07"
	s.write("plant.yaml", plantPolicy)
	s.write("sbom.spdx.json", sbom)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", component, states)
	at := []string{"policy", "test", "--at", "2026-01-01T00:00:00Z", "plant.yaml"}
	s.do(outcome.Verification, append(at, state)...)
	s.do(outcome.OK, "sign", "-q", "--key", "release.key", component)
	s.do(outcome.Verification, append(at, component)...)
	s.do(outcome.OK, "attest", "-o", "json", "--key", "release.key", "--type", "spdxjson", "--predicate", "sbom.spdx.json", component)
	s.do(outcome.OK, append(at, state)...)
	s.do(outcome.OK, append(at, "-q", state)...)
	s.do(outcome.OK, append(at, "--no-recurse", "-o", "json", state)...)
	s.do(outcome.OK, "verify", "--policy", "plant.yaml", "--attestation", "spdx", "--show-predicate", component)
	s.do(outcome.Refused, "verify", "--policy", "plant.yaml", "--attestation", "cyclonedx", component)
	if code, out, _ := s.try("policy", "test", "--at", "2027-02-01T00:00:00Z", "plant.yaml", state); code == outcome.OK || !strings.Contains(out, "expired  release") {
		t.Errorf("after the key's time: exit %d\n%s", code, out)
	}
	if code, out, _ := s.try("policy", "test", "--at", "2027-07-01T00:00:00Z", "trust.yaml", state); code != outcome.OK || !strings.Contains(out, "a device would accept it") {
		t.Errorf("another policy: exit %d\n%s", code, out)
	}
	s.write("revoked.yaml", plantPolicy+"revoked:\n  - {digest: \""+strings.TrimSpace(s.do(outcome.OK, "inspect", "-q", component))+"\", reason: broken}\n")
	s.do(outcome.Verification, "policy", "test", "--at", "2026-01-01T00:00:00Z", "revoked.yaml", component)
	s.do(outcome.Refused, "policy", "test", "plant.yaml", host+"/library/caddy:2.10", "--kind", "component", "--at", "2026-01-01T00:00:00Z", "--no-recurse")
	s.do(outcome.Misused, "policy", "test", "--at", "tomorrow", "plant.yaml", state)
	s.do(outcome.Misused, "policy", "test", "agent.yaml", state)
	s.do(outcome.NotFound, "policy", "test", "gone.yaml", state)
	s.golden(golden)
	// What it shares with verify refuses a command line in the name of the command that was typed.
	_, _, told := s.try("policy", "test", "--kind", "pump", "plant.yaml", state)
	if !strings.HasPrefix(told, "longshore: policy test: --kind") || !strings.HasSuffix(told, "longshore policy test --help\n") {
		t.Errorf("another kind: %s", told)
	}
}

// An identity is asked for as cosign spells it, and held against a trusted root that is a file.
func TestVerifyIdentity(t *testing.T) {
	const issuer, subject = "https://login.acme.example", "anna@acme.example"
	s := newShell(t, testenv.Referrers)
	instance := keylesstest.New(t)
	component := monitor + ":1.4.0"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.write("trusted_root.json", string(instance.Root(t)))
	s.write("foreign_root.json", string(keylesstest.New(t).Root(t)))
	client, err := registry.New(registry.Options{CertsDir: s.env["LONGSHORE_CERTS_DIR"], Getenv: os.Getenv})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	repo, err := client.OpenName(t.Context(), monitor)
	if err != nil {
		t.Fatal(err)
	}
	sign := func(tag string, flaws keylesstest.Flaws) {
		t.Helper()
		signer, err := sign.NewKeylessSigner(instance.Keyless(t, issuer, subject, flaws), nil, sign.Options{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := repo.Resolve(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := signer.Sign(t.Context(), repo, d); err != nil {
			t.Fatal(err)
		}
	}
	sign("1.4.0", keylesstest.Flaws{})
	flags := func(identity, oidc, root string, more ...string) []string {
		return append([]string{"verify", "--certificate-identity", identity, "--certificate-oidc-issuer", oidc, "--trusted-root", root, component}, more...)
	}
	out := s.do(outcome.OK, flags(subject, issuer, "trusted_root.json")...)
	if !strings.Contains(out, subject+" of "+issuer) || !strings.Contains(out, "(proven)") {
		t.Errorf("who signed, and when, is not told:\n%s", out)
	}
	s.do(outcome.OK, "verify", "--certificate-identity-regexp", `[a-z]+@acme\.example`, "--certificate-oidc-issuer-regexp", `https://login\..+`, "--trusted-root", "trusted_root.json", component)
	s.do(outcome.OK, flags(subject, issuer, "trusted_root.json", "--key", "release.pub")...) // any one of them
	s.do(outcome.Verification, flags("eve@acme.example", issuer, "trusted_root.json")...)
	s.do(outcome.Verification, flags(subject, "https://login.evil.example", "trusted_root.json")...)
	s.do(outcome.Verification, flags(subject, issuer, "foreign_root.json")...)
	s.do(outcome.Misused, flags(subject, issuer, "release.pub")...)
	s.do(outcome.Misused, flags(subject, issuer, "")...)
	s.do(outcome.Misused, flags(subject, "", "trusted_root.json")...)
	s.do(outcome.Misused, flags(subject, issuer, "trusted_root.json", "--certificate-identity-regexp", "a")...)
	s.do(outcome.Misused, flags(subject, issuer, "trusted_root.json", "--policy", "trust.yaml")...)

	component = monitor + ":1.4.1" // signed when the certificate was out of its time
	s.rewrite("line-monitor/compose.yaml", "services:", "x-late: true\nservices:")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	sign("1.4.1", keylesstest.Flaws{Late: time.Hour})
	if out := s.do(outcome.Verification, flags(subject, issuer, "trusted_root.json")...); !strings.Contains(out, "out of time") {
		t.Errorf("that the certificate was out of its time is not told:\n%s", out)
	}
}

func TestPolicySchema(t *testing.T) {
	s := &shell{t: t, env: map[string]string{}}
	var schema map[string]any
	if err := json.Unmarshal([]byte(s.do(outcome.OK, "policy", "schema")), &schema); err != nil || schema["$schema"] == nil {
		t.Errorf("policy schema = %v, %v", schema, err)
	}
	s.do(outcome.Misused, "policy", "schema", "trust.yaml")
}

// Where the policy asks for freshness, a state without a statement, or with one that has ended, does not hold.
func TestPolicyFreshness(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	state := states + ":press-07"
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states)
	s.do(outcome.OK, "key", "generate", "pulse")
	s.write("fresh.yaml", "keys:\n  - {name: release, file: release.pub}\n  - {name: pulse, file: pulse.pub}\nrules:\n  - {scope: "+states+
		", signers: [release], freshness: {signers: [pulse]}}\n")
	if out := s.do(outcome.Verification, "policy", "test", "fresh.yaml", state); !strings.Contains(out, "✗ freshness") || !strings.Contains(out, "✓ signed by release") {
		t.Errorf("without a statement:\n%s", out)
	}
	s.do(outcome.OK, "freshen", "--key", "pulse.key", "--for", "48h", state)
	for _, command := range [][]string{{"policy", "test", "fresh.yaml"}, {"verify", "--policy", "fresh.yaml"}} {
		if out := s.do(outcome.OK, append(command, state)...); !strings.Contains(out, "✓ freshness: until ") || !strings.Contains(out, "Z, by pulse") {
			t.Errorf("with a statement:\n%s", out)
		}
	}
	if out := s.do(outcome.Refused, "policy", "test", "--at", "2100-01-01T00:00:00Z", "fresh.yaml", state); !strings.Contains(out, "it ended ") {
		t.Errorf("with a statement that has ended:\n%s", out)
	}
	if out := s.do(outcome.OK, "inspect", state); !strings.Contains(out, "freshness by the key") {
		t.Errorf("inspect does not show the statement:\n%s", out)
	}
}
