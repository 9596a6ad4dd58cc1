package network

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// savings is a store whose next save comes to the end that the test wants.
type savings struct {
	Store
	next func(save func() error) error // nil: saves
}

func (s *savings) SaveNetworks(state []byte) error {
	save := func() error { return s.Store.SaveNetworks(state) }
	if s.next == nil {
		return save()
	}
	return s.next(save)
}

// A renumbering that ends before or after its record is saved: nothing of the old numbers stays once it is done again, and
// until then the project works with the old ones or is repaired to the new ones.
func TestRenumberingThatWasCutShort(t *testing.T) {
	restart := func(w *world) {
		w.reopen()
		w.must(w.m.Restore(w.ctx()))
	}
	full := errors.New("no space left on the device")
	for _, tt := range []struct {
		name string
		save func(save func() error) error
		kept bool // the old numbers hold
		then func(w *world)
	}{
		{"not saved", func(func() error) error { return full }, true, func(*world) {}},
		{"killed before it was saved", func(func() error) error { panic("killed") }, true, restart},
		{"killed after it was saved", func(save func() error) error { panic(fmt.Sprint("killed, ", save())) }, false, restart},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			p, a := twoServices(w)
			old := w.m.state.Projects[p.Name].Networks["back"].Prefix
			q := renumbered(p, "back", "172.31.7.0/24")
			store := &savings{Store: w.o.Store, next: tt.save}
			w.m.o.Store = store
			func() {
				defer func() { _ = recover() }()
				if err := w.m.Prepare(w.ctx(), q); !errors.Is(err, full) {
					t.Errorf("Prepare = %v, want %v", err, full)
				}
			}()
			store.next = nil
			tt.then(w)
			if got := w.addr(idOf(p, "web"), "back"); old.Contains(got) != tt.kept {
				t.Errorf("address %s, the old network is %s", got, old)
			}
			serves(w, p, a)
			w.prepare(q)
			serves(w, q, a)
			for _, ns := range []string{w.host, a["web"].NetNS} {
				for _, what := range []string{"addr", "route"} {
					if left := w.listed(ns, what, old); len(left) > 0 {
						t.Errorf("ip %s in %s: %s of %s are left", what, filepath.Base(ns), left, old)
					}
				}
			}
		})
	}
}

// A renumbering that fails once links are removed gives containers that run their links again, by whichever state is saved,
// also when its caller has no more time.
func TestRenumberingThatFailed(t *testing.T) {
	for _, tt := range []struct {
		name string
		save func(w *world, save func() error, cancel func()) error
	}{
		{"not saved, and the caller gave up", func(_ *world, _ func() error, cancel func()) error {
			cancel()
			return errors.New("no space left on the device")
		}},
		{"rules could not be applied", func(w *world, save func() error, _ func()) error {
			closed, err := os.Open(w.host)
			w.must(err)
			w.must(closed.Close())
			w.m.tables[ipam.V4].NS = closed
			w.m.tables[ipam.V4].Close()
			return save()
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			p, a := twoServices(w)
			q := renumbered(p, "back", "172.31.7.0/24")
			ctx, cancel := context.WithCancel(w.ctx())
			defer cancel()
			store := &savings{Store: w.o.Store, next: func(save func() error) error { return tt.save(w, save, cancel) }}
			w.m.o.Store = store
			if err := w.m.Prepare(ctx, q); err == nil {
				t.Error("Prepare has no error")
			}
			there, err := w.m.present()
			w.must(err)
			for _, id := range w.m.attached(p.Name) {
				if what, err := w.m.containerDrift(p.Name, id, there); what != "" || err != nil {
					t.Errorf("container %q after the error: %s, %v", id, what, err)
				}
			}
			store.next, w.m.tables[ipam.V4].NS = nil, w.m.host.ns
			w.prepare(q)
			serves(w, q, a)
		})
	}
}

// A renumbering that can never be saved is refused before any link is touched: it would cut containers off with each try.
func TestRenumberingThatCannotBeSaved(t *testing.T) {
	w := newWorld(t)
	p, a := twoServices(w)
	link := func() int {
		l, err := w.m.host.links.LinkByName(w.m.vethName(idOf(p, "web"), "back"))
		w.must(err)
		return l.Attrs().Index
	}
	before := link()
	q := renumbered(p, "back", "172.31.7.0/24")
	q.Services = slices.Clone(q.Services)
	web := &q.Services[0]
	web.Networks = slices.Clone(web.Networks)
	for i := range ipam.MaxState / 60 {
		web.Networks[0].Aliases = append(web.Networks[0].Aliases, fmt.Sprintf("a%060d", i))
	}
	if err := w.m.Prepare(w.ctx(), q); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("Prepare = %v, want too large", err)
	}
	if after := link(); after != before {
		t.Errorf("the link of a running container was made anew: %d, before %d", after, before)
	}
	serves(w, p, a)
}

// listed are the addresses of a subnet that ip lists in a namespace.
func (w *world) listed(ns, what string, subnet netip.Prefix) (found []netip.Addr) {
	w.t.Helper()
	var out []byte
	w.must(w.in(ns, func() (err error) {
		out, err = exec.CommandContext(w.ctx(), "ip", "-4", what).Output()
		return err
	}))
	for _, f := range strings.Fields(string(out)) {
		f, _, _ = strings.Cut(f, "/")
		if a, err := netip.ParseAddr(f); err == nil && subnet.Contains(a) {
			found = append(found, a)
		}
	}
	return found
}

// renumbered is p with another subnet of a network.
func renumbered(p *workload.Project, network, subnet string) *workload.Project {
	q := *p
	q.Networks = append([]workload.Network(nil), p.Networks...)
	for i := range q.Networks {
		if q.Networks[i].Name == network {
			q.Networks[i].Subnets = []workload.Subnet{{Prefix: netip.MustParsePrefix(subnet)}}
		}
	}
	return &q
}
