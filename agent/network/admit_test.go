package network

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// clash is what a test expects, without its words.
type clash struct {
	sentinel                             error
	Deployment, Component, Service, Path string
}

func TestAdmit(t *testing.T) {
	w := newWorld(t)
	w.answer(w.host, "theirs", 7070)
	own := filepath.Base(os.Args[0])
	two := func(edit func(a, b *workload.Project)) []*workload.Project {
		a, b := proj("a", svc("web", []string{"default"}, "8080:80")), proj("b", svc("api", []string{"default"}, "8081:80"))
		a.Deployment, a.Component, b.Deployment, b.Component = "d1", "ca", "d2", "cb"
		edit(a, b)
		return []*workload.Project{a, b}
	}
	given := func(p *workload.Project, prefix string) {
		p.Networks[0].Subnets = append(p.Networks[0].Subnets, workload.Subnet{Prefix: netip.MustParsePrefix(prefix)})
	}
	onLAN := func(p *workload.Project, parent, address string) {
		p.Networks[0].Driver, p.Networks[0].Options = workload.Macvlan, map[string]string{"parent": parent}
		given(p, "198.51.100.0/24")
		p.Services[0].Networks[0].IPv4, p.Services[0].Ports = netip.MustParseAddr(address), nil
	}
	for _, tt := range []struct {
		name string
		edit func(a, b *workload.Project)
		want []clash // of their Err, only the text
		says []string
	}{
		{"all is well", func(*workload.Project, *workload.Project) {}, nil, nil},
		{
			"port of another application",
			func(_, b *workload.Project) { b.Services[0].Ports[0].HostPort = 8080 },
			[]clash{{sentinel: fault.ErrConflict, Deployment: "d2", Component: "cb", Service: "api", Path: "services.api.ports[0]"}},
			[]string{`port 8080/tcp is published by service "web" of deployment "d1", component "ca" too`},
		},
		{
			"port of a program",
			func(a, _ *workload.Project) { a.Services[0].Ports = append(a.Services[0].Ports, mustPort("7070:80")) },
			[]clash{{sentinel: fault.ErrConflict, Deployment: "d1", Component: "ca", Service: "web", Path: "services.web.ports[1]"}},
			[]string{fmt.Sprintf("program %s (process %d)", own[:min(15, len(own))], os.Getpid())},
		},
		{
			"subnet of the host, and of each other",
			func(a, b *workload.Project) {
				given(a, "198.51.100.0/26")
				given(b, "198.51.100.0/25")
			},
			[]clash{
				{sentinel: fault.ErrConflict, Deployment: "d1", Component: "ca", Path: "networks.default.ipam.config[0].subnet"},
				{sentinel: fault.ErrConflict, Deployment: "d2", Component: "cb", Path: "networks.default.ipam.config[0].subnet"},
				{sentinel: fault.ErrConflict, Deployment: "d2", Component: "cb", Path: "networks.default.ipam.config[0].subnet"},
			},
			[]string{"overlaps 198.51.100.0/24", "overlaps 198.51.100.0/24", `of network "default" of deployment "d1"`},
		},
		{
			"address on one link",
			func(a, b *workload.Project) {
				onLAN(a, "uplink", "198.51.100.9")
				onLAN(b, "uplink", "198.51.100.9")
			},
			[]clash{{sentinel: fault.ErrConflict, Deployment: "d2", Component: "cb", Service: "api", Path: "services.api.networks.default.ipv4_address"}},
			[]string{`address 198.51.100.9 is also that of service "web" of deployment "d1"`},
		},
		{
			"parent, external network",
			func(a, b *workload.Project) {
				onLAN(a, "eth7", "198.51.100.9")
				b.Networks[0].External = "plant"
			},
			[]clash{
				{sentinel: fault.ErrNotFound, Deployment: "d1", Component: "ca", Path: "networks.default.driver_opts.parent"},
				{sentinel: fault.ErrNotFound, Deployment: "d2", Component: "cb", Path: "networks.default.name"},
			},
			[]string{"eth7", "plant"},
		},
	} {
		t.Run(tt.name, func(t *testing.T) { admits(t, w, two(tt.edit), tt.want, tt.says) })
	}

	// What these projects have now, they may have again, also the other way round.
	now := two(func(*workload.Project, *workload.Project) {})
	for _, p := range now {
		w.prepare(p)
		w.attach(p)
	}
	w.answer(w.host, "late", 8080) // ours goes first, as it did before
	admits(t, w, now, nil, nil)
	admits(t, w, two(func(a, b *workload.Project) {
		a.Services[0].Ports, b.Services[0].Ports = b.Services[0].Ports, a.Services[0].Ports
	}), nil, nil)
	w.verified()

	w.run("nft", "add table ip filter; add chain ip filter FORWARD { type filter hook forward priority 0; policy drop; }")
	admits(t, w, now, []clash{
		{sentinel: fault.ErrConflict, Deployment: "d1", Component: "ca", Path: "networks"},
		{sentinel: fault.ErrConflict, Deployment: "d2", Component: "cb", Path: "networks"},
	}, []string{"chain FORWARD of table filter", "chain FORWARD of table filter"})
}

// admits wants exactly these clashes, and nothing changed.
func admits(t *testing.T, w *world, projects []*workload.Project, want []clash, says []string) {
	t.Helper()
	before, err := ipam.Encode(w.m.state)
	w.must(err)
	err = w.m.Admit(w.ctx(), projects)
	var got workload.Conflicts
	if err != nil && !errors.As(err, &got) {
		t.Fatalf("Admit = %v", err)
	}
	if len(got) != len(want) {
		t.Fatalf("Admit = %v, want %d clashes", err, len(want))
	}
	for i, c := range got {
		if bare := (clash{want[i].sentinel, c.Deployment, c.Component, c.Service, c.Path}); bare != want[i] {
			t.Errorf("clash %d is %+v, want %+v", i, bare, want[i])
		}
		if !strings.Contains(c.Error(), says[i]) {
			t.Errorf("clash %d says %q, want %q", i, c, says[i])
		}
		if !errors.Is(c, want[i].sentinel) {
			t.Errorf("clash %d is %v, want %v", i, c, want[i].sentinel)
		}
		if !errors.Is(c, fault.ErrInvalid) && fault.Hint(c) == "" {
			t.Errorf("clash %d has no hint: %v", i, c)
		}
	}
	if after, err := ipam.Encode(w.m.state); err != nil || string(after) != string(before) {
		t.Errorf("Admit changed the state: %v", err)
	}
}
