package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/sigstore/sigstore/pkg/signature"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/trust"
	"github.com/longshore-dev/longshore/testenv"
)

// mirrored is a signed artifact in a registry, and mirrors that have the artifact and whatever a test puts beside it.
type mirrored struct {
	t        *testing.T
	upstream *testenv.RegistryServer
	mirrors  []*testenv.RegistryServer
	origin   *registry.Repository   // at the registry
	at       []*registry.Repository // at each mirror
	device   *registry.Repository   // as a device reads: the mirrors first
	subject  ocispec.Descriptor
}

func newMirrored(t *testing.T, kind testenv.Kind, mirrors int, capabilities string) *mirrored {
	t.Helper()
	m := &mirrored{t: t, upstream: testenv.Registry(t, kind)}
	certs := t.TempDir()
	plain := newTestClient(t, "")
	m.origin = openTest(t, plain, m.upstream.Reference("plant/state"))
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-07", Generation: 1})
	if err != nil {
		t.Fatal(err)
	}
	publish := func(to *registry.Repository) {
		if m.subject, err = release.Publish(t.Context(), to, a, release.PublishOptions{Tags: []string{"press-07"}}); err != nil {
			t.Fatal(err)
		}
	}
	publish(m.origin)
	var hosts strings.Builder
	for range mirrors {
		s := testenv.Registry(t, kind)
		fmt.Fprintf(&hosts, "[host.%q]\ncapabilities = [%s]\n", s.URL, capabilities)
		at := openTest(t, plain, s.Reference("plant/state"))
		publish(at)
		m.mirrors, m.at = append(m.mirrors, s), append(m.at, at)
	}
	dir := filepath.Join(certs, m.upstream.Host)
	if err := errors.Join(os.MkdirAll(dir, 0o755), os.WriteFile(filepath.Join(dir, "hosts.toml"), []byte(hosts.String()), 0o600)); err != nil {
		t.Fatal(err)
	}
	m.device = openTest(t, newTestClient(t, certs), m.upstream.Reference("plant/state"))
	return m
}

