package attack

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
	"github.com/longshore-dev/longshore/testenv"
)

// Bounds on what a command may take of bad input.
const (
	inputTime   = 30 * time.Second
	inputMemory = 160 << 20 // bytes, of which the program itself has about 60
	inputAsked  = 120       // requests
)

// ended is how a command ended.
type ended struct {
	code   int
	text   string // of its errors
	memory int64  // bytes at its peak
	took   time.Duration
}

// try runs a command to its end, however that is.
func (d *device) try(t *testing.T, env []string, program string, args ...string) ended {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), settleLimit)
	defer cancel()
	cmd := exec.CommandContext(ctx, filepath.Join(d.bin, program), args...)
	cmd.Dir, cmd.Env = d.dir, append(append(os.Environ(), d.environment()...), env...)
	d.box.Mark(cmd)
	var text bytes.Buffer
	cmd.Stdout, cmd.Stderr = &text, &text
	begin := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	// The kernel's figure of an ended process includes ours, which it was forked from.
	done, peak := make(chan struct{}), make(chan int64)
	go func() {
		var most int64
		for {
			if n, err := testenv.PeakMemory(cmd.Process.Pid); err == nil {
				most = max(most, n)
			}
			select {
			case <-done:
				peak <- most
				return
			case <-time.After(2 * time.Millisecond):
			}
		}
	}()
	err := cmd.Wait()
	close(done)
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		t.Error(err)
	}
	return ended{code: cmd.ProcessState.ExitCode(), text: text.String(), took: time.Since(begin), memory: <-peak}
}

// bad is a command line that must fail: with a code, naming what is wrong, within bounds, and without changing anything.
type bad struct {
	name  string
	files map[string]string // beside the keys
	env   []string
	args  []string // REF is a signed state
	code  int
	says  []string
}

func badKeys() []bad {
	sign := []string{"longshore", "sign", "--key"}
	with := func(first []string, more ...string) []string { return append(append([]string{}, first...), more...) }
	return []bad{
		{name: "wrong password", env: []string{"LONGSHORE_KEY_PASSWORD=wrong"}, args: with(sign, "release.key", "REF"), code: 3, says: []string{"release.key", "password"}},
		{name: "public key to sign with", args: with(sign, "release.pub", "REF"), code: 2, says: []string{"release.pub", "this is a public key", "sign with the private one"}},
		{name: "private key to verify with", args: []string{"longshore", "verify", "--key", "release.key", "REF"}, code: 2, says: []string{"private key", "keep the private key away"}},
		{name: "key that cannot sign", files: map[string]string{"x.pub": x25519}, args: []string{"longshore", "verify", "--key", "x.pub", "REF"}, code: 2, says: []string{"x", "ecdh"}},
		{name: "key that is too short", files: map[string]string{"short.pub": rsa1024}, args: []string{"longshore", "verify", "--key", "short.pub", "REF"}, code: 2, says: []string{"RSA 1024", "2048"}},
		{name: "no key at all", files: map[string]string{"none.pub": "hello"}, args: []string{"longshore", "verify", "--key", "none.pub", "REF"}, code: 2, says: []string{"no PEM block"}},
		{name: "endless key", args: []string{"longshore", "verify", "--key", "/dev/zero", "REF"}, code: 2, says: []string{"/dev/zero"}},
		{name: "key that is not there", args: with(sign, "gone.key", "REF"), code: 4, says: []string{"gone.key"}},
	}
}

