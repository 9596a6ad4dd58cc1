package store_test

import (
	"path/filepath"
	"testing"
)

func TestNetworks(t *testing.T) {
	s := open(t, filepath.Join(t.TempDir(), "agent.db"), nil)
	if got, err := s.Networks(); got != nil || err != nil {
		t.Errorf("Networks of a new store = %q, %v, want nothing", got, err)
	}
	for _, want := range []string{"one", "two"} {
		if err := s.SaveNetworks([]byte(want)); err != nil {
			t.Fatal(err)
		}
		if got, err := s.Networks(); string(got) != want || err != nil {
			t.Errorf("Networks = %q, %v, want %q", got, err, want)
		}
	}
}
