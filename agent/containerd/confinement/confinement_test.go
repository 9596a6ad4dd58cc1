package confinement

import (
	"errors"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestConfined(t *testing.T) {
	r := Rules{}
	if err := r.Check(features.Features{Seccomp: true}, workload.Service{}); err != nil {
		t.Error(err)
	}
	if err := r.Check(features.Features{}, workload.Service{}); !errors.Is(err, fault.ErrUnfit) || fault.Hint(err) == "" {
		t.Errorf("Check without seccomp = %v, want %v and a hint", err, fault.ErrUnfit)
	}
	r.AllowNoSeccomp = true
	if err := r.Check(features.Features{}, workload.Service{}); err != nil {
		t.Error(err)
	}
}

func TestSELinuxLabels(t *testing.T) {
	for _, tc := range []struct {
		name          string
		options       []string
		process, file string
		err           error
	}{
		{name: "nothing"},
		{name: "disable", options: []string{"disable"}},
		{name: "type", options: []string{"type:spc_t"}, process: "system_u:system_r:spc_t:s0", file: "system_u:object_r:container_file_t:s0"},
		{name: "level", options: []string{"level:s0:c1,c2"}, process: "system_u:system_r:container_t:s0:c1,c2", file: "system_u:object_r:container_file_t:s0:c1,c2"},
		{name: "unknown", options: []string{"mood:good"}, err: fault.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := specs.Spec{Process: &specs.Process{}, Linux: &specs.Linux{}}
			err := selinux(&s, tc.options, features.Features{SELinux: true})
			if !errors.Is(err, tc.err) || s.Process.SelinuxLabel != tc.process || s.Linux.MountLabel != tc.file {
				t.Errorf("labels %q, %q, %v", s.Process.SelinuxLabel, s.Linux.MountLabel, err)
			}
		})
	}
}
