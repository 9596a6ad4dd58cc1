package main

import (
	"encoding/json"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

const sbom = `{"spdxVersion":"SPDX-2.3","name":"line-monitor","packages":[]}`

// The whole chain of a state is told, in text and JSON, and what speaks against it is where it stands.
func TestVerifyChain(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Referrers)
	component, state := monitor+":1.4.0", states+":press-07"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", component, states)
	s.do(outcome.OK, "verify", "--key", "release.pub", "-o", "json", state)
	s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", state)
	s.do(outcome.Verification, "verify", "--policy", "trust.yaml", state)
	s.do(outcome.Verification, "verify", "-q", "--policy", "trust.yaml", state)
	s.do(outcome.OK, "sign", "-q", "--key", "release.key", component)
	s.do(outcome.OK, "verify", "--policy", "trust.yaml", state)
	s.do(outcome.OK, "verify", "-q", "--policy", "trust.yaml", state)
	s.do(outcome.OK, "verify", "--key", "release.pub", state)
	s.do(outcome.Misused, "verify", "--policy", "trust.yaml", host+"/library/caddy:2.10", "--kind", "thing")
	s.do(outcome.Misused, "verify", "--key", "release.pub", "--show-predicate", state)
	s.do(outcome.Misused, "verify", "--key", "release.pub", "--attestation", "sbom", state)
	s.do(outcome.Misused, "verify", "--key", "release.pub", "--policy", "trust.yaml", state)
	s.golden(golden)
}

// An expired state, and one whose component is gone, hold no longer; what expires later does.
func TestVerifyFindsWhatNoLongerHolds(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	component, state := monitor+":1.4.0", states+":press-07"
	pushed := strings.TrimSpace(s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component))
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--expires", "2099-01-01T00:00:00Z", "--component", component, states)
	if out := s.do(outcome.OK, "verify", "--key", "release.pub", state); !strings.Contains(out, "✓ expiry: until 2099-01-01T00:00:00Z") {
		t.Errorf("no word of the expiry:\n%s", out)
	}
	s.server.Faults.Add(testenv.Rule{Path: "/manifests/" + pushed, Effect: testenv.Status(404, 0)})
	if out := s.do(outcome.NotFound, "verify", "--key", "release.pub", state); !strings.Contains(out, "✗ content: component") {
		t.Errorf("no word of the component:\n%s", out)
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", state)
}

// A trusted root in the environment is for who asks for an identity, and for nobody else; on the command line it asks for one.
func TestVerifyBesideTrustedRoot(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	component := monitor + ":1.4.0"
	s.do(outcome.OK, "component", "push", "-q", "--key", "release.key", "./line-monitor", component)
	s.env["LONGSHORE_TRUSTED_ROOT"] = "trusted_root.json"
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", component)
	s.do(outcome.OK, "verify", "-q", "--policy", "trust.yaml", component)
	s.expect(outcome.NotFound, "trusted_root.json", "verify", "--certificate-identity", "a@b.example", "--certificate-oidc-issuer", "https://c.example", component)
	delete(s.env, "LONGSHORE_TRUSTED_ROOT")
	s.expect(outcome.Misused, "--certificate-identity is missing", "verify", "--trusted-root", "trusted_root.json", component)
}

