package containerd

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestParseSeccomp(t *testing.T) {
	profile := `{"defaultAction": "SCMP_ACT_ERRNO", "defaultErrnoRet": 1,
		"archMap": [{"architecture": "SCMP_ARCH_X86_64", "subArchitectures": ["SCMP_ARCH_X86"]}, {"architecture": "SCMP_ARCH_AARCH64"}],
		"syscalls": [
			{"names": ["read", "write"], "action": "SCMP_ACT_ALLOW"},
			{"name": "old", "action": "SCMP_ACT_ALLOW"},
			{"names": ["mount"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_ADMIN"]}},
			{"names": ["chroot"], "action": "SCMP_ACT_ALLOW", "includes": {"caps": ["CAP_SYS_CHROOT"]}},
			{"names": ["arm_only"], "action": "SCMP_ACT_ALLOW", "includes": {"arches": ["arm64"]}},
			{"names": ["not_for_amd64"], "action": "SCMP_ACT_ALLOW", "excludes": {"arches": ["amd64"]}},
			{"names": ["clone"], "action": "SCMP_ACT_ALLOW", "excludes": {"caps": ["CAP_SYS_ADMIN"]}},
			{"names": ["ptrace"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "4.8"}},
			{"names": ["future"], "action": "SCMP_ACT_ALLOW", "includes": {"minKernel": "99.0"}}]}`
	got, err := parseSeccomp([]byte(profile), []string{"CAP_SYS_CHROOT"}, "amd64")
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, s := range got.Syscalls {
		names = append(names, s.Names...)
	}
	if want := []string{"read", "write", "old", "chroot", "clone", "ptrace"}; !slices.Equal(names, want) {
		t.Errorf("system calls %v, want %v", names, want)
	}
	if want := []specs.Arch{specs.ArchX86_64, specs.ArchX86}; !slices.Equal(got.Architectures, want) {
		t.Errorf("architectures %v, want %v", got.Architectures, want)
	}
	for _, bad := range []string{``, `{}`, `[]`, `{"defaultAction": "A", "syscalls": [{}]}`, `{"defaultAction": "A", "syscalls": [{"names": ["x"]}]}`} {
		if _, err := parseSeccomp([]byte(bad), nil, "amd64"); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v, want invalid", bad, err)
		}
	}
}

func FuzzParseSeccomp(f *testing.F) {
	f.Add([]byte(`{"defaultAction": "SCMP_ACT_ALLOW", "syscalls": [{"names": ["x"], "action": "SCMP_ACT_ERRNO", "includes": {"minKernel": "4.8"}}]}`))
	f.Add([]byte(`{"defaultAction": "SCMP_ACT_ALLOW", "listenerPath": "/x", "archMap": [{"architecture": "SCMP_ARCH_X86_64"}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		p, err := parseSeccomp(data, []string{"CAP_CHOWN"}, "amd64")
		if err == nil && (p.DefaultAction == "" || p.ListenerPath != "") {
			t.Errorf("a filter that cannot be: %+v", p)
		}
	})
}

func TestParseDeviceRule(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for rule, want := range map[string]specs.LinuxDeviceCgroup{
		"c 189:* rmw": {Allow: true, Type: "c", Major: n(189), Access: "rmw"},
		"b 8:1 r":     {Allow: true, Type: "b", Major: n(8), Minor: n(1), Access: "r"},
		"a *:* rwm":   {Allow: true, Type: "a", Access: "rwm"},
	} {
		got, err := parseDeviceRule(rule)
		if diff := cmp.Diff(want, got); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", rule, err, diff)
		}
	}
	for _, rule := range []string{"", "c", "c 1:3", "x 1:3 r", "c 1 r", "c 1:3 x", "c -1:3 r", "c 1:99999999999 r", "c 1:3 r more"} {
		if _, err := parseDeviceRule(rule); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%q: %v, want invalid", rule, err)
		}
	}
}

func TestGPUs(t *testing.T) {
	known := []string{"nvidia.com/gpu=10", "nvidia.com/gpu=2", "nvidia.com/gpu=GPU-x", "nvidia.com/gpu=all", "amd.com/gpu=0", "vendor.com/npu=a"}
	for _, tc := range []struct {
		name string
		ask  workload.DeviceRequest
		want []string
		err  error
	}{
		{"all", workload.DeviceRequest{Count: -1}, []string{"nvidia.com/gpu=all"}, nil},
		{"all without a name for them", workload.DeviceRequest{Driver: "amd", Count: -1}, []string{"amd.com/gpu=0"}, nil},
		{"two", workload.DeviceRequest{Count: 2}, []string{"nvidia.com/gpu=2", "nvidia.com/gpu=10"}, nil},
		{"by id", workload.DeviceRequest{IDs: []string{"GPU-x"}}, []string{"nvidia.com/gpu=GPU-x"}, nil},
		{"by name", workload.DeviceRequest{Driver: "cdi", IDs: []string{"vendor.com/npu=a"}}, []string{"vendor.com/npu=a"}, nil},
		{"of another kind", workload.DeviceRequest{Driver: "vendor.com/npu", Count: 1}, []string{"vendor.com/npu=a"}, nil},
		{"too many", workload.DeviceRequest{Count: 4}, nil, fault.ErrUnfit},
		{"none there", workload.DeviceRequest{Driver: "intel", Count: -1}, nil, fault.ErrUnfit},
		{"no such driver", workload.DeviceRequest{Driver: "tpu"}, nil, fault.ErrUnsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := gpus(tc.ask, known)
			if !errors.Is(err, tc.err) || !slices.Equal(got, tc.want) {
				t.Errorf("gpus = %v, %v, want %v, %v", got, err, tc.want, tc.err)
			}
		})
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
			err := selinux(&s, tc.options, Features{SELinux: true})
			if !errors.Is(err, tc.err) || s.Process.SelinuxLabel != tc.process || s.Linux.MountLabel != tc.file {
				t.Errorf("labels %q, %q, %v", s.Process.SelinuxLabel, s.Linux.MountLabel, err)
			}
		})
	}
}
