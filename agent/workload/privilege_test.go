package workload_test

import (
	"path"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/workload"
)

// What edge workloads are made of needs no permission of the device's owner; what makes a container its master does.
func TestPrivilegesOfMounts(t *testing.T) {
	tests := []struct {
		mount string // source[:ro]
		want  string // part of what is told; "": nothing
	}{
		// Places of applications.
		{"/opt/plant", ""},
		{"/data", ""},
		{"/srv/plant", ""},
		{"/mnt/usb", ""},
		{"/media/card", ""},
		{"/tmp", ""},
		{"/tmp/.X11-unix", ""},
		{"/var/lib/myapp", ""},
		{"/var/log/myapp", ""},
		{"/var/log:ro", ""},
		{"/home/pi/plant", ""},
		{"/dev/shm", ""},
		{"/run/user/1000/wayland-0", ""},
		{"/run/systemd/journal/dev-log", ""},
		// What every program may read.
		{"/etc/localtime:ro", ""},
		{"/etc/machine-id:ro", ""},
		{"/etc/ssl/certs:ro", ""},
		{"/etc/mosquitto:ro", ""},
		{"/usr/share/zoneinfo:ro", ""},
		{"/lib/modules:ro", ""},
		{"/boot:ro", ""},
		{"/sys:ro", ""},
		{"/sys/class/gpio:ro", ""},
		{"/dev:ro", ""},
		{"/dev/serial/by-id:ro", ""},
		{"/proc/cpuinfo:ro", ""},
		{"/run/udev/data:ro", ""},
		// Not to write.
		{"/etc/localtime", "writable mount of /etc/localtime (configuration of the device)"},
		{"/etc", "a mount of /etc with /etc/shadow* (keys and passwords of the device)"},
		{"/usr/local/bin", "programs of the device"},
		{"/lib/modules", "programs of the device"},
		{"/boot", "what the device boots"},
		{"/sys", "devices and settings of the kernel"},
		{"/dev", "device nodes"},
		{"/var/log", "writable mount of /var/log with /var/log/journal"},
		{"/opt", "writable mount of /opt with /opt/cni"},
		// Not at all.
		{"/:ro", "a mount of / with"},
		{"/var:ro", "a mount of /var with"},
		{"/var/lib:ro", "a mount of /var/lib with"},
		{"/etc:ro", "keys and passwords"},
		{"/etc/ssh:ro", "keys and passwords"},
		{"/etc/longshore:ro", "the agent's own"},
		{"/root/x:ro", "home of root"},
		{"/home:ro", "a mount of /home with /home/*/.*"},
		{"/home/pi:ro", "a mount of /home/pi with"},
		{"/home/pi/.ssh:ro", "settings and keys of a user"},
		{"/proc:ro", "processes and settings of the kernel"},
		{"/proc/1/root:ro", "processes and settings of the kernel"},
		{"/run:ro", "sockets of the device's services"},
		{"/run/dbus/system_bus_socket:ro", "sockets of the device's services"},
		{"/run/udev:ro", "sockets of the device's services"},
		{"/var/run/docker.sock:ro", "state of another container engine"},
		{"/var/lib/docker/volumes/x:ro", "state of another container engine"},
		{"/run/containerd/containerd.sock:ro", "state of containerd"},
		{"/var/lib/containerd:ro", "state of containerd"},
		{"/var/lib/longshore/volumes/x:ro", "the agent's own"},
		{"/run/longshore/agent.sock:ro", "the agent's own"},
		{"/var/spool/cron:ro", "jobs"},
		{"/srv/agent/trust.yaml:ro", "the agent's configuration"},
		{"/srv/agent:ro", "the agent's configuration"},
		// Through links.
		{"/opt/plant/link/x", "which is /etc/x,"},
		{"/var/db/containerd:ro", "state of containerd"},
	}
	g := workload.Guard{
		Places: func() []workload.Place {
			return []workload.Place{{Path: "/srv/agent/trust.yaml", Holds: "the agent's configuration"}}
		},
		Real: func(p string) string {
			p = path.Clean(p)
			for from, to := range map[string]string{"/opt/plant/link": "/etc", "/var/run": "/run", "/var/db/containerd": "/var/lib/containerd"} {
				if rest, ok := strings.CutPrefix(p, from); ok {
					return to + rest
				}
			}
			return p
		},
	}
	for _, tt := range tests {
		source, readOnly := strings.CutSuffix(tt.mount, ":ro")
		p := &workload.Project{Services: []workload.Service{{
			Name: "web", Mounts: []workload.Mount{{Kind: workload.MountBind, Source: source, Target: "/x", ReadOnly: readOnly}},
		}}}
		o := "bind"
		if readOnly {
			o += ",ro"
		}
		v := &workload.Project{Volumes: []workload.Volume{{Name: "v", Options: map[string]string{"type": "none", "device": source, "o": o}}}}
		for at, p := range map[string]*workload.Project{"services.web.volumes[0]": p, "volumes.v": v} {
			found := p.Privileges(g)
			switch {
			case tt.want == "" && len(found) > 0:
				t.Errorf("%s: %v, want nothing", tt.mount, found)
			case tt.want != "" && (len(found) != 1 || found[0].Path != at || !strings.Contains(found[0].What, tt.want)):
				t.Errorf("%s: %v, want one at %s with %q", tt.mount, found, at, tt.want)
			case tt.want != "" && !readOnly && strings.HasPrefix(found[0].What, "a writable") != strings.Contains(found[0].Hint, ":ro"):
				t.Errorf("%s: %v: :ro helps only where reading is allowed", tt.mount, found)
			}
		}
	}
}

