package network

import (
	"bytes"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A hosts file of the device that is too large concerns only containers in the device's network, which get a copy of it.
func TestHostsFileOfTheDeviceIsTooLarge(t *testing.T) {
	w := newWorld(t)
	w.m.hosts = filepath.Join(t.TempDir(), "hosts")
	w.must(os.WriteFile(w.m.hosts, []byte("127.0.0.1 localhost\n"), 0o600))
	p, a := twoServices(w)
	host := svc("host", nil)
	host.Namespaces.Network = workload.HostNamespace
	other := proj("other", host)
	w.prepare(other)
	w.attach(other)

	w.must(os.WriteFile(w.m.hosts, bytes.Repeat([]byte("0.0.0.0 ads.example\n"), 1<<20/20+1), 0o600))
	w.prepare(p)
	if again := w.attach(p); again["web"] != a["web"] {
		t.Errorf("attached again: %+v, want %+v", again["web"], a["web"])
	}
	if _, err := w.m.Attach(w.ctx(), "other", containerOf(other, "host")); !errors.Is(err, fault.ErrTooLarge) || fault.Hint(err) == "" {
		t.Errorf("Attach in the device's network = %v, want too large with a hint", err)
	}
	w.run("nft", "flush", "ruleset")
	w.mendsAllBut(idOf(other, "host"), "table longshore is gone")
	w.reaches(w.lan, at(w.hostAddr, 8080), "web", w.lanAddr.String())

	w.must(os.WriteFile(w.m.hosts, []byte("127.0.0.1 localhost\n"), 0o600))
	w.attach(other)
	serves(w, p, a)
}

// A file that stays out of date is told once, not by each call, and again when that comes back after a repair.
func TestFilesOutOfDateAreToldOnce(t *testing.T) {
	w := newWorld(t)
	var told bytes.Buffer
	w.m.log = slog.New(slog.NewTextHandler(&told, nil))
	w.m.hosts = filepath.Join(t.TempDir(), "hosts")
	host := svc("host", nil)
	host.Namespaces.Network = workload.HostNamespace
	p := proj("line", host)
	w.must(os.WriteFile(w.m.hosts, []byte("127.0.0.1 localhost\n"), 0o600))
	w.prepare(p)
	w.attach(p)
	for want := 1; want <= 2; want++ {
		w.must(os.WriteFile(w.m.hosts, bytes.Repeat([]byte("0.0.0.0 ads.example\n"), 1<<20/20+1), 0o600))
		for range 3 {
			w.prepare(p)
		}
		if got := strings.Count(told.String(), "files of containers are not up to date"); got != want {
			t.Errorf("told %d times, want %d:\n%s", got, want, told.String())
		}
		w.must(os.WriteFile(w.m.hosts, []byte("127.0.0.1 localhost\n"), 0o600))
		w.must(w.m.Restore(w.ctx()))
	}
}

// One namespace that cannot be entered does not keep the rules and the other containers from being repaired.
func TestNamespaceThatCannotBeEntered(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	bad := idOf(p, "client")
	w.must(unmount(a["client"].NetNS))
	w.must(unix.Mount("/proc/self/ns/uts", a["client"].NetNS, "", unix.MS_BIND, "")) // not one of a network
	w.run("nft", "flush", "ruleset")
	w.run("ip", "link", "del", w.m.vethName(idOf(p, "web"), "front"))
	w.mendsAllBut(bad, "table longshore is gone", "link to network \"front\" is gone")
	w.reaches(w.lan, at(w.hostAddr, 8080), "web", w.lanAddr.String())

	w.must(w.m.Detach(w.ctx(), bad))
	a = w.attach(p)
	serves(w, p, a)
}

// mendsAllBut wants Mend to repair things, to say so, and to fail for one container.
func (w *world) mendsAllBut(container string, things ...string) {
	w.t.Helper()
	repaired, err := w.m.Repair(w.ctx())
	if err == nil || !strings.Contains(err.Error(), container) {
		w.t.Errorf("Mend = %v, want an error about %s", err, container)
	}
	for _, thing := range things {
		if !slices.ContainsFunc(repaired, func(s string) bool { return strings.Contains(s, thing) }) {
			w.t.Errorf("Mend repaired %q, want %q", repaired, thing)
		}
	}
	if slices.ContainsFunc(repaired, func(s string) bool { return strings.Contains(s, container) }) {
		w.t.Errorf("Mend repaired %q, also what it could not repair", repaired)
	}
}
