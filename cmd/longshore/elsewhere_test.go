package main

import (
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// With COSIGN_REPOSITORY signatures are kept in another repository, by every command that signs, and found there by every
// one that verifies; a policy says itself where they are.
func TestSignaturesElsewhere(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	component, state := monitor+":1.4.0", states+":press-07"
	s.env["COSIGN_REPOSITORY"] = host + "/plant/signatures"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", component, states)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", state)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--keep-others", "--component", component, states) // follows what it signed
	s.do(outcome.OK, "sign", "-q", "--key", "release.key", "--signature-format", "both", component)
	s.write("release.pub.json", `{"result":"fine"}`)
	s.do(outcome.OK, "attest", "-q", "--key", "release.key", "--type", "https://example.com/checked/v1", "--predicate", "release.pub.json", component)
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", "--attestation", "https://example.com/checked/v1", component)
	delete(s.env, "COSIGN_REPOSITORY")
	s.do(outcome.Verification, "verify", "-q", "--key", "release.pub", state)
	s.do(outcome.Verification, "verify", "-q", "--key", "release.pub", component)
	rule := "rules:\n  - {scope: " + host + "/plant/**, artifacts: [state, component], keys: [{name: release, file: release.pub}]"
	s.write("beside.yaml", rule+"}\n")
	s.write("elsewhere.yaml", rule+", signatures: "+host+"/plant/signatures}\n")
	s.do(outcome.Verification, "verify", "-q", "--policy", "beside.yaml", state)
	s.do(outcome.OK, "verify", "-q", "--policy", "elsewhere.yaml", state)
}
