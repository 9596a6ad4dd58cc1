package network

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// many are projects with one service and one network each.
func many(n int) []*workload.Project {
	out := make([]*workload.Project, n)
	for i := range out {
		out[i] = proj(fmt.Sprintf("app%d", i), svc("web", []string{"default"}))
		out[i].Deployment, out[i].Component = fmt.Sprintf("d%d", i), "c"
	}
	return out
}

func TestPoolHoldsAThousandDeployments(t *testing.T) {
	w := newWorld(t)
	admits(t, w, many(1000), nil, nil)
}

// TestPoolThatIsUsedUp: what does not fit is refused before anything is made, and the message says what to do.
func TestPoolThatIsUsedUp(t *testing.T) {
	w := newWorld(t)
	w.must(w.m.Close())
	w.o.Pool = netip.MustParsePrefix("10.210.0.0/20") // 8 whole ones, and 128 smaller ones
	w.open()
	admits(t, w, many(137), []clash{{sentinel: fault.ErrConflict, Deployment: "d136", Component: "c", Path: "networks"}},
		[]string{"no subnet left in the pool 10.210.0.0/20"})
	if hint := fault.Hint(w.m.Admit(w.ctx(), many(137))); !strings.Contains(hint, "remove a deployment") {
		t.Errorf("hint %q does not say what to do", hint)
	}
}

// TestNetworkOutgrowsItsSubnet: a small network of a device whose pool runs low gets a larger one when its project needs it.
func TestNetworkOutgrowsItsSubnet(t *testing.T) {
	w := newWorld(t)
	w.must(w.m.Close())
	w.o.Pool = netip.MustParsePrefix("10.210.0.0/20")
	w.open()
	for _, p := range many(8) {
		w.prepare(p)
	}
	p := proj("line", svc("web", []string{"default"}), svc("client", []string{"default"}))
	w.prepare(p)
	if got := w.m.state.Projects["line"].Networks["default"].Prefix; got.Bits() != 28 {
		t.Errorf("two services on a device that is half full got %s, want a /28", got)
	}
	at1 := w.attach(p)
	w.answer(at1["web"].NetNS, "web", 80)
	w.reaches(at1["client"].NetNS, at(w.vip(p, "web", "default"), 80), "web", "")
	w.prepare(p)
	before := w.m.state.Projects["line"].Networks["default"].Prefix
	for i := range 10 {
		p.Services = append(p.Services, svc(fmt.Sprintf("more%d", i), []string{"default"}))
	}
	w.prepare(p)
	after := w.m.state.Projects["line"].Networks["default"].Prefix
	if after.Bits() >= before.Bits() {
		t.Errorf("twelve services have %s, and two had %s", after, before)
	}
	w.reaches(at1["client"].NetNS, at(w.vip(p, "web", "default"), 80), "web", "")
	w.attach(p)
	w.prepare(p)
	if again := w.m.state.Projects["line"].Networks["default"].Prefix; again != after {
		t.Errorf("prepared again, the network moved from %s to %s", after, again)
	}
	w.must(w.m.Verify(w.ctx()))
}
