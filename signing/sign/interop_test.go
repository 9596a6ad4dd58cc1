package sign_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/content"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/testenv"
)

// repository is a plain transport over oras-go, so that these tests hold signing alone against the real cosign.
type repository struct {
	*remote.Repository
	name string
}

func openRepository(t *testing.T, name string) repository {
	t.Helper()
	r, err := remote.NewRepository(name)
	if err != nil {
		t.Fatal(err)
	}
	r.PlainHTTP, r.SkipReferrersGC = true, true
	return repository{r, name}
}

func named(err error) error {
	if errors.Is(err, errdef.ErrNotFound) {
		return errors.Join(err, fault.ErrNotFound)
	}
	return err
}

func (r repository) Name() string { return r.name }

func (r repository) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	d, err := r.Repository.Resolve(ctx, tag)
	return d, named(err)
}

func (r repository) Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	desc, body, err := r.FetchReference(ctx, d.String())
	if err != nil {
		return desc, nil, named(err)
	}
	defer body.Close()
	data, err := content.ReadAll(body, desc)
	return desc, data, err
}

func (r repository) Blob(ctx context.Context, d ocispec.Descriptor, _ int64) ([]byte, error) {
	data, err := content.FetchAll(ctx, r.Blobs(), d)
	return data, named(err)
}

func (r repository) Referrers(ctx context.Context, subject ocispec.Descriptor) (all []ocispec.Descriptor, err error) {
	err = r.Repository.Referrers(ctx, subject, "", func(page []ocispec.Descriptor) error {
		all = append(all, page...)
		return nil
	})
	return all, err
}

func (r repository) PushBlob(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	if there, err := r.Blobs().Exists(ctx, d); err != nil || there {
		return err
	}
	return r.Push(ctx, d, bytes.NewReader(data))
}

func (r repository) PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error {
	if tag == "" {
		return r.Push(ctx, d, bytes.NewReader(data))
	}
	return r.PushReference(ctx, d, bytes.NewReader(data), tag)
}

func (r repository) PushReferrer(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	return r.Push(ctx, d, bytes.NewReader(data))
}

var _ signing.Store = repository{}

// cosign is one real cosign with its own idea of flags.
type cosign struct {
	program string // for testenv.Program
	sign    map[signing.Format][]string
	// verify is what is needed to stay offline; the trusted root is an empty one.
	verify []string
	// claims tells that annotations are signed in, and asked of, bundles too. cosign 2.6.5 drops them without a word.
	claims bool
}

func cosigns() map[string]cosign {
	return map[string]cosign{
		"cosign2": {
			program: "cosign2",
			sign: map[signing.Format][]string{
				signing.FormatBundle: {"--tlog-upload=false", "--new-bundle-format"},
				signing.FormatLegacy: {"--tlog-upload=false"},
			},
			verify: []string{"--insecure-ignore-tlog", "--trusted-root", "empty-root.json"},
		},
		"cosign3": {
			program: "cosign3",
			sign: map[signing.Format][]string{
				signing.FormatBundle: {"--signing-config", "empty-config.json"},
				signing.FormatLegacy: {"--tlog-upload=false", "--use-signing-config=false", "--new-bundle-format=false"},
			},
			verify: []string{"--insecure-ignore-tlog"},
			claims: true,
		},
	}
}

const password = "correct horse"

// pair is a key pair in its files, and unlocked.
type pair struct {
	private, public []byte
	hand            sign.PrivateKey
	signing.Key
}

// releasePair is made and unlocked once for all tests: scrypt makes both slow on purpose.
var releasePair = sync.OnceValue(func() pair {
	private, public, err := sign.GenerateKey([]byte(password))
	if err != nil {
		panic(err)
	}
	hand, err := sign.Unlock(private, []byte(password))
	if err != nil {
		panic(err)
	}
	key, err := signing.ParsePublicKey("release", public)
	if err != nil {
		panic(err)
	}
	return pair{private, public, hand, key}
})

