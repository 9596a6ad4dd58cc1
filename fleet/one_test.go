package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/registry/release"
)

// shelf is a registry with the states of devices in one repository.
type shelf struct {
	*fleettest.Registry
	name string
}

func newShelf() *shelf { return &shelf{fleettest.New(), "registry.example/state"} }

func (m *shelf) component(t *testing.T, name, version, text string) digest.Digest {
	t.Helper()
	image := artifacts.LockedImage{
		Reference: "example/a:1", Digest: digest.FromString("a"),
		Platforms: []artifacts.LockedPlatform{{Platform: "linux/amd64", Digest: digest.FromString("a amd64"), Size: 1}},
	}
	a, err := artifacts.PackComponent(fstest.MapFS{
		"compose.yaml": {Data: []byte("services:\n  a:\n    image: example/a:1\n"), Mode: 0o644}, "note": {Data: []byte(text), Mode: 0o644},
	}, artifacts.ComponentOptions{Name: name, Version: version, Lock: &artifacts.Lock{Images: []artifacts.LockedImage{image}}})
	if err != nil {
		t.Fatal(err)
	}
	return m.Push("registry.example/components/"+name, version, a)
}

// asked is what one device is to get.
type asked struct {
	Device      artifacts.DeviceID
	Deployments []release.Document
	Replace     bool
	Generation  uint64
	To          uint64
	Verify      func(context.Context, ocispec.Descriptor) error
	Accepted    func(context.Context) (uint64, error)
	Created     time.Time
}

func stateOf(t *testing.T, m *shelf, x asked) (*fleet.Next, error) {
	t.Helper()
	o := fleet.Options{Created: x.Created}
	if x.Verify != nil {
		o.Verify = func(ctx context.Context, _ string, d digest.Digest) error {
			return x.Verify(ctx, ocispec.Descriptor{Digest: d})
		}
	}
	if x.Accepted != nil {
		o.Accepted = func(ctx context.Context, _ artifacts.DeviceID) (uint64, error) { return x.Accepted(ctx) }
	}
	return fleet.PlanOne(t.Context(), m, o, fleet.One{
		Device: x.Device, Repository: m.name, Replace: x.Replace, Generation: x.Generation, To: x.To,
		Edit: func(context.Context, []artifacts.Deployment) (fleet.Edit, error) {
			return fleet.Edit{Deployments: x.Deployments}, nil
		},
	})
}

// signed are the states that the release engineer signed.
type signed map[digest.Digest]bool

func (s signed) verify(_ context.Context, d ocispec.Descriptor) error {
	if !s[d.Digest] {
		return fmt.Errorf("verify %s: %w", d.Digest, fault.ErrUnsigned)
	}
	return nil
}

// place puts a state with deployments under tags.
func (m *shelf) place(t *testing.T, o artifacts.StateOptions, tags ...string) digest.Digest {
	t.Helper()
	a, err := artifacts.PackState(o)
	if err != nil {
		t.Fatal(err)
	}
	for _, tag := range tags {
		m.Push(m.name, tag, a)
	}
	return a.Descriptor.Digest
}

