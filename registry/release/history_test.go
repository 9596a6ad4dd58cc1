package release

import (
	"context"
	"errors"
	"fmt"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// three publishes three signed generations of d with web at version 1.N.0.
func three(t *testing.T) (*memory, signed) {
	t.Helper()
	m, by := newMemory(), signed{}
	for n := range 3 {
		version := fmt.Sprintf("1.%d.0", n+1)
		m.component(t, "web", version, version)
		made := m.next(t, Options{Device: "d", Deployments: []Document{single(t, component("d", "web", version))}, Verify: by.verify})
		by[made.Artifact.Descriptor.Digest] = true
	}
	return m, by
}

func TestRollback(t *testing.T) {
	m, by := three(t)
	one := m.tags[m.name+":d.v1"]
	next, err := Rollback(t.Context(), m, states{m}, Options{Device: "d", Verify: by.verify}, 1)
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
	was, err := Read(t.Context(), states{m}, "d.v1")
	if err != nil {
		t.Fatal(err)
	}
	if got := next.Artifact.Blobs[len(next.Artifact.Blobs)-1].Descriptor.Digest; got != was.State.Deployments[0].Digest {
		t.Errorf("the deployment is %s, want the very bytes of generation 1: %s", got, was.State.Deployments[0].Digest)
	}
	if _, err := Rollback(t.Context(), m, states{m}, Options{Device: "d", Verify: by.verify}, 3); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("back to the newest: %v", err)
	}
	if _, err := Rollback(t.Context(), m, states{m}, Options{Device: "d", Verify: by.verify}, 9); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) == "" {
		t.Errorf("back to what never was: %v", err)
	}
	delete(by, one)
	if _, err := Rollback(t.Context(), m, states{m}, Options{Device: "d", Verify: by.verify}, 1); !errors.Is(err, fault.ErrUnsigned) {
		t.Errorf("back to what nobody signed: %v", err)
	}
	m.tags[m.name+":d.v1"] = m.tags[m.name+":d.v2"]
	if _, err := Rollback(t.Context(), m, states{m}, Options{Device: "d", Verify: by.verify}, 1); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("back to 1, whose tag names 2: %v", err)
	}
}

func TestHistory(t *testing.T) {
	m, by := three(t)
	next, err := Rollback(t.Context(), m, states{m}, Options{Device: "d", Verify: by.verify}, 2)
	if err != nil {
		t.Fatal(err)
	}
	m.put(m.name, next.HistoryTag, next.Artifact)
	m.put(m.name, next.Tag, next.Artifact)
	m.tags[m.name+":d.v1"] = m.tags[m.name+":d.v2"]
	all, total, err := History(t.Context(), states{m}, "d", 10)
	if err != nil || total != 4 || len(all) != 4 {
		t.Fatalf("History = %d of %d, %v", len(all), total, err)
	}
	if g := all[0]; g.Generation != 4 || !g.Current || g.Repeats != all[2].Digest || len(g.Deployments) != 1 || g.Problem != nil {
		t.Errorf("newest = %+v", g)
	}
	if g := all[3]; g.Generation != 1 || g.Problem == nil || g.Current {
		t.Errorf("forged = %+v", g)
	}
	if all, total, err = History(t.Context(), states{m}, "d", 2); err != nil || len(all) != 2 || total != 4 {
		t.Errorf("History of 2 = %d of %d, %v", len(all), total, err)
	}
	delete(m.tags, m.name+":d.v4")
	if all, total, err = History(t.Context(), states{m}, "d", 2); err != nil || len(all) != 3 || total != 4 || !all[0].Current || all[0].Tag != "d" {
		t.Errorf("History where the current one has no tag = %+v of %d, %v", all, total, err)
	}
	if _, total, err = History(t.Context(), states{m}, "nobody", 2); err != nil || total != 0 {
		t.Errorf("History of nobody = %d, %v", total, err)
	}
}

// A statement of freshness is made about the newest generation only.
func TestNewest(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(m *memory, by signed)
		err  error
	}{
		{"well", func(*memory, signed) {}, nil},
		{"tag moved back", func(m *memory, _ signed) { m.tags[m.name+":d"] = m.tags[m.name+":d.v2"] }, fault.ErrRollback},
		{"not signed", func(m *memory, by signed) { delete(by, m.tags[m.name+":d"]) }, fault.ErrUnsigned},
		{"no tag", func(m *memory, _ signed) { delete(m.tags, m.name+":d") }, fault.ErrNotFound},
		{"a forged newer one", func(m *memory, _ signed) {
			a, err := artifacts.PackState(artifacts.StateOptions{Device: "d", Generation: 9})
			if err == nil {
				m.put(m.name, "d.v9", a)
			}
		}, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			m, by := three(t)
			tc.do(m, by)
			c, err := Newest(t.Context(), states{m}, "d", func(ctx context.Context, d ocispec.Descriptor) error { return by.verify(ctx, d) })
			if !errors.Is(err, tc.err) || err == nil && c.Index.Generation != 3 {
				t.Errorf("Newest = %+v, %v, want %v", c, err, tc.err)
			}
		})
	}
}
