package release

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// signed are the states that the release engineer signed.
type signed map[digest.Digest]bool

func (s signed) verify(_ context.Context, d ocispec.Descriptor) error {
	if !s[d.Digest] {
		return fmt.Errorf("verify %s: %w", d.Digest, fault.ErrUnsigned)
	}
	return nil
}

// place puts a state with deployments under tags.
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

// Whoever may write to the registry moves and makes tags; the next state follows what was signed, or nothing.
func TestFollowsOnlyWhatWasSigned(t *testing.T) {
	const last = ^uint64(0)
	forge := func(n uint64, tags ...string) func(*testing.T, *memory) {
		return func(t *testing.T, m *memory) { m.place(t, artifacts.StateOptions{Device: "d", Generation: n}, tags...) }
	}
	point := func(tag, at string) func(*testing.T, *memory) {
		return func(_ *testing.T, m *memory) { m.tags[m.name+":"+tag] = m.tags[m.name+":"+at] }
	}
	remove := func(tags ...string) func(*testing.T, *memory) {
		return func(_ *testing.T, m *memory) {
			for _, tag := range tags {
				delete(m.tags, m.name+":"+tag)
			}
		}
	}
	type does = []func(*testing.T, *memory)
	for _, c := range []struct {
		name   string
		do     does // after generations 1 to 3 of d, signed, with web at version 1.N.0
		o      Options
		want   uint64
		change string
		note   string
		err    error
	}{
		{"nothing unusual", nil, Options{}, 4, "broker new, web removed", "", nil},
		{"nothing unusual, keeping", nil, Options{KeepOthers: true}, 4, "broker new, web unchanged", "", nil},
		{"forged tag", does{forge(last-1, "d")}, Options{}, 4, "broker new, web removed", "not signed", nil},
		{"forged tag, keeping", does{forge(last-1, "d")}, Options{KeepOthers: true}, 0, "", "--verify-key", fault.ErrUnsigned},
		{"forged tag, keeping and numbered", does{forge(9, "d")}, Options{KeepOthers: true, Generation: 10}, 0, "", "--verify-key", fault.ErrUnsigned},
		{"forged tag without a history", does{remove("d.v1", "d.v2", "d.v3"), forge(last-1, "d")}, Options{}, 0, "", "--generation", fault.ErrUnsigned},
		{"the same, numbered", does{remove("d.v1", "d.v2", "d.v3"), forge(last-1, "d")}, Options{Generation: 4}, 4, "broker new", "not signed", nil},
		{"forged history tag", does{forge(last-1, fmt.Sprintf("d.v%d", last-1))}, Options{}, 4, "broker new, web removed", "not followed", nil},
		{"forged history tag in the way", does{forge(4, "d.v4")}, Options{}, 5, "broker new, web removed", "not followed", nil},
		{"forged history alone", does{remove("d", "d.v1", "d.v2", "d.v3"), forge(9, "d.v9")}, Options{}, 0, "", "--generation", fault.ErrUnsigned},
		{"the same, numbered", does{remove("d", "d.v1", "d.v2", "d.v3"), forge(9, "d.v9")}, Options{Generation: 1}, 1, "broker new", "not followed", nil},
		{"signed, under another number", does{point("d.v7", "d.v2")}, Options{}, 4, "broker new, web removed", "is generation 2", nil},
		{"back to an old generation", does{point("d", "d.v1")}, Options{}, 4, "broker new, web removed", "does not name it", nil},
		{"back to an old generation, keeping", does{point("d", "d.v1")}, Options{KeepOthers: true}, 4, "broker new, web unchanged", "does not name it", nil},
		{"back to an old generation, rollback", does{point("d", "d.v1")}, Options{Generation: 2}, 0, "", "generation 4", fault.ErrRollback},
		{"another device's, signed", does{point("d", "e")}, Options{}, 4, "broker new, web removed", "state of e", nil},
		{"another device's, keeping", does{point("d", "e")}, Options{KeepOthers: true}, 0, "", "--verify-key", fault.ErrConflict},
		{"no state at all", does{func(_ *testing.T, m *memory) { m.tags[m.name+":d"] = m.tags["registry.example/components/web:1.1.0"] }}, Options{}, 4, "broker new, web removed", "not followed", nil},
		{"tag removed", does{remove("d")}, Options{}, 4, "broker new, web removed", "does not name it", nil},
		{"explicit number", nil, Options{Generation: 40}, 40, "broker new, web removed", "", nil},
		{"explicit number again", nil, Options{Generation: 3}, 0, "", "generation 4", fault.ErrRollback},
	} {
		t.Run(c.name, func(t *testing.T) {
			m, by := newMemory(), signed{}
			m.component(t, "broker", "1.0.0", "broker")
			for n := range 3 {
				version := fmt.Sprintf("1.%d.0", n+1)
				m.component(t, "web", version, version)
				for _, device := range []artifacts.DeviceID{"d", "e"} {
					made := m.next(t, Options{Device: device, Deployments: []Document{single(t, component(device, "web", version))}, Verify: by.verify})
					by[made.Artifact.Descriptor.Digest] = true
				}
			}
			newest := m.tags[m.name+":d.v3"]
			for _, do := range c.do {
				do(t, m)
			}
			c.o.Device, c.o.Verify = "d", by.verify
			c.o.Deployments = []Document{single(t, component("d", "broker", "1.0.0"))}
			n, err := State(t.Context(), m, states{m}, c.o)
			if c.err != nil {
				if !errors.Is(err, c.err) || !strings.Contains(fault.Hint(err), c.note) {
					t.Fatalf("State = %v (hint: %s), want %v and a hint with %q", err, fault.Hint(err), c.err, c.note)
				}
				return
			}
			if err != nil {
				t.Fatal(err)
			}
			notes := strings.Join(n.Notes, "; ")
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
	m := newMemory()
	m.next(t, Options{Device: "d"})
	verify := func(context.Context, ocispec.Descriptor) error {
		return fmt.Errorf("%w: %w", fault.ErrTemporary, fault.ErrBadSignature)
	}
	if _, err := State(t.Context(), m, states{m}, Options{Device: "d", Generation: 9, Verify: verify}); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("State = %v, want fault.ErrTemporary", err)
	}
}

// An interrupted push has set the history tag, and not the device's.
func TestResume(t *testing.T) {
	m := newMemory()
	for _, version := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		m.component(t, "web", version, version)
	}
	web := func(version string) Options {
		return Options{Device: "d", Deployments: []Document{single(t, component("d", "web", version))}}
	}
	first := m.next(t, web("1.0.0"))
	cut, err := State(t.Context(), m, states{m}, web("1.1.0"))
	if err != nil {
		t.Fatal(err)
	}
	m.put(m.name, cut.HistoryTag, cut.Artifact)

	same, err := State(t.Context(), m, states{m}, web("1.1.0"))
	if err != nil || same.Generation != 2 || same.Artifact.Descriptor.Digest != cut.Artifact.Descriptor.Digest || same.Previous != first.Artifact.Descriptor.Digest || len(same.Notes) != 1 {
		t.Errorf("the same again = %+v, %v, want generation 2 taken up", same, err)
	}
	other, err := State(t.Context(), m, states{m}, web("1.2.0"))
	if err != nil || other.Generation != 3 || other.Previous != cut.Artifact.Descriptor.Digest || len(other.Notes) != 1 {
		t.Errorf("something else = %+v, %v, want generation 3", other, err)
	}
	numbered := web("1.2.0")
	numbered.Generation = 2
	if _, err := State(t.Context(), m, states{m}, numbered); !errors.Is(err, fault.ErrRollback) {
		t.Errorf("something else as generation 2: %v", err)
	}
}
