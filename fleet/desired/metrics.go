package desired

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// metrics counts requests for new states by outcome. Without a registerer the counters are not read.
type metrics struct{ looks *prometheus.CounterVec }

func newMetrics(r prometheus.Registerer, v *View) *metrics {
	m := &metrics{looks: prometheus.NewCounterVec(prometheus.CounterOpts{
		Name: "longshore_fleet_state_looks_total", Help: "Looks for new states in the registry, by what came of them: unchanged, changed, away, refused.",
	}, []string{"outcome"})}
	for _, outcome := range []string{"unchanged", "changed", "away", "refused"} {
		m.looks.WithLabelValues(outcome)
	}
	if r != nil {
		r.MustRegister(m.looks,
			v.gauge("longshore_fleet_clients", "Clients that have asked for their desired state since the start.", func(*client) bool { return true }),
			v.gauge("longshore_fleet_clients_behind", "Clients that are served what was in the registry before, or nothing: it is away, or a state is refused.", func(x *client) bool { return x.err != nil }))
	}
	return m
}

func (v *View) gauge(name, help string, is func(*client) bool) prometheus.GaugeFunc {
	return prometheus.NewGaugeFunc(prometheus.GaugeOpts{Name: name, Help: help}, func() float64 {
		v.mu.Lock()
		defer v.mu.Unlock()
		n := 0
		for _, x := range v.clients {
			x.mu.Lock()
			if is(x) {
				n++
			}
			x.mu.Unlock()
		}
		return float64(n)
	})
}

func (m *metrics) look(changed bool, err error) {
	outcome := "unchanged"
	switch {
	case errors.Is(err, fault.ErrTemporary):
		outcome = "away"
	case err != nil:
		outcome = "refused"
	case changed:
		outcome = "changed"
	}
	m.looks.WithLabelValues(outcome).Inc()
}
