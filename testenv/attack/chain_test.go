package attack

import (
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// onTrust plays attacks on the policy that comes through the registry, to a device that follows it: two of three people must
// have signed each version. In the end the honest one is taken.
func onTrust(t *testing.T, p *plant, n int) {
	roots := []string{"root-1", "root-2", "root-3"}
	d := newDevice(t, p, n, testenv.Registry(t, testenv.Distribution), setup{keys: append(roots, "release-b"), policy: func(d *device) string { return d.firstPolicy(t, roots) }})
	if s := d.status(t).Trust; s == nil || s.Version != 1 {
		t.Fatalf("the device decides by %+v", s)
	}
	d.withstandAll(t, successions())
	t.Run("and the honest next one is taken", func(t *testing.T) {
		d.rotate(t, "root-1", "root-3")
		d.decidesBy(t, 2)
		d.settled(t, uint64(d.pushed))
	})
	d.withstandAll(t, usurpers())
}

// firstPolicy makes the first version of a policy that two of its signers change, publishes it, and returns it.
func (d *device) firstPolicy(t *testing.T, roots []string) string {
	t.Helper()
	args := []string{"trust", "init", "--threshold", "2", "--key", d.path("release.pub"), "--scope", d.host + "/plant/**", "--file", d.path("trust.yaml")}
	for _, r := range roots {
		args = append(args, "--signer", d.path(r+".pub"))
	}
	d.must(t, "longshore", append(args, d.host+"/plant/trust")...)
	d.must(t, "longshore", "trust", "push", "--key", d.signer("root-1"), d.path("trust.yaml"), d.host+"/plant/trust")
	d.must(t, "longshore", "trust", "sign", "--key", d.signer("root-2"), d.host+"/plant/trust")
	data, err := os.ReadFile(d.path("trust.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// rotate publishes the next version of the policy, with changes: pairs of what is replaced and by what.
func (d *device) rotate(t *testing.T, one, other string, changes ...string) {
	t.Helper()
	text := d.must(t, "longshore", "trust", "show", "--document", d.host+"/plant/trust")
	text = regexp.MustCompile(`(?m)^expires: .*\n`).ReplaceAllString(text, "")
	was := 0
	if _, err := fmt.Sscanf(text[strings.Index(text, "version: "):], "version: %d", &was); err != nil {
		t.Fatal(err)
	}
	for pair := range slices.Chunk(append([]string{fmt.Sprintf("version: %d", was), fmt.Sprintf("version: %d", was+1)}, changes...), 2) {
		if !strings.Contains(text, pair[0]) {
			t.Fatalf("the policy has no %q:\n%s", pair[0], text)
		}
		text = strings.Replace(text, pair[0], pair[1], 1)
	}
	file := d.path("next.yaml")
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	d.must(t, "longshore", "trust", "push", "--key", d.signer(one), "--key", d.signer(other), file, d.host+"/plant/trust")
}

// decidesBy waits until the device goes by a version of the policy.
func (d *device) decidesBy(t *testing.T, version uint64) {
	t.Helper()
	testenv.Eventually(t, tellLimit, fmt.Sprintf("version %d", version), func() error {
		_, _ = d.sync(t.Context())
		s, err := d.control.Status(t.Context())
		if err == nil && (s.Trust == nil || s.Trust.Version != version) { // nil: the agent has just started
			err = fmt.Errorf("the device decides by %+v; problems %+v", s.Trust, s.Problems)
		}
		return err
	})
}

// usurpers hold the registry, or a key of releases, and what they do is undone by the next version of the policy.
func usurpers() []attack {
	return []attack{
		{"next policy withheld until the one in use ends", one(codes.TrustExpired), func(t *testing.T, d *device) func() {
			d.rotate(t, "root-1", "root-2", "version: 3", "expires: "+time.Now().Add(time.Minute).UTC().Format(time.RFC3339)+"\nversion: 3")
			d.decidesBy(t, 3)
			d.settled(t, uint64(d.pushed))
			d.begin(t)
			d.proxy.Play(testenv.Rule{Path: `^/v2/plant/trust/manifests/v4$`, Effect: Withhold()})
			d.rotate(t, "root-2", "root-3")
			return d.nothing
		}},
		{"last generation by a stolen key", one(codes.KeyRevoked), func(t *testing.T, d *device) func() {
			const last = ^uint64(0)
			honest := d.pushed
			d.release(t, "line", false, "--generation", fmt.Sprint(last)) // the thief
			d.settled(t, last)
			stolen := d.current(t)
			fingerprint := strings.TrimSpace(d.must(t, "longshore", "key", "show", "-q", d.path("release.pub")))
			d.rotate(t, "root-1", "root-2", d.known(t, "release-b", "signers: [release]", "signers: [release, release-b]",
				"\ntrust:\n", fmt.Sprintf("\nrevoked: [{key: %q, reason: stolen}]\ngenerations: {resetTo: %d, version: 5}\ntrust:\n", fingerprint, honest))...)
			d.decidesBy(t, 5)
			d.begin(t) // the thief has changed what runs; nothing else may
			d.sign(t, "release", d.forge(t, last))
			return func() {
				d.point(t, stolen)
				d.key, d.pushed = "release-b", honest
				// The next state does not build on what the thief signed.
				d.release(t, "line", false, "--generation", fmt.Sprint(honest+1), "--replace")
				d.release(t, "audit", false)
			}
		}},
		{"policy that leads to a repository without it", one(codes.TrustMissing), func(t *testing.T, d *device) func() {
			right, slip := fmt.Sprintf("repository: %q", d.host+"/plant/trust"), fmt.Sprintf("repository: %q", d.host+"/plant/turst")
			text := d.must(t, "longshore", "trust", "show", "--document", d.host+"/plant/trust")
			if !strings.Contains(text, right) {
				t.Fatalf("the policy has no %s:\n%s", right, text)
			}
			text = strings.Replace(strings.Replace(text, "version: 5", "version: 6", 1), right, slip, 1)
			desc := d.signedPolicy(t, 6, text, "root-1", "root-2")
			if err := d.open(t, "plant/trust").Tag(t.Context(), desc, artifacts.TrustTag(6)); err != nil {
				t.Fatal(err)
			}
			return func() {
				d.rotate(t, "root-1", "root-2", slip, right)
				d.decidesBy(t, 7)
			}
		}},
	}
}

// successions are next policies that must not follow the device's own.
func successions() []attack {
	invalid := one(codes.TrustInvalid)
	// Served as the next version, signed by these.
	offered := func(name string, codes []codes.Code, change func(string) string, keys ...string) attack {
		return attack{name, codes, func(t *testing.T, d *device) func() {
			d.offer(t, change(d.next(t)), keys...)
			return d.nothing
		}}
	}
	same := func(s string) string { return s }
	return []attack{
		offered("next policy that nobody signed", invalid, same),
		offered("next policy by a stranger", invalid, same, "stranger"),
		offered("next policy by one of two", invalid, same, "root-1"),
		offered("next policy by the key of releases", invalid, same, "root-1", "release"),
		offered("next policy that only its own signers signed", invalid, func(s string) string {
			return strings.Replace(s, "signers: [root-1, root-2, root-3]", "signers: [release, root-1]", 1)
		}, "release", "root-1"),
		{"next policy that nobody could follow", one(codes.TrustUnusable, codes.TrustInvalid), func(t *testing.T, d *device) func() {
			locked := strings.Replace(d.next(t), "\nrules:\n", fmt.Sprintf("\nrules:\n  - {scope: %q, artifacts: [trust], reject: true}\n", d.host+"/plant/trust"), 1)
			d.offer(t, locked, "root-1", "root-2")
			return d.nothing
		}},
		offered("next policy of signers whose time is over", one(codes.TrustUnusable), func(s string) string {
			for _, name := range []string{"root-1", "root-2"} {
				s = strings.Replace(s, "  - name: "+name+"\n", "  - name: "+name+"\n    notAfter: 2020-01-01T00:00:00Z\n", 1)
			}
			return s
		}, "root-1", "root-2", "root-3"),
		{"old policy as the next", one(codes.TrustRollback), func(t *testing.T, d *device) func() {
			old := d.resolve(t, "plant/trust", "v1")
			d.proxy.Play(testenv.Rule{Path: `^/v2/plant/trust/manifests/v2$`, Effect: Instead("/v2/plant/trust/manifests/" + old.Digest.String())})
			return d.nothing
		}},
		{"endless next policy", one(codes.TrustUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `^/v2/plant/trust/manifests/v2$`, Effect: Endless(ocispec.MediaTypeImageManifest, 0)})
			return d.nothing
		}},
		{"repository of policies dropped", one(codes.TrustUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `^/v2/plant/trust/`, Effect: testenv.Reset()})
			return d.nothing
		}},
	}
}