func newTestClient(t *testing.T, certs string) *registry.Client {
	t.Helper()
	c, err := registry.New(registry.Options{CertsDir: certs, RetryBudget: -1, AuthFile: filepath.Join(t.TempDir(), "none.json")})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func openTest(t *testing.T, c *registry.Client, name string) *registry.Repository {
	t.Helper()
	r, err := c.OpenName(t.Context(), name)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// newTestSigner makes a key and signs with it.
func newTestSigner(t *testing.T, name string, format signing.Format) *sign.Signer {
	t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	hand, err := signature.LoadECDSASignerVerifier(private, crypto.SHA256)
	if err != nil {
		t.Fatal(err)
	}
	s, err := sign.NewKeySigner(hand, sign.Options{Name: name, Format: format})
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func (m *mirrored) sign(at *registry.Repository, by ...*sign.Signer) {
	m.t.Helper()
	for _, s := range by {
		if _, err := s.Sign(m.t.Context(), at, m.subject); err != nil {
			m.t.Fatal(err)
		}
	}
}

// lists has a mirror answer every question for the list of referrers with these entries, by the API and under the fallback tag.
func (m *mirrored) lists(mirror int, entries ...ocispec.Descriptor) {
	m.t.Helper()
	data, err := json.Marshal(ocispec.Index{Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageIndex, Manifests: entries})
	if err != nil {
		m.t.Fatal(err)
	}
	m.mirrors[mirror].Faults.Add(testenv.Rule{
		Path: `/referrers/|/manifests/sha256-[0-9a-f]{64}$`,
		Effect: func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", ocispec.MediaTypeImageIndex)
			_, _ = w.Write(data)
		},
	})
}

// decide asks a policy that wants signatures by so many of the signers.
func (m *mirrored) decide(threshold int, signers ...*sign.Signer) *trust.Decision {
	m.t.Helper()
	p := &trust.Policy{Rules: []trust.Rule{{Scope: "**", Quorum: trust.Quorum{Threshold: threshold}}}}
	for _, s := range signers {
		p.Rules[0].Quorum.Signers = append(p.Rules[0].Quorum.Signers, trust.KeySigner(s.Key()))
	}
	p.Signers = p.Rules[0].Quorum.Signers
	return p.Decide(m.t.Context(), trust.VerifyRequest{Source: m.device, Kind: trust.KindState, Subject: m.subject, Now: time.Now()})
}

func foreign(name string) ocispec.Descriptor {
	return ocispec.Descriptor{
		MediaType: ocispec.MediaTypeImageManifest, Size: 700, Digest: digest.FromString(name), ArtifactType: signing.MediaTypeBundle,
	}
}

// TestMirrorsAndSignatures: a mirror that shows fewer signatures than the registry, or other ones, does not make a signed
// artifact an unsigned one.
func TestMirrorsAndSignatures(t *testing.T) {
	t.Parallel()
	release, second := newTestSigner(t, "release", signing.FormatBundle), newTestSigner(t, "second", signing.FormatBundle)
	stranger := newTestSigner(t, "stranger", signing.FormatBundle)
	const all = `"pull", "resolve"`
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			t.Run("mirror lists an entry that it cannot serve", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				m.sign(m.origin, release)
				m.lists(0, foreign("gone"))
				if d := m.decide(1, release); d.Err != nil {
					t.Errorf("Decide = %v", d.Err)
				}
			})
			t.Run("mirror has the signature of a stranger only", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				m.sign(m.origin, release)
				m.sign(m.at[0], stranger)
				if d := m.decide(1, release); d.Err != nil {
					t.Errorf("Decide = %v", d.Err)
				}
			})
			t.Run("mirror has one of two signatures", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				m.sign(m.origin, release, second)
				m.sign(m.at[0], release)
				if d := m.decide(2, release, second); d.Err != nil {
					t.Errorf("Decide = %v", d.Err)
				}
			})
			t.Run("mirror has a broken bundle in the signer's name and the registry cosign's older tag", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				legacy := newTestSigner(t, "release", signing.FormatLegacy)
				m.sign(m.origin, legacy)
				m.borrow(legacy.Key())
				if d := m.decide(1, legacy); d.Err != nil {
					t.Errorf("Decide = %v", d.Err)
				}
			})
			t.Run("mirror has an older list under cosign's older tag", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				legacy, other := newTestSigner(t, "release", signing.FormatLegacy), newTestSigner(t, "other", signing.FormatLegacy)
				m.sign(m.origin, other, legacy)
				m.sign(m.at[0], other)
				if d := m.decide(1, legacy); d.Err != nil {
					t.Errorf("Decide = %v", d.Err)
				}
			})
			t.Run("the second mirror has it and the registry is away", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 2, all)
				m.sign(m.at[0], stranger)
				m.sign(m.at[1], release)
				m.upstream.Down()
				if d := m.decide(1, release); d.Err != nil {
					t.Errorf("Decide = %v", d.Err)
				}
			})
			t.Run("mirror has the signature of a stranger only and the registry is away", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				m.sign(m.at[0], stranger)
				m.upstream.Down()
				if d := m.decide(1, release); !errors.Is(d.Err, fault.ErrTemporary) {
					t.Errorf("Decide = %v, want fault.ErrTemporary: nobody knows what the registry has", d.Err)
				}
			})
			t.Run("neither has a good one", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				m.sign(m.at[0], stranger)
				m.lists(0, foreign("gone"))
				if d := m.decide(1, release); !errors.Is(d.Err, fault.ErrUnsigned) || errors.Is(d.Err, fault.ErrTemporary) {
					t.Errorf("Decide = %v, want fault.ErrUnsigned, as the registry has it", d.Err)
				}
			})
			t.Run("mirror has what is needed", func(t *testing.T) {
				t.Parallel()
				m := newMirrored(t, kind, 1, all)
				m.sign(m.at[0], release)
				m.upstream.Faults.Forget()
				if d := m.decide(1, release); d.Err != nil {
					t.Errorf("Decide = %v", d.Err)
				}
				if asked := m.upstream.Faults.Requests("", ""); len(asked) > 0 {
					t.Errorf("the registry was asked for what the mirror has: %+v", asked)
				}
			})
		})
	}
}

