package release

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"
	"time"

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

func (s states) Tags(context.Context) ([]string, error) {
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

// next makes and keeps a state.
func (m *memory) next(t *testing.T, o Options) *Next {
	t.Helper()
	n, err := State(t.Context(), m, states{m}, o)
	if err != nil {
		t.Fatal(err)
	}
	m.put(m.name, n.Tag, n.Artifact)
	m.put(m.name, n.HistoryTag, n.Artifact)
	return n
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

func TestDeploymentID(t *testing.T) {
	seen := map[string]string{}
	for _, device := range []artifacts.DeviceID{"a", "a-b", "a/b"} {
		for _, name := range []string{"b", "a", "b-c"} {
			id, what := DeploymentID(device, name), string(device)+" "+name
			if id != DeploymentID(device, name) || seen[id] != "" {
				t.Errorf("id of %s = %s, that of %s", what, id, seen[id])
			}
			seen[id] = what
		}
	}
	// Once released, it can never change.
	if got, want := DeploymentID("press-07", "line-monitor"), "b7ff3fca-bc5c-5941-88ba-54143595392b"; got != want {
		t.Errorf("DeploymentID = %s, want %s", got, want)
	}
}

func TestDeploymentRefuses(t *testing.T) {
	for _, s := range []Single{
		{Device: "d", Repository: "r/Upper", Tag: "1.0.0"},
		{Device: "d", Repository: "r/c"},
		{Device: "d", Repository: "r/c", Tag: "latest"},
		{Device: "d", Repository: "r/c", Tag: "1.0.0", Name: "-"},
		{Device: "d d", Repository: "r/c", Tag: "1.0.0"},
	} {
		if data, err := s.Deployment(); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%+v: %v\n%s", s, err, data)
		}
	}
}

func TestGenerations(t *testing.T) {
	m := newMemory()
	first := m.component(t, "web", "1.0.0", "one")
	m.component(t, "web", "1.1.0", "two")
	o := Options{Device: "press-07", Deployments: []Document{single(t, component("press-07", "web", "1.0.0"))}}
	n := m.next(t, o)
	if n.Generation != 1 || n.Previous != "" || n.Tag != "press-07" || n.HistoryTag != "press-07.v1" || n.Changes[0].Change != New {
		t.Errorf("first = %+v", n)
	}
	if n.Changes[0].Components[0].Digest != first {
		t.Errorf("pinned to %s, want %s", n.Changes[0].Components[0].Digest, first)
	}
	o.Deployments[0] = single(t, component("press-07", "web", "1.1.0"))
	second := m.next(t, o)
	if second.Generation != 2 || second.Previous != n.Artifact.Descriptor.Digest || second.Changes[0].Change != Changed || second.Changes[0].Was[0].Version != "1.0.0" {
		t.Errorf("second = %+v", second)
	}
	// The tag moves, the pinned document does not.
	m.component(t, "web", "1.1.0", "moved")
	current, err := Read(t.Context(), states{m}, "press-07")
	if err != nil {
		t.Fatal(err)
	}
	o.Deployments[0].Data = current.State.Deployments[0].Bytes
	if third := m.next(t, o); third.Changes[0].Change != Unchanged {
		t.Errorf("pinned again: %+v", third.Changes)
	}
	o.Generation = 3
	if _, err := State(t.Context(), m, states{m}, o); !errors.Is(err, fault.ErrRollback) {
		t.Errorf("generation 3 again: %v", err)
	}
	o.Generation = ^uint64(0)
	m.next(t, o)
	o.Generation = 0
	if _, err := State(t.Context(), m, states{m}, o); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("behind the last generation: %v", err)
	}
}

