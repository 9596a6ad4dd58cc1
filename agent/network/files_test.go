package network

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
)

// What a container writes to its files stays, beside what the manager has to say later; other containers do not see it.
func TestContainersWriteTheirFiles(t *testing.T) {
	w := newWorld(t)
	resolvers := filepath.Join(t.TempDir(), "resolv.conf")
	w.must(os.WriteFile(resolvers, []byte("nameserver 192.0.2.1\n"), 0o600))
	w.m.names = []string{resolvers}
	p, a := twoServices(w)
	web, client := a["web"], a["client"]
	text := func(path string) string {
		t.Helper()
		data, err := os.ReadFile(path)
		w.must(err)
		return string(data)
	}
	if got := text(web.HostnameFile); got != "web\n" {
		t.Errorf("hostname %q", got)
	}
	untouched := text(client.HostsFile)
	w.must(os.WriteFile(web.HostsFile, []byte(text(web.HostsFile)+"192.0.2.7 vpn.example\n"), 0))
	w.must(os.WriteFile(web.ResolvConf, []byte("nameserver 10.9.9.9\n"), 0))
	w.verified() // what a container writes is no damage
	w.must(w.m.Restore(w.ctx()))
	w.reopen()
	w.must(w.m.Restore(w.ctx()))
	kept := func(when string) {
		t.Helper()
		if got := text(web.HostsFile); !strings.HasSuffix(got, "192.0.2.7 vpn.example\n") || strings.Count(got, "vpn.example") != 1 {
			t.Errorf("%s: hosts\n%s", when, got)
		}
		if got := text(web.ResolvConf); got != "nameserver 10.9.9.9\n" {
			t.Errorf("%s: resolv.conf %q", when, got)
		}
	}
	kept("after a restart")
	// A service comes: both learn its name.
	more := *p
	more.Services = append(append(more.Services[:0:0], p.Services...), svc("late", []string{"back"}))
	w.prepare(&more)
	for _, at := range []workload.Attached{web, client} {
		if !strings.Contains(text(at.HostsFile), "\tlate\n") {
			t.Errorf("no late in\n%s", text(at.HostsFile))
		}
	}
	kept("after an update")
	w.verified()
	if got := text(client.HostsFile); strings.Contains(got, "vpn.example") || !strings.HasPrefix(got, untouched[:20]) {
		t.Errorf("another container's hosts\n%s", got)
	}
	// Its next start begins anew: name servers of a tunnel that is down would keep it from coming up.
	w.attach(&more)
	if got := text(web.HostsFile) + text(web.ResolvConf); strings.Contains(got, "vpn.example") || strings.Contains(got, "10.9.9.9") {
		t.Errorf("after a start:\n%s", got)
	}
	w.verified()
	w.must(w.m.Teardown(w.ctx(), p.Name))
	w.clean()
}

// A container that fills its files takes nothing from the device, and hears what changes all the same.
func TestContainersFilesAreBounded(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	web := a["web"]
	var st unix.Statfs_t
	w.must(unix.Statfs(web.HostsFile, &st))
	if st.Flags&unix.ST_NOSUID == 0 || st.Flags&unix.ST_NODEV == 0 || st.Flags&unix.ST_NOEXEC == 0 {
		t.Errorf("flags %x: what a container writes could run on the device", st.Flags)
	}
	f, err := os.OpenFile(web.ResolvConf, os.O_WRONLY, 0)
	w.must(err)
	defer f.Close()
	block, wrote := bytes.Repeat([]byte("# full\n"), 1<<14), 0
	for err = nil; err == nil && wrote < 1<<30; {
		var n int
		n, err = f.Write(block)
		wrote += n
	}
	if !errors.Is(err, unix.ENOSPC) || wrote > maxOwnFiles {
		t.Fatalf("wrote %d bytes, %v", wrote, err)
	}
	more := *p
	more.Services = append(append(more.Services[:0:0], p.Services...), svc("late", []string{"back"}))
	for range 200 { // more than fits in the last block
		more.Services[2].Networks[0].Aliases = append(more.Services[2].Networks[0].Aliases, "alias-that-is-long-"+string(rune('a'+len(more.Services[2].Networks[0].Aliases)%26)))
	}
	for i := range more.Services[2].Networks[0].Aliases {
		more.Services[2].Networks[0].Aliases[i] += strings.Repeat("x", i)
	}
	w.prepare(&more)
	data, err := os.ReadFile(web.HostsFile)
	w.must(err)
	if !bytes.Contains(data, []byte("\tlate ")) {
		t.Errorf("hosts does not name the new service:\n%s", data)
	}
	w.verified()
}