// borrow has the mirror list a bundle in the name of a key whose signature is of something else.
func (m *mirrored) borrow(key signing.Key) {
	m.t.Helper()
	other := newTestSigner(m.t, "other", signing.FormatBundle)
	m.sign(m.at[0], other)
	listed, err := m.at[0].Referrers(m.t.Context(), m.subject)
	if err != nil || len(listed) != 1 {
		m.t.Fatalf("Referrers = %v, %v", listed, err)
	}
	_, data, err := m.at[0].Manifest(m.t.Context(), listed[0].Digest)
	if err != nil {
		m.t.Fatal(err)
	}
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		m.t.Fatal(err)
	}
	bundle, err := m.at[0].Blob(m.t.Context(), manifest.Layers[0], 1<<20)
	if err != nil {
		m.t.Fatal(err)
	}
	hint := func(k signing.Key) string { return hintOf(m.t, k) }
	bundle = []byte(strings.Replace(string(bundle), hint(other.Key()), hint(key), 1))
	manifest.Layers[0].Digest, manifest.Layers[0].Size = digest.FromBytes(bundle), int64(len(bundle))
	if err := m.at[0].PushBlob(m.t.Context(), manifest.Layers[0], bundle); err != nil {
		m.t.Fatal(err)
	}
	if data, err = json.Marshal(manifest); err != nil {
		m.t.Fatal(err)
	}
	forged := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data)), ArtifactType: signing.MediaTypeBundle}
	if err := m.at[0].PushReferrer(m.t.Context(), forged, data); err != nil {
		m.t.Fatal(err)
	}
	m.lists(0, forged)
}

// hintOf is how a bundle names a key: base64 of the SHA-256 of its DER, as its fingerprint is in hexadecimal.
func hintOf(t *testing.T, k signing.Key) string {
	t.Helper()
	sum, err := hex.DecodeString(k.Fingerprint.Encoded())
	if err != nil {
		t.Fatal(err)
	}
	return base64.StdEncoding.EncodeToString(sum)
}

// TestSigningPastMirrors: who signs in cosign's older format adds to what the registry has, whatever an older mirror shows.
func TestSigningPastMirrors(t *testing.T) {
	t.Parallel()
	m := newMirrored(t, testenv.Distribution, 1, `"pull", "resolve"`)
	first, second, third := newTestSigner(t, "first", signing.FormatLegacy), newTestSigner(t, "second", signing.FormatLegacy), newTestSigner(t, "third", signing.FormatLegacy)
	m.sign(m.at[0], first)
	m.sign(m.origin, first, second)
	m.sign(m.device, third)
	m.device = m.origin
	if d := m.decide(3, first, second, third); d.Err != nil {
		t.Errorf("Decide = %v", d.Err)
	}
}

// TestInspectPastMirrors: what refers to an artifact is shown as far as any place has it.
func TestInspectPastMirrors(t *testing.T) {
	t.Parallel()
	m := newMirrored(t, testenv.Referrers, 1, `"pull", "resolve"`)
	m.sign(m.origin, newTestSigner(t, "release", signing.FormatBundle))
	m.sign(m.at[0], newTestSigner(t, "stranger", signing.FormatBundle))
	if i, err := audit.Inspect(t.Context(), m.device, "press-07"); err != nil || len(i.Referrers) != 2 || len(i.Faults) > 0 {
		t.Errorf("Inspect = %+v, %v, want both signatures", i, err)
	}
	m.upstream.Down()
	if i, err := audit.Inspect(t.Context(), m.device, "press-07"); err != nil || len(i.Referrers) != 1 || len(i.Faults) == 0 {
		t.Errorf("Inspect without the registry = %+v, %v, want the mirror's, and to be told", i, err)
	}
}

