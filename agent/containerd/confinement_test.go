package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// of is a line of /proc/PID/status.
func of(t *testing.T, pid uint32, field string) string {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		t.Fatal(err)
	}
	m := regexp.MustCompile(`(?m)^` + field + `:\s*(.*)$`).FindSubmatch(b)
	if m == nil {
		t.Fatalf("no %s in %s", field, b)
	}
	return string(m[1])
}

// own is a line of this process's status.
func own(t *testing.T, field string) string { return of(t, uint32(os.Getpid()), field) }

const (
	defaultCaps = "00000000a80425fb"
	noProfile   = `{"defaultAction": "SCMP_ACT_ALLOW", "archMap": [{"architecture": "SCMP_ARCH_X86_64"}, {"architecture": "SCMP_ARCH_AARCH64"}],
		"syscalls": [{"names": ["mkdirat", "mkdir"], "action": "SCMP_ACT_ERRNO", "errnoRet": 95}]}`
)

func TestConfinement(t *testing.T) {
	r := newRig(t, func(o *containerd.Options) { o.AllowPrivileged = true })
	img := r.pulled(nil)
	for _, tc := range []struct {
		name     string
		sec      *workload.Security
		caps     string
		nnp      string
		seccomp  string
		unshare  string
		writable bool // /proc/sys
		mkdir    string
	}{
		{name: "default", caps: defaultCaps, nnp: "0", seccomp: "2", unshare: "operation not permitted"},
		{name: "drop all", sec: &workload.Security{CapDrop: []string{"ALL"}}, caps: "0000000000000000", nnp: "0", seccomp: "2", unshare: "not permitted"},
		{
			name: "only one", sec: &workload.Security{CapDrop: []string{"ALL"}, CapAdd: []string{"NET_ADMIN"}}, caps: "0000000000001000",
			nnp: "0", seccomp: "2", unshare: "not permitted",
		},
		{name: "add all", sec: &workload.Security{CapAdd: []string{"ALL"}}, caps: "own", nnp: "0", seccomp: "2", unshare: "invalid argument"},
		{name: "no new privileges", sec: &workload.Security{NoNewPrivileges: true}, caps: defaultCaps, nnp: "1", seccomp: "2", unshare: "not permitted"},
		{name: "no filter", sec: &workload.Security{Seccomp: "unconfined"}, caps: defaultCaps, nnp: "0", seccomp: "0", unshare: "invalid argument"},
		{name: "filter", sec: &workload.Security{Seccomp: noProfile}, caps: defaultCaps, nnp: "0", seccomp: "2", unshare: "invalid argument", mkdir: "not supported"},
		{name: "unmasked", sec: &workload.Security{Unmasked: true}, caps: defaultCaps, nnp: "0", seccomp: "2", unshare: "not permitted", writable: true},
		{name: "privileged", sec: &workload.Security{Privileged: true}, caps: "own", nnp: "0", seccomp: "0", unshare: "invalid argument", writable: true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := server(img)
			s.Security = tc.sec
			c := r.up(project("conf", s))[0]
			pid := r.seen(c.ID).PID
			if tc.caps == "own" {
				tc.caps = own(t, "CapPrm")
			}
			if got := of(t, pid, "CapEff"); got != tc.caps {
				t.Errorf("capabilities %s, want %s", got, tc.caps)
			}
			if got := of(t, pid, "NoNewPrivs"); got != tc.nnp {
				t.Errorf("NoNewPrivs %s, want %s", got, tc.nnp)
			}
			if got := of(t, pid, "Seccomp"); got != tc.seccomp {
				t.Errorf("Seccomp %s, want %s", got, tc.seccomp)
			}
			if got := r.inside(c.ID, "unshare"); !strings.Contains(got, tc.unshare) { // one of a program with threads is invalid, but for filters
				t.Errorf("a user namespace of its own: %q, want %q", got, tc.unshare)
			}
			if got := r.inside(c.ID, "open", "/proc/sys/kernel/hostname", "w"); (got == "ok\n") != tc.writable {
				t.Errorf("open /proc/sys for writing: %q, want writable %v", got, tc.writable)
			}
			if tc.mkdir != "" {
				if err := r.Probe(t.Context(), c.ID, workload.Probe{Exec: []string{"/toolbox", "mkdir", "/new"}}); err == nil {
					t.Error("mkdir is filtered and went well")
				}
			}
			if tc.name == "privileged" {
				r.inside(c.ID, "exists", "/dev/kmsg")
				if got := r.inside(c.ID, "open", "/sys/kernel/uevent_helper", "w"); strings.Contains(got, "read-only") {
					t.Errorf("/sys is %q", got)
				}
			}
			if err := errors.Join(r.Remove(t.Context(), c.ID), r.Teardown(t.Context(), "conf")); err != nil {
				t.Fatal(err)
			}
		})
	}
}

func TestRefused(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil)
	for _, tc := range []struct {
		name   string
		change func(*workload.Service)
		want   error
		text   string
	}{
		{"privileged", func(s *workload.Service) { s.Security = &workload.Security{Privileged: true} }, fault.ErrRejected, "privileged"},
		{"capability", func(s *workload.Service) { s.Security = &workload.Security{CapAdd: []string{"FLY"}} }, fault.ErrUnfit, "CAP_FLY"},
		{"filter", func(s *workload.Service) { s.Security = &workload.Security{Seccomp: "{"} }, fault.ErrInvalid, "seccomp"},
		{"AppArmor profile", func(s *workload.Service) { s.Security = &workload.Security{AppArmor: "mine"} }, fault.ErrUnfit, "mine"},
		{"SELinux label", func(s *workload.Service) { s.Security = &workload.Security{Label: []string{"level:s0:c1"}} }, fault.ErrUnfit, "level:s0:c1"},
		{"no device", func(s *workload.Service) { s.Devices = []workload.Device{{HostPath: "/dev/ttyNONE0"}} }, fault.ErrUnfit, "/dev/ttyNONE0"},
		{"device that is a file", func(s *workload.Service) { s.Devices = []workload.Device{{HostPath: "/etc/hosts"}} }, fault.ErrInvalid, "/etc/hosts"},
		{"CDI device", func(s *workload.Service) { s.CDI = []string{"vendor.com/class=nothing"} }, fault.ErrUnfit, "vendor.com/class=nothing"},
		{"GPU", func(s *workload.Service) { s.GPUs = []workload.DeviceRequest{{Count: 1}} }, fault.ErrUnfit, "nvidia.com/gpu"},
		{"weight", func(s *workload.Service) {
			s.Resources.Blkio = &workload.Blkio{ReadBps: []workload.BlkioRate{{Path: "/dev/none", Rate: 1}}}
		}, fault.ErrUnfit, "/dev/none"},
		{"runtime", func(s *workload.Service) { s.Runtime = "kata" }, fault.ErrUnfit, "kata"},
		{"group that is not there", func(s *workload.Service) { s.Groups = []string{"nobodies"} }, nil, "nobodies"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := server(img)
			tc.change(&s)
			p := project("no", s)
			if err := r.Prepare(t.Context(), p); err != nil {
				t.Fatal(err)
			}
			err := r.Create(t.Context(), p, p.Containers()[0])
			if err == nil || tc.want != nil && !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) {
				t.Errorf("Create = %v, want %v and %q in it", err, tc.want, tc.text)
			}
			if o, err := r.Observe(t.Context()); err != nil || len(o.Containers) != 0 {
				t.Errorf("left %+v, %v", o.Containers, err)
			}
		})
	}
}
