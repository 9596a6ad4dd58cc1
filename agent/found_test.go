package agent

import (
	"errors"
	"path/filepath"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
)

// What a report says of a newer state counts as reported only when the report is saved.
func TestFoundIsToldWhenItIsSaved(t *testing.T) {
	for _, saved := range []bool{true, false} {
		s, err := store.Open(store.Options{Path: filepath.Join(t.TempDir(), "agent.db"), Device: "press-07"})
		if err != nil {
			t.Fatal(err)
		}
		var fail error
		if !saved {
			fail = errors.New("the disk is full")
		}
		now := time.Now()
		l := &loop{Agent: &Agent{}}
		l.progressed = &store.Progress{Phase: store.PhaseVerifying, Digest: digest.FromString("newer"), Since: now.Add(-time.Minute)}
		if err := s.Update(func(tx *store.Tx) error { return errors.Join(l.capabilities(tx, now), fail) }); (err == nil) != saved {
			t.Fatalf("Update = %v", err)
		}
		if due := l.foundDue(); due.IsZero() != saved {
			t.Errorf("saved %v: the next report of it is due at %v", saved, due)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
