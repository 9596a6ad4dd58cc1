package network

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/network/nft"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// paper is a device without a kernel.
type paper struct {
	next    *ipam.State
	project string
}

func (c paper) Subnet(network string, f ipam.Family, need int) (netip.Prefix, error) {
	var taken []netip.Prefix
	for _, q := range c.next.Projects {
		for _, b := range q.Networks {
			if b.Family(f).Valid() {
				taken = append(taken, b.Family(f).Prefix)
			}
		}
	}
	key := c.project + "/" + network
	subnet, ok := ipam.ChooseSubnet(netip.MustParsePrefix(DefaultPool), key, need, taken)
	if f == ipam.V6 {
		subnet, ok = ipam.ChooseLocal(netip.MustParsePrefix("fd12:3456:789a::/48"), key, func(p netip.Prefix) bool { return slices.ContainsFunc(taken, p.Overlaps) })
	}
	if !ok {
		return subnet, ipam.ErrNoSubnet
	}
	return subnet, nil
}

func (c paper) Free(netip.Prefix) error { return nil }

func (c paper) Name(network string) (string, error) {
	return hashName("ls0000", "b", c.project+"/"+network, 0), nil
}

func (c paper) MTU() (int, error) { return 0, nil }

func (c paper) External(name string) (*ipam.Network, error) { return nil, fault.ErrNotFound }

// plan is a prepare without a kernel.
func plan(t testing.TB, s *ipam.State, p *workload.Project) error {
	t.Helper()
	next := s.Clone()
	err := next.Prepare(p, paper{next, p.Name})
	if err == nil {
		*s = *next
	}
	return err
}

func TestPrepareRefuses(t *testing.T) {
	web := func(ports ...string) workload.Service { return svc("web", []string{"default"}, ports...) }
	for _, tt := range []struct {
		name string
		p    *workload.Project
		want error
		says string
	}{
		{"port of another project", proj("x", web("8080:1")), fault.ErrConflict, `service "web": port 8080/tcp is held by service "front" of project "held"`},
		{"port on one address of another's port on all", proj("x", web("127.0.0.1:8080:1")), fault.ErrConflict, "127.0.0.1:8080/tcp is held"},
		{"port on all of another's port on one address", proj("x", web("9090:1")), fault.ErrConflict, `"front"`},
		{"port that only a running container has", proj("x", web("7070:1")), fault.ErrConflict, `"front"`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := (&ipam.State{}).Clone()
			old := proj("held", svc("front", []string{"default"}, "8080:80", "127.0.0.1:9090:90", "7070:70"))
			if err := plan(t, s, old); err != nil {
				t.Fatal(err)
			}
			if _, err := s.Attach("held", containerOf(old, "front")); err != nil {
				t.Fatal(err)
			}
			if err := plan(t, s, proj("held", svc("front", []string{"default"}, "8080:80", "127.0.0.1:9090:90"))); err != nil {
				t.Fatal(err)
			}
			before := s.Clone()
			err := plan(t, s, tt.p)
			if !errors.Is(err, tt.want) || !strings.Contains(err.Error(), tt.says) {
				t.Errorf("prepare = %v, want %v saying %q", err, tt.want, tt.says)
			}
			if d := cmp.Diff(before, s, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmp.AllowUnexported(ipam.Network{}, ipam.Endpoint{})); d != "" {
				t.Errorf("a refusal changed the state:\n%s", d)
			}
		})
	}
}

func TestAttachRefuses(t *testing.T) {
	s := (&ipam.State{}).Clone()
	p := proj("line", svc("web", []string{"default"}))
	if err := plan(t, s, p); err != nil {
		t.Fatal(err)
	}
	if err := plan(t, s, proj("other", svc("web", []string{"default"}))); err != nil {
		t.Fatal(err)
	}
	c := containerOf(p, "web")
	if _, err := s.Attach("line", c); err != nil {
		t.Fatal(err)
	}
	stranger, nowhere, badID := c, c, c
	stranger.ID, stranger.Service.Name = "s", "stranger"
	nowhere.ID, nowhere.Service.Networks = "n", []workload.Attachment{{Network: "none"}}
	badID.ID = "../x"
	for _, tt := range []struct {
		name, project string
		c             workload.Container
		want          error
	}{
		{"project that is not prepared", "none", c, fault.ErrNotFound},
		{"service that is not prepared", "line", stranger, fault.ErrNotFound},
		{"network that is not prepared", "line", nowhere, fault.ErrNotFound},
		{"container of another project", "other", c, fault.ErrConflict},
		{"id that is a path", "line", badID, fault.ErrInvalid},
	} {
		t.Run(tt.name, func(t *testing.T) {
			if _, err := s.Clone().Attach(tt.project, tt.c); !errors.Is(err, tt.want) {
				t.Errorf("attach = %v, want %v", err, tt.want)
			}
		})
	}
}