func badPolicies() []bad {
	policy := func(name, text string, says ...string) bad {
		return bad{
			name: name, files: map[string]string{"trust.yaml": text}, args: []string{"longshore", "check", "trust.yaml"},
			code: 2, says: append(says, "trust.yaml:"),
		}
	}
	return []bad{
		policy("policy that rejects and names keys", "rules:\n  - scope: \"**\"\n    reject: true\n    keys: [{name: a, file: release.pub}]\n", "reject stands alone"),
		policy("policy that says two things of one scope", "rules:\n  - {scope: \"a.example/**\", reject: true}\n  - {scope: \"a.example/**\", allowUnsigned: true}\n", "already speaks"),
		policy("threshold that nobody reaches", "keys: [{name: a, file: release.pub}]\nrules:\n  - {scope: \"**\", signers: [a], threshold: 2}\n", "threshold"),
		policy("one key under two names", "keys: [{name: a, file: release.pub}, {name: b, file: release.pub}]\nrules:\n  - {scope: \"**\", signers: [a, b], threshold: 2}\n"),
		policy("signer that nobody knows", "rules:\n  - {scope: \"**\", signers: [nobody]}\n", "nobody"),
		policy("time that runs backwards", "keys: [{name: a, file: release.pub, notBefore: 2027-01-01T00:00:00Z, notAfter: 2026-01-01T00:00:00Z}]\nrules:\n  - {scope: \"**\", signers: [a]}\n", "keys[0]"),
		policy("policy without a rule", "rules: []\n", "rules"),
		policy("word that nobody knows", "rules:\n  - {scope: \"**\", allowUnsinged: true}\n", "allowUnsinged"),
	}
}

