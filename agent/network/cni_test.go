package network

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// site declares a network of the host, as its administrator would, made of the plugins that everybody uses.
func site(w *world, name string) {
	w.t.Helper()
	dir := w.t.TempDir()
	w.must(w.m.Close())
	w.o.CNI = CNI{ConfDir: filepath.Join(dir, "net.d"), BinDir: filepath.Join(dir, "bin")}
	w.must(errors.Join(os.MkdirAll(w.o.CNI.ConfDir, 0o755), os.MkdirAll(w.o.CNI.BinDir, 0o755)))
	for _, p := range []string{"bridge", "host-local"} {
		w.must(os.Symlink(testenv.Program(w.t, "cni-"+p), filepath.Join(w.o.CNI.BinDir, p)))
	}
	conf, err := json.Marshal(map[string]any{
		"cniVersion": "1.0.0", "name": name,
		"plugins": []any{map[string]any{
			"type": "bridge", "bridge": "site0", "isGateway": true,
			"ipam": map[string]any{"type": "host-local", "dataDir": filepath.Join(dir, "ipam"), "ranges": [][]any{{map[string]any{"subnet": "172.28.0.0/24"}}}},
		}},
	})
	w.must(err)
	w.must(os.WriteFile(filepath.Join(w.o.CNI.ConfDir, "00-broken.conflist"), []byte("{"), 0o600))
	w.must(os.WriteFile(filepath.Join(w.o.CNI.ConfDir, "10-"+name+".conflist"), conf, 0o600))
	w.open()
}

// addressesOf are what the site's network has given away.
func addressesOf(w *world, name string) []string {
	list, err := filepath.Glob(filepath.Join(filepath.Dir(w.o.CNI.ConfDir), "ipam", name, "172.*"))
	w.must(err)
	return list
}

func TestNetworksOfTheSite(t *testing.T) {
	w := newWorld(t)
	site(w, "plant")
	p := proj("line", svc("plc", []string{"field", "default"}, "8080:80", "8080:80/udp"), svc("hmi", []string{"field"}))
	for i := range p.Networks {
		if p.Networks[i].Name == "field" {
			p.Networks[i].External = "plant"
		}
	}
	p.Services[1].Networks[0].IPv4 = netip.MustParseAddr("172.28.0.77")
	w.prepare(p)
	a := w.attach(p)
	w.answer(a["plc"].NetNS, "plc", 80)
	plc, hmi := w.addr(idOf(p, "plc"), "field"), w.addr(idOf(p, "hmi"), "field")
	if hmi != netip.MustParseAddr("172.28.0.77") || !netip.MustParsePrefix("172.28.0.0/24").Contains(plc) {
		t.Errorf("addresses %s and %s", plc, hmi)
	}
	w.reaches(a["hmi"].NetNS, at(plc, 80), "plc", hmi.String())
	w.reaches(w.lan, at(w.hostAddr, 8080), "plc", w.lanAddr.String())
	hosts, err := os.ReadFile(a["hmi"].HostsFile)
	w.must(err)
	if !strings.Contains(string(hosts), plc.String()+"\tplc\n") {
		t.Errorf("hosts:\n%s", hosts)
	}
	w.verified()
	w.must(w.m.Restore(w.ctx()))
	if n := addressesOf(w, "plant"); len(n) != 2 {
		t.Errorf("given away: %q", n)
	}

	// A reboot: namespaces are gone, what the plugins remember is not.
	w.must(w.m.Close())
	w.unmount()
	w.must(os.RemoveAll(w.o.RunDir))
	w.open()
	w.must(w.m.Restore(w.ctx()))
	if n := addressesOf(w, "plant"); len(n) != 2 {
		t.Errorf("given away after a reboot: %q", n)
	}
	w.answer(a["plc"].NetNS, "plc", 80)
	w.reaches(a["hmi"].NetNS, at(w.addr(idOf(p, "plc"), "field"), 80), "plc", "172.28.0.77")
	w.verified()
	w.inside(a["hmi"].NetNS, "ip", "link", "del", "eth0")
	w.drifts("is gone")
	w.must(w.m.Restore(w.ctx()))
	w.reaches(a["hmi"].NetNS, at(w.addr(idOf(p, "plc"), "field"), 80), "plc", "172.28.0.77")

	// A container that only the plugins remember, since the record was lost.
	next := w.m.state.Clone()
	next.Detach(idOf(p, "hmi"))
	w.must(w.m.commit(next))
	w.must(w.m.Restore(w.ctx()))
	if n := addressesOf(w, "plant"); len(n) != 1 {
		t.Errorf("given away after an orphan was swept: %q", n)
	}
	w.must(os.RemoveAll(w.o.CNI.ConfDir)) // joined is joined: what is needed to leave was kept
	w.must(w.m.Teardown(w.ctx(), "line"))
	if n := addressesOf(w, "plant"); len(n) != 0 {
		t.Errorf("given away in the end: %q", n)
	}
	cached, err := filepath.Glob(filepath.Join(w.o.DataDir, cniCache, "results", "*"))
	if err != nil || len(cached) != 0 {
		t.Errorf("still remembered: %v %q", err, cached)
	}
	w.clean()
	if err := w.m.Prepare(w.ctx(), p); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Prepare = %v, want not found", err)
	}
}

func TestPluginsThatFail(t *testing.T) {
	w := newWorld(t)
	site(w, "plant")
	p := proj("line", svc("plc", []string{"field"}))
	p.Networks[0].External = "plant"
	w.prepare(p)
	w.must(os.Remove(filepath.Join(w.o.CNI.BinDir, "host-local")))
	_, err := w.m.Attach(w.ctx(), "line", containerOf(p, "plc"))
	if !errors.Is(err, fault.ErrTemporary) || !strings.Contains(fmt.Sprint(err), "plant") {
		t.Errorf("Attach = %v, want a temporary error that names the network", err)
	}
}

func FuzzConflist(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"1.0.0","name":"x","plugins":[{"type":"bridge"}]}`))
	f.Add([]byte(`{"cniVersion":"0.4.0","name":"x","type":"bridge"}`))
	f.Add([]byte("{"))
	f.Fuzz(func(t *testing.T, data []byte) {
		dir := t.TempDir()
		if err := os.WriteFile(filepath.Join(dir, "x.conflist"), data, 0o600); err != nil {
			t.Fatal(err)
		}
		if list, err := (CNI{ConfDir: dir}).find("x"); err != nil || list != nil && list.Name != "x" {
			t.Errorf("found %v, %v", list, err)
		}
	})
}
