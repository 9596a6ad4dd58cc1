package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/signing/sign/remotekey"
	"github.com/longshore-dev/longshore/testenv"
)

const lineMonitor = host + "/plant/components/line-monitor:1.4.0"

// pushUnsigned puts a component into the registry that others sign.
func (s *shell) pushUnsigned() {
	s.t.Helper()
	s.do(0, "component", "push", "line-monitor", lineMonitor)
}

func (s *shell) cosign3(args ...string) (string, error) {
	s.t.Helper()
	return s.cosign("cosign3", args...)
}

// cosign runs a real cosign on the registry's own address, without a way to anywhere else.
func (s *shell) cosign(program string, args ...string) (string, error) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), testenv.Program(s.t, program), args...)
	home := s.t.TempDir()
	cmd.Env = append(os.Environ(), "HOME="+home, "TUF_ROOT="+filepath.Join(home, "tuf"), "COSIGN_PASSWORD=longshore",
		"HTTPS_PROXY=http://127.0.0.1:1", "HTTP_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
	out, err := cmd.CombinedOutput()
	return string(out), err
}

func (s *shell) real(ref string) string { return strings.Replace(ref, host, s.server.Host, 1) }

// A key in a real PKCS#11 token signs on the command line, and cosign takes the signature with its public half.
func TestSignWithToken(t *testing.T) {
	if !remotekey.HasPKCS11 {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	s := newShell(t, testenv.Referrers)
	token := testenv.SoftHSM(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	token.Import(t, "release", 1, key)
	s.pushUnsigned()
	s.env["COSIGN_PKCS11_PIN"] = token.PIN
	s.do(0, "sign", "--key", token.URI("release"), lineMonitor)
	s.do(0, "key", "public", "--key", token.URI("release"), "--out", "token.pub")
	s.do(0, "verify", "--key", "token.pub", lineMonitor)
	if out, err := s.cosign3("verify", "--key", "token.pub", "--insecure-ignore-tlog", s.real(lineMonitor)); err != nil {
		t.Errorf("cosign does not take it: %v\n%s", err, out)
	}
	s.env["COSIGN_PKCS11_PIN"] = "0000"
	if code, _, stderr := s.try("sign", "--key", token.URI("release"), lineMonitor); code == 0 || !strings.Contains(stderr, "check the PIN") || strings.Contains(stderr, "0000") {
		t.Errorf("wrong PIN: exit %d\n%s", code, stderr)
	}
}

// Every command that publishes states takes --keyless for a signer, and nobody beside --unsigned.
func TestWhoSigns(t *testing.T) {
	s := newShell(t, testenv.Lax)
	for _, args := range [][]string{
		{"state", "push", "--device", "press-07", "--empty", states},
		{"state", "rollback", "--device", "press-07", "--to", "1", states},
		{"fleet", "publish", "plant"},
		{"fleet", "rollback", "--previous", "plant"},
		{"fleet", "watch", "plant"},
	} {
		with := func(more ...string) []string { return slices.Concat(args[:2], more, args[2:]) }
		s.expect(outcome.Misused, "use --key, --keyless or --unsigned", with()...)
		s.expect(outcome.Misused, "--keyless needs --signing-config", with("--keyless")...)
		for _, flag := range []string{"--keyless", "--key=release.key"} {
			s.expect(outcome.Misused, "--unsigned excludes --key and --keyless", with("--unsigned", flag)...)
		}
	}
}

// expect runs a command that ends with a code and says something of it.
func (s *shell) expect(code int, text string, args ...string) {
	s.t.Helper()
	if got, _, stderr := s.try(args...); got != code || !strings.Contains(stderr, text) {
		s.t.Errorf("%v: exit %d, want %d and %q\n%s", args, got, code, text, stderr)
	}
}

// Keyless signing on the command line against a real instance, verified by cosign, and by a policy with no server left.
func TestSignKeyless(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	instance := testenv.StartSigstore(t)
	raw, err := instance.Token("release@acme.example")
	if err != nil {
		t.Fatal(err)
	}
	s.write("token", raw+"\n")
	s.pushUnsigned()
	as := []string{"sign", "--keyless", "--signing-config", instance.SigningConfig, "--trusted-root", instance.TrustedRoot}
	for range 2 { // the second finds what the first made
		out := s.do(0, append(as, "--identity-token", "token", "--oidc-issuer", instance.Issuer, lineMonitor)...)
		if !strings.Contains(out, "release@acme.example") || strings.Contains(out, raw) {
			t.Errorf("sign says:\n%s", out)
		}
	}
	if out, err := s.cosign3("verify", "--trusted-root", instance.TrustedRoot, "--certificate-identity", "release@acme.example",
		"--certificate-oidc-issuer", instance.Issuer, s.real(lineMonitor)); err != nil || strings.Contains(out, "2 signatures") {
		t.Errorf("cosign does not take it: %v\n%s", err, out)
	}
	// The states of a fleet are signed so as well.
	s.stock()
	s.do(0, "app", "push", "-q", "./app", host+"/plant/apps/line")
	s.do(0, append([]string{"fleet", "publish", "-q", "--identity-token", "token", "--select", "device=press-08"}, append(as[1:], "plant")...)...)
	s.do(0, "verify", "-q", "--trusted-root", instance.TrustedRoot, "--certificate-identity", "release@acme.example",
		"--certificate-oidc-issuer", instance.Issuer, states+":press-08")
	// A job of GitHub Actions needs nothing but its environment.
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_URL", instance.ActionsURL)
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", instance.ActionsToken)
	if out := s.do(0, append(as, lineMonitor)...); !strings.Contains(out, "job@acme.example") {
		t.Errorf("sign as a job says:\n%s", out)
	}
	root, err := os.ReadFile(instance.TrustedRoot)
	if err != nil {
		t.Fatal(err)
	}
	s.write("trusted_root.json", string(root))
	s.signsTogether(instance, append(as[1:], "--identity-token", "token"))
	s.freshensAs(append(as[1:3:3], append(as[3:4:4], "--identity-token", "token")...), instance.TrustedRoot)
	if err := instance.Stop(); err != nil {
		t.Fatal(err)
	}
	s.do(0, "trusted-root", "show", "trusted_root.json")
	for who, want := range map[string]int{"release@acme.example": 0, "job@acme.example": 0, "stranger@acme.example": 5} {
		s.write("keyless.yaml", "identities:\n  - {name: ci, issuer: \""+instance.Issuer+"\", subject: "+who+"}\ntrustedRoot: {file: trusted_root.json}\n"+
			"rules:\n  - {scope: "+host+"/plant/**, artifacts: [component], signers: [ci]}\n")
		s.do(want, "verify", "--policy", "keyless.yaml", "--kind", "component", lineMonitor)
	}
	// Without a trusted root an identity is nobody: told where.
	s.write("rootless.yaml", "identities:\n  - {name: ci, issuer: \"https://x.example\", subject: a@b.example}\n"+
		"rules:\n  - {scope: "+host+"/plant/**, signers: [ci]}\n")
	if code, _, stderr := s.try("check", "rootless.yaml"); code == 0 || !strings.Contains(stderr, "rootless.yaml:2:") || !strings.Contains(stderr, "trustedRoot") {
		t.Errorf("a policy with an identity and no root: exit %d\n%s", code, stderr)
	}
}

// signsTogether publishes a trust policy that a key and an identity have to sign, by one command.
func (s *shell) signsTogether(instance *testenv.Sigstore, as []string) {
	s.t.Helper()
	const at = host + "/plant/trust"
	s.write("together.yaml", "version: 1\nkeys: [{name: root, file: root.pub}]\nidentities:\n  - {name: ci, issuer: \""+instance.Issuer+"\", subject: release@acme.example}\n"+
		"trustedRoot: {file: trusted_root.json}\nrules: [{scope: "+host+"/plant/**, signers: [ci]}]\ntrust: {repository: "+at+", signers: [root, ci], threshold: 2}\n")
	out := s.do(0, append(append([]string{"trust", "push", "--key", "root.key"}, as...), "together.yaml", at)...)
	if !strings.Contains(out, "published") || !strings.Contains(out, "release@acme.example") {
		s.t.Errorf("trust push by a key and an identity says:\n%s", out)
	}
	if out := s.do(0, "trust", "history", at); !strings.Contains(out, "2 of 2: root, ci") {
		s.t.Errorf("trust history says:\n%s", out)
	}
}

// freshensAs freshens a state in the name of an identity. What it said before it finds with a trusted root alone.
func (s *shell) freshensAs(as []string, root string) {
	s.t.Helper()
	s.do(0, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--empty", states)
	for _, c := range []struct {
		more    []string
		renewed int
	}{{nil, 1}, {nil, 1}, {[]string{"--trusted-root", root}, 0}} {
		if r := s.freshened(0, append(append(as[:len(as):len(as)], c.more...), states+":press-07")...); r.Renewed != c.renewed {
			s.t.Errorf("freshen %v = %+v, want %d renewed", c.more, r, c.renewed)
		}
	}
}

// What is wrong with how one wants to sign is told before anything is asked.
func TestSignRefuses(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.pushUnsigned()
	config := `{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json","rekorTlogConfig":{},"tsaConfig":{}}`
	s.write("empty.json", config)
	if err := os.Chmod("release.key", 0o644); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		want string
		env  map[string]string
		args []string
	}{
		{"check the password", map[string]string{"COSIGN_PASSWORD": "wrong"}, []string{"--key", "release.key"}},
		{"chmod 600", map[string]string{"COSIGN_PASSWORD": ""}, []string{"--key", "release.key"}},
		{"private key: invalid: this is a public key", nil, []string{"--key", "release.pub"}},
		{"--key excludes --keyless", nil, []string{"--key", "release.key", "--keyless"}},
		{"needs --keyless", nil, []string{"--fulcio-url", "https://fulcio.example"}},
		{"--keyless needs", nil, []string{"--keyless"}},
		{"certificate authority: no matching", nil, []string{"--keyless", "--signing-config", "empty.json"}},
		{"no identity token", nil, []string{"--keyless", "--fulcio-url", "https://fulcio.example", "--rekor-url", "https://rekor.example"}},
		{"neither a transparency log nor", nil, []string{"--keyless", "--fulcio-url", "https://fulcio.example"}},
		{"it expired at", map[string]string{"SIGSTORE_ID_TOKEN": testToken}, []string{"--keyless", "--fulcio-url", "https://fulcio.example", "--rekor-url", "https://rekor.example"}},
		{"names neither object nor id", nil, []string{"--key", "pkcs11:token=x"}},
		{"no program sigstore-kms-nothere", nil, []string{"--key", "nothere://key"}},
	} {
		before := map[string]string{}
		for k, v := range c.env {
			before[k] = s.env[k]
			s.env[k] = v
		}
		code, _, stderr := s.try(append(append([]string{"sign"}, c.args...), lineMonitor)...)
		if code == 0 || !strings.Contains(strings.ToLower(stderr), strings.ToLower(c.want)) || strings.Contains(stderr, testToken) {
			t.Errorf("sign %s: exit %d, want %q\n%s", strings.Join(c.args, " "), code, c.want, stderr)
		}
		for k, v := range before {
			s.env[k] = v
		}
	}
}

// testToken says who, expired in 2001, and is signed by nobody.
const testToken = "eyJhbGciOiJub25lIn0.eyJpc3MiOiJodHRwczovL2lzc3Vlci5leGFtcGxlIiwic3ViIjoibWUiLCJlbWFpbCI6Im1lQGFjbWUuZXhhbXBsZSIsImV4cCI6MTAwMDAwMDAwMH0.c2lnbmVk"
