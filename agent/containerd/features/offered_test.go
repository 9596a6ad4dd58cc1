package features

import (
	"encoding/json"
	"slices"
	"testing"

	"github.com/opencontainers/runtime-spec/specs-go/features"
)

func TestOffered(t *testing.T) {
	for name, tc := range map[string]struct {
		runc string // the output of "runc features"; "": not known
		f    Features
		want []string
		of   string
	}{
		"runc": {
			`{"ociVersionMin":"1.0.0","linux":{"cgroup":{"v1":true,"v2":true},"seccomp":{"enabled":true,"archs":["SCMP_ARCH_X86_64"]},"apparmor":{"enabled":true},
			"selinux":{"enabled":true},"intelRdt":{"enabled":true},"mountExtensions":{"idmap":{"enabled":true}}},
			"annotations":{"io.github.seccomp.libseccomp.version":"2.5.4","org.opencontainers.runc.checkpoint.enabled":"true","org.opencontainers.runc.version":"1.3.3"}}`,
			Features{CgroupVersion: 2, ParallelUnpack: true, caps: []string{remapCap, "rebase"}},
			[]string{"apparmor", "cgroup2", "checkpoint", "idmap", "intel-rdt", "parallel-unpack", "remap-ids", "seccomp", "selinux"},
			"1.3.3",
		},
		"little of it": {`{"linux":{"seccomp":{"enabled":false},"mountExtensions":{}},"annotations":{"org.opencontainers.runc.checkpoint.enabled":"false"}}`, Features{CgroupVersion: 1}, nil, ""},
		"another one":  {`{}`, Features{CgroupVersion: 2}, []string{"cgroup2"}, ""},
		"not known":    {"", Features{CgroupVersion: 2}, []string{"cgroup2"}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			var rf *features.Features
			if tc.runc != "" {
				if err := json.Unmarshal([]byte(tc.runc), &rf); err != nil {
					t.Fatal(err)
				}
			}
			if tc.f.offer(rf); !slices.Equal(tc.f.Offered, tc.want) || tc.f.Runc != tc.of {
				t.Errorf("offered %q of runc %q, want %q of %q", tc.f.Offered, tc.f.Runc, tc.want, tc.of)
			}
		})
	}
}
