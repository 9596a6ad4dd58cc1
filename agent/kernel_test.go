package agent_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/machine"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/testenv"
)

// On the kernel of this machine, in a network of its own: a disk that is plugged in where the data is changes one report, and pulling it
// out another. Bridges and the interfaces of containers, which come and go with each of them, change none.
func TestPluggedIntoTheRealKernel(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "interfaces and mounts need root")
	}
	stick := testenv.NewStick(t, 64<<20, 0)
	stick.Pull(t)
	var looks atomic.Int64
	var before machine.Facts
	ask := make(chan chan machine.Facts)
	network := ownNetwork(t, ask)
	look := func() margo.DeviceCapabilities {
		reply := make(chan machine.Facts)
		ask <- reply
		before = (<-reply).Since(before)
		looks.Add(1)
		return before.Capabilities(margo.DeviceProperties{ID: string(agenttest.Device)}, nil)
	}
	network.data = stick.Dir
	m := runtimetest.NewMemory()
	m.Now = time.Now
	w := agenttest.NewWorld(t, agenttest.Env{
		Now: time.Now, Runtime: func(*testing.T) agent.Runtime { return m },
		Image: func(name string) agenttest.Image {
			return agenttest.Image{Reference: "registry.example/images/" + name, Digest: digest.FromString(name)}
		},
	})
	w.Edit = func(o *agent.Options) {
		o.Capabilities, o.Machine, o.LookEvery = look(), look, 50*time.Millisecond
	}
	w.Publish(t, 1, anApp(1, "web:1"))
	r := w.Start(t)
	defer r.Stop(t)
	w.Sync(t, r)
	w.Committed(t, r, 1)
	reports := func() (n int) {
		for _, x := range w.Fleet.Reports() {
			if x.Kind == store.KindCapabilities {
				n++
			}
		}
		return n
	}
	settled := func() int { // some looks later
		t.Helper()
		at := looks.Load()
		w.Wait(t, "looks", func() bool { return looks.Load() > at+5 && r.Status().Outbox.Depth == 0 })
		return reports()
	}
	n := settled()
	for _, tc := range []struct {
		name string
		do   func()
		want int
	}{
		{"a pair, a bridge and a virtual link", func() {
			network.ip("link add veth0 type veth peer name veth1", "link add br0 type bridge", "link set veth0 master br0", "link set veth0 up", "link set br0 up", "tuntap add dev tap0 mode tap")
		}, 0},
		{"they are gone", func() { network.ip("link del veth0", "link del br0", "link del tap0") }, 0},
		{"a disk plugged in", func() { stick.Remount(t) }, 1},
		{"a disk pulled out", func() { stick.Pull(t) }, 1},
	} {
		tc.do()
		now := settled()
		if now-n != tc.want {
			t.Errorf("%s: %d reports, want %d", tc.name, now-n, tc.want)
		}
		n = now
	}
}

// network is a network namespace that a thread of its own looks at the machine from.
type network struct {
	t    *testing.T
	path string
	data string
}

// ownNetwork makes it; whoever sends a channel to ask gets the facts there.
func ownNetwork(t *testing.T, ask chan chan machine.Facts) *network {
	n := &network{t: t}
	top := t.TempDir()
	root := filepath.Join(top, "sys")
	if err := os.Mkdir(root, 0o700); err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine, and its namespaces with it
		err := unix.Unshare(unix.CLONE_NEWNET)
		if err == nil {
			err = unix.Mount("sysfs", root, "sysfs", unix.MS_RDONLY, "") // shows the interfaces of this thread's network
		}
		n.path, _ = os.Readlink("/proc/thread-self")
		n.path = filepath.Join("/proc", n.path, "ns/net")
		ready <- err
		if err != nil {
			return
		}
		for reply := range ask {
			reply <- machine.Read(os.DirFS(top), machine.Place{Data: n.data})
		}
	}()
	if err := <-ready; err != nil {
		<-done
		testenv.Unavailable(t, "a network of its own: %v", err)
	}
	t.Cleanup(func() {
		close(ask)
		<-done
		if err := unix.Unmount(root, 0); err != nil {
			t.Error(err)
		}
	})
	return n
}

// ip runs commands of ip in the network.
func (n *network) ip(commands ...string) {
	n.t.Helper()
	for _, c := range commands {
		args := append([]string{"--net=" + n.path, "ip"}, strings.Fields(c)...)
		if text, err := exec.CommandContext(n.t.Context(), "nsenter", args...).CombinedOutput(); err != nil {
			n.t.Fatalf("ip %s: %v\n%s", c, err, text)
		}
	}
}