func TestUpdateKeepsWhatIsUsed(t *testing.T) {
	s := (&ipam.State{}).Clone()
	old := proj("line", svc("web", []string{"front", "old"}, "80:80"), svc("db", []string{"old"}))
	if err := plan(t, s, old); err != nil {
		t.Fatal(err)
	}
	for _, c := range old.Containers() {
		if _, err := s.Attach("line", c); err != nil {
			t.Fatal(err)
		}
	}
	before := s.Clone().Projects["line"]
	fresh := proj("line", svc("web", []string{"front", "new"}, "81:80"), svc("cache", []string{"new"}, "80:80"))
	if err := plan(t, s, fresh); err != nil {
		t.Fatal(err)
	}
	now := s.Projects["line"]
	if now.Networks["old"] == nil || now.Services["db"] == nil || now.Networks["old"].Wanted || now.Services["db"].Wanted {
		t.Error("what containers use must stay, unwanted")
	}
	if now.Services["web"].Endpoints["front"].VIP != before.Services["web"].Endpoints["front"].VIP {
		t.Error("a service that stays must keep its address")
	}
	// Port 80 goes to cache as soon as cache is there, although the old web still has it.
	target := func() string {
		for k, v := range nft.ElementsOf(s)[ipam.V4][nft.MapPublish] {
			if k[5] == 80 {
				a, _ := netip.AddrFromSlice([]byte(v[:4]))
				for id, at := range now.Attachments {
					if len(at.Networks) > 0 && now.Address(at, at.Networks[0], ipam.V4) == a {
						return id
					}
				}
			}
		}
		return ""
	}
	if got := target(); got != idOf(old, "web") {
		t.Errorf("port 80 goes to %q, want the old web", got)
	}
	if _, err := s.Attach("line", containerOf(fresh, "cache")); err != nil {
		t.Fatal(err)
	}
	if got := target(); got != idOf(fresh, "cache") {
		t.Errorf("port 80 goes to %q, want cache", got)
	}
	s.Detach(idOf(old, "web"))
	s.Detach(idOf(old, "db"))
	if now.Networks["old"] != nil || now.Services["db"] != nil || now.Services["web"].Endpoints["old"] != nil {
		t.Error("what nobody uses must go")
	}
	consistent(t, s)
}

func TestSubnetsAreSteadyAndDistinct(t *testing.T) {
	for _, tt := range []struct {
		pool  string
		need  int
		bits  int // of the first ones
		whole int // so many of them
		room  int
		least int // bits of the last one
	}{
		{"10.210.0.0/16", 3, 24, 128, 128 + 2048, 28},
		{"10.210.0.0/16", 9, 24, 128, 128 + 1024, 27},
		{"10.210.0.0/16", 200, 24, 256, 256, 24},
		{"10.0.0.0/8", 3, 24, 1000, -1, 24},
		{"192.168.16.0/20", 3, 24, 8, 8 + 128, 28},
		{"192.168.16.0/20", 60, 24, 8, 8 + 16, 25},
		{"192.168.16.0/20", 500, 24, 16, 16, 24},
	} {
		t.Run(fmt.Sprintf("%s for %d", tt.pool, tt.need), func(t *testing.T) {
			pool := netip.MustParsePrefix(tt.pool)
			var taken []netip.Prefix
			for i := range max(tt.room, tt.whole) {
				key := fmt.Sprintf("p%d/default", i)
				p, ok := ipam.ChooseSubnet(pool, key, tt.need, taken)
				again, _ := ipam.ChooseSubnet(pool, key, tt.need, taken)
				if !ok || p != again || !pool.Overlaps(p) || p != p.Masked() || slices.ContainsFunc(taken, p.Overlaps) {
					t.Fatalf("network %d: %s, %s, %v", i, p, again, ok)
				}
				if i < tt.whole && p.Bits() != tt.bits || i >= tt.whole && p.Bits() != tt.least {
					t.Fatalf("network %d: %s", i, p)
				}
				taken = append(taken, p)
			}
			if p, ok := ipam.ChooseSubnet(pool, "more", tt.need, taken); ok != (tt.room < 0) {
				t.Errorf("more networks: %s, %v", p, ok)
			}
		})
	}
}

