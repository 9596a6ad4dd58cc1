package testenv

import (
	"os/exec"
	"strings"
	"testing"
)

func TestProgramsArePinned(t *testing.T) {
	tests := []struct {
		name string
		args string
		want string // from testenv/tools/go.mod
	}{
		{"containerd", "--version", " v2.4.2"},
		{"ctr", "--version", " v2.4.2"},
		{"containerd-shim-runc-v2", "-v", " v2.4.2"},
		{"containerd17", "--version", " v1.7.35"},
		{"containerd17-shim", "-v", " v1.7.35"},
		{"containerd17-ctr", "--version", " v1.7.35"},
		{"runc", "--version", "libseccomp: "},
		{"runc", "--version", "runc version 1.5.2"},
		{"cosign2", "version", "v2.6.5"},
		{"cosign3", "version", "v3.1.3"},
		{"gofumpt", "-version", "v0.12.0"},
		{"staticcheck", "-version", "(0.8.2)"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := exec.Command(Program(t, tt.name), strings.Fields(tt.args)...).CombinedOutput()
			if err != nil || !strings.Contains(string(out), tt.want) {
				t.Errorf("%s %s = %q, %v; want %q in it", tt.name, tt.args, out, err, tt.want)
			}
		})
	}
}