// Whoever may write to the registry moves and makes tags; the next state follows what was signed, or nothing.
func TestFollowsOnlyWhatWasSigned(t *testing.T) {
	const last = ^uint64(0)
	forge := func(n uint64, tags ...string) func(*testing.T, *shelf) {
		return func(t *testing.T, m *shelf) { m.place(t, artifacts.StateOptions{Device: "d", Generation: n}, tags...) }
	}
	point := func(tag, at string) func(*testing.T, *shelf) {
		return func(_ *testing.T, m *shelf) { m.Named[m.name+":"+tag] = m.Named[m.name+":"+at] }
	}
	remove := func(tags ...string) func(*testing.T, *shelf) {
		return func(_ *testing.T, m *shelf) {
			for _, tag := range tags {
				delete(m.Named, m.name+":"+tag)
			}
		}
	}
	type does = []func(*testing.T, *shelf)
	for _, c := range []struct {
		name   string
		do     does // after generations 1 to 3 of d, signed, with web at version 1.N.0
		o      asked
		want   uint64
		change string
		note   string
		err    error
	}{
		{"nothing unusual", nil, asked{Replace: true}, 4, "broker new, web removed", "", nil},
		{"nothing unusual, keeping", nil, asked{}, 4, "broker new, web kept", "", nil},
		{"forged tag", does{forge(last-1, "d")}, asked{Replace: true}, 4, "broker new, web removed", "not signed", nil},
		{"forged tag, keeping", does{forge(last-1, "d")}, asked{}, 0, "", "--verify-key", fault.ErrUnsigned},
		{"forged tag, keeping and numbered", does{forge(9, "d")}, asked{Generation: 10}, 0, "", "--verify-key", fault.ErrUnsigned},
		{"forged tag without a history", does{remove("d.v1", "d.v2", "d.v3"), forge(last-1, "d")}, asked{Replace: true}, 0, "", "--generation", fault.ErrUnsigned},
		{"the same, numbered", does{remove("d.v1", "d.v2", "d.v3"), forge(last-1, "d")}, asked{Replace: true, Generation: 4}, 4, "broker new", "not signed", nil},
		{"forged history tag", does{forge(last-1, fmt.Sprintf("d.v%d", last-1))}, asked{Replace: true}, 4, "broker new, web removed", "", nil},
		{"forged history tag in the way", does{forge(4, "d.v4")}, asked{Replace: true}, 5, "broker new, web removed", "not followed", nil},
		{"forged history alone", does{remove("d", "d.v1", "d.v2", "d.v3"), forge(9, "d.v9")}, asked{Replace: true}, 0, "", "--generation", fault.ErrUnsigned},
		{"forged history alone, keeping and numbered", does{remove("d", "d.v1", "d.v2", "d.v3"), forge(9, "d.v9")}, asked{Generation: 1}, 0, "", "--replace --generation", fault.ErrUnsigned},
		{"the same, numbered", does{remove("d", "d.v1", "d.v2", "d.v3"), forge(9, "d.v9")}, asked{Replace: true, Generation: 1}, 1, "broker new", "not followed", nil},
		{"signed, under another number", does{point("d.v4", "d.v2")}, asked{Replace: true}, 5, "broker new, web removed", "is generation 2", nil},
		{"back to an old generation", does{point("d", "d.v1")}, asked{Replace: true}, 4, "broker new, web removed", "does not name it", nil},
		{"back to an old generation, keeping", does{point("d", "d.v1")}, asked{}, 4, "broker new, web kept", "does not name it", nil},
		{"back to an old generation, rollback", does{point("d", "d.v1")}, asked{Replace: true, Generation: 2}, 0, "", "generation 4", fault.ErrRollback},
		{"another device's, signed", does{point("d", "e")}, asked{Replace: true}, 4, "broker new, web removed", "state of e", nil},
		{"another device's, keeping", does{point("d", "e")}, asked{}, 0, "", "--verify-key", fault.ErrConflict},
		{"no state at all", does{func(_ *testing.T, m *shelf) { m.Named[m.name+":d"] = m.Named["registry.example/components/web:1.1.0"] }}, asked{Replace: true}, 4, "broker new, web removed", "not followed", nil},
		{"tag removed", does{remove("d")}, asked{Replace: true}, 4, "broker new, web removed", "does not name it", nil},
		{"a gap", does{remove("d.v2")}, asked{Replace: true}, 4, "broker new, web removed", "", nil},
		{"a gap, tag removed", does{remove("d", "d.v2")}, asked{Replace: true}, 4, "broker new, web removed", "does not name it", nil},
		{"explicit number", nil, asked{Replace: true, Generation: 40}, 40, "broker new, web removed", "", nil},
		{"explicit number again", nil, asked{Replace: true, Generation: 3}, 0, "", "generation 4", fault.ErrRollback},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, by := newShelf(), signed{}
			m.component(t, "broker", "1.0.0", "broker")
			for n := range 3 {
				version := fmt.Sprintf("1.%d.0", n+1)
				m.component(t, "web", version, version)
				for _, device := range []artifacts.DeviceID{"d", "e"} {
					made := m.next(t, asked{Device: device, Deployments: []release.Document{single(t, component(device, "web", version))}, Verify: by.verify})
					by[made.Artifact.Descriptor.Digest] = true
				}
			}
			newest := m.Named[m.name+":d.v3"]
			for _, do := range c.do {
				do(t, m)
			}
			c.o.Device, c.o.Verify = "d", by.verify
			c.o.Deployments = []release.Document{single(t, component("d", "broker", "1.0.0"))}
			n, err := stateOf(t, m, c.o)
			if c.err != nil {
				if !errors.Is(err, c.err) || !strings.Contains(fault.Hint(err), c.note) {
					t.Fatalf("State = %v (hint: %s), want %v and a hint with %q", err, fault.Hint(err), c.err, c.note)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(n.Reasons, "; ")
			if n.Generation != c.want || changes(n) != c.change || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
				t.Errorf("State = generation %d, %s, notes %q, want %d, %s, %q", n.Generation, changes(n), notes, c.want, c.change, c.note)
			}
			if n.Previous != newest && n.Previous != "" {
				t.Errorf("it follows %s, want %s", n.Previous, newest)
			}
		})
	}
}