// next is what the version after the device's could say.
func (d *device) next(t *testing.T) string {
	t.Helper()
	return strings.Replace(d.must(t, "longshore", "trust", "show", "--document", d.host+"/plant/trust"), "version: 1", "version: 2", 1)
}

// offer serves a policy as version 2, signed by some keys. It has no tag: when the attack is over it is gone.
func (d *device) offer(t *testing.T, policy string, keys ...string) {
	t.Helper()
	d.offerAs(t, 2, policy, keys...)
}

// offerAs is offer for any version.
func (d *device) offerAs(t *testing.T, version uint64, policy string, keys ...string) {
	t.Helper()
	desc := d.signedPolicy(t, version, policy, keys...)
	d.proxy.Play(testenv.Rule{Path: "^/v2/plant/trust/manifests/" + artifacts.TrustTag(version) + "$", Effect: Instead("/v2/plant/trust/manifests/" + string(desc.Digest))})
}

// signedPolicy pushes a version of the policy, signed by some keys, under a tag that no device asks for.
func (d *device) signedPolicy(t *testing.T, version uint64, policy string, keys ...string) ocispec.Descriptor {
	t.Helper()
	before := d.resolve(t, "plant/trust", artifacts.TrustTag(version-1)).Digest
	a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: version, Policy: []byte(policy), Previous: before})
	if err != nil {
		t.Fatal(err)
	}
	desc, err := release.Publish(t.Context(), d.open(t, "plant/trust"), a, release.PublishOptions{Tags: []string{"offered"}})
	if err != nil {
		t.Fatal(err)
	}
	for _, k := range keys {
		d.must(t, "longshore", "sign", "--key", d.signer(k), d.host+"/plant/trust@"+desc.Digest.String())
	}
	return desc
}
