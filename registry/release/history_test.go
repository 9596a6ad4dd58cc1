package release

import (
	"context"
	"errors"
	"fmt"
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

// three publishes three signed generations of d with web at version 1.N.0.
func three(t *testing.T) (*memory, signed) {
	t.Helper()
	m, by := newMemory(), signed{}
	for n := range 3 {
		version := fmt.Sprintf("1.%d.0", n+1)
		m.component(t, "web", version, version)
		by[m.next(t, artifacts.StateOptions{Device: "d", Generation: uint64(n + 1)}, version).Descriptor.Digest] = true
	}
	return m, by
}

func TestHistory(t *testing.T) {
	m, _ := three(t)
	m.next(t, artifacts.StateOptions{Device: "d", Generation: 4, Repeats: m.tags[m.name+":d.v2"]}, "1.1.0")
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

// readLater counts the blobs that are read of a repository.
type readLater struct {
	states
	blobs *int
}

func (r readLater) Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error) {
	*r.blobs++
	return r.states.Blob(ctx, d, limit)
}

// Nothing below a manifest is read before its signature was checked.
func TestNewestVerifiesBeforeItReads(t *testing.T) {
	m, by := three(t)
	m.place(t, artifacts.StateOptions{Device: "d", Generation: 9}, "d.v9")
	verify := func(ctx context.Context, d ocispec.Descriptor) error { return by.verify(ctx, d) }
	one, all := 0, 0
	if _, err := Read(t.Context(), readLater{states{m}, &one}, "d"); err != nil {
		t.Fatal(err)
	}
	c, err := Newest(t.Context(), readLater{states{m}, &all}, "d", verify)
	if err != nil || all != one || c.State == nil {
		t.Errorf("Newest beside one that nobody signed = %+v, %v, with %d blobs, want %d", c, err, all, one)
	}
	clear(by)
	all = 0
	if _, err := Newest(t.Context(), readLater{states{m}, &all}, "d", verify); !errors.Is(err, fault.ErrUnsigned) || all != 0 {
		t.Errorf("Newest of what nobody signed = %v, with %d blobs", err, all)
	}
}
