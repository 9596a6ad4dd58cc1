package attack

import (
	"fmt"
	"os"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

const provenance = "https://slsa.dev/provenance/v1"

// quorum is a policy of a plant that trusts no single key: states need two, components one and the word of their builder,
// images one. One key has left the plant, one is lost. revoked are further lines of what is taken back.
func quorum(t *testing.T, d *device, revoked string) string {
	t.Helper()
	data, err := os.ReadFile(d.path("lost.pub"))
	if err != nil {
		t.Fatal(err)
	}
	lost, err := signing.ParsePublicKey("lost", data)
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf(`keys:
  - {name: release, file: %[1]s/release.pub}
  - {name: second, file: %[1]s/second.pub}
  - {name: left, file: %[1]s/left.pub, notAfter: 2020-01-01T00:00:00Z}
  - {name: lost, file: %[1]s/lost.pub}
  - {name: builder, file: %[1]s/builder.pub}
rules:
  - {scope: "%[2]s/plant/**", signers: [release, second, left, lost], threshold: 2}
  - scope: "%[2]s/plant/components/**"
    artifacts: [component]
    signers: [release]
    attestations: [{type: %[3]s, signers: [builder]}]
  - {scope: "%[2]s/plant/**", artifacts: [image], signers: [release]}
revoked:
  - {key: "%[4]s", reason: lost on a train}
%[5]s`, d.dir, d.host, provenance, lost.Fingerprint, revoked)
}

// onKeys plays attacks of people who hold some of the keys, to a device that trusts no single one.
func onKeys(t *testing.T, p *plant, n int) {
	newDevice(t, p, n, testenv.Registry(t, testenv.Referrers), setup{
		also: []string{"second"}, keys: []string{"left", "lost", "builder"},
		policy: func(d *device) string { return quorum(t, d, "") },
	}).withstandAll(t, insiders())
}

// insiders hold a key, and not enough of them.
func insiders() []attack {
	// Forged and signed by these.
	signed := func(name string, code codes.Code, keys ...string) attack {
		return attack{name, one(code), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			state := d.forge(t, 1<<40)
			for _, k := range keys {
				d.sign(t, k, state)
			}
			return undo
		}}
	}
	// Released as it should be, with something beside the state left out; the rest comes once the attack is over.
	lacking := func(name string, code codes.Code, does func(t *testing.T, d *device), lacks ...string) attack {
		return attack{name, one(code), func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.lacks = lacks
				d.release(t, "line", true)
				d.lacks = nil
				if does != nil {
					does(t, d)
				}
			})
			return func() { d.vouch(t, "line", lacks...) }
		}}
	}
	return []attack{
		signed("one key of two", codes.SignatureThreshold, "release"),
		signed("one key and a stranger's", codes.SignatureThreshold, "release", "stranger"),
		{"one key twice", one(codes.SignatureThreshold), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.sign(t, "release", d.forge(t, 1<<40), "--signature-format", "both")
			return undo
		}},
		signed("one key and a lost one", codes.KeyRevoked, "release", "lost"),
		signed("one key and one whose time is over", codes.KeyExpired, "release", "left"),
		{"one of two signatures hidden", one(codes.SignatureThreshold), func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.release(t, "line", false)
				listed, err := d.open(t, "plant/state").Referrers(t.Context(), d.current(t))
				if err != nil || len(listed) < 2 {
					t.Fatalf("referrers: %v, %v", listed, err)
				}
				d.proxy.Play(testenv.Rule{Path: `/referrers/|/manifests/sha256-[0-9a-f]{64}$`, Effect: Only(func(x ocispec.Descriptor) bool { return x.Digest == listed[0].Digest })})
			})
			return d.nothing
		}},
		{"state that was taken back", one(codes.DigestRevoked), func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.release(t, "line", false)
				d.trust(t, quorum(t, d, fmt.Sprintf("  - {digest: %q, reason: a mistake}\n", d.current(t).Digest)))
			})
			return func() { d.trust(t, quorum(t, d, "")) }
		}},
		lacking("component that nobody signed", codes.ComponentUnsigned, nil, "component"),
		lacking("component signed by a stranger", codes.ComponentSignature, func(t *testing.T, d *device) {
			d.must(t, "longshore", "sign", "--key", d.signer("stranger"), d.componentOf("line"))
		}, "component"),
		lacking("image that nobody signed", codes.ImageUnsigned, nil, "image"),
		lacking("component without its provenance", codes.AttestationMissing, nil, "provenance"),
		lacking("provenance by a stranger", codes.AttestationInvalid, func(t *testing.T, d *device) {
			d.attest(t, "stranger", provenance, d.componentOf("line"))
		}, "provenance"),
	}
}