func TestPrivilegesOfServices(t *testing.T) {
	nodes := map[string][]workload.Node{
		"/dev/ttyUSB0":   {{Path: "/dev/ttyUSB0", Major: 188}},
		"/dev/null":      {{Path: "/dev/null", Major: 1, Minor: 3}},
		"/dev/mem":       {{Path: "/dev/mem", Major: 1, Minor: 1}},
		"/dev/fuse":      {{Path: "/dev/fuse", Major: 10, Minor: 229}},
		"/dev/sda1":      {{Path: "/dev/sda1", Block: true, Major: 8, Minor: 1}},
		"/dev/sg0":       {{Path: "/dev/sg0", Major: 21}},
		"/dev/ubi0":      {{Path: "/dev/ubi0", Major: 250}},
		"/dev/snd":       {{Path: "/dev/snd/timer", Major: 116, Minor: 33}, {Path: "/dev/snd/seq", Major: 116, Minor: 1}},
		"/dev/disk":      {{Path: "/dev/disk/a", Block: true, Major: 8}},
		"/opt/plant/plc": {{Path: "/opt/plant/plc", Block: true, Major: 8}},
	}
	g := workload.Guard{
		Node: func(p string) (workload.Node, bool) {
			if n := nodes[p]; len(n) == 1 && n[0].Path == p {
				return n[0], true
			}
			return workload.Node{}, false
		},
		Nodes:   func(p string) ([]workload.Node, bool) { return nodes[p], p != "/srv/many" },
		Drivers: func() map[int64]string { return map[int64]string{188: "ttyUSB", 250: "ubi0", 10: "misc", 116: "alsa"} },
	}
	security := func(s workload.Security) workload.Service { return workload.Service{Security: &s} }
	devices := func(paths ...string) (s workload.Service) {
		for n, p := range paths {
			s.Devices = append(s.Devices, workload.Device{HostPath: p, At: n})
		}
		return s
	}
	rules := func(r ...string) workload.Service { return workload.Service{DeviceRules: r} }
	tests := []struct {
		name    string
		service workload.Service
		want    []string // path without "services.web.", then what
	}{
		{"a plain one", workload.Service{Namespaces: workload.Namespaces{Network: workload.HostNamespace, IPC: workload.HostNamespace, UTS: workload.HostNamespace}}, nil},
		{"its devices", devices("/dev/ttyUSB0", "/dev/null", "/dev/fuse", "/dev/snd"), nil},
		{"rules for devices", rules("c 188:* rmw", "c 189:* rmw", "c 1:3 r", "b *:* m", "a *:* m"), nil},
		{"capabilities of networks and clocks", security(workload.Security{CapAdd: []string{"NET_ADMIN", "NET_RAW", "SYS_TIME", "SYS_NICE", "IPC_LOCK", "SYS_PTRACE"}, CapDrop: []string{"ALL"}}), nil},
		{"all capabilities but the strong ones", security(workload.Security{
			CapAdd:  []string{"ALL"},
			CapDrop: []string{"SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "DAC_READ_SEARCH", "BPF", "PERFMON", "MAC_ADMIN", "MAC_OVERRIDE"},
		}), nil},
		{"stricter than usual", security(workload.Security{NoNewPrivileges: true, Seccomp: `{"defaultAction":"SCMP_ACT_ERRNO"}`, AppArmor: "plant", Label: []string{"disable", "level:s0:c1", "type:container_t"}}), nil},
		{"privileged", security(workload.Security{Privileged: true}), []string{"privileged: privileged containers"}},
		{"one capability", security(workload.Security{CapAdd: []string{"SYS_ADMIN"}}), []string{"cap_add: capability SYS_ADMIN, which mounts file systems"}},
		{"named again", security(workload.Security{CapAdd: []string{"ALL", "BPF"}, CapDrop: []string{
			"BPF", "SYS_ADMIN", "SYS_MODULE", "SYS_RAWIO", "SYS_BOOT", "DAC_READ_SEARCH", "PERFMON", "MAC_ADMIN", "MAC_OVERRIDE",
		}}), []string{"cap_add: capability BPF, which loads programs into the kernel"}},
		{"processes", workload.Service{Namespaces: workload.Namespaces{PID: workload.HostNamespace}}, []string{"pid: containers that see the device's processes"}},
		{
			"no confinement", security(workload.Security{Seccomp: "unconfined", AppArmor: "unconfined", Unmasked: true, Label: []string{"type:spc_t"}}),
			[]string{
				"security_opt: containers without a system call filter", "security_opt: containers without AppArmor",
				"security_opt: containers that see and set what the kernel hides from them (systempaths=unconfined)", "security_opt: SELinux label type:spc_t",
			},
		},
		{
			"an open filter", security(workload.Security{Seccomp: `{"defaultAction":"SCMP_ACT_LOG"}`}),
			[]string{"security_opt: a system call filter that allows more than the default one (all by default)"},
		},
		{
			"disks", devices("/dev/sda1", "/dev/sg0", "/dev/ubi0", "/dev/disk", "/opt/plant/plc", "/dev/mem"),
			[]string{
				"devices[0]: device /dev/sda1 (a disk)", "devices[1]: device /dev/sg0 (raw access to hardware: sg)", "devices[2]: device /dev/ubi0 (raw access to hardware: ubi0)",
				"devices[3]: device /dev/disk/a (a disk)", "devices[4]: device /opt/plant/plc (a disk)", "devices[5]: device /dev/mem (the device's memory)",
			},
		},
		{"a directory that is too large to judge", devices("/srv/many"), []string{"devices[0]: all devices of /srv/many, which are too many to look at"}},
		{"every device", devices("/dev", "/"), []string{"devices[0]: all devices of /dev", "devices[1]: all devices of /"}},
		{
			"rules that cover disks", rules("a *:* rwm", "b 8:0 r", "c *:* w", "c 1:* r", "c 21:0 r", "c 250:* r"),
			[]string{
				`device_cgroup_rules[0]: device rule "a *:* rwm", which covers disks`, `device_cgroup_rules[1]: device rule "b 8:0 r", which covers disks`,
				`device_cgroup_rules[2]: device rule "c *:* w", which covers all character devices`, `device_cgroup_rules[3]: device rule "c 1:* r", which covers the device's memory`,
				`device_cgroup_rules[4]: device rule "c 21:0 r", which covers raw access to hardware: sg`, `device_cgroup_rules[5]: device rule "c 250:* r", which covers raw access to hardware: ubi0`,
			},
		},
		{
			"hooks",
			workload.Service{
				PostStart: []workload.Hook{{}, {Privileged: true}}, PreStop: []workload.Hook{{Privileged: true}},
				PreStart: []workload.PreStart{{Service: security(workload.Security{CapAdd: []string{"SYS_MODULE"}})}},
			},
			[]string{
				"post_start[1].privileged: privileged commands", "pre_stop[0].privileged: privileged commands",
				"pre_start[0].cap_add: capability SYS_MODULE, which loads code into the kernel",
			},
		},
		{
			"annotations",
			workload.Service{Annotations: map[string]string{"org.example.a": "", "run.oci.hooks.stdout": "/x"}},
			[]string{"annotations: annotation run.oci.hooks.stdout, which steers the OCI runtime"},
		},
		{
			"mounts that reach the device",
			workload.Service{Mounts: []workload.Mount{
				{Kind: workload.MountBind, Source: "/opt/a", Propagation: "rslave"},
				{Kind: workload.MountBind, Source: "/opt/b", Propagation: "rshared", At: 1},
				{Kind: workload.MountBind, Source: "/dev/ttyUSB0"},
				{Kind: workload.MountBind, Source: "/dev/sda1", ReadOnly: true, At: 3},
			}},
			[]string{"volumes[1]: mounts of a container that appear on the device (propagation rshared)", "volumes[3]: a mount of /dev/sda1 (a disk)"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.service.Name = "web"
			var got []string
			for _, f := range (&workload.Project{Services: []workload.Service{tt.service}}).Privileges(g) {
				got = append(got, strings.TrimPrefix(f.Path, "services.web.")+": "+f.What)
				if f.Service != "web" {
					t.Errorf("%+v is of another service", f)
				}
			}
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("privileges (-want +got):\n%s", diff)
			}
		})
	}
}

