package containerd_test

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

func file(name, target, content string) workload.File {
	return workload.File{Name: name, Target: target, Content: []byte(content), Digest: digest.FromString(content)}
}

func TestFilesAreInMemoryOnly(t *testing.T) {
	const secret = "correct-horse-battery-staple"
	r := ownRig(t)
	s := server(r.pulled(nil))
	key := file("key", "/run/secrets/key", secret)
	key.Secret, key.UID, key.GID, key.Mode = true, 33, 34, 0o400
	s.Files = []workload.File{file("site", "/etc/site/site.conf", "title = plant\n"), key}
	p := project("files", s)
	c := r.up(p)[0]
	if got := r.inside(c.ID, "cat", "/etc/site/site.conf", "/run/secrets/key"); got != "title = plant\n"+secret {
		t.Errorf("files hold %q", got)
	}
	if got, want := r.inside(c.ID, "stat", "/etc/site/site.conf", "/run/secrets/key"), "0 0 -r--r--r--\n33 34 -r--------\n"; got != want {
		t.Errorf("stat = %q, want %q", got, want)
	}
	if got := r.inside(c.ID, "open", "/etc/site/site.conf", "w"); !strings.Contains(got, "read-only") {
		t.Errorf("open for writing: %q", got)
	}
	dir := filepath.Join(r.o.RunDir, "memory", c.ID)
	var fs unix.Statfs_t
	if err := unix.Statfs(dir, &fs); err != nil || fs.Type != unix.TMPFS_MAGIC {
		t.Errorf("%s is of type %x, %v, want memory", dir, fs.Type, err)
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%s has mode %v, %v, want 0700", dir, info.Mode(), err)
	}
	if err := r.daemonHas(secret); err != nil {
		t.Error(err)
	}

	// A start after the agent forgot the content, and one after a reboot.
	forgetful := c
	forgetful.Service.Files = []workload.File{s.Files[0], s.Files[1]}
	forgetful.Service.Files[0].Content, forgetful.Service.Files[1].Content = nil, nil
	if err := errors.Join(r.Stop(t.Context(), c.ID), r.Start(t.Context(), p, forgetful)); err != nil {
		t.Fatal(err)
	}
	r.inside(c.ID, "exists", "/run/secrets/key")
	if err := r.Stop(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if err := unix.Unmount(dir, unix.MNT_DETACH); err != nil {
		t.Fatal(err)
	}
	if err := os.RemoveAll(filepath.Join(r.o.RunDir, "memory")); err != nil {
		t.Fatal(err)
	}
	err := r.Start(t.Context(), p, forgetful)
	if err == nil || !strings.Contains(err.Error(), "config site") || strings.Contains(err.Error(), secret) {
		t.Errorf("Start without content = %v, want the config's name", err)
	}
	if err := r.Start(t.Context(), p, c); err != nil {
		t.Fatal(err)
	}
	if got := r.inside(c.ID, "cat", "/run/secrets/key"); got != secret {
		t.Errorf("after a reboot the secret is %q", got)
	}
	if err := r.Remove(t.Context(), c.ID); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s after Remove: %v", dir, err)
	}
}

// daemonHas is an error when a text is anywhere below containerd's or the agent's folders on the disk.
func (r *rig) daemonHas(text string) error {
	for _, dir := range []string{r.daemon.Dir, r.o.DataDir} {
		out, err := exec.CommandContext(r.t.Context(), "grep", "-rlF", "--devices=skip", text, dir).Output()
		if err == nil {
			return errors.New("the secret is in " + string(out))
		}
	}
	return nil
}

