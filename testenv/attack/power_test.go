package attack

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"regexp"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/testenv"
)

// power is what the holder of a release key adds to an application, to control a device whose owner
// allows no privileged containers.
type power struct {
	name    string
	prepare func(t *testing.T, d *device) // what a container could have done before
	asks    []ask
	more    string // further sections of the file
}

// ask is one service of it. DIR is the device's folder, CONTAINERD its containerd's socket, IMAGE an image.
type ask struct {
	service string // members in one line
	says    string // part of the refusal
}

func mount(spec, says string) ask { return ask{fmt.Sprintf("volumes: [%q]", spec), says} }

func powers() []power {
	return []power{
		{name: "agent's own files mounted", asks: []ask{
			mount("DIR/etc:/x", "DIR/etc (the agent's configuration)"), mount("DIR/data/volumes:/x:ro", "DIR/data/volumes (the agent's own)"),
			mount("DIR/run/agent.sock:/x:ro", "agent.sock (the agent's own)"), mount("DIR/home/.docker/config.json:/x:ro", "the agent's credentials"),
			mount("DIR:/x:ro", "a mount of DIR with DIR/"),
		}},
		{name: "container engines mounted", asks: []ask{
			mount("CONTAINERD:/x:ro", "containerd's socket"), mount("/run/containerd:/x", "state of containerd"),
			mount("/var/run/docker.sock:/x", "docker.sock, which is /run/docker.sock"), mount("/var/lib/docker:/x", "state of another container engine"),
		}},
		{name: "device's files mounted", asks: []ask{
			mount("/:/x:ro", "a mount of / with"), mount("/etc/cron.d:/x", "a writable mount of /etc/cron.d (configuration of the device) (mount it read-only"),
			mount("/root/.ssh:/x:ro", "home of root"), mount("/lib/modules:/x", "programs of the device"), mount("/boot:/x", "what the device boots"),
		}},
		{name: "kernel's files mounted", asks: []ask{
			mount("/proc:/x:ro", "processes and settings of the kernel"), mount("/sys:/x", "devices and settings of the kernel"), mount("/dev:/x", "device nodes"),
			{"volumes: [{type: bind, source: DIR/plant, target: /x, bind: {propagation: rshared}}]", "propagation rshared"},
		}},
		{name: "links to the device's files mounted", asks: []ask{
			mount("DIR/plant/link/cron.d:/x", "which is /etc/cron.d,"), mount("DIR/plant/link/shadow:/x:ro", "which is /etc/shadow,"),
		}, prepare: func(t *testing.T, d *device) {
			if err := os.Symlink("/etc", d.path("plant/link")); err != nil {
				t.Fatal(err)
			}
		}},
		{name: "volumes that are the device's files", asks: []ask{
			mount("bound:/x", "volumes.bound: this device does not allow a writable mount of /etc/cron.d ("), mount("disk:/x", "file system of type ext4"), mount("layers:/x", "file system of type overlay"),
		}, more: `volumes:
  bound: {driver_opts: {type: none, o: bind, device: /etc/cron.d}}
  disk: {driver_opts: {type: ext4, device: /dev/sda1}}
  layers: {driver_opts: {type: overlay, device: overlay, o: "lowerdir=/etc:/usr"}}
`},
		{name: "volumes that are read-only only at first", asks: []ask{
			mount("first:/x", "volumes.first: this device does not allow a writable mount of /etc/cron.d ("),
			mount("middle:/x:ro", "volumes.middle: this device does not allow a writable mount of /etc/cron.d ("),
		}, more: `volumes:
  first: {driver_opts: {type: none, o: "bind,ro,rw", device: /etc/cron.d}}
  middle: {driver_opts: {type: none, o: "rw,rbind,ro,nosuid,rw", device: /etc/cron.d}}
`},
		{name: "disks and memory given as devices", asks: []ask{
			{"devices: [/dev]", "all devices of /dev"},
			{`devices: ["DIR/plant/disk:/dev/plc0"]`, "DIR/plant/disk (a disk)"},
			{`devices: ["DIR/plant/memory:/dev/plc1"]`, "DIR/plant/memory (the device's memory)"},
			{`device_cgroup_rules: ["b *:* rwm"]`, "covers disks"},
			{`device_cgroup_rules: ["c *:* rwm"]`, "covers all character devices"},
		}, prepare: func(t *testing.T, d *device) {
			d.node(t, "disk", unix.S_IFBLK, 8, 0)
			d.node(t, "memory", unix.S_IFCHR, 1, 1)
		}},
		{name: "rights beyond a container", asks: []ask{
			{"pid: host", "the device's processes"},
			{"cap_add: [SYS_ADMIN]", "capability SYS_ADMIN"},
			{"cap_add: [SYS_MODULE]", "capability SYS_MODULE"},
			{"cap_add: [DAC_READ_SEARCH]", "capability DAC_READ_SEARCH"},
			{"privileged: true", "privileged containers"},
		}},
		{name: "every capability", asks: []ask{{"cap_add: [ALL]", "capability BPF"}}},
		{name: "confinement taken off", asks: []ask{
			{`security_opt: ["seccomp=unconfined"]`, "without a system call filter"},
			{`security_opt: ["apparmor=unconfined"]`, "without AppArmor"},
			{`security_opt: ["systempaths=unconfined"]`, "systempaths=unconfined"},
			{`security_opt: ["seccomp=open.json"]`, "allows more than the default one (open_by_handle_at)"},
			{"annotations: {run.oci.hooks.stdout: /etc/cron.d/x}", "annotation run.oci.hooks.stdout"},
		}},
		{name: "commands with every right", asks: []ask{
			{"post_start: [{command: [/toolbox], privileged: true}]", "post_start[0].privileged"},
			{"pre_stop: [{command: [/toolbox], privileged: true}]", "pre_stop[0].privileged"},
			{"pre_start: [{image: IMAGE, command: [/toolbox], privileged: true}]", "pre_start[0].privileged"},
		}},
	}
}

