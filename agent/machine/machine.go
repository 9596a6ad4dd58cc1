// Package machine finds out what this device is: who made it, its processors, memory and storage, its interfaces and what is
// plugged into it, as Margo's capabilities list them. It only reads files of /proc, /sys, /run/udev and of CDI, and one statfs.
//
// Nothing in it fails: what cannot be read is left out of the [Facts] and named in them.
package machine

import (
	"fmt"
	"io/fs"
	"maps"
	"path"
	"slices"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Facts are what can be found out without configuration.
type Facts struct {
	Vendor, Model, Serial string // as the firmware says; "": it does not

	Cores        int
	Architecture string // Go's name: amd64, arm64, arm, riscv64
	MemoryBytes  uint64 // 0: unknown
	StorageBytes uint64 // of the file system that holds the data; 0: unknown

	Interfaces  []string // kinds, in Margo's words and order
	Peripherals []margo.Peripheral
	Features    []string // what the kernel offers containers, sorted
	CDI         []string // kinds of devices that CDI specifications describe, sorted
	Input       []string // kinds of input devices, sorted
	Kernel      string   // its release

	Runtime Runtime // not found by Read

	Unread []string // what could not be read, and why
}

// Runtime is what runs containers on the device. Its zero value is not known.
type Runtime struct {
	Containerd, Runc string // versions
	Snapshotter      string
	Features         []string // what they offer, sorted
	Others           []string // further OCI runtimes that services may name, sorted
}

// Place says where to look, and what no file says.
type Place struct {
	Data         string   // folder that will hold images and volumes, as an absolute path
	CDIDirs      []string // of device specifications, as absolute paths; nil: /etc/cdi and /var/run/cdi
	Cores        int      // where the kernel does not list them
	Architecture string
}

// Read looks at the machine whose / is root.
func Read(root fs.FS, p Place) Facts {
	t := &tree{root: root}
	f := Facts{Cores: t.cores(p.Cores), Architecture: p.Architecture, MemoryBytes: t.memory(), StorageBytes: storage(p.Data)}
	f.Vendor, f.Model, f.Serial = t.identity()
	f.Interfaces = t.interfaces()
	f.CDI, f.Input = t.cdi(p.CDIDirs), t.input()
	f.Peripherals = slices.Concat(t.gpus(f.CDI), t.displays(), t.cameras(), t.sound())
	f.Features, f.Kernel = t.features(), clean(t.text("proc/sys/kernel/osrelease"))
	f.Unread = t.unread
	return f
}

// storage is the size of the file system of a folder, which may not exist yet.
func storage(dir string) uint64 {
	var st unix.Statfs_t
	for ; ; dir = path.Dir(dir) {
		if err := unix.Statfs(dir, &st); err == nil {
			return st.Blocks * uint64(st.Bsize)
		}
		if dir == "/" || dir == "." {
			return 0
		}
	}
}

// steady is how much memory and storage must change to count, in percent: balloons of virtual machines and pools of file systems
// move a little all the time.
const steady = 5

// Since is f with the memory and the storage of before where they are nearly the same.
func (f Facts) Since(before Facts) Facts {
	near := func(a, b uint64) bool { return max(a, b)-min(a, b) <= b/100*steady }
	if near(f.MemoryBytes, before.MemoryBytes) {
		f.MemoryBytes = before.MemoryBytes
	}
	if near(f.StorageBytes, before.StorageBytes) {
		f.StorageBytes = before.StorageBytes
	}
	return f
}

// Labels that every device has: constraints may ask for them.
const (
	LabelFeatures = "longshore.dev/features"
	LabelCDI      = "longshore.dev/cdi"
	LabelKernel   = "longshore.dev/kernel"
	LabelInput    = "longshore.dev/input"

	LabelContainerd      = "longshore.dev/containerd"
	LabelRunc            = "longshore.dev/runc"
	LabelSnapshotter     = "longshore.dev/snapshotter"
	LabelRuntimeFeatures = "longshore.dev/runtime-features"
	LabelRuntimes        = "longshore.dev/runtimes"
)

// Capabilities returns the facts in Margo's words: a device that hosts Compose workloads on an OCI runtime. What is set in identity
// and labels counts in place of what was found.
func (f Facts) Capabilities(identity margo.DeviceProperties, labels map[string]any) margo.DeviceCapabilities {
	p := identity
	for _, x := range []struct {
		to    *string
		found string
		none  string
	}{{&p.Vendor, f.Vendor, "unknown"}, {&p.ModelNumber, f.Model, "unknown"}, {&p.SerialNumber, f.Serial, identity.ID}} {
		switch {
		case *x.to != "":
		case x.found != "":
			*x.to = x.found
		default:
			*x.to = x.none
		}
	}
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
	p.Peripherals = f.Peripherals
	if p.OTELCollector == nil {
		p.OTELCollector = new(bool)
	}
	p.SupportedRuntimes, p.SupportedDeploymentTypes = []string{"oci"}, []string{"compose"}
	all := map[string]any{}
	for key, list := range map[string][]string{
		LabelFeatures: f.Features, LabelCDI: f.CDI, LabelInput: f.Input, LabelRuntimeFeatures: f.Runtime.Features, LabelRuntimes: f.Runtime.Others,
	} {
		if len(list) > 0 {
			all[key] = list
		}
	}
	for key, word := range map[string]string{
		LabelKernel: f.Kernel, LabelContainerd: f.Runtime.Containerd, LabelRunc: f.Runtime.Runc, LabelSnapshotter: f.Runtime.Snapshotter,
	} {
		if word = clean(word); word != "" {
			all[key] = word
		}
	}
	maps.Copy(all, labels)
	return margo.DeviceCapabilities{Properties: p, Labels: all}
}

// binary writes bytes as Mi, rounded down: a device must not promise what it does not have.
func binary(bytes uint64) string { return fmt.Sprintf("%dMi", bytes>>20) }

// identity is what the firmware says of the machine: DMI of a PC, the device tree of a board.
func (t *tree) identity() (vendor, model, serial string) {
	const dmi, board = "sys/class/dmi/id/", "sys/firmware/devicetree/base/"
	if t.has(strings.TrimSuffix(dmi, "/")) {
		return t.told(dmi+"sys_vendor", dmi+"board_vendor"), t.told(dmi+"product_name", dmi+"board_name"), t.told(dmi+"product_serial", dmi+"board_serial")
	}
	compatible, _, _ := strings.Cut(t.text(board+"compatible"), "\x00")
	vendor, _, _ = strings.Cut(clean(compatible), ",")
	return vendor, t.name(board + "model"), t.name(board + "serial-number")
}

// told is the first of some files that says something: makers of boards leave texts of the firmware's maker.
func (t *tree) told(names ...string) string {
	for _, n := range names {
		s := t.name(n)
		if !slices.Contains(placeholders, strings.ToLower(s)) && strings.Trim(s, "0.-_ xX") != "" {
			return s
		}
	}
	return ""
}

var placeholders = []string{
	"to be filled by o.e.m.", "default string", "system serial number", "system product name", "system manufacturer", "system version",
	"base board serial number", "not specified", "not applicable", "none", "n/a", "unknown", "oem", "o.e.m.", "undefined", "empty", "123456789", "0123456789",
}