func TestKeepOthers(t *testing.T) {
	m := newMemory()
	m.component(t, "web", "1.0.0", "web")
	m.component(t, "broker", "1.0.0", "broker")
	m.next(t, Options{Device: "d", Deployments: []Document{single(t, component("d", "web", "1.0.0"))}})
	broker := []Document{single(t, component("d", "broker", "1.0.0"))}
	kept := m.next(t, Options{Device: "d", Deployments: broker, KeepOthers: true})
	if got := changes(kept); got != "broker new, web unchanged" {
		t.Errorf("keeping others: %s", got)
	}
	alone := m.next(t, Options{Device: "d", Deployments: broker})
	if got := changes(alone); got != "broker unchanged, web removed" {
		t.Errorf("not keeping them: %s", got)
	}
	empty := m.next(t, Options{Device: "d"})
	if got := changes(empty); got != "broker removed" {
		t.Errorf("empty: %s", got)
	}
}

func changes(n *Next) string {
	var out []string
	for _, c := range n.Changes {
		out = append(out, c.Name+" "+c.Change)
	}
	return strings.Join(out, ", ")
}

func TestStateRefuses(t *testing.T) {
	m := newMemory()
	m.component(t, "web", "1.0.0", "web")
	m.tags["registry.example/components/web:2.0.0"] = m.tags["registry.example/components/web:1.0.0"]
	web := single(t, component("d", "web", "1.0.0"))
	state := m.next(t, Options{Device: "other", Deployments: []Document{single(t, component("other", "web", "1.0.0"))}})
	m.tags["registry.example/components/state:1.0.0"] = state.Artifact.Descriptor.Digest
	m.tags[m.name+":stolen"] = state.Artifact.Descriptor.Digest
	m.tags[m.name+":component"] = m.tags["registry.example/components/web:1.0.0"]
	cases := []struct {
		name   string
		device artifacts.DeviceID
		docs   []Document
		want   error
	}{
		{"nothing there", "d", []Document{single(t, component("d", "none", "1.0.0"))}, fault.ErrNotFound},
		{"no component", "d", []Document{single(t, component("d", "state", "1.0.0"))}, nil},
		{"another version inside", "d", []Document{single(t, component("d", "web", "2.0.0"))}, fault.ErrInvalid},
		{"another device's", "e", []Document{web}, fault.ErrInvalid},
		{"twice", "d", []Document{web, web}, fault.ErrInvalid},
		{"no document", "d", []Document{{File: "x", Data: []byte("hello")}}, fault.ErrInvalid},
		{"tag with another device's state", "stolen", nil, fault.ErrConflict},
		{"tag with no state", "component", nil, nil},
		{"https component", "d", []Document{{File: "old.yaml", Data: []byte(old)}}, fault.ErrUnsupported},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n, err := State(t.Context(), m, states{m}, Options{Device: c.device, Deployments: c.docs})
			if err == nil || c.want != nil && !errors.Is(err, c.want) {
				t.Errorf("State = %+v, %v, want %v", n, err, c.want)
			}
		})
	}
}

// old is a deployment of the 1.0.0 line, whose component is in no registry.
const old = `apiVersion: application.margo.org/v1alpha1
kind: ApplicationDeployment
metadata:
  annotations: {id: 8f14e45f-ceea-4e7a-9c1b-2f3c4d5e6f70, applicationId: old}
  name: old
spec:
  deploymentProfile:
    type: compose
    components:
      - name: old
        properties: {packageLocation: "https://example.com/a.tar.gz"}
`

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

func TestSameInputSameDigest(t *testing.T) {
	m := newMemory()
	m.component(t, "web", "1.0.0", "web")
	m.component(t, "broker", "1.0.0", "broker")
	web, broker := single(t, component("d", "web", "1.0.0")), single(t, component("d", "broker", "1.0.0"))
	var first digest.Digest
	for _, docs := range [][]Document{{web, broker}, {broker, web}, {web, broker}} {
		n, err := State(t.Context(), m, states{m}, Options{Device: "d", Deployments: docs, Created: time.Unix(1, 0)})
		if err != nil {
			t.Fatal(err)
		}
		if first == "" {
			first = n.Artifact.Descriptor.Digest
		}
		if got := n.Artifact.Descriptor.Digest; got != first {
			t.Errorf("digest = %s, want %s", got, first)
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