func TestNetworkRunsOutOfAddresses(t *testing.T) {
	s := (&ipam.State{}).Clone()
	var many []workload.Service
	for i := range 126 {
		many = append(many, svc(fmt.Sprintf("s%d", i), []string{"default"}))
	}
	if err := plan(t, s, proj("x", many...)); err != nil {
		t.Fatalf("126 services: %v", err)
	}
	err := plan(t, s, proj("x", append(many, svc("more", []string{"default"}))...))
	if !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "no address left") {
		t.Errorf("127 services: %v, want ErrConflict", err)
	}
	consistent(t, s)
}

// saved writes a state and reads it again.
func saved(t *testing.T, s *ipam.State) ([]byte, *ipam.State) {
	t.Helper()
	b, err := ipam.Encode(s)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ipam.Decode(b)
	if err != nil {
		t.Fatalf("what was saved cannot be read: %v", err)
	}
	return b, got
}

func TestStateRoundTrip(t *testing.T) {
	s := sampleState(t)
	b, got := saved(t, s)
	if d := cmp.Diff(s, got, cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}), cmp.AllowUnexported(ipam.Network{}, ipam.Endpoint{}), cmpopts.EquateEmpty()); d != "" {
		t.Error(d)
	}
	golden(t, "network.json", b)
}

// A link to a network of the site without addresses stays joined in the saved state: else the container would join it again at each start.
func TestJoinedWithoutAddressIsSaved(t *testing.T) {
	s := sampleState(t)
	a := s.Projects["line"].Attachments[proj("line", svc("db", []string{"back"})).Containers()[0].ID]
	a.Links = map[string]ipam.LinkOptions{"back": {Assigned: []netip.Prefix{}}, "other": {}}
	_, got := saved(t, s)
	links := got.Projects["line"].Attachments[proj("line", svc("db", []string{"back"})).Containers()[0].ID].Links
	if links["back"].Assigned == nil || links["other"].Assigned != nil {
		t.Errorf("links = %+v, want only the one to \"back\" joined", links)
	}
}

func sampleState(t testing.TB) *ipam.State {
	t.Helper()
	s := (&ipam.State{}).Clone()
	web := svc("web", []string{"front", "back"}, "8080:80", "127.0.0.1:53:53/udp")
	web.Networks[1].Aliases = []string{"www", "alt"}
	p := proj("line", web, svc("db", []string{"back"}))
	if err := plan(t, s, p); err != nil {
		t.Fatal(err)
	}
	for _, c := range append(p.Containers(), containerOf(revised(p, "web", "2"), "web")) {
		if _, err := s.Attach("line", c); err != nil {
			t.Fatal(err)
		}
	}
	return s
}

// golden compares with testdata; UPDATE_GOLDEN=1 rewrites it.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name+".golden")
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := errors.Join(os.MkdirAll("testdata", 0o755), os.WriteFile(path, got, 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s differs:\n%s", path, d)
	}
}

