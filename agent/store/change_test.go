package store_test

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/longshore-dev/longshore/agent/store"
)

// What people decided is there after a restart, the newest of it.
func TestDecidedIsBounded(t *testing.T) {
	path := filepath.Join(t.TempDir(), "agent.db")
	s := open(t, path, nil)
	for n := range 130 {
		if err := s.Update(func(tx *store.Tx) error { return tx.AddDecided(store.Decided{Message: fmt.Sprint(n)}) }); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	s = open(t, path, nil)
	if err := s.View(func(tx *store.Tx) error {
		all, err := tx.Decided()
		if len(all) != 100 || all[0].Message != "30" || all[99].Message != "129" {
			t.Errorf("%d are kept: %+v", len(all), all)
		}
		return err
	}); err != nil {
		t.Fatal(err)
	}
}
