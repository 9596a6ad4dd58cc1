package status

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// metrics counts reports of devices. Without a registerer the counters are not read.
type metrics struct {
	reports  *prometheus.CounterVec
	problems *prometheus.CounterVec
	seconds  prometheus.Histogram
	desired  *prometheus.CounterVec
}

func newMetrics(o Options) *metrics {
	m := &metrics{
		reports: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_fleet_reports_total", Help: "Reports accepted, by kind and by what became of them.",
		}, []string{"kind", "outcome"}),
		problems: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_fleet_problems_total", Help: "Requests of devices answered with a problem, by status code.",
		}, []string{"code"}),
		seconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "longshore_fleet_report_seconds", Help: "Time to answer a report.",
			Buckets: []float64{.001, .0025, .005, .01, .025, .05, .1, .25, 1, 5},
		}),
		desired: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "longshore_fleet_desired_total", Help: "Answers with desired state, by kind; unchanged: the client has it already (304).",
		}, []string{"kind"}),
	}
	for _, kind := range []string{"capabilities", "status"} {
		for _, out := range []store.Outcome{store.Created, store.Updated, store.Repeated} {
			m.reports.WithLabelValues(kind, outcomeName(out))
		}
	}
	for _, kind := range []string{"unchanged", "manifest", "deployment", "bundle"} {
		m.desired.WithLabelValues(kind)
	}
	if o.Metrics != nil {
		o.Metrics.MustRegister(m.reports, m.problems, m.seconds)
	}
	if o.Metrics != nil && o.Desired != nil {
		o.Metrics.MustRegister(m.desired)
	}
	return m
}

func (m *metrics) report(kind string, out store.Outcome) {
	m.reports.WithLabelValues(kind, outcomeName(out)).Inc()
}

func (m *metrics) problem(code int)     { m.problems.WithLabelValues(strconv.Itoa(code)).Inc() }
func (m *metrics) took(d time.Duration) { m.seconds.Observe(d.Seconds()) }

func outcomeName(out store.Outcome) string {
	switch out {
	case store.Created:
		return "created"
	case store.Repeated, store.Older:
		return "repeated"
	}
	return "updated"
}

// Metrics serves /metrics: everything in reg, and what the store holds, counted at each scrape.
func Metrics(v *Viewer, reg *prometheus.Registry) http.Handler {
	devices := prometheus.NewGauge(prometheus.GaugeOpts{Name: "longshore_fleet_devices", Help: "Devices known."})
	refusing := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "longshore_fleet_devices_refusing", Help: "Devices that refuse the state published for them.",
	})
	offline := prometheus.NewGauge(prometheus.GaugeOpts{
		Name: "longshore_fleet_devices_offline", Help: "Devices that have missed three of their report intervals.",
	})
	deployments := prometheus.NewGaugeVec(prometheus.GaugeOpts{
		Name: "longshore_fleet_deployments", Help: "Deployments on devices, by state.",
	}, []string{"state"})
	reg.MustRegister(devices, refusing, offline, deployments)
	serve := promhttp.HandlerFor(reg, promhttp.HandlerOpts{})
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		ctx, cancel := context.WithTimeout(r.Context(), CallTimeout)
		defer cancel()
		s, err := v.View.Summary(ctx, v.Silence())
		if err != nil {
			v.Logger.Error("count for /metrics", "error", err)
			Refuse(w, r, http.StatusServiceUnavailable, "the database does not answer")
			return
		}
		devices.Set(float64(s.Devices))
		refusing.Set(float64(s.Alarms))
		offline.Set(float64(s.Offline))
		for _, state := range states() {
			deployments.WithLabelValues(string(state)).Set(float64(s.Deployments[state]))
		}
		serve.ServeHTTP(w, r)
	})
}

// states are all that a deployment may have.
func states() []margo.State {
	return []margo.State{
		margo.StatePending, margo.StateInstalling, margo.StateInstalled, margo.StateFailed, margo.StateRemoving, margo.StateRemoved,
	}
}
