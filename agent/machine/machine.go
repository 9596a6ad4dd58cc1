// Package machine finds out what this device is: processors, memory, storage and interfaces, as Margo's capabilities
// tell them. It only reads /proc, /sys and one statfs.
package machine

import (
	"bufio"
	"fmt"
	"io/fs"
	"math"
	"path"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Facts are what can be found out without configuration.
type Facts struct {
	Cores        int
	Architecture string // Go's name: amd64, arm64, arm, riscv64
	MemoryBytes  uint64 // 0: unknown
	StorageBytes uint64 // of the file system that holds the data; 0: unknown
	Interfaces   []string
}

// Read asks the machine whose / is root. data is the folder that will hold images and volumes, as an absolute path.
func Read(root fs.FS, data string, cores int, architecture string) Facts {
	f := Facts{Cores: cores, Architecture: architecture, Interfaces: interfaces(root), MemoryBytes: memory(root)}
	var st unix.Statfs_t
	for dir := data; ; dir = path.Dir(dir) { // the folder itself may not exist yet
		if err := unix.Statfs(dir, &st); err == nil {
			f.StorageBytes = st.Blocks * uint64(st.Bsize)
			break
		}
		if dir == "/" || dir == "." {
			break
		}
	}
	return f
}

func memory(root fs.FS) uint64 {
	file, err := root.Open("proc/meminfo")
	if err != nil {
		return 0
	}
	defer file.Close()
	for s := bufio.NewScanner(file); s.Scan(); {
		rest, ok := strings.CutPrefix(s.Text(), "MemTotal:")
		if !ok {
			continue
		}
		kib, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
		if err != nil || kib > math.MaxUint64>>10 {
			return 0
		}
		return kib << 10
	}
	return 0
}

// interfaces are the kinds of physical links: what has a device behind it, not bridges and veths.
func interfaces(root fs.FS) []string {
	var kinds []string
	seen := map[string]bool{}
	entries, err := fs.ReadDir(root, "sys/class/net")
	if err != nil {
		return nil
	}
	for _, e := range entries {
		dir := path.Join("sys/class/net", e.Name())
		if _, err := fs.Stat(root, path.Join(dir, "device")); err != nil {
			continue
		}
		kind := "ethernet"
		if _, err := fs.Stat(root, path.Join(dir, "wireless")); err == nil {
			kind = "wifi"
		} else if strings.HasPrefix(e.Name(), "ww") {
			kind = "cellular"
		} else if strings.HasPrefix(e.Name(), "can") {
			kind = "canbus"
		}
		if !seen[kind] {
			seen[kind] = true
			kinds = append(kinds, kind)
		}
	}
	return kinds
}

// Capabilities returns the facts in Margo's words: a device that hosts Compose workloads on an OCI runtime.
func (f Facts) Capabilities(identity margo.DeviceProperties, labels map[string]any) margo.DeviceCapabilities {
	p := identity
	cpu := margo.CPU{Cores: float64(f.Cores)}
	switch f.Architecture { // rc.3 knows no other
	case "amd64", "arm64", "arm":
		cpu.Architecture = f.Architecture
	}
	p.CPUs = []margo.CPU{cpu}
	p.Memory, p.Storage = binary(f.MemoryBytes), binary(f.StorageBytes)
	for _, kind := range f.Interfaces {
		p.Interfaces = append(p.Interfaces, margo.Interface{Type: kind})
	}
	none := false
	p.OTELCollector = &none
	p.SupportedRuntimes, p.SupportedDeploymentTypes = []string{"oci"}, []string{"compose"}
	return margo.DeviceCapabilities{Properties: p, Labels: labels}
}

// binary writes bytes as Mi, rounded down: a device must not promise what it does not have.
func binary(bytes uint64) string { return fmt.Sprintf("%dMi", bytes>>20) }
