package runspec

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"testing"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

// The network's files move with the network; what a service mounts in the place of one stays.
func TestRejoin(t *testing.T) {
	of := func(netns, run string) *oci.Spec {
		return &oci.Spec{
			Mounts: []specs.Mount{
				{Destination: "/etc/hosts", Source: run + "/hosts"},
				{Destination: "/etc/resolv.conf", Source: "/srv/own.conf"},
				{Destination: "/etc/hosts", Source: "/srv/hosts"},
			},
			Linux: &specs.Linux{Namespaces: []specs.LinuxNamespace{{Type: specs.PIDNamespace}, {Type: specs.NetworkNamespace, Path: netns}}},
		}
	}
	old, err := typeurl.MarshalAny(of("/run/a", "/run/files/a"))
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := Rejoin(old, "/run/b", map[string]string{"/etc/hosts": "/run/files/b/hosts", "/etc/resolv.conf": "/run/files/b/resolv.conf", "/etc/hostname": ""})
	if err != nil {
		t.Fatal(err)
	}
	var got oci.Spec
	if err := typeurl.UnmarshalTo(fresh, &got); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(of("/run/b", "/run/files/b"), &got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// A layer that stayed mounted after a kill is unmounted when the next process begins.
func TestLookUpIn(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "layers")
	left := filepath.Join(dir, "containerd-mount1")
	if err := os.MkdirAll(left, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount("none", left, "tmpfs", 0, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = mount.SetTempMountLocation(os.TempDir()) }) // as other tests find it
	if err := LookUpIn(dir); err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(left); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("the mount stays: %v", err)
		_ = unix.Unmount(left, unix.MNT_DETACH)
	}
}
