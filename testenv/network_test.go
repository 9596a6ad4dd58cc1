package testenv

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"
)

// TestInterfacesAreRemoved: a device with many networks leaves no interface, also where one goes with its peer.
func TestInterfacesAreRemoved(t *testing.T) {
	if os.Geteuid() != 0 {
		Unavailable(t, "interfaces need root")
	}
	b, err := OpenBox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	table := fmt.Sprintf("lslinks%d", os.Getpid())
	if err := b.OwnTable(t.Context(), io.Discard, table); err != nil {
		t.Fatal(err)
	}
	var batch strings.Builder
	for i := range 50 {
		name := fmt.Sprintf("lsx%d-%d", os.Getpid(), i)
		fmt.Fprintf(&batch, "link add %s type veth peer name %sp\nlink set %s alias \"%s: p/n\"\nlink set %sp alias \"%s: p/n\"\n", name, name, name, table, name, table)
	}
	cmd := exec.CommandContext(t.Context(), "ip", "-batch", "-")
	cmd.Stdin = strings.NewReader(batch.String())
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := b.Empty(); err != nil {
		t.Error(err)
	}
	if left, err := interfaces(t.Context(), table); err != nil || len(left) > 0 {
		t.Errorf("%d interfaces stay, %v", len(left), err)
	}
}
