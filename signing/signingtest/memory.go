// Package signingtest has a repository in memory for tests of what signs and verifies.
package signingtest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Memory is a repository in memory, with the faults of real ones on request.
type Memory struct {
	Repository string // what Name says
	mu         sync.Mutex

	Content map[digest.Digest][]byte
	Tags    map[string]ocispec.Descriptor
	Listed  map[digest.Digest][]ocispec.Descriptor // referrers by subject

	Fail    func(op, what string) error               // nil: nothing fails
	Corrupt func(d digest.Digest, data []byte) []byte // nil: bytes are what they are
	OnPush  func(tag string)                          // nil: alone in the world; called before a tag is written
	Asked   map[string]int                            // how often each operation was called
}

// NewMemory is empty.
func NewMemory() *Memory {
	return &Memory{
		Repository: "registry.example/plant/state",
		Content:    map[digest.Digest][]byte{},
		Tags:       map[string]ocispec.Descriptor{},
		Listed:     map[digest.Digest][]ocispec.Descriptor{},
		Asked:      map[string]int{},
	}
}

// Name implements signing.Source.
func (m *Memory) Name() string { return m.Repository }

func (m *Memory) failing(op, what string) error {
	m.Asked[op]++
	if m.Fail == nil {
		return nil
	}
	return m.Fail(op, what)
}

// Resolve implements signing.Source.
func (m *Memory) Resolve(_ context.Context, tag string) (ocispec.Descriptor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failing("resolve", tag); err != nil {
		return ocispec.Descriptor{}, err
	}
	d, ok := m.Tags[tag]
	if !ok {
		return d, fmt.Errorf("tag %s: %w", tag, fault.ErrNotFound)
	}
	return d, nil
}

func (m *Memory) get(op string, d digest.Digest) ([]byte, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failing(op, d.String()); err != nil {
		return nil, err
	}
	data, ok := m.Content[d]
	if !ok {
		return nil, fmt.Errorf("%s: %w", d, fault.ErrNotFound)
	}
	if m.Corrupt != nil {
		data = m.Corrupt(d, bytes.Clone(data))
	}
	return data, nil
}

// Manifest implements signing.Source.
func (m *Memory) Manifest(_ context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	data, err := m.get("manifest", d)
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}, data, err
}

// Blob implements signing.Source.
func (m *Memory) Blob(_ context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	data, err := m.get("blob", d.Digest)
	if err == nil && int64(len(data)) > limit {
		return nil, fault.ErrTooLarge
	}
	return data, err
}

// Referrers implements signing.Source.
func (m *Memory) Referrers(_ context.Context, subject ocispec.Descriptor) ([]ocispec.Descriptor, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if err := m.failing("referrers", subject.Digest.String()); err != nil {
		return nil, err
	}
	return m.Listed[subject.Digest], nil
}

// PushBlob implements signing.Store.
func (m *Memory) PushBlob(_ context.Context, d ocispec.Descriptor, data []byte) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if digest.FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
		return fault.ErrDigestMismatch
	}
	if err := m.failing("push", d.Digest.String()); err != nil {
		return err
	}
	m.Content[d.Digest] = bytes.Clone(data)
	return nil
}

// PushManifest implements signing.Store.
func (m *Memory) PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error {
	if err := m.PushBlob(ctx, d, data); err != nil || tag == "" {
		return err
	}
	if m.OnPush != nil {
		m.OnPush(tag)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Tags[tag] = ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}
	return nil
}

// PushReferrer implements signing.Store.
func (m *Memory) PushReferrer(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	var manifest ocispec.Manifest
	if err := json.Unmarshal(data, &manifest); err != nil {
		return err
	}
	if err := m.PushBlob(ctx, d, data); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.Listed[manifest.Subject.Digest] = append(m.Listed[manifest.Subject.Digest], d)
	return nil
}

// Artifact puts a small artifact into the repository.
func (m *Memory) Artifact(t testing.TB, text string) ocispec.Descriptor {
	t.Helper()
	layer := descriptor("text/plain", []byte(text))
	data, err := json.Marshal(ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "text/plain", Config: ocispec.DescriptorEmptyJSON, Layers: []ocispec.Descriptor{layer},
	})
	if err != nil {
		t.Fatal(err)
	}
	d := descriptor(ocispec.MediaTypeImageManifest, data)
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

// Attach puts a referrer with one layer into the repository, of whatever content and types.
func (m *Memory) Attach(t testing.TB, subject ocispec.Descriptor, artifactType, layerType string, data []byte) ocispec.Descriptor {
	t.Helper()
	layer := descriptor(layerType, data)
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
	d := descriptor(ocispec.MediaTypeImageManifest, manifest)
	d.ArtifactType = artifactType
	if err := m.PushReferrer(t.Context(), d, manifest); err != nil {
		t.Fatal(err)
	}
	return d
}

// StripData replaces the referrers of a subject by ones with neither data nor the bundle in an annotation, as cosign writes them.
func (m *Memory) StripData(t testing.TB, subject ocispec.Descriptor) {
	t.Helper()
	m.EditReferrers(t, subject, func(r *ocispec.Manifest) {
		delete(r.Annotations, signing.AnnotationBundle)
		for i := range r.Layers {
			r.Layers[i].Data = nil
		}
	})
}

// EditReferrers replaces the referrers of a subject by edited ones.
func (m *Memory) EditReferrers(t testing.TB, subject ocispec.Descriptor, edit func(*ocispec.Manifest)) {
	t.Helper()
	listed := m.Listed[subject.Digest]
	m.Listed[subject.Digest] = nil
	for _, old := range listed {
		var manifest ocispec.Manifest
		if err := json.Unmarshal(m.Content[old.Digest], &manifest); err != nil {
			t.Fatal(err)
		}
		edit(&manifest)
		data, err := json.Marshal(manifest)
		if err != nil {
			t.Fatal(err)
		}
		d := descriptor(old.MediaType, data)
		d.ArtifactType, d.Annotations = old.ArtifactType, manifest.Annotations
		if err := m.PushReferrer(t.Context(), d, data); err != nil {
			t.Fatal(err)
		}
	}
}

func descriptor(mediaType string, data []byte) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: mediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
}