// openFilter allows what the default filter of a container's system calls does not.
const openFilter = `{"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read", "open_by_handle_at"], "action": "SCMP_ACT_ALLOW"}]}`

// onPower plays them: all of it is signed as it must be, and each ask is refused by its name, while the application runs on.
func onPower(t *testing.T, p *plant, n int) {
	d := newDevice(t, p, n, testenv.Registry(t, testenv.Referrers), setup{})
	if err := os.MkdirAll(d.path("plant"), 0o755); err != nil {
		t.Fatal(err)
	}
	for _, w := range powers() {
		t.Run(w.name, func(t *testing.T) { d.refuses(t, w) })
	}
}

func (d *device) refuses(t *testing.T, w power) {
	d.settled(t, uint64(d.pushed))
	d.begin(t)
	if w.prepare != nil {
		w.prepare(t, d)
	}
	defer func() { d.settled(t, uint64(d.pushed)) }()
	defer d.usurp(t, w)()
	problem := d.tells(t, codes.Admission)
	for _, a := range w.asks {
		if want := strings.ReplaceAll(a.says, "DIR", d.dir); !strings.Contains(problem.Message, want) {
			t.Errorf("the problem does not say %q: %s", want, problem.Message)
		}
	}
	if was, is := processes(d.before), processes(d.status(t)); !maps.Equal(was, is) {
		t.Errorf("processes were %v and are %v: nothing should have been touched", was, is)
	}
	if err := d.customer.end(); err != nil {
		t.Error(err)
	}
	t.Logf("%s: %s", problem.Code, problem.Message)
}

// usurp publishes the application with these services, signed as every release is. What it returns publishes it as it was.
func (d *device) usurp(t *testing.T, w power) (undo func()) {
	t.Helper()
	honest, err := os.ReadFile(d.path("line/compose.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	image := regexp.MustCompile(`image: (\S+)`).FindStringSubmatch(string(honest))[1]
	text := string(honest)
	for n, a := range w.asks {
		text += fmt.Sprintf("  taker%d:\n    image: IMAGE\n    command: [sleep]\n    %s\n", n, a.service)
	}
	text = strings.NewReplacer("IMAGE", image, "CONTAINERD", d.containerd.Address, "DIR", d.dir).Replace(text + w.more)
	if err := errors.Join(
		os.MkdirAll(d.path("usurped"), 0o755),
		os.WriteFile(d.path("usurped/compose.yaml"), []byte(text), 0o644),
		os.WriteFile(d.path("usurped/open.json"), []byte(openFilter), 0o644),
	); err != nil {
		t.Fatal(err)
	}
	d.images++
	version := fmt.Sprintf("1.0.%d", d.images)
	was := d.versions["line"]
	d.must(t, "longshore", "component", "push", d.path("usurped"), d.host+"/plant/components/line:"+version)
	d.versions["line"] = version
	undo = func() {
		d.versions["line"] = was
		d.release(t, "line", false)
	}
	d.release(t, "line", false)
	return undo
}

// node makes a device node where a container could have made it that writes to the folder.
func (d *device) node(t *testing.T, name string, mode uint32, major, minor uint32) {
	t.Helper()
	if err := os.MkdirAll(d.path("plant"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mknod(d.path("plant/"+name), mode|0o600, int(unix.Mkdev(major, minor))); err != nil && !errors.Is(err, fs.ErrExist) {
		t.Fatal(err)
	}
}
