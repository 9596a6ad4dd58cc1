package network

import (
	"slices"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
)

// BenchmarkAttach is one container on one network of a project of ten, durable record included.
func BenchmarkAttach(b *testing.B) {
	w, c := benchWorld(b)
	var took []time.Duration
	for b.Loop() {
		begin := time.Now()
		_, err := w.m.Attach(b.Context(), "bench", c)
		took = append(took, time.Since(begin))
		w.must(err)
		b.StopTimer()
		w.must(w.m.Detach(b.Context(), c.ID))
		b.StartTimer()
	}
	slices.Sort(took) // the mean is that of the disk when others use it too
	b.ReportMetric(float64(took[len(took)/2].Nanoseconds()), "ns/median")
}

// BenchmarkAttachAgain is the same before a restart of a container: everything is there.
func BenchmarkAttachAgain(b *testing.B) {
	w, c := benchWorld(b)
	for b.Loop() {
		_, err := w.m.Attach(b.Context(), "bench", c)
		w.must(err)
	}
}

func BenchmarkDetach(b *testing.B) {
	w, c := benchWorld(b)
	for b.Loop() {
		b.StopTimer()
		_, err := w.m.Attach(b.Context(), "bench", c)
		w.must(err)
		b.StartTimer()
		w.must(w.m.Detach(b.Context(), c.ID))
	}
}

func BenchmarkSwitch(b *testing.B) {
	w, c := benchWorld(b)
	d := c
	d.ID += "x"
	for _, x := range []workload.Container{c, d} {
		_, err := w.m.Attach(b.Context(), "bench", x)
		w.must(err)
	}
	ids := []string{d.ID, c.ID}
	for b.Loop() {
		w.must(w.m.Switch(b.Context(), "bench", c.Service.Name, ids[0]))
		ids[0], ids[1] = ids[1], ids[0]
	}
}

func BenchmarkVerify(b *testing.B) {
	w, _ := benchWorld(b)
	for b.Loop() {
		w.must(w.m.Verify(b.Context()))
	}
}

func benchWorld(b *testing.B) (*world, workload.Container) {
	b.Helper()
	w := newWorld(b)
	var services []workload.Service
	for _, n := range []string{"a", "b", "c", "d", "e", "f", "g", "h", "i", "j"} {
		services = append(services, svc(n, []string{"default"}))
	}
	services[9].Ports = []workload.Port{mustPort("8080:80")}
	p := proj("bench", services...)
	w.prepare(p)
	for _, c := range p.Containers()[:9] {
		_, err := w.m.Attach(b.Context(), p.Name, c)
		w.must(err)
	}
	return w, p.Containers()[9]
}
