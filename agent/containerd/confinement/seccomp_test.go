package confinement

import (
	"errors"
	"slices"
	"testing"

	specs "github.com/opencontainers/runtime-spec/specs-go"

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