func TestPrivilegesOfVolumes(t *testing.T) {
	for kind, want := range map[string]bool{"tmpfs": false, "nfs": false, "nfs4": false, "cifs": false, "ext4": true, "overlay": true, "proc": true, "fuse.sshfs": true, "": true} {
		p := &workload.Project{Volumes: []workload.Volume{{Name: "v", Options: map[string]string{"type": kind, "device": "x"}}, {Name: "w"}}}
		if got := p.Privileges(workload.Guard{}); (len(got) > 0) != want {
			t.Errorf("type %q: %v", kind, got)
		}
	}
}

// Mount options are taken in order, so that an rw takes back the ro before it.
func TestReadOnlyCountsInOrder(t *testing.T) {
	for options, want := range map[string]bool{
		"bind,ro": true, "ro,bind": true, "bind,rw,ro": true, "rbind,rw,ro,nosuid": true,
		"bind": false, "bind,rw": false, "bind,ro,rw": false, "ro,rw,bind": false, "rbind,ro,nosuid,rw": false,
	} {
		p := &workload.Project{Volumes: []workload.Volume{{Name: "v", Options: map[string]string{"type": "none", "device": "/etc/cron.d", "o": options}}}}
		found := p.Privileges(workload.Guard{})
		if readOnly := len(found) == 0; readOnly != want {
			t.Errorf("%q: %v, want read-only: %t", options, found, want)
		}
	}
}