// TestMirrorWithoutResolve: a mirror that may not resolve tags is not asked for the list under the fallback tag either.
func TestMirrorWithoutResolve(t *testing.T) {
	t.Parallel()
	m := newMirrored(t, testenv.Distribution, 1, `"pull"`)
	release := newTestSigner(t, "release", signing.FormatBundle)
	m.sign(m.origin, release)
	m.sign(m.at[0], release)
	m.mirrors[0].Faults.Forget()
	if d := m.decide(1, release); d.Err != nil {
		t.Errorf("Decide = %v", d.Err)
	}
	if asked := m.mirrors[0].Faults.Requests("", `/manifests/sha256-`); len(asked) > 0 {
		t.Errorf("a mirror without resolve was asked for tags: %+v", asked)
	}
}

// behind has a device know the registry of policies as harbor.acme.example, which hosts.toml says how to reach.
func (f *fleet) behind(hosts string) (d *box, document func(version uint64) string) {
	f.t.Helper()
	const name = "harbor.acme.example"
	certs := f.t.TempDir()
	if err := errors.Join(os.MkdirAll(filepath.Join(certs, name), 0o755), os.WriteFile(filepath.Join(certs, name, "hosts.toml"), []byte(hosts), 0o600)); err != nil {
		f.t.Fatal(err)
	}
	document = func(version uint64) string {
		text := f.document(rules{version: version, release: "release", roots: []string{"root-1", "root-2"}})
		return strings.ReplaceAll(text, f.trust.Name(), name+"/plant/trust")
	}
	d = f.device("press-01", document(1))
	d.client = f.newClient(certs)
	f.release(d.name, 1, "release")
	return d, document
}

// TestMirrorInPlaceOfTheRegistry: that there is no next policy a mirror cannot say, unless hosts.toml makes it the registry.
func TestMirrorInPlaceOfTheRegistry(t *testing.T) {
	for hosts, unreachable := range map[string]bool{
		"server = \"https://127.0.0.1:1\"\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n": true,
		"server = %q\n": false,
	} {
		f := newFleet(t, testenv.Referrers)
		d, document := f.behind(fmt.Sprintf(hosts, f.server.URL))
		d.wake().sync()
		d.at(1, 1)
		if got := d.problem(codes.TrustUnreachable) != nil; got != unreachable {
			t.Errorf("%s: problems %+v, want trust-unreachable: %t", hosts, d.agent.Status().Problems, unreachable)
		}
		f.force(2, document(2), "v2", "root-1", "root-2")
		d.sync()
		d.at(2, 1)
	}
}

// TestMirrorShowsAnotherPolicy: what a mirror shows as the next policy, and is none, does not keep the registry's from the device.
func TestMirrorShowsAnotherPolicy(t *testing.T) {
	f := newFleet(t, testenv.Referrers)
	mirror := testenv.Registry(t, testenv.Referrers)
	d, document := f.behind(fmt.Sprintf("server = %q\n[host.%q]\n  capabilities = [\"pull\", \"resolve\"]\n", f.server.URL, mirror.URL))
	a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: 2, Policy: []byte(document(2) + "# of nobody\n")})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := release.Publish(t.Context(), openTest(t, newTestClient(t, ""), mirror.Reference("plant/trust")), a, release.PublishOptions{Tags: []string{"v2"}}); err != nil {
		t.Fatal(err)
	}
	f.force(2, document(2), "v2", "root-1", "root-2")
	d.wake().sync()
	d.at(2, 1)
}