// A state that could not be checked is neither followed nor passed over.
func TestCouldNotVerify(t *testing.T) {
	m := newShelf()
	m.next(t, asked{Device: "d"})
	verify := func(context.Context, ocispec.Descriptor) error {
		return fmt.Errorf("%w: %w", fault.ErrTemporary, fault.ErrBadSignature)
	}
	if _, err := stateOf(t, m, asked{Device: "d", Generation: 9, Verify: verify}); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("State = %v, want fault.ErrTemporary", err)
	}
}

// An interrupted push has set the history tag, and not the device's.
func TestOneResumes(t *testing.T) {
	m := newShelf()
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		m.component(t, "web", version, version)
	}
	web := func(version string) asked {
		return asked{Device: "d", Deployments: []release.Document{single(t, component("d", "web", version))}}
	}
	first := m.next(t, web("1.0.0"))
	cut, err := stateOf(t, m, web("1.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	m.Push(m.name, cut.Publication.HistoryTag, cut.Artifact)

	same, err := stateOf(t, m, web("1.1.0"))
	if err != nil || same.Generation != 2 || same.Artifact.Descriptor.Digest != cut.Artifact.Descriptor.Digest || same.Previous != first.Artifact.Descriptor.Digest || len(same.Reasons) != 1 {
		t.Errorf("the same again = %+v, %v, want generation 2 taken up", same, err)
	}
	other, err := stateOf(t, m, web("1.2.0"))
	if err != nil || other.Generation != 3 || other.Previous != cut.Artifact.Descriptor.Digest || len(other.Reasons) != 1 {
		t.Errorf("something else = %+v, %v, want generation 3", other, err)
	}
	numbered := web("1.2.0")
	numbered.Generation = 2
	if _, err := stateOf(t, m, numbered); !errors.Is(err, fault.ErrRollback) {
		t.Errorf("something else as generation 2: %v", err)
	}
}

// The registry lost generations that the device has accepted: it would take no older number.
func TestGoesOnAboveWhatTheDeviceAccepted(t *testing.T) {
	m := newShelf()
	for range 3 {
		m.next(t, asked{Device: "d"})
	}
	for _, c := range []struct {
		device   artifacts.DeviceID
		accepted uint64
		err      error
		want     uint64
		note     string
	}{
		{"d", 0, nil, 4, ""},
		{"d", 3, nil, 4, ""},
		{"d", 40, nil, 41, "has accepted generation 40"},
		{"d", ^uint64(0), nil, 4, "ignored"},
		{"d", 0, fault.ErrTemporary, 4, ""},
		{"new", 0, nil, 1, ""},
		{"new", 11, nil, 12, "has accepted generation 11"},
		{"new", ^uint64(0) - 1, nil, 1, "ignored"},
		{"new", 0, fault.ErrTemporary, 1, "could not be found out"},
	} {
		keeping := asked{Device: c.device, Accepted: func(context.Context) (uint64, error) { return c.accepted, c.err }}
		if _, err := stateOf(t, m, keeping); (err != nil) != strings.HasPrefix(c.note, "has accepted") || err != nil && !strings.Contains(fault.Hint(err), "--replace") {
			t.Errorf("%s, which accepted %d, keeping what it runs: %v", c.device, c.accepted, err)
		}
		n, err := stateOf(t, m, asked{Device: c.device, Replace: true, Accepted: func(context.Context) (uint64, error) { return c.accepted, c.err }})
		if err != nil {
			t.Fatal(err)
		}
		if notes := strings.Join(n.Reasons, "; "); n.Generation != c.want || !strings.Contains(notes, c.note) || c.note == "" && notes != "" {
			t.Errorf("%s, which accepted %d (%v): generation %d, notes %q, want %d, %q", c.device, c.accepted, c.err, n.Generation, notes, c.want, c.note)
		}
	}
	// An interrupted push of the same content is not taken up below what the device has.
	cut, err := stateOf(t, m, asked{Device: "d", Created: time.Unix(1, 0)})
	if err != nil {
		t.Fatal(err)
	}
	m.Push(m.name, cut.Publication.HistoryTag, cut.Artifact)
	n, err := stateOf(t, m, asked{Device: "d", Replace: true, Created: time.Unix(1, 0), Accepted: func(context.Context) (uint64, error) { return 40, nil }})
	if err != nil || n.Generation != 41 {
		t.Errorf("State = generation %d, %v, want 41", n.Generation, err)
	}
}

func single(t *testing.T, s release.Single) release.Document {
	t.Helper()
	data, err := s.Deployment()
	if err != nil {
		t.Fatal(err)
	}
	return release.Document{File: s.Repository, Data: data}
}

func component(device artifacts.DeviceID, name, version string) release.Single {
	return release.Single{Device: device, Repository: "registry.example/components/" + name, Tag: version}
}

// next makes and keeps a state.
func (m *shelf) next(t *testing.T, o asked) *fleet.Next {
	t.Helper()
	n, err := stateOf(t, m, o)
	if err != nil {
		t.Fatal(err)
	}
	m.Push(m.name, n.Publication.Tag, n.Artifact)
	m.Push(m.name, n.Publication.HistoryTag, n.Artifact)
	return n
}

func TestOneGenerations(t *testing.T) {
	m := newShelf()
	first := m.component(t, "web", "1.0.0", "one")
	m.component(t, "web", "1.1.0", "two")
	o := asked{Device: "press-07", Deployments: []release.Document{single(t, component("press-07", "web", "1.0.0"))}}
	n := m.next(t, o)
	if n.Generation != 1 || n.Previous != "" || n.Publication.Tag != "press-07" || n.Publication.HistoryTag != "press-07.v1" || changes(n) != "web new" {
		t.Errorf("first = %+v", n)
	}
	if n.Changes[0].Components[0].Digest != first {
		t.Errorf("pinned to %s, want %s", n.Changes[0].Components[0].Digest, first)
	}
	o.Deployments[0] = single(t, component("press-07", "web", "1.1.0"))
	second := m.next(t, o)
	if second.Generation != 2 || second.Previous != n.Artifact.Descriptor.Digest || changes(second) != "web changed" || second.Changes[0].Was != "1.0.0" {
		t.Errorf("second = %+v", second)
	}
	// The tag moves, the pinned document does not.
	m.component(t, "web", "1.1.0", "moved")
	current, err := release.Read(t.Context(), m.At(m.name), "press-07")
	if err != nil {
		t.Fatal(err)
	}
	o.Deployments[0].Data = current.State.Deployments[0].Bytes
	if third := m.next(t, o); len(third.Changes) > 0 {
		t.Errorf("pinned again: %+v", third.Changes)
	}
	o.Generation = 3
	if _, err := stateOf(t, m, o); !errors.Is(err, fault.ErrRollback) {
		t.Errorf("generation 3 again: %v", err)
	}
	o.Generation = ^uint64(0)
	m.next(t, o)
	o.Generation = 0
	if _, err := stateOf(t, m, o); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("behind the last generation: %v", err)
	}
}

