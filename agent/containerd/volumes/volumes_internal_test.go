package volumes

import (
	"errors"
	"os"
	"path/filepath"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
)

// The service of the agent has the umask 077; a web server that runs as another user reads what root wrote into a volume all the same.
func TestUsersReadNewDirectories(t *testing.T) {
	old := unix.Umask(0o077)
	defer unix.Umask(old)
	volume, point, host := filepath.Join(t.TempDir(), "v"), filepath.Join(t.TempDir(), "0"), filepath.Join(t.TempDir(), "srv", "www")
	if err := errors.Join(createVolume(volume), mountPoint(point, true), readableDir(host), readableDir(host)); err != nil {
		t.Fatal(err)
	}
	for _, dir := range []string{filepath.Join(volume, volumeData), point, host} {
		if info, err := os.Stat(dir); err != nil || info.Mode() != os.ModeDir|0o755 {
			t.Errorf("%s: %v, %v", dir, info.Mode(), err)
		}
	}
}

// A filling that was cut off while it moved files is ended by the next container of the volume: nothing of the image is missing, and what a
// container wrote meanwhile stays.
func TestAFillingIsEnded(t *testing.T) {
	r := New(Options{DataDir: t.TempDir()})
	p := &workload.Project{Name: "line-1", Volumes: []workload.Volume{{Name: "v"}}}
	dir, err := r.rootOf(p.Name, p.Volumes[0])
	if err != nil {
		t.Fatal(err)
	}
	if err := createVolume(dir); err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		volumeData + "/moved": "image", volumeData + "/both": "container", volumeData + "/own": "container",
		volumeFiller + "/both": "image", volumeFiller + "/rest/file": "image",
	} {
		file := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	full := filepath.Join(dir, volumeFiller)
	if err := os.Chown(full, 33, 44); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(full, 0o750|os.ModeSetgid); err != nil {
		t.Fatal(err)
	}
	mount := workload.Mount{Kind: workload.MountVolume, Source: "v", Target: "/data"}
	data, err := r.volume(t.Context(), p, workload.Container{ID: "c"}, mount, nil)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"moved": "image", "both": "container", "own": "container", "rest/file": "image"} {
		if got, err := os.ReadFile(filepath.Join(data, name)); err != nil || string(got) != want {
			t.Errorf("%s: %q, %v; want that of the %s", name, got, err, want)
		}
	}
	info, err := os.Stat(data)
	if err != nil {
		t.Fatal(err)
	}
	if st, ok := info.Sys().(*syscall.Stat_t); !ok || st.Uid != 33 || st.Gid != 44 || info.Mode() != os.ModeDir|os.ModeSetgid|0o750 {
		t.Errorf("the directory is of %v, %v", info.Sys(), info.Mode())
	}
	names, err := entries(dir)
	if err != nil || len(names) != 1 {
		t.Errorf("%v, %v are left, want the data alone", names, err)
	}
}
