package network

import (
	"errors"
	"testing"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Two projects that swap their ports: neither waits for what the other is merely prepared for, only for its containers.
func TestProjectsSwapTheirPorts(t *testing.T) {
	w := newWorld(t)
	front := []string{"default"}
	a1, b1 := proj("a", svc("web", front, "8080:80", "8080:80/udp")), proj("b", svc("web", front, "8081:80", "8081:80/udp"))
	for _, p := range []*workload.Project{a1, b1} {
		w.prepare(p)
		w.attach(p)
	}
	a2, b2 := proj("a", svc("web", front, "8081:80", "8081:80/udp")), proj("b", svc("web", front, "8080:80", "8080:80/udp"))
	conflict := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
			t.Fatalf("%s = %v, want ErrConflict with a hint", what, err)
		}
	}
	conflict("Prepare of a while b has a container", w.m.Prepare(w.ctx(), a2))
	conflict("Prepare of b while a has a container", w.m.Prepare(w.ctx(), b2))
	w.must(w.m.Detach(w.ctx(), idOf(a1, "web")))
	w.prepare(b2) // a is still prepared for 8080, and nothing of it is attached
	conflict("Prepare of a while b's old container is there", w.m.Prepare(w.ctx(), a2))
	w.must(w.m.Detach(w.ctx(), idOf(b1, "web")))
	w.prepare(a2)
	for p, port := range map[*workload.Project]uint16{a2: 8081, b2: 8080} {
		w.answer(w.attach(p)["web"].NetNS, p.Name, 80)
		w.reaches(w.lan, at(w.hostAddr, port), p.Name, w.lanAddr.String())
	}
	w.verified()
}

// What is prepared for a port that another project's container got first is not published beside it.
func TestAttachRefusesAPortThatIsTaken(t *testing.T) {
	s := (&ipam.State{}).Clone()
	a, b := proj("a", svc("web", []string{"default"}, "8080:80")), proj("b", svc("web", []string{"default"}, "127.0.0.1:8080:80"))
	for _, p := range []*workload.Project{a, b} {
		if err := plan(t, s, p); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := s.Attach("b", containerOf(b, "web")); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Attach("a", containerOf(a, "web")); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("attach = %v, want ErrConflict", err)
	}
	s.Detach(idOf(b, "web"))
	if _, err := s.Attach("a", containerOf(a, "web")); err != nil {
		t.Errorf("attach once the port is free = %v", err)
	}
}
