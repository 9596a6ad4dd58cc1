package testenv

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestContainerdRunsAContainer(t *testing.T) {
	d := Containerd(t)
	rootfs := filepath.Join(d.Dir, "rootfs")
	if err := os.MkdirAll(rootfs, 0o755); err != nil {
		t.Fatal(err)
	}
	build := exec.Command("go", "build", "-o", filepath.Join(rootfs, "main"), "./images/sensor")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	if _, err := d.Ctr(t.Context(), "-n", d.Namespace, "run", "-d", "--rootfs", rootfs, "one", "/main"); err != nil {
		t.Fatal(err)
	}
	running := func() error {
		out, err := d.Ctr(t.Context(), "-n", d.Namespace, "tasks", "ls")
		if err == nil && !strings.Contains(out, "RUNNING") {
			t.Fatalf("tasks ls = %q, want one that is RUNNING", out)
		}
		return err
	}
	Eventually(t, time.Minute, "a running task", running)
	before := d.PID()
	d.Kill()
	if d.PID() != 0 {
		t.Errorf("PID() after Kill = %d, want 0", d.PID())
	}
	if err := d.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := running(); err != nil {
		t.Error(err)
	}
	if err := d.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := running(); err != nil {
		t.Error(err)
	}
	if d.PID() == before {
		t.Errorf("PID() after a restart = %d, as before", before)
	}
	if err := d.Stop(); err != nil {
		t.Fatal(err)
	}
	if pids := markedProcesses(d.Dir, ""); len(pids) > 0 {
		t.Errorf("processes %v are there after Stop", pids)
	}
	if _, err := os.Stat(d.Dir); !os.IsNotExist(err) {
		t.Errorf("%s is there after Stop: %v", d.Dir, err)
	}
	mounts, err := os.ReadFile("/proc/self/mounts")
	if err != nil || strings.Contains(string(mounts), d.Dir) {
		t.Errorf("mounts of %s are there after Stop (%v)", d.Dir, err)
	}
	for _, left := range []string{filepath.Join(runcState, d.Namespace), "/sys/fs/cgroup/memory/" + d.Namespace} {
		if _, err := os.Stat(left); !os.IsNotExist(err) {
			t.Errorf("%s is there after Stop", left)
		}
	}
}

func TestWarningsOfContainerd(t *testing.T) {
	d := &Daemon{Process: &Process{LogFile: filepath.Join(t.TempDir(), "log")}}
	text := "time=1 level=info msg=serving\ntime=2 level=warning msg=\"skip loading plugin\"\n"
	for _, want := range []string{"", "time=3 level=warning msg=odd"} {
		if err := os.WriteFile(d.LogFile, []byte(text+want+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if got := strings.TrimRight(d.warnings(), "\n"); strings.TrimSpace(got) != want {
			t.Errorf("warnings() = %q, want %q", got, want)
		}
	}
	if err := os.WriteFile(d.LogFile, []byte(strings.Repeat("level=error "+strings.Repeat("x", 1000)+"\n", 100)), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := d.warnings(); strings.Count(got, "\n") != maxWarnings-1 || len(got) > maxWarnings*(maxWarningWidth+1) {
		t.Errorf("%d bytes of warnings", len(got))
	}
}