func newSigner(t *testing.T, hand sign.PrivateKey, o sign.Options) *sign.Signer {
	t.Helper()
	s, err := sign.NewKeySigner(hand, o)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// desk is where people and programs sign and verify: a folder with keys, on an island from which only the registry of this
// machine can be reached.
type desk struct {
	*testenv.Island
	dir string
	own string // folder with our programs; "": not built
}

// run runs cosign at the desk.
func (c cosign) run(t *testing.T, d desk, args ...string) (string, error) {
	t.Helper()
	return d.run(t, testenv.Program(t, c.program), args...)
}

func (d desk) run(t *testing.T, program string, args ...string) (string, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	cmd := d.Command(ctx, append([]string{program}, args...)...)
	cmd.Dir = d.dir
	cmd.Env = append(os.Environ(), "HOME="+d.dir, "TUF_ROOT="+filepath.Join(d.dir, "tuf"), "COSIGN_PASSWORD="+password)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// registry is a registry that can be reached from the desk.
func (d desk) registry(t *testing.T, kind testenv.Kind) *testenv.RegistryServer {
	t.Helper()
	return testenv.Registry(t, kind, testenv.WithAddress(d.Address+":0"))
}

// alone runs what verifies and holds that it asked nobody but the registry.
func (d desk) alone(t *testing.T, what string, do func() (string, error)) (string, error) {
	t.Helper()
	before := d.Strays(t)
	out, err := do()
	if n := d.Strays(t) - before; n != 0 {
		t.Errorf("%s: %d packets wanted to go elsewhere than to the registry", what, n)
	}
	return out, err
}

// newDesk makes a desk with what the programs read: keys and the two documents that say that there are no sigstore services.
func newDesk(t *testing.T, k pair) desk {
	t.Helper()
	d := desk{Island: testenv.NewIsland(t), dir: t.TempDir()}
	for name, data := range map[string][]byte{
		"k.key":             k.private,
		"k.pub":             k.public,
		"empty-root.json":   []byte(`{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`),
		"empty-config.json": []byte(`{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json","rekorTlogConfig":{},"tsaConfig":{}}`),
	} {
		if err := os.WriteFile(filepath.Join(d.dir, name), data, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return d
}

// build puts our own programs on the desk.
func (d *desk) build(t *testing.T) {
	t.Helper()
	d.own = t.TempDir()
	if err := testenv.BuildOwn(t.Context(), d.own, "longshore"); err != nil {
		t.Fatal(err)
	}
}

// longshore runs ours, alone with the registry.
func (d desk) longshore(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return d.alone(t, "longshore "+args[0], func() (string, error) {
		return d.run(t, filepath.Join(d.own, "longshore"), append(args, "--plain-http")...)
	})
}

// pushArtifact pushes a small artifact with an artifact type that no program here knows: only its signatures are looked at.
func pushArtifact(t *testing.T, r signing.Store, text string) ocispec.Descriptor {
	t.Helper()
	blob := ocispec.Descriptor{MediaType: "text/plain", Digest: digest.FromString(text), Size: int64(len(text))}
	data, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "application/vnd.acme.thing.v1+json",
		Config:       ocispec.Descriptor{MediaType: ocispec.MediaTypeEmptyJSON, Digest: ocispec.DescriptorEmptyJSON.Digest, Size: 2},
		Layers:       []ocispec.Descriptor{blob},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := errors.Join(
		r.PushBlob(t.Context(), blob, []byte(text)),
		r.PushBlob(t.Context(), ocispec.DescriptorEmptyJSON, []byte("{}")),
		r.PushManifest(t.Context(), d, data, ""),
	); err != nil {
		t.Fatal(err)
	}
	return d
}

// Every format, both ways, with both cosigns, on registries with and without the referrers API, and on a lax one.
func TestInteroperatesWithCosign(t *testing.T) {
	k := releasePair()
	d := newDesk(t, k)
	d.build(t)
	for name, c := range cosigns() {
		testenv.Program(t, c.program)
		for _, kind := range []testenv.Kind{testenv.Referrers, testenv.Distribution, testenv.Lax} {
			t.Run(name+"/"+string(kind), func(t *testing.T) {
				server := d.registry(t, kind)
				for _, f := range []signing.Format{signing.FormatBundle, signing.FormatLegacy, signing.FormatBoth} {
					t.Run("ours "+string(f), func(t *testing.T) {
						oursVerifiedByCosign(t, c, d, openRepository(t, server.Reference("ours/"+string(f))), k, f)
					})
				}
				for f, flags := range c.sign {
					t.Run("theirs "+string(f), func(t *testing.T) {
						theirsVerifiedByUs(t, c, d, openRepository(t, server.Reference("theirs/"+string(f))), k, f, flags)
					})
				}
			})
		}
	}
}

// What wants to reach a log or a service of sigstore is seen from here: the counts above are not zero for lack of counting.
func TestCosignAloneIsSeen(t *testing.T) {
	k := releasePair()
	d := newDesk(t, k)
	r := openRepository(t, d.registry(t, testenv.Referrers).Reference("seen"))
	ref := r.Name() + "@" + pushArtifact(t, r, "hello").Digest.String()
	c := cosigns()["cosign3"]
	before := d.Strays(t)
	_, _ = c.run(t, d, "verify", "--key", "k.pub", ref) // asks for sigstore's trusted root first
	if d.Strays(t) == before {
		t.Error("cosign did not ask for a trusted root, or the island does not count")
	}
}

func oursVerifiedByCosign(t *testing.T, c cosign, d desk, r repository, k pair, f signing.Format) {
	subject := pushArtifact(t, r, "hello")
	signer := newSigner(t, k.hand, sign.Options{Format: f, Annotations: map[string]string{"generation": "42"}})
	if _, err := signer.Sign(t.Context(), r, subject); err != nil {
		t.Fatal(err)
	}
	ref := r.Name() + "@" + subject.Digest.String()
	args := append([]string{"verify", "--key", "k.pub"}, c.verify...)
	out, err := d.alone(t, c.program+" verify", func() (string, error) { return c.run(t, d, append(args, "-a", "generation=42", ref)...) })
	if err != nil {
		t.Errorf("%s does not take our signature: %v\n%s", c.program, err, out)
	}
	if c.claims || f == signing.FormatLegacy {
		if out, err := c.run(t, d, append(args, "-a", "generation=41", ref)...); err == nil {
			t.Errorf("%s takes our signature for another generation:\n%s", c.program, out)
		}
	}
	other := pushArtifact(t, r, "other")
	if out, err := d.longshore(t, "verify", "--key", "k.pub", r.Name()+"@"+other.Digest.String()); err == nil {
		t.Errorf("longshore takes what nobody signed:\n%s", out)
	}
	if out, err := c.run(t, d, append(args, r.Name()+"@"+other.Digest.String())...); err == nil {
		t.Errorf("%s takes what nobody signed:\n%s", c.program, out)
	}
}

func theirsVerifiedByUs(t *testing.T, c cosign, d desk, r repository, k pair, f signing.Format, flags []string) {
	subject := pushArtifact(t, r, "hello")
	if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{k.Key}); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Verify before signing = %v, want %v", err, fault.ErrUnsigned)
	}
	ref := r.Name() + "@" + subject.Digest.String()
	args := append([]string{"sign", "--key", "k.key", "--yes", "-a", "generation=42"}, flags...)
	if out, err := c.run(t, d, append(args, ref)...); err != nil {
		t.Fatalf("%s sign: %v\n%s", c.program, err, out)
	}
	got, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{k.Key})
	if err != nil {
		t.Fatalf("we do not take the signature of %s: %v", c.program, err)
	}
	if len(got) != 1 || got[0].Format != f || got[0].By != "release" {
		t.Errorf("Verify = %+v, want one %s by release", got, f)
	}
	if out, err := d.longshore(t, "verify", "--key", "k.pub", ref); err != nil {
		t.Errorf("longshore does not take the signature of %s: %v\n%s", c.program, err, out)
	}
	if (c.claims || f == signing.FormatLegacy) && got[0].Annotations["generation"] != "42" {
		t.Errorf("claims = %v, want generation 42", got[0].Annotations)
	}
	other := quickSigner(t, sign.Options{Name: "other"})
	if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{other.Key()}); !errors.Is(err, fault.ErrBadSignature) {
		t.Errorf("Verify with another key = %v, want %v", err, fault.ErrBadSignature)
	}
}

