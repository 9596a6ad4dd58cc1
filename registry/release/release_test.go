package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// memory is one registry with one repository of each name, for reading.
type memory struct {
	name    string
	tags    map[string]digest.Digest // by repository:tag
	content map[digest.Digest][]byte
	listed  int // how often tags were listed
}

func newMemory() *memory {
	return &memory{name: "registry.example/state", tags: map[string]digest.Digest{}, content: map[digest.Digest][]byte{}}
}

func (m *memory) put(repository, tag string, a *artifacts.Artifact) digest.Digest {
	for _, b := range a.Blobs {
		m.content[b.Descriptor.Digest] = b.Data
	}
	m.content[a.Descriptor.Digest] = a.Manifest
	m.tags[repository+":"+tag] = a.Descriptor.Digest
	return a.Descriptor.Digest
}

func (m *memory) Resolve(_ context.Context, repository, tag string) (ocispec.Descriptor, error) {
	d, ok := m.tags[repository+":"+tag]
	if !ok {
		return ocispec.Descriptor{}, fmt.Errorf("resolve %s:%s: %w", repository, tag, fault.ErrNotFound)
	}
	return ocispec.Descriptor{Digest: d}, nil
}

func (m *memory) Manifest(_ context.Context, _ string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	data, ok := m.content[d]
	if !ok {
		return ocispec.Descriptor{}, nil, fmt.Errorf("manifest %s: %w", d, fault.ErrNotFound)
	}
	return ocispec.Descriptor{Digest: d, Size: int64(len(data))}, data, nil
}

func (m *memory) LockImage(_ context.Context, reference string) (artifacts.LockedImage, error) {
	if strings.Contains(reference, "none") {
		return artifacts.LockedImage{}, fault.ErrNotFound
	}
	return artifacts.LockedImage{
		Reference: reference, Digest: digest.FromString(reference),
		Platforms: []artifacts.LockedPlatform{{Platform: "linux/amd64", Digest: digest.FromString(reference + "amd64"), Size: 1}},
	}, nil
}

// states is the repository of the states in it.
type states struct{ *memory }

func (s states) Name() string { return s.name }
func (s states) Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	return s.memory.Resolve(ctx, s.name, tag)
}

func (s states) Tagged(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
	d, err := s.Resolve(ctx, tag)
	if err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return s.Manifest(ctx, d.Digest)
}

func (s states) Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	return s.memory.Manifest(ctx, s.name, d)
}

func (s states) Blob(_ context.Context, d ocispec.Descriptor, _ int64) ([]byte, error) {
	data, ok := s.content[d.Digest]
	if !ok {
		return nil, fault.ErrNotFound
	}
	return data, nil
}

func (s states) TagsWithPrefix(ctx context.Context, prefix string) ([]string, error) {
	tags, err := s.Tags(ctx)
	return slices.DeleteFunc(tags, func(t string) bool { return !strings.HasPrefix(t, prefix) }), err
}

func (s states) Tags(context.Context) ([]string, error) {
	s.listed++
	var out []string
	for name := range s.tags {
		if tag, ok := strings.CutPrefix(name, s.name+":"); ok {
			out = append(out, tag)
		}
	}
	return out, nil
}

func project(text string) fstest.MapFS {
	return fstest.MapFS{"compose.yaml": {Data: []byte("services:\n  a:\n    image: example/a:1\n"), Mode: 0o644}, "note": {Data: []byte(text), Mode: 0o644}}
}

func (m *memory) component(t *testing.T, name, version, text string) digest.Digest {
	t.Helper()
	a, _, err := Pack(t.Context(), m, project(text), []string{"example/a:1"}, artifacts.ComponentOptions{Name: name, Version: version})
	if err != nil {
		t.Fatal(err)
	}
	return m.put("registry.example/components/"+name, version, a)
}

func single(t *testing.T, s Single) Document {
	t.Helper()
	data, err := s.Deployment()
	if err != nil {
		t.Fatal(err)
	}
	return Document{File: s.Repository, Data: data}
}

func component(device artifacts.DeviceID, name, version string) Single {
	return Single{Device: device, Repository: "registry.example/components/" + name, Tag: version}
}