// A repository may hold the tags of ten thousand devices: the next state of one is found without a list of them.
func TestListsNoTags(t *testing.T) {
	m := newShelf()
	m.component(t, "web", "1.0.0", "web")
	o := asked{Device: "d", Deployments: []release.Document{single(t, component("d", "web", "1.0.0"))}}
	m.next(t, o)
	m.Asked["tags"] = 0
	for want := uint64(2); want < 5; want++ {
		if n := m.next(t, o); n.Generation != want {
			t.Errorf("generation %d, want %d", n.Generation, want)
		}
	}
	m.Named[m.name+":d"] = m.Named[m.name+":d.v1"]
	o.Deployments, o.Replace = nil, true
	if n := m.next(t, o); n.Generation != 5 || m.Asked["tags"] != 0 {
		t.Errorf("generation %d after the tag was moved back, want 5; tags were listed %d times", n.Generation, m.Asked["tags"])
	}
}

func TestOthersStayUnlessReplaced(t *testing.T) {
	m := newShelf()
	m.component(t, "web", "1.0.0", "web")
	m.component(t, "broker", "1.0.0", "broker")
	m.next(t, asked{Device: "d", Deployments: []release.Document{single(t, component("d", "web", "1.0.0"))}})
	broker := []release.Document{single(t, component("d", "broker", "1.0.0"))}
	kept := m.next(t, asked{Device: "d", Deployments: broker})
	if got := changes(kept); got != "broker new, web kept" {
		t.Errorf("keeping others: %s", got)
	}
	m.Uncarry(kept.Artifact.Descriptor.Digest)
	blob := kept.Artifact.Blobs[len(kept.Artifact.Blobs)-1].Descriptor.Digest
	document := m.Blobs[blob]
	delete(m.Blobs, blob)
	if _, err := stateOf(t, m, asked{Device: "d"}); !errors.Is(err, fault.ErrNotFound) || !strings.Contains(fault.Hint(err), "--replace") {
		t.Errorf("what it has cannot be read: %v (hint: %s)", err, fault.Hint(err))
	}
	if _, err := stateOf(t, m, asked{Device: "d", Deployments: broker, Replace: true}); err != nil {
		t.Errorf("what it has cannot be read, and is replaced: %v", err)
	}
	m.Blobs[blob] = document
	alone := m.next(t, asked{Device: "d", Deployments: broker, Replace: true})
	if got := changes(alone); got != "web removed" {
		t.Errorf("not keeping them: %s", got)
	}
	empty := m.next(t, asked{Device: "d", Replace: true})
	if got := changes(empty); got != "broker removed" {
		t.Errorf("empty: %s", got)
	}
}

