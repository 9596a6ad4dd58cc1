package soak

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// stuckWait is how long Go programs may take to write their stacks.
const stuckWait = 10 * time.Second

// stuck saves what helps to find why a device does not come back: the stacks of the agent and of
// containerd, their logs, the folders of tasks, and the processes. It ends the agent. It returns the folder.
func (d *device) stuck() string {
	dir, err := os.MkdirTemp("", "longshore-stuck-")
	if err != nil {
		return err.Error()
	}
	_ = syscall.Kill(d.Containerd.PID(), syscall.SIGUSR1) // containerd writes its stacks into its log, and to a file of its own
	_ = syscall.Kill(d.Agent.PID(), syscall.SIGQUIT)
	_ = testenv.Await(context.Background(), stuckWait, func() error {
		if log, _ := os.ReadFile(d.Containerd.LogFile); d.Agent.Running() == nil || !bytes.Contains(log, []byte("stack dump written to")) {
			return errors.New("the stacks are being written")
		}
		return nil
	})
	var b strings.Builder
	_ = filepath.WalkDir(d.Containerd.State, func(path string, e os.DirEntry, err error) error {
		if e != nil && strings.Count(strings.TrimPrefix(path, d.Containerd.State), "/") < 5 && filepath.Base(path) != "rootfs" {
			fmt.Fprintln(&b, path)
			return nil
		}
		return filepath.SkipDir
	})
	files, _ := filepath.Glob("/proc/[0-9]*/cmdline")
	for _, f := range files {
		if text, err := os.ReadFile(f); err == nil && strings.Contains(string(text), d.Containerd.Namespace) {
			fmt.Fprintf(&b, "%s %s\n", filepath.Dir(f), strings.ReplaceAll(string(text), "\x00", " "))
		}
	}
	_ = os.WriteFile(filepath.Join(dir, "state.txt"), []byte(b.String()), 0o600)
	for name, from := range map[string]string{"agent.log": d.Agent.LogFile, "containerd.log": d.Containerd.LogFile} {
		if text, err := os.ReadFile(from); err == nil {
			_ = os.WriteFile(filepath.Join(dir, name), text, 0o600)
		}
	}
	stacks, _ := filepath.Glob(filepath.Join(d.Containerd.Dir, "containerd.*.stacks.log"))
	for _, f := range stacks {
		if text, err := os.ReadFile(f); err == nil {
			_ = os.WriteFile(filepath.Join(dir, filepath.Base(f)), text, 0o600)
		}
	}
	return dir
}

// shims describes each shim: its process, what it waits for, and the processes below it.
func (d *device) shims() string {
	var b strings.Builder
	for _, pid := range d.Containerd.Shims() {
		command, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		fmt.Fprintf(&b, "shim %d: %s\n", pid, strings.ReplaceAll(string(command), "\x00", " "))
		waits, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/wchan", pid))
		for _, file := range waits {
			at, _ := os.ReadFile(file)
			children, _ := os.ReadFile(filepath.Join(filepath.Dir(file), "children"))
			fmt.Fprintf(&b, "  %s waits in %s, children %s\n", filepath.Base(filepath.Dir(file)), at, children)
		}
	}
	return b.String()
}