func TestResolvConf(t *testing.T) {
	for _, tt := range []struct {
		name, in, want string
		usable         bool
	}{
		{"plain", "# x\nnameserver 192.0.2.1\nsearch a.example b.example\n", "nameserver 192.0.2.1\nsearch a.example b.example\n", true},
		{"stub", "nameserver 127.0.0.53\noptions edns0 trust-ad\n", "options edns0 trust-ad\n", false},
		{"mixed", "nameserver ::1\nnameserver fe80::1%eth0\nnameserver 127.0.0.1\nnameserver ::ffff:192.0.2.2\n", "nameserver 192.0.2.2\n", true},
		{"nonsense", "nameserver\nnameserver x\nfoo bar\nsearch a\x01b\nnameserver 0.0.0.0\n\xff\xfe\n", "", false},
		{"too many", strings.Repeat("nameserver 192.0.2.1\n", 40), strings.Repeat("nameserver 192.0.2.1\n", maxNameservers), true},
		{"empty", "", "", false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, usable := filterResolv([]byte(tt.in), false)
			if string(got) != tt.want || usable != tt.usable {
				t.Errorf("filterResolv(%q) = %q, %v, want %q, %v", tt.in, got, usable, tt.want, tt.usable)
			}
		})
	}
	dir := t.TempDir()
	stub, real := filepath.Join(dir, "stub"), filepath.Join(dir, "real")
	for path, text := range map[string]string{stub: "nameserver 127.0.0.53\nsearch a\n", real: "nameserver 192.0.2.1\n"} {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for want, paths := range map[string][]string{
		"nameserver 192.0.2.1\n": {stub, real},
		"# the host has no name server that a container can reach\nsearch a\n": {stub, filepath.Join(dir, "none")},
		"# the host has no name server that a container can reach\n":           {filepath.Join(dir, "none")},
	} {
		if got, err := resolv(false, paths...); err != nil || string(got) != want {
			t.Errorf("resolv(%q) = %q, %v, want %q", paths, got, err, want)
		}
	}
	if err := os.WriteFile(stub, bytes.Repeat([]byte("#"), maxResolv+1), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := resolv(false, stub); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("resolv of a huge file: %v, want ErrTooLarge", err)
	}
}

func TestHostsFile(t *testing.T) {
	s := sampleState(t)
	p := s.Projects["line"]
	var all bytes.Buffer
	for _, sv := range []string{"db", "web"} {
		for _, id := range p.Replicas(sv) {
			fmt.Fprintf(&all, "== %s slot %d\n%s", sv, p.Attachments[id].Slot, s.Hosts("line", p.Attachments[id]))
		}
	}
	golden(t, "hosts", all.Bytes())
}

func TestPlacedFileKeepsItsInode(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, ownFiles, "hosts")
	if err := os.Mkdir(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	var first os.FileInfo
	for _, text := range []string{"one two three", "one two three", "one", "one two three four"} {
		if err := writeFile(dir, "hosts", []byte(text), false); err != nil {
			t.Fatal(err)
		}
		got, err := os.ReadFile(path)
		if err != nil || string(got) != text {
			t.Fatalf("after writing %q: %q, %v", text, got, err)
		}
		st, err := os.Stat(path)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = st
		} else if !os.SameFile(first, st) {
			t.Error("another file: a container that mounted the first would not see this one")
		}
	}
}

func FuzzState(f *testing.F) {
	whole, err := ipam.Encode(sampleState(f))
	if err != nil {
		f.Fatal(err)
	}
	for _, seed := range [][]byte{
		whole, whole[:len(whole)/2], nil, []byte("null"), []byte("{}"), []byte(`{"version":1,"sum":"x","state":null}`),
		[]byte(`{"version":2}`), []byte(`{"version":3}`), []byte(`[]`),
		{0xff},
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ipam.Decode(data)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) && !errors.Is(err, fault.ErrDigestMismatch) {
				t.Errorf("Decode: %v wraps no sentinel", err)
			}
			return
		}
		sound(t, s)
	})
}

// sound does with a state whatever the manager does with one that it read.
func sound(t *testing.T, s *ipam.State) {
	t.Helper()
	nft.ElementsOf(s)
	for name, p := range s.Projects {
		for id, a := range p.Attachments {
			if bytes.Contains(s.Hosts(name, a), []byte("invalid")) && !strings.Contains(id, "invalid") && !strings.Contains(a.Hostname, "invalid") {
				t.Error("hosts file with an invalid address")
			}
		}
	}
	b, again := saved(t, s)
	if c, err := ipam.Encode(again); err != nil || !bytes.Equal(b, c) {
		t.Errorf("not steady: %v", err)
	}
	for _, p := range s.Clone().Projects {
		for id := range p.Attachments {
			s.Detach(id)
		}
	}
	consistent(t, s)
}

