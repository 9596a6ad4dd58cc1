package store_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/testenv"
)

// TestFullDisk: on a disk without room for another byte transactions still get through, for a megabyte at least.
func TestFullDisk(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	box := testenv.NewBox(t)
	disk, err := box.NewDisk(t.Context(), 16<<20)
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	s := open(t, filepath.Join(disk.Dir, "agent.db"), nil)
	if err := os.WriteFile(filepath.Join(disk.Dir, "filler"), make([]byte, 32<<20), 0o600); !errors.Is(err, syscall.ENOSPC) {
		t.Fatalf("filling the disk: %v", err)
	}
	text := strings.Repeat("x", 10_000)
	for range 100 {
		update(t, s, func(tx *store.Tx) error {
			_, err := tx.Append(store.Report{Kind: store.KindStatus, Subject: "a", Body: []byte(text), At: t0})
			return err
		})
	}
}