func TestVolumesOfEveryKind(t *testing.T) {
	r := newRig(t)
	img := r.pulled(func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}, "/declared": {}} }, []testenv.File{
		{Path: "data/seed.txt", Data: []byte("seed\n")},
		{Path: "data/sub/part.txt", Data: []byte("part\n")},
		{Path: "declared/by.txt", Data: []byte("image\n")},
	})
	host := t.TempDir()
	s := server(img)
	s.Mounts = []workload.Mount{
		{Kind: workload.MountVolume, Source: "full", Target: "/data"},
		{Kind: workload.MountVolume, Source: "bare", Target: "/bare/data", NoCopy: true},
		{Kind: workload.MountVolume, Source: "full", Target: "/part", Subpath: "sub"},
		{Kind: workload.MountVolume, Source: "ours", Target: "/ours"},
		{Kind: workload.MountVolume, Source: "mem", Target: "/mem"},
		{Kind: workload.MountVolume, Source: "bound", Target: "/bound"},
		{Kind: workload.MountVolume, Source: "kept", Target: "/kept"},
		{Kind: workload.MountImage, Image: &img, Target: "/image"},
		{Kind: workload.MountImage, Image: &img, Target: "/image-part", Subpath: "data/sub"},
		{Kind: workload.MountTmpfs, Target: "/tmpfs", Options: []string{"uid=33", "exec"}},
	}
	other := server(img)
	other.Name = "other"
	other.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "mem", Target: "/mem"}, {Kind: workload.MountVolume, Source: "ours", Target: "/ours"}}
	p := project("vols", s, other)
	p.Volumes = []workload.Volume{
		{Name: "full"},
		{Name: "bare"},
		{Name: "ours", Shared: "plant-wide"},
		{Name: "mem", Options: map[string]string{"type": "tmpfs", "device": "tmpfs", "o": "size=1m,uid=33"}},
		{Name: "bound", Options: map[string]string{"type": "none", "device": host, "o": "bind"}},
		{Name: "kept", Options: map[string]string{"type": "none", "device": host, "o": "rw,bind,ro"}},
	}
	cs := r.up(p)
	a, b := cs[0].ID, cs[1].ID
	for name, want := range map[string]string{
		"/data/seed.txt": "seed\n", "/part/part.txt": "part\n", "/image/data/seed.txt": "seed\n", "/image-part/part.txt": "part\n",
		"/declared/by.txt": "image\n",
	} {
		if got := r.inside(a, "cat", name); got != want {
			t.Errorf("%s = %q, want %q", name, got, want)
		}
	}
	if got := r.inside(a, "open", "/bare/data/seed.txt"); !strings.Contains(got, "no such file") {
		t.Errorf("a volume without copy has %q", got)
	}
	for _, f := range []string{"/image/new", "/image-part/new"} {
		if err := r.Probe(t.Context(), a, workload.Probe{Exec: []string{"/toolbox", "write", f, "x"}}); err == nil {
			t.Errorf("write to an image at %s went well", f)
		}
	}
	r.inside(a, "write", "/mem/x", "from a")
	r.inside(a, "write", "/ours/x", "from a")
	for _, f := range []string{"/mem/x", "/ours/x"} {
		if got := r.inside(b, "cat", f); got != "from a\n" {
			t.Errorf("the other service reads %q from %s", got, f)
		}
	}
	if got := r.inside(a, "touch-mib", "/mem/big", "2"); !strings.Contains(got, "no space") {
		t.Errorf("2 MiB into 1 MiB: %q", got)
	}
	r.inside(a, "write", "/bound/x", "to the host")
	if got, err := os.ReadFile(filepath.Join(host, "x")); err != nil || string(got) != "to the host\n" {
		t.Errorf("on the host: %q, %v", got, err)
	}
	if err := r.Probe(t.Context(), a, workload.Probe{Exec: []string{"/toolbox", "write", "/kept/x", "x"}}); err == nil || r.inside(a, "cat", "/kept/x") != "to the host\n" {
		t.Errorf("write to a directory that is bound read-only: %v", err)
	}
	if got := r.inside(a, "stat", "/tmpfs"); !strings.HasPrefix(got, "33 ") {
		t.Errorf("tmpfs of uid 33: %q", got)
	}
	r.inside(a, "write", "/declared/by.txt", "kept")
	if err := errors.Join(r.Stop(t.Context(), a), r.start(cs[0])); err != nil {
		t.Fatal(err)
	}
	if got := r.inside(a, "cat", "/part/part.txt", "/declared/by.txt", "/mem/x"); got != "part\nimage\nkept\nfrom a\n" {
		t.Errorf("after a restart: %q", got)
	}
	if err := r.Remove(t.Context(), a); err != nil {
		t.Fatal(err)
	}
	if got := r.inside(b, "cat", "/mem/x"); got != "from a\n" {
		t.Errorf("after the other user of it was removed: %q", got)
	}
	if err := r.Remove(t.Context(), b); err != nil {
		t.Fatal(err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || strings.Contains(string(mounts), r.o.RunDir) {
		t.Errorf("mounts are left: %v\n%s", err, mounts)
	}
	if got, err := os.ReadFile(filepath.Join(r.o.DataDir, "shared", "plant-wide", "_data", "x")); err != nil || string(got) != "from a\n" {
		t.Errorf("the shared volume has %q, %v", got, err)
	}
	if got, err := os.ReadFile(filepath.Join(host, "x")); err != nil || len(got) == 0 {
		t.Errorf("the bound directory lost its file: %v", err)
	}
}

// A volume that services share is filled by the image that has files for it, whichever container is made first, and also while another one
// runs; but not over what a container has written.
func TestASharedVolumeIsFilledByTheImageWithItsFiles(t *testing.T) {
	r := newRig(t)
	mount := func(target string) []workload.Mount {
		return []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: target}}
	}
	backup, web := server(r.pulled(nil)), server(r.pulled(nil, []testenv.File{
		{Path: "data/", Mode: 0o750, UID: 33}, {Path: "data/seed.txt", Data: []byte("seed\n"), UID: 33}, {Path: "data/sub/part.txt", Data: []byte("part\n")},
	}))
	backup.Name, backup.Mounts, web.Mounts = "backup", mount("/backup"), mount("/data")
	first, both := project("shared", backup), project("shared", backup, web)
	for _, p := range []*workload.Project{first, both} {
		p.Volumes = []workload.Volume{{Name: "data"}}
	}
	sidecar := r.up(first)[0].ID
	app := r.up(both)[1].ID
	for _, id := range []string{sidecar, app} {
		dir := map[string]string{sidecar: "/backup", app: "/data"}[id]
		if got := r.inside(id, "cat", dir+"/seed.txt", dir+"/sub/part.txt"); got != "seed\npart\n" {
			t.Errorf("%s: %q, want what the image has", dir, got)
		}
	}
	if got := r.inside(sidecar, "stat", "/backup"); got != "33 33 drwxr-x---\n" {
		t.Errorf("the directory is %q, want that of the image", got)
	}
	for _, written := range []bool{true, false} { // and an emptied volume stays empty
		if err := errors.Join(r.Remove(t.Context(), app), r.Remove(t.Context(), sidecar)); err != nil {
			t.Fatal(err)
		}
		data := filepath.Join(r.o.DataDir, "volumes", "shared", "data", "_data")
		for _, name := range []string{"seed.txt", "sub"} {
			if err := os.RemoveAll(filepath.Join(data, name)); err != nil {
				t.Fatal(err)
			}
		}
		if written {
			if err := os.WriteFile(filepath.Join(data, "own"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		} else if err := os.Remove(filepath.Join(data, "own")); err != nil {
			t.Fatal(err)
		}
		sidecar = r.up(first)[0].ID
		app = r.up(both)[1].ID
		if got := r.inside(app, "open", "/data/seed.txt"); !strings.Contains(got, "no such file") {
			t.Errorf("a volume that was filled before has %q again", got)
		}
	}
}

func TestVolumesSayWhyNot(t *testing.T) {
	r := newRig(t, func(o *containerd.Options) { o.AllowPrivileged = true }) // else no driver but those of networks is asked
	img := r.pulled(nil, []testenv.File{{Path: "v/out", Link: "/etc"}})
	for _, tc := range []struct {
		name   string
		volume workload.Volume
		mount  workload.Mount
		want   error
		text   string
	}{
		{"external", workload.Volume{Name: "v", Shared: "nowhere", External: true}, workload.Mount{}, fault.ErrUnfit, "nowhere"},
		{"subpath", workload.Volume{Name: "v"}, workload.Mount{Subpath: "none"}, fault.ErrUnfit, "none"},
		{"subpath that leads out", workload.Volume{Name: "v"}, workload.Mount{Subpath: "../../x"}, fault.ErrInvalid, "../../x"},
		{"driver", workload.Volume{Name: "v", Options: map[string]string{"type": "nofs", "o": "password=hidden"}}, workload.Mount{}, fault.ErrTemporary, "nofs"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.mount.Kind == "" {
				tc.mount.Kind, tc.mount.Source = workload.MountVolume, "v"
			}
			tc.mount.Target = "/v"
			s := server(img)
			s.Mounts = []workload.Mount{tc.mount}
			p := project("no", s)
			p.Volumes = []workload.Volume{tc.volume}
			c := p.Containers()[0]
			err := r.Prepare(t.Context(), p)
			if err == nil {
				err = r.Create(t.Context(), p, c)
			}
			if err == nil {
				err = r.Start(t.Context(), p, c)
			}
			if !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.text) || strings.Contains(err.Error(), "hidden") {
				t.Errorf("%v, want %v and %q in it", err, tc.want, tc.text)
			}
			if err := r.Remove(t.Context(), c.ID); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestDevices(t *testing.T) {
	cdi := t.TempDir()
	r := newRig(t, func(o *containerd.Options) { o.CDIDirs = []string{cdi} })
	spec := `{"cdiVersion": "0.6.0", "kind": "nvidia.com/gpu", "devices": [
		{"name": "0", "containerEdits": {"env": ["GPU=zero"], "deviceNodes": [{"path": "/dev/gpu0", "hostPath": "/dev/zero"}]}},
		{"name": "1", "containerEdits": {"env": ["SECOND=one"], "mounts": [{"hostPath": "` + cdi + `", "containerPath": "/driver", "options": ["bind", "ro"]}]}}]}`
	if err := os.WriteFile(filepath.Join(cdi, "gpu.json"), []byte(spec), 0o644); err != nil {
		t.Fatal(err)
	}
	img := r.pulled(nil)
	plain := server(img)
	plain.Devices = []workload.Device{{HostPath: "/dev/fuse", ContainerPath: "/dev/tunnel", Permissions: "r"}}
	plain.DeviceRules = []string{"c 189:* rmw"}
	gpu := server(img)
	gpu.Name, gpu.CDI, gpu.GPUs = "gpu", []string{"nvidia.com/gpu=1"}, []workload.DeviceRequest{{Count: 1}}
	cs := r.up(project("dev", plain, gpu))
	if got := r.inside(cs[0].ID, "open", "/dev/tunnel"); got != "ok\n" {
		t.Errorf("open for reading: %q", got)
	}
	if got := r.inside(cs[0].ID, "open", "/dev/tunnel", "w"); !strings.Contains(got, "not permitted") {
		t.Errorf("open for writing: %q", got)
	}
	if f, err := r.Features(t.Context()); err == nil && f.CgroupVersion == 1 {
		list, err := os.ReadFile(filepath.Join("/sys/fs/cgroup/devices", group(t, r.seen(cs[0].ID).PID, "devices"), "devices.list"))
		if err != nil || !strings.Contains(string(list), "c 189:* rwm") {
			t.Errorf("devices.list = %q, %v", list, err)
		}
	}
	if got := r.inside(cs[1].ID, "open", "/dev/gpu0", "w"); got != "ok\n" {
		t.Errorf("open the injected device: %q", got)
	}
	r.inside(cs[1].ID, "exists", "/driver/gpu.json")
	if env := r.inside(cs[1].ID, "env"); !strings.Contains(env, "GPU=zero") || !strings.Contains(env, "SECOND=one") {
		t.Errorf("environment %q", env)
	}
	if err := errors.Join(os.Remove(filepath.Join(cdi, "gpu.json")), r.Stop(t.Context(), cs[1].ID)); err != nil {
		t.Fatal(err)
	}
	if err := r.start(cs[1]); !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "gpu") {
		t.Errorf("Start without its device = %v, want unfit", err)
	}
}

// TestFilesOfTheArchive mounts a directory and a program from memory.
func TestFilesOfTheArchive(t *testing.T) {
	r := newRig(t)
	s := server(r.pulled(nil))
	program, err := os.ReadFile("/proc/" + itoa(r.seen(r.up(project("source", s))[0].ID).PID) + "/root/toolbox")
	if err != nil {
		t.Fatal(err)
	}
	below := func(path, content string) workload.File {
		f := file("./conf/"+path, "/etc/app", content)
		f.Path = path
		return f
	}
	run := file("./toolbox", "/run-me", string(program))
	run.Mode = 0o555
	s.Files = []workload.File{file("site", "/site", "config\n"), below("a", "a\n"), below("d/e/b", "b\n"), below("d/empty", ""), run}
	for n := range 250 {
		s.Files = append(s.Files, func() workload.File { f := file("./many", "/many", "x"); f.Path = itoa(uint32(n)); return f }())
	}
	s.User = "33:33"
	p := project("packed", s)
	c := r.up(p)[0]
	if got := r.inside(c.ID, "cat", "/site", "/etc/app/a", "/etc/app/d/e/b", "/etc/app/d/empty", "/many/249"); got != "config\na\nb\nx" {
		t.Errorf("files hold %q", got)
	}
	if got, want := r.inside(c.ID, "stat", "/etc/app/d", "/etc/app/a", "/run-me"), "0 0 drwxr-xr-x\n0 0 -r--r--r--\n0 0 -r-xr-xr-x\n"; got != want {
		t.Errorf("stat = %q, want %q", got, want)
	}
	mounts, err := os.ReadFile("/proc/" + itoa(r.seen(c.ID).PID) + "/mounts")
	for _, want := range []string{" /etc/app tmpfs ro,nosuid,nodev", " /run-me tmpfs ro,nosuid,nodev", " /many tmpfs ro,nosuid,nodev"} {
		if err != nil || !strings.Contains(string(mounts), want) {
			t.Errorf("%q is not in\n%s%v", want, mounts, err)
		}
	}
	if err := r.Probe(t.Context(), c.ID, workload.Probe{Exec: []string{"/run-me", "env"}}); err != nil {
		t.Errorf("run what is mounted: %v", err)
	}

	outside := s
	outside.Files = []workload.File{below("../../x", "x")}
	p = project("outside", outside)
	r.created(p)
	if err := r.Start(t.Context(), p, p.Containers()[0]); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a file outside its directory: %v, want an invalid one", err)
	}
}