// consistent wants addresses that are distinct and of their network, and every container attached with all that it needs.
func consistent(t *testing.T, s *ipam.State) {
	t.Helper()
	for name, p := range s.Projects {
		taken := map[string]bool{}
		for n, sv := range p.Services {
			for network, e := range sv.Endpoints {
				b := p.Networks[network]
				if b == nil {
					t.Fatalf("service %s/%s: no network %s", name, n, network)
				}
				for f := range ipam.Families {
					all := slices.Concat([]netip.Addr{e.Family(f).VIP}, slices.Collect(maps.Values(e.Family(f).Addresses)), slices.Collect(maps.Values(e.Family(f).Each)))
					for _, a := range slices.DeleteFunc(all, func(a netip.Addr) bool { return !a.IsValid() }) {
						if key := network + " " + a.String(); taken[key] || !b.Family(f).Prefix.Contains(a) || a == b.Family(f).GatewayAddr() {
							t.Errorf("service %s/%s: address %s on network %s", name, n, a, network)
						} else {
							taken[key] = true
						}
					}
				}
			}
			for r, id := range sv.Active {
				if a := p.Attachments[id]; a == nil || a.Service != n || a.Replica != r {
					t.Errorf("service %s/%s: %s is active and not attached", name, n, id)
				}
			}
			if a := p.Attachments[sv.Fallback]; sv.Fallback != "" && (a == nil || a.Service != n) {
				t.Errorf("service %s/%s: %s is the backend and not attached", name, n, sv.Fallback)
			}
		}
		for id, a := range p.Attachments {
			for _, n := range a.Networks {
				if p.Networks[n] == nil || !p.Address(a, n, ipam.V4).IsValid() && !p.Address(a, n, ipam.V6).IsValid() {
					t.Errorf("container %s/%s: no address on network %s", name, id, n)
				}
			}
			if p.Services[a.Service] == nil {
				t.Errorf("container %s/%s: no service %s", name, id, a.Service)
			}
		}
	}
}

func FuzzResolv(f *testing.F) {
	for _, seed := range []string{"nameserver 192.0.2.1\n", "nameserver 127.0.0.53\nsearch a b\n", "options x\r\n", "\x00", "nameserver 1.1.1.1 # x\nsortlist 1/2\n"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		out, usable := filterResolv(data, true)
		if len(out) > 2*len(data)+64 {
			t.Errorf("%d bytes from %d", len(out), len(data))
		}
		again, stillUsable := filterResolv(out, true)
		if !bytes.Equal(out, again) || usable != stillUsable {
			t.Errorf("not steady: %q, then %q", out, again)
		}
	})
}

func FuzzHosts(f *testing.F) {
	f.Add("web", "www", "host.example")
	f.Add("a b", "\n10.0.0.1 x", "-")
	f.Add("", "", "")
	f.Fuzz(func(t *testing.T, service, alias, hostname string) {
		s := (&ipam.State{}).Clone()
		sv := svc(service, []string{"default"})
		sv.Networks[0].Aliases, sv.Hostname = []string{alias}, hostname
		if !ipam.ValidName(service) || !ipam.ValidName(alias) || hostname != "" && !ipam.ValidName(hostname) {
			return // agent/compose has refused it
		}
		p := proj("line", sv, svc("peer", []string{"default"}))
		if plan(t, s, p) != nil {
			return
		}
		for _, c := range p.Containers() {
			if _, err := s.Attach("line", c); err != nil {
				t.Fatal(err)
			}
		}
		own := s.Projects["line"]
		for id, a := range own.Attachments {
			for line := range strings.Lines(string(s.Hosts("line", a))) {
				fields := strings.Fields(line)
				if len(fields) < 2 {
					t.Fatalf("%s: line %q", id, line)
				}
				if _, err := netip.ParseAddr(fields[0]); err != nil {
					t.Errorf("%s: line %q: %v", id, line, err)
				}
				for _, n := range fields[1:] {
					if !ipam.ValidName(n) {
						t.Errorf("%s: name %q", id, n)
					}
				}
			}
		}
	})
}
