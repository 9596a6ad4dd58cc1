package runspec

import (
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"
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
