package features

import (
	"slices"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

// Annotations in the output of "runc features".
const (
	runcVersion    = "org.opencontainers.runc.version"
	runcCheckpoint = "org.opencontainers.runc.checkpoint.enabled"
)

// offer fills in what containerd's snapshotter and runc offer. rf is the output of "runc features"; nil: not known.
func (f *Features) offer(rf *features.Features) {
	has := map[string]bool{
		"cgroup2":         f.CgroupVersion == 2,
		"parallel-unpack": f.ParallelUnpack,
		remapCap:          slices.Contains(f.caps, remapCap),
	}
	if rf != nil {
		f.Runc = rf.Annotations[runcVersion]
		has["checkpoint"] = rf.Annotations[runcCheckpoint] == "true"
	}
	if rf != nil && rf.Linux != nil {
		is := func(b *bool) bool { return b != nil && *b }
		l := rf.Linux
		has["apparmor"] = l.Apparmor != nil && is(l.Apparmor.Enabled)
		has["seccomp"] = l.Seccomp != nil && is(l.Seccomp.Enabled)
		has["selinux"] = l.Selinux != nil && is(l.Selinux.Enabled)
		has["intel-rdt"] = l.IntelRdt != nil && is(l.IntelRdt.Enabled)
		has["idmap"] = l.MountExtensions != nil && l.MountExtensions.IDMap != nil && is(l.MountExtensions.IDMap.Enabled)
	}
	for name, there := range has {
		if there {
			f.Offered = append(f.Offered, name)
		}
	}
	slices.Sort(f.Offered)
}