// place puts a state under tags.
func (m *memory) place(t *testing.T, o artifacts.StateOptions, tags ...string) digest.Digest {
	t.Helper()
	a, err := artifacts.PackState(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range tags {
		m.put(m.name, tag, a)
	}
	return a.Descriptor.Digest
}

// next keeps the state that follows what the device's tag names, with web at a version ("": nothing).
func (m *memory) next(t *testing.T, o artifacts.StateOptions, version string) *artifacts.Artifact {
	t.Helper()
	if version != "" {
		pinned, err := Pin(t.Context(), m, o.Device, []Document{single(t, component(o.Device, "web", version))})
		if err != nil {
			t.Fatal(err)
		}
		o.Deployments = [][]byte{pinned[0].Bytes}
	}
	o.Previous = m.tags[m.name+":"+o.Device.Tag()]
	a, err := artifacts.PackState(o)
	if err != nil {
		t.Fatal(err)
	}
	m.put(m.name, o.Device.Tag(), a)
	m.put(m.name, artifacts.HistoryTag(o.Device.Tag(), o.Generation), a)
	return a
}

func TestDeployment(t *testing.T) {
	s := Single{
		Device: "press-07", Repository: "registry.example/components/line-monitor", Tag: "1.4.0", Digest: digest.FromString("pinned"),
		Parameters: map[string]string{"POLL_SECONDS": "30", "TITLE": "a: \"b\" # c\n\t\u2028", "EMPTY": ""},
	}
	got := single(t, s).Data
	file := filepath.Join("testdata", "deployment.golden")
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("deployment (-want +got):\n%s", diff)
	}
	read, err := artifacts.ReadDeployment("x", got)
	if err != nil {
		t.Fatal(err)
	}
	for k, v := range s.Parameters {
		if read.Document.Spec.Parameters[k].Value != v {
			t.Errorf("parameter %s = %q, want %q", k, read.Document.Spec.Parameters[k].Value, v)
		}
	}
}

func TestDeploymentRefuses(t *testing.T) {
	for _, s := range []Single{
		{Device: "d", Repository: "r/Upper", Tag: "1.0.0"},
		{Device: "d", Repository: "r/c"},
		{Device: "d", Repository: "r/c", Tag: "latest"},
		{Device: "d", Repository: "r/c", Tag: "1.0.0", Name: "_"},
		{Device: "d d", Repository: "r/c", Tag: "1.0.0"},
	} {
		if data, err := s.Deployment(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v\n%s", s, err, data)
		}
	}
}

// What devices refuse is not published to them.
func TestDeploymentOfAnotherDevice(t *testing.T) {
	for _, c := range []struct {
		said   string
		device artifacts.DeviceID
		ok     bool
	}{
		{"", "d", true},
		{"d", "d", true},
		{"gw/d", "gw/d", true},
		{"gw/*", "gw/d", false},
		{"gw/*", "gw", false},
		{"gw/*", "gw2/d", false},
		{"gw/d", "gw/e", false},
		{"gw", "gw/d", false},
	} {
		if err := checkDevice("x.yaml", c.said, c.device); (err == nil) != c.ok || (fault.Hint(err) != "") != strings.HasSuffix(c.said, "/*") {
			t.Errorf("checkDevice(%q, %q) = %v", c.said, c.device, err)
		}
	}
}

func TestPackTellsWhichImage(t *testing.T) {
	_, _, err := Pack(t.Context(), newMemory(), project("x"), []string{"example/a:1", "example/none:1"}, artifacts.ComponentOptions{Name: "a", Version: "1.0.0"})
	if !errors.Is(err, fault.ErrNotFound) || !strings.Contains(err.Error(), "example/none:1") {
		t.Errorf("Pack = %v", err)
	}
}

// A version that is none is told before any image is looked for.
func TestPackChecksFirst(t *testing.T) {
	for _, version := range []string{"v1", "latest", "1.4"} {
		_, _, err := Pack(t.Context(), newMemory(), project("x"), []string{"example/none:1"}, artifacts.ComponentOptions{Name: "a", Version: version})
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Pack as version %s = %v, want fault.ErrInvalid", version, err)
		}
	}
}