// cosign opens our private keys, and we open its.
func TestKeysInteroperateWithCosign(t *testing.T) {
	for name, c := range cosigns() {
		t.Run(name, func(t *testing.T) {
			d := newDesk(t, pair{})
			server := d.registry(t, testenv.Referrers)
			if out, err := c.run(t, d, "generate-key-pair", "--output-key-prefix", "theirs"); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			private, err := os.ReadFile(filepath.Join(d.dir, "theirs.key"))
			if err != nil {
				t.Fatal(err)
			}
			r := openRepository(t, server.Reference("keys"))
			subject := pushArtifact(t, r, "hello")
			signer, err := sign.NewSigner(private, []byte(password), sign.Options{})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := signer.Sign(t.Context(), r, subject); err != nil {
				t.Fatal(err)
			}
			args := append([]string{"verify", "--key", "theirs.pub"}, c.verify...)
			if out, err := c.run(t, d, append(args, r.Name()+"@"+subject.Digest.String())...); err != nil {
				t.Errorf("%v\n%s", err, out)
			}
		})
	}
}

// An artifact that cosign 2 signed goes on being verified by both cosigns when it is attested: its statements go under cosign's
// older tag, where both find them, and where we find cosign 2's.
func TestAttestationsOfTheOlderLayout(t *testing.T) {
	k := releasePair()
	d := newDesk(t, k)
	d.build(t)
	const kind = "https://example.com/scan-result/v1"
	if err := os.WriteFile(filepath.Join(d.dir, "scan.json"), []byte(`{"result":"fine"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, where := range []testenv.Kind{testenv.Referrers, testenv.Distribution} {
		t.Run(string(where), func(t *testing.T) {
			r := openRepository(t, d.registry(t, where).Reference("older"))
			subject := pushArtifact(t, r, "hello")
			ref := r.Name() + "@" + subject.Digest.String()
			two, three := cosigns()["cosign2"], cosigns()["cosign3"]
			if out, err := two.run(t, d, "sign", "--key", "k.key", "--yes", "--tlog-upload=false", ref); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if out, err := d.longshore(t, "attest", "--key", "k.key", "--type", kind, "--predicate", "scan.json", ref); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, c := range []cosign{two, three} {
				if out, err := c.run(t, d, "verify", "--key", "k.pub", "--insecure-ignore-tlog", ref); err != nil {
					t.Errorf("%s does not find its signature any more: %v\n%s", c.program, err, out)
				}
				if out, err := c.run(t, d, "verify-attestation", "--key", "k.pub", "--insecure-ignore-tlog", "--type", kind, ref); err != nil {
					t.Errorf("%s does not take our attestation: %v\n%s", c.program, err, out)
				}
			}
			theirs := pushArtifact(t, r, "theirs")
			ref = r.Name() + "@" + theirs.Digest.String()
			if out, err := two.run(t, d, "attest", "--key", "k.key", "--yes", "--tlog-upload=false", "--type", kind, "--predicate", "scan.json", ref); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if out, err := d.longshore(t, "verify", "--key", "k.pub", "--attestation", kind, ref); err != nil {
				t.Errorf("longshore does not take the attestation of cosign 2: %v\n%s", err, out)
			}
			if out, err := d.longshore(t, "verify", "--key", "k.pub", ref); err == nil {
				t.Errorf("longshore takes an attestation for a signature:\n%s", out)
			}
			if out, err := d.longshore(t, "sign", "--key", "k.key", ref); err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			if out, err := d.longshore(t, "sign", "--key", "k.key", "--signature-format", "legacy", ref); err != nil || !strings.Contains(out, "cosign looks for signatures only in bundles") {
				t.Errorf("nobody is told that cosign does not find the older signature: %v\n%s", err, out)
			}
		})
	}
}

// An attestation that the real cosign 2 takes for a signature is none to us.
func TestCosignAttestationIsNoSignature(t *testing.T) {
	k := releasePair()
	c := cosigns()["cosign2"]
	d := newDesk(t, k)
	server := d.registry(t, testenv.Distribution)
	if err := os.WriteFile(filepath.Join(d.dir, "scan.json"), []byte(`{"result":"FAILED"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	r := openRepository(t, server.Reference("attested"))
	subject := pushArtifact(t, r, "hello")
	ref := r.Name() + "@" + subject.Digest.String()
	if out, err := c.run(t, d, "attest", "--key", "k.key", "--yes", "--tlog-upload=false", "--new-bundle-format",
		"--type", "https://example.com/scan-result/v1", "--predicate", "scan.json", ref); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{k.Key}); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("Verify(attested) = %v, want %v", err, fault.ErrUnsigned)
	}
}

// A registry that answers 503 for one referrer, whose bundle is too large for the list, does not make a signed artifact unsigned.
func TestRegistryFaultIsTemporary(t *testing.T) {
	k := releasePair()
	server := testenv.Registry(t, testenv.Referrers)
	r := openRepository(t, server.Reference("faulty"))
	r.Client = &http.Client{Transport: http.DefaultTransport}
	subject := pushArtifact(t, r, "hello")
	large := map[string]string{"note": strings.Repeat("x", signing.MaxAnnotatedBundle)}
	made, err := newSigner(t, k.hand, sign.Options{Annotations: large}).Sign(t.Context(), r, subject)
	if err != nil {
		t.Fatal(err)
	}
	r.Client = &http.Client{Transport: answering{made[0].Digest.String(), http.StatusServiceUnavailable}}
	if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{k.Key}); !fault.Retryable(err) {
		t.Errorf("Verify = %v, want %v", err, fault.ErrTemporary)
	}
	r.Client = &http.Client{Transport: http.DefaultTransport}
	if _, err := signing.Verify(t.Context(), r, subject, []signing.Verifier{k.Key}); err != nil {
		t.Errorf("Verify after the fault = %v", err)
	}
}

// answering gives a status to every request whose path names part.
type answering struct {
	part   string
	status int
}

func (a answering) RoundTrip(r *http.Request) (*http.Response, error) {
	if !strings.Contains(r.URL.Path, a.part) {
		return http.DefaultTransport.RoundTrip(r)
	}
	return &http.Response{
		Status: http.StatusText(a.status), StatusCode: a.status, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: http.Header{}, Body: io.NopCloser(strings.NewReader("")), Request: r,
	}, nil
}