// changes are what a generation does to each deployment, by name.
func changes(n *fleet.Next) string {
	var out []string
	for _, c := range n.Changes {
		out = append(out, c.Deployment+" "+c.Change)
	}
	for _, name := range n.Kept {
		out = append(out, name+" kept")
	}
	slices.Sort(out)
	return strings.Join(out, ", ")
}

func TestStateRefuses(t *testing.T) {
	m := newShelf()
	m.component(t, "web", "1.0.0", "web")
	m.Named["registry.example/components/web:2.0.0"] = m.Named["registry.example/components/web:1.0.0"]
	web := single(t, component("d", "web", "1.0.0"))
	state := m.next(t, asked{Device: "other", Deployments: []release.Document{single(t, component("other", "web", "1.0.0"))}})
	m.Named["registry.example/components/state:1.0.0"] = state.Artifact.Descriptor.Digest
	m.Named[m.name+":stolen"] = state.Artifact.Descriptor.Digest
	m.Named[m.name+":component"] = m.Named["registry.example/components/web:1.0.0"]
	cases := []struct {
		name   string
		device artifacts.DeviceID
		docs   []release.Document
		want   error
	}{
		{"nothing there", "d", []release.Document{single(t, component("d", "none", "1.0.0"))}, fault.ErrNotFound},
		{"no component", "d", []release.Document{single(t, component("d", "state", "1.0.0"))}, nil},
		{"another version inside", "d", []release.Document{single(t, component("d", "web", "2.0.0"))}, fault.ErrInvalid},
		{"another device's", "e", []release.Document{web}, fault.ErrInvalid},
		{"twice", "d", []release.Document{web, web}, fault.ErrInvalid},
		{"no document", "d", []release.Document{{File: "x", Data: []byte("hello")}}, fault.ErrInvalid},
		{"tag with another device's state", "stolen", nil, fault.ErrConflict},
		{"tag with no state", "component", nil, nil},
		{"https component", "d", []release.Document{{File: "old.yaml", Data: []byte(old)}}, fault.ErrUnsupported},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			n, err := stateOf(t, m, asked{Device: c.device, Deployments: c.docs})
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

func TestSameInputSameDigest(t *testing.T) {
	m := newShelf()
	m.component(t, "web", "1.0.0", "web")
	m.component(t, "broker", "1.0.0", "broker")
	web, broker := single(t, component("d", "web", "1.0.0")), single(t, component("d", "broker", "1.0.0"))
	var first digest.Digest
	for _, docs := range [][]release.Document{{web, broker}, {broker, web}, {web, broker}} {
		n, err := stateOf(t, m, asked{Device: "d", Deployments: docs, Created: time.Unix(1, 0)})
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

// three publishes three signed generations of d with web at version 1.N.0.
func three(t *testing.T) (*shelf, signed) {
	t.Helper()
	m, by := newShelf(), signed{}
	for n := range 3 {
		version := fmt.Sprintf("1.%d.0", n+1)
		m.component(t, "web", version, version)
		made := m.next(t, asked{Device: "d", Deployments: []release.Document{single(t, component("d", "web", version))}, Verify: by.verify})
		by[made.Artifact.Descriptor.Digest] = true
	}
	return m, by
}

func TestOneGoesBack(t *testing.T) {
	m, by := three(t)
	one := m.Named[m.name+":d.v1"]
	next, err := stateOf(t, m, asked{Device: "d", Verify: by.verify, To: 1})
	if err != nil {
		t.Fatal(err)
	}
	if next.Generation != 4 || next.Repeats != one || changes(next) != "web changed" {
		t.Errorf("Rollback = generation %d, repeats %s, %s", next.Generation, next.Repeats, changes(next))
	}
	x, err := artifacts.OpenState(next.Artifact.Manifest)
	if err != nil || x.Repeats != one {
		t.Errorf("the artifact repeats %v, %v, want %s", x, err, one)
	}
	was, err := release.Read(t.Context(), m.At(m.name), "d.v1")
	if err != nil {
		t.Fatal(err)
	}
	if got := next.Artifact.Blobs[len(next.Artifact.Blobs)-1].Descriptor.Digest; got != was.State.Deployments[0].Digest {
		t.Errorf("the deployment is %s, want the very bytes of generation 1: %s", got, was.State.Deployments[0].Digest)
	}
	if _, err := stateOf(t, m, asked{Device: "d", Verify: by.verify, To: 3}); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("back to the newest: %v, hint %q", err, fault.Hint(err))
	}
	if _, err := stateOf(t, m, asked{Device: "d", Verify: by.verify, To: 9}); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) == "" ||
		fault.Summary(err) != "go back to generation 9: it is not in "+m.name+": not found" {
		t.Errorf("back to what never was: %s, hint %q", fault.Summary(err), fault.Hint(err))
	}
	delete(by, one)
	if _, err := stateOf(t, m, asked{Device: "d", Verify: by.verify, To: 1}); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("back to what nobody signed: %v", err)
	}
	m.Named[m.name+":d.v1"] = m.Named[m.name+":d.v2"]
	if _, err := stateOf(t, m, asked{Device: "d", Verify: by.verify, To: 1}); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("back to 1, whose tag names 2: %v", err)
	}
}