// TestBadInput gives our programs what people get wrong, and what a registry may make of a signature.
func TestBadInput(t *testing.T) {
	d := newPublisher(t, newOffice(t), 9, testenv.Registry(t, testenv.Referrers), setup{})
	a, err := artifacts.PackState(artifacts.StateOptions{Device: d.id, Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	state, err := release.Publish(t.Context(), d.open(t, "plant/state"), a, release.PublishOptions{Tags: []string{string(d.id)}})
	if err != nil {
		t.Fatal(err)
	}
	d.sign(t, "release", state)
	ref := d.host + "/plant/state@" + state.Digest.String()
	verify := []string{"longshore", "verify", "--key", "release.pub", "REF"}
	for _, b := range append(badKeys(), badPolicies()...) {
		t.Run(b.name, func(t *testing.T) { d.fails(t, b, ref) })
	}
	t.Run("key file that everybody may read", func(t *testing.T) {
		open := []string{"LONGSHORE_KEY_PASSWORD="} // without a password nothing else protects it
		if out := d.try(t, open, "longshore", "key", "generate", "open"); out.code != 0 {
			t.Fatal(out.text)
		}
		if err := os.Chmod(d.path("open.key"), 0o644); err != nil {
			t.Fatal(err)
		}
		d.fails(t, bad{env: open, args: []string{"longshore", "sign", "--key", "open.key", "REF"}, code: 3, says: []string{"open.key", "every user", "chmod 600"}}, ref)
	})
	t.Run("ten thousand signatures to verify", func(t *testing.T) {
		d.proxy.Faults.Add(testenv.Rule{Path: `/referrers/`, Effect: Inflate(10_000)})
		defer d.proxy.Rest()
		d.fails(t, bad{args: verify, code: 5, says: []string{"more than 4096 referrers", "too large"}}, ref)
	})
	t.Run("signature of 100 MiB to verify", func(t *testing.T) {
		forged := d.forge(t, 2)
		d.attach(t, state, forged, make([]byte, 100<<20))
		d.fails(t, bad{args: verify, code: 5, says: []string{"104857600 bytes"}}, d.host+"/plant/state@"+forged.Digest.String())
	})
	t.Run("certificate out of time to verify", func(t *testing.T) {
		instance := keylesstest.New(t)
		if err := os.WriteFile(d.path("root.json"), instance.Root(t), 0o600); err != nil {
			t.Fatal(err)
		}
		as := []string{"longshore", "verify", "--certificate-identity", subject, "--certificate-oidc-issuer", issuer, "--trusted-root", "root.json", "REF"}
		for n, f := range map[uint64]keylesstest.Flaws{3: {NoStamp: true, Late: time.Hour}, 4: {NoStamp: true, Late: -time.Hour}} {
			sealed := d.forge(t, n)
			d.seal(t, instance.Keyless(t, issuer, subject, f), sealed)
			d.fails(t, bad{args: as, code: 5, says: []string{"certificate out of time", "is valid from"}}, d.host+"/plant/state@"+sealed.Digest.String())
		}
	})
	t.Run("and what is right passes", func(t *testing.T) {
		if out := d.try(t, nil, "longshore", "verify", "--key", "release.pub", ref); out.code != 0 {
			t.Errorf("verify ends with %d:\n%s", out.code, out.text)
		}
	})
}

// fails holds how a bad command line ends.
func (d *device) fails(t *testing.T, b bad, ref string) {
	for name, text := range b.files {
		if err := os.WriteFile(d.path(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		defer os.Remove(d.path(name))
	}
	args := append([]string{}, b.args...)
	for i := range args {
		args[i] = strings.Replace(args[i], "REF", ref, 1)
	}
	before := d.files(t)
	d.proxy.Faults.Forget()
	out := d.try(t, b.env, args[0], args[1:]...)
	if out.code != b.code {
		t.Errorf("%s ends with %d, want %d:\n%s", strings.Join(args, " "), out.code, b.code, out.text)
	}
	for _, want := range b.says {
		if !strings.Contains(out.text, want) {
			t.Errorf("it does not say %q:\n%s", want, out.text)
		}
	}
	if out.took > inputTime || out.memory > inputMemory {
		t.Errorf("it took %v and %d MiB, at most %v and %d MiB are allowed", out.took, out.memory>>20, inputTime, inputMemory>>20)
	}
	asked := d.proxy.Faults.Requests("", "")
	if len(asked) > inputAsked {
		t.Errorf("it asked %d times, at most %d are allowed", len(asked), inputAsked)
	}
	for _, r := range asked {
		if r.Method != "GET" && r.Method != "HEAD" {
			t.Errorf("it wrote: %s %s", r.Method, r.Path)
		}
	}
	if after := d.files(t); after != before {
		t.Errorf("files were %s and are %s", before, after)
	}
	t.Logf("%s: %d, %.1f s, %d MiB: %s", strings.Join(b.args, " "), out.code, out.took.Seconds(), out.memory>>20, out.text)
}

// files lists what is in the publisher's folder.
func (d *device) files(t *testing.T) string {
	t.Helper()
	entries, err := os.ReadDir(d.dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return strings.Join(names, " ")
}

// Public keys that nothing can be verified with.
const (
	x25519 = `-----BEGIN PUBLIC KEY-----
MCowBQYDK2VuAyEAA19D+amxwMGl8lWrpKbQiSySddsNdiX9OJqnWTm0uXE=
-----END PUBLIC KEY-----
`
	rsa1024 = `-----BEGIN PUBLIC KEY-----
MIGfMA0GCSqGSIb3DQEBAQUAA4GNADCBiQKBgQDCMekjOo1xEfhU4+LIEqa7rgHw
ZYEBcSarKtoydrSYOHTpKSfSy3ulHubP40uDpa/bzfFLkKRVSBGXo0JrZNxnIETL
Keq/j6Ve644lwWUq0ER+Zt/k2BHdRTOElPBGcPRxxMbAK7xUDJlIsrK5lV1iXbhX
Dw5i93DjlVyka1UOfQIDAQAB
-----END PUBLIC KEY-----
`
)

// TestRegistryHidesSignatures: a publisher whose registry takes a signature, says that it lists it, and does not, is told,
// and no device's tag moves: a state that devices would refuse is none that was published.
func TestRegistryHidesSignatures(t *testing.T) {
	t.Parallel()
	d := newPublisher(t, newOffice(t), 10, testenv.Registry(t, testenv.Referrers), setup{})
	push := []string{"state", "push", "--device", string(d.id), "--key", d.path("release.key"), "--empty", d.host + "/plant/state"}
	d.must(t, "longshore", push...)
	before := d.current(t)
	d.proxy.Faults.Add(testenv.Rule{Path: `/referrers/`, Effect: Only(func(ocispec.Descriptor) bool { return false })})
	out := d.try(t, nil, "longshore", append(push, "--generation", "2")...)
	if out.code != 75 && out.code != 5 || d.current(t).Digest != before.Digest {
		t.Errorf("it ends with %d, and the tag names %s, was %s:\n%s", out.code, d.current(t).Digest, before.Digest, out.text)
	}
	d.proxy.Rest()
	d.must(t, "longshore", append(push, "--generation", "2")...)
	if d.current(t).Digest == before.Digest {
		t.Error("the tag did not move in the end")
	}
}