// What we attest can be verified by us, and what nobody attested cannot.
func TestAttest(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	component := monitor + ":1.4.0"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.write("sbom.spdx.json", sbom)
	s.write("list.json", "[]")
	s.do(outcome.Verification, "verify", "--key", "release.pub", "--attestation", "spdxjson", component)
	out := s.do(outcome.OK, "attest", "--key", "release.key", "--type", "spdxjson", "--predicate", "sbom.spdx.json", "-a", "by=ci", "-o", "json", component)
	if !strings.Contains(out, "https://spdx.dev/Document") {
		t.Errorf("attest says %s", out)
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", "--attestation", "spdxjson", component)
	s.do(outcome.OK, "verify", "--key", "release.pub", "--attestation", "https://spdx.dev/Document", "--show-predicate", component)
	s.do(outcome.OK, "verify", "--key", "release.pub", "--attestation", "spdx", "-a", "by=ci", "-q", component)
	s.do(outcome.Verification, "verify", "--key", "release.pub", "--attestation", "spdx", "-a", "by=anna", component)
	s.do(outcome.Verification, "verify", "--key", "other.pub", "--attestation", "spdx", component)
	s.do(outcome.Verification, "verify", "--key", "release.pub", "--attestation", "cyclonedx", component)
	s.do(outcome.Verification, "verify", "--key", "release.pub", component) // an attestation is no signature
	s.do(outcome.Misused, "attest", "--key", "release.key", "--type", "spdxjson", "--predicate", "list.json", component)
	s.do(outcome.Misused, "attest", "--key", "release.key", "--type", "sbom", "--predicate", "sbom.spdx.json", component)
	s.do(outcome.Misused, "attest", "--key", "release.key", "--predicate", "sbom.spdx.json", component)
	s.do(outcome.Misused, "attest", "--type", "spdx", "--predicate", "sbom.spdx.json", component)
	s.do(outcome.Misused, "attest", "--key", "release.key", "--type", signing.PredicateSign, "--predicate", "sbom.spdx.json", component)
	s.do(outcome.NotFound, "attest", "--key", "release.key", "--type", "spdx", "--predicate", "gone.json", component)
	s.do(outcome.OK, "attest", "-o", "json", "--key", "release.key", "--type", "custom", "--predicate", "list.json", component)
	s.do(outcome.OK, "verify", "--key", "release.pub", "--attestation", "custom", "--show-predicate", component)
	s.golden(golden)
}

// The real cosign verifies what we attest and attests what we verify, without any network but the registry.
func TestCosignAttestations(t *testing.T) {
	program := testenv.Program(t, "cosign3")
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			component := monitor + ":1.4.0"
			real := s.server.Reference("plant/components/line-monitor:1.4.0")
			s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
			s.write("sbom.spdx.json", sbom)
			s.write("provenance.json", `{"buildDefinition":{"buildType":"https://acme.example/build"},"runDetails":{"builder":{"id":"https://acme.example/ci"}}}`)
			s.write("config.json", `{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json","rekorTlogConfig":{},"tsaConfig":{}}`)
			cosign := func(args ...string) (string, error) {
				cmd := exec.CommandContext(t.Context(), program, args...)
				cmd.Env = append(os.Environ(), "HOME="+s.env["HOME"], "COSIGN_PASSWORD=longshore", "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
				out, err := cmd.CombinedOutput()
				return string(out), err
			}
			for _, c := range []struct{ kind, file string }{
				{"spdxjson", "sbom.spdx.json"},
				{"slsaprovenance1", "provenance.json"},
				{"https://acme.example/review/v1", "provenance.json"},
				{"custom", "provenance.json"},
			} {
				s.do(outcome.OK, "attest", "-q", "--key", "release.key", "--type", c.kind, "--predicate", c.file, component)
				if out, err := cosign("verify-attestation", "--key", "release.pub", "--insecure-ignore-tlog", "--type", c.kind, real); err != nil {
					t.Errorf("cosign verify-attestation --type %s: %v\n%s", c.kind, err, out)
				}
			}
			if out, err := cosign("verify-attestation", "--key", "release.pub", "--insecure-ignore-tlog", "--type", "cyclonedx", real); err == nil {
				t.Errorf("cosign found an attestation that nobody made:\n%s", out)
			}

			s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.1")
			real = s.server.Reference("plant/components/line-monitor:1.4.1")
			if out, err := cosign("attest", "--key", "release.key", "--signing-config", "config.json", "--yes", "--type", "spdxjson", "--predicate", "sbom.spdx.json", real); err != nil {
				t.Fatalf("cosign attest: %v\n%s", err, out)
			}
			var got, want any
			shown := s.do(outcome.OK, "verify", "--key", "release.pub", "--attestation", "spdxjson", "--show-predicate", monitor+":1.4.1")
			if err := json.Unmarshal([]byte(shown), &got); err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal([]byte(sbom), &want); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("what cosign attested (-want +got):\n%s", diff)
			}
			s.do(outcome.Verification, "verify", "--key", "release.pub", monitor+":1.4.1")
			s.do(outcome.Verification, "verify", "--key", "release.pub", "--attestation", "slsaprovenance", monitor+":1.4.1")
		})
	}
}

// The table in docs/exit-codes.md: how verify and cosign 3 end in the same cases.
func TestExitCodesBesideCosign(t *testing.T) {
	program := testenv.Program(t, "cosign3")
	s := newShell(t, testenv.Referrers)
	signed, unsigned := monitor+":1.4.0", monitor+":1.4.1"
	s.do(outcome.OK, "component", "push", "-q", "--key", "release.key", "./line-monitor", signed)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", unsigned)
	here := func(ref string) string { return strings.Replace(ref, host, s.server.Host, 1) }
	for _, tt := range []struct {
		name, key, ref string
		ours, cosign   int
	}{
		{"signed", "release.pub", signed, outcome.OK, 0},
		{"signed by others", "other.pub", signed, outcome.Verification, 1},
		{"not signed", "release.pub", unsigned, outcome.Verification, 10},
		{"not there", "release.pub", monitor + ":9.9.9", outcome.NotFound, 11},
		{"no key", "gone.pub", signed, outcome.NotFound, 1},
	} {
		if code, _, stderr := s.try("verify", "--key", tt.key, tt.ref); code != tt.ours {
			t.Errorf("%s: longshore ends with %d, want %d\n%s", tt.name, code, tt.ours, stderr)
		}
		cmd := exec.CommandContext(t.Context(), program, "verify", "--key", tt.key, "--insecure-ignore-tlog", here(tt.ref))
		cmd.Env = append(os.Environ(), "HOME="+s.env["HOME"], "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
		out, err := cmd.CombinedOutput()
		if got := cmd.ProcessState.ExitCode(); got != tt.cosign {
			t.Errorf("%s: cosign ends with %d, the documentation says %d: %v\n%s", tt.name, got, tt.cosign, err, out)
		}
	}
}
