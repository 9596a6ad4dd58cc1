package signing

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// memory is a repository in memory, with the faults of real ones on request.
type memory struct {
	name string
	mu   sync.Mutex

	content   map[digest.Digest][]byte
	tags      map[string]ocispec.Descriptor
	referrers map[digest.Digest][]ocispec.Descriptor

	fail    func(op, what string) error               // nil: nothing fails
	corrupt func(d digest.Digest, data []byte) []byte // nil: bytes are what they are
	onPush  func(tag string)                          // nil: alone in the world; called before a tag is written
}

func newMemory() *memory {
	return &memory{
		name:      "registry.example/plant/state",
		content:   map[digest.Digest][]byte{},
		tags:      map[string]ocispec.Descriptor{},
		referrers: map[digest.Digest][]ocispec.Descriptor{},
	}
}

var _ Store = (*memory)(nil)

func (m *memory) Name() string { return m.name }

func (m *memory) failing(op, what string) error {
	if m.fail == nil {
		return nil
	}
	return m.fail(op, what)
}

func (m *memory) Resolve(_ context.Context, tag string) (ocispec.Descriptor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failing("resolve", tag); err != nil {
		return ocispec.Descriptor{}, err
	}
	d, ok := m.tags[tag]
	if !ok {
		return d, fmt.Errorf("tag %s: %w", tag, fault.ErrNotFound)
	}
	return d, nil
}

func (m *memory) get(op string, d digest.Digest) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failing(op, d.String()); err != nil {
		return nil, err
	}
	data, ok := m.content[d]
	if !ok {
		return nil, fmt.Errorf("%s: %w", d, fault.ErrNotFound)
	}
	if m.corrupt != nil {
		data = m.corrupt(d, bytes.Clone(data))
	}
	return data, nil
}

func (m *memory) Manifest(_ context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	data, err := m.get("manifest", d)
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}, data, err
}

func (m *memory) Blob(_ context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	data, err := m.get("blob", d.Digest)
	if err == nil && int64(len(data)) > limit {
		return nil, fault.ErrTooLarge
	}
	return data, err
}

func (m *memory) Referrers(_ context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failing("referrers", subject.Digest.String()); err != nil {
		return nil, err
	}
	return m.referrers[subject.Digest], nil
}

func (m *memory) PushBlob(_ context.Context, d ocispec.Descriptor, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if digest.FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
		return fault.ErrDigestMismatch
	}
	if err := m.failing("push", d.Digest.String()); err != nil {
		return err
	}
	m.content[d.Digest] = bytes.Clone(data)
	return nil
}

func (m *memory) PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error {
	if err := m.PushBlob(ctx, d, data); err != nil || tag == "" {
		return err
	}
	if m.onPush != nil {
		m.onPush(tag)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tags[tag] = ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
	return nil
}

func (m *memory) PushReferrer(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return err
	}
	if err := m.PushBlob(ctx, d, data); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.referrers[manifest.Subject.Digest] = append(m.referrers[manifest.Subject.Digest], d)
	return nil
}

// artifact puts a small artifact into the repository.
func (m *memory) artifact(t *testing.T, text string) ocispec.Descriptor {
	t.Helper()
	layer := descriptorOf("text/plain", []byte(text))
	data, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "text/plain", Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{layer},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := descriptorOf(ocispec.MediaTypeImageManifest, data)
	for _, push := range []error{
		m.PushBlob(t.Context(), layer, []byte(text)),
		m.PushManifest(t.Context(), d, data, ""),
	} {
		if push != nil {
			t.Fatal(push)
		}
	}
	return d
}

// attach puts a referrer with one layer into the repository, of whatever content and types.
func (m *memory) attach(t *testing.T, subject ocispec.Descriptor, artifactType, layerType string, data []byte) ocispec.Descriptor {
	t.Helper()
	layer := descriptorOf(layerType, data)
	subject = ocispec.Descriptor{MediaType: subject.MediaType, Digest: subject.Digest, Size: subject.Size}
	manifest, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: artifactType, Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{layer}, Subject: &subject,
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := m.PushBlob(t.Context(), layer, data); err != nil {
		t.Fatal(err)
	}
	d := descriptorOf(ocispec.MediaTypeImageManifest, manifest)
	d.ArtifactType = artifactType
	if err := m.PushReferrer(t.Context(), d, manifest); err != nil {
		t.Fatal(err)
	}
	return d
}

const testPassword = "correct horse"

// pair returns a key pair made once for all tests: scrypt makes each one slow on purpose.
var pair = sync.OnceValues(func() ([]byte, []byte) {
	private, public, err := GenerateKey([]byte(testPassword))
	if err != nil {
		panic(err)
	}
	return private, public
})

var otherPair = sync.OnceValues(func() ([]byte, []byte) {
	private, public, err := GenerateKey([]byte(testPassword))
	if err != nil {
		panic(err)
	}
	return private, public
})

// unlocked keys, once: scrypt makes each unlocking slow too.
var (
	unlocked      = sync.OnceValue(func() *Signer { return unlock(pair()) })
	unlockedOther = sync.OnceValue(func() *Signer { return unlock(otherPair()) })
)

func unlock(private, _ []byte) *Signer {
	s, err := NewSigner(private, []byte(testPassword), SignOptions{})
	if err != nil {
		panic(err)
	}
	return s
}

func newSigner(t testing.TB, o SignOptions) *Signer {
	t.Helper()
	return withOptions(t, *unlocked(), o)
}

func otherSigner(t testing.TB, o SignOptions) *Signer {
	t.Helper()
	return withOptions(t, *unlockedOther(), o)
}

func withOptions(t testing.TB, s Signer, o SignOptions) *Signer {
	t.Helper()
	var err error
	if o.Format, err = ParseFormat(string(o.Format)); err != nil {
		t.Fatal(err)
	}
	s.options = o
	if o.Name != "" {
		s.key.Name = o.Name
	}
	return &s
}

func releaseKey(t testing.TB) Key {
	t.Helper()
	_, public := pair()
	k, err := ParsePublicKey("release", public)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

func sign(t testing.TB, s *Signer, st Store, subject ocispec.Descriptor) []Signature {
	t.Helper()
	made, err := s.Sign(context.Background(), st, subject)
	if err != nil {
		t.Fatal(err)
	}
	return made
}

func readFile(t testing.TB, path string) []byte {
	t.Helper()
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return data
}
