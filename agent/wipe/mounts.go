package wipe

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/bounded"
)

const (
	mountTable = "/proc/self/mountinfo"
	maxMounts  = 64 << 20 // bytes of the table
)

// unmount detaches everything that is mounted below a directory. Where containerd has lost a container, the agent's mount of a path of
// the device, or of a server, may have stayed: what is deleted below the directory next would be deleted there.
func unmount(dir string) error {
	dir, err := filepath.EvalSymlinks(dir) // as the table has it
	if err != nil {
		return gone(err)
	}
	table, err := bounded.File(os.Open, mountTable, maxMounts)
	if err != nil {
		return err
	}
	for _, at := range slices.Backward(below(dir, table)) { // a mount on another one comes later
		if err := unix.Unmount(at, unix.MNT_DETACH|unix.UMOUNT_NOFOLLOW); err != nil && !errors.Is(err, unix.ENOENT) {
			return fmt.Errorf("unmount %s: %w", at, err)
		}
	}
	return nil
}

// below lists the mount points below a directory, in the order of the table.
func below(dir string, table []byte) (out []string) {
	octal := strings.NewReplacer(`\040`, " ", `\011`, "\t", `\012`, "\n", `\134`, `\`)
	for line := range bytes.Lines(table) {
		fields := bytes.Fields(line)
		if len(fields) < 5 {
			continue
		}
		if at := octal.Replace(string(fields[4])); strings.HasPrefix(at, dir+"/") {
			out = append(out, at)
		}
	}
	return out
}
