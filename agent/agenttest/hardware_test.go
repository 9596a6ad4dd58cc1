package agenttest_test

import (
	"fmt"
	"os"
	"os/exec"
	"testing"

	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/testenv"
)

// smallDisk has room for the line-monitoring application and not for huge:1, in bytes.
const smallDisk = 64 << 20

// cramped is a device whose containerd has a small disk of its own.
func cramped(t *testing.T) agenttest.Env {
	t.Helper()
	box := testenv.NewBox(t)
	disk, err := box.NewDisk(t.Context(), smallDisk)
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	d, err := testenv.StartContainerd(t.Context(), testenv.DaemonOptions{Box: box, Root: disk.Dir + "/containerd"})
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	return newRealOn(t, d).env(t)
}

// rebooting is a device on a containerd of its own that can be rebooted: processes, mounts, the folders of /run, cgroups,
// network namespaces and interfaces are gone then, what is on the disk is not.
func rebooting(t *testing.T) agenttest.Env {
	t.Helper()
	r := newReal(t)
	name := fmt.Sprintf("lsag%d-host", os.Getpid())
	host := func(what string) {
		if text, err := exec.Command("ip", "netns", what, name).CombinedOutput(); err != nil {
			testenv.Unavailable(t, "ip netns %s: %v: %s", what, err, text)
		}
	}
	host("add")
	t.Cleanup(func() { host("delete") })
	d := r.device(t, "/run/netns/"+name)
	e := r.envOf(t, d)
	e.Reboot = func(t *testing.T) {
		if err := d.nets.Close(); err != nil {
			t.Fatal(err)
		}
		if err := r.daemon.PowerOff(t.Context()); err != nil {
			t.Fatal(err)
		}
		for _, run := range []string{d.n.RunDir, d.o.RunDir} {
			if err := testenv.UnmountBelow(run); err != nil {
				t.Fatal(err)
			}
			if err := os.RemoveAll(run); err != nil {
				t.Fatal(err)
			}
		}
		host("delete")
		host("add")
		for _, run := range []string{d.n.RunDir, d.o.RunDir} {
			if err := os.Mkdir(run, 0o700); err != nil && !os.IsExist(err) {
				t.Fatal(err)
			}
		}
		if err := r.daemon.Start(t.Context()); err != nil {
			t.Fatal(err)
		}
		d.boot(t)
	}
	return e
}
