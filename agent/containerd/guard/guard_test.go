package guard

import (
	"os"
	"path/filepath"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

// A directory given as a device is looked at up to a bound; one that is mounted is not looked into.
func TestDeviceNodes(t *testing.T) {
	dir := t.TempDir()
	node := filepath.Join(dir, "disk")
	if err := unix.Mknod(node, unix.S_IFBLK|0o600, int(unix.Mkdev(8, 3))); err != nil {
		t.Fatal(err)
	}
	if n, ok := deviceNode(node); !ok || !n.Block || n.Major != 8 || n.Minor != 3 || n.Path != node {
		t.Errorf("the node is %+v, %t", n, ok)
	}
	for _, p := range []string{dir, filepath.Join(dir, "gone"), "/etc/hosts"} {
		if n, ok := deviceNode(p); ok {
			t.Errorf("%s is the node %+v", p, n)
		}
	}
	if nodes, all := deviceNodes(dir); len(nodes) != 1 || nodes[0].Path != node || !all {
		t.Errorf("the directory has %+v, all: %t", nodes, all)
	}
	many := filepath.Join(dir, "many")
	if err := os.Mkdir(many, 0o755); err != nil {
		t.Fatal(err)
	}
	for n := range maxEntries {
		if err := os.WriteFile(filepath.Join(many, strconv.Itoa(n)), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if _, all := deviceNodes(dir); all {
		t.Error("more files than the bound are all looked at")
	}
}
