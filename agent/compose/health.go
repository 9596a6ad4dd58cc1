package compose

import (
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/agent/workload"
)

// What Compose means when a healthcheck does not say it.
const (
	healthInterval = 30 * time.Second
	healthTimeout  = 30 * time.Second
	healthRetries  = 3
)

func (t *translation) health(n *node, c *types.HealthCheckConfig) (h *workload.Health, off bool) {
	if n.isNull() || c == nil {
		return nil, false
	}
	probe := n.get(extProbe)
	if c.Disable || len(c.Test) > 0 && c.Test[0] == "NONE" {
		if probe != nil {
			t.fault(probe, "", "there is a probe, and the healthcheck is off")
		}
		return nil, true
	}
	h = &workload.Health{Interval: healthInterval, Timeout: healthTimeout, Retries: healthRetries}
	switch {
	case probe != nil && n.get("test") != nil:
		t.fault(probe, "", "there is a test beside it: a container is judged by one of them")
	case probe != nil:
		h.Probe = t.probe(probe)
	case len(c.Test) == 0: // the image's own test, judged by what is said here
	default:
		h.Probe.Exec = t.test(n.get("test"), c.Test)
	}
	t.period(n.get("interval"), c.Interval, &h.Interval)
	t.period(n.get("timeout"), c.Timeout, &h.Timeout)
	t.period(n.get("start_period"), c.StartPeriod, &h.StartPeriod)
	t.period(n.get("start_interval"), c.StartInterval, &h.StartInterval)
	if c.Retries != nil && *c.Retries > 0 {
		if *c.Retries > math.MaxInt32 {
			t.fault(n.get("retries"), "", "%d is too many", *c.Retries)
		} else {
			h.Retries = int(*c.Retries)
		}
	}
	return h, false
}

// test turns Compose's test into the arguments to execute.
func (t *translation) test(n *node, test []string) []string {
	switch test[0] {
	case "CMD":
		if len(test) < 2 || test[1] == "" {
			t.fault(n, "", "there is nothing to execute")
			return nil
		}
		return slices.Clone(test[1:])
	case "CMD-SHELL":
		if len(test) != 2 || strings.TrimSpace(test[1]) == "" {
			t.fault(n, "", "CMD-SHELL takes one command line")
			return nil
		}
		return []string{"/bin/sh", "-c", test[1]}
	}
	t.fault(n, "", "a list must begin with CMD, CMD-SHELL or NONE")
	return nil
}

// probe reads our extension: exactly one of http and tcp.
func (t *translation) probe(n *node) workload.Probe {
	var p workload.Probe
	http, tcp := n.get("http"), n.get("tcp")
	switch {
	case n.kind != mapKind || (http == nil) == (tcp == nil):
		t.fault(n, "", "must be {http: {port: …, path: …}} or {tcp: port}")
	case tcp != nil:
		p.TCP, _ = t.portNumber(tcp, tcp.str())
	case http.get("port") == nil:
		t.fault(http, "", "port is missing")
	default:
		p.HTTP = &workload.HTTPProbe{Path: http.get("path").str()}
		p.HTTP.Port, _ = t.portNumber(http.get("port"), http.get("port").str())
		if path := p.HTTP.Path; path != "" && (!strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f })) {
			t.fault(http.get("path"), "", "%s is no path of a URL", strconv.Quote(path))
		}
	}
	return p
}

// period keeps the default where nothing or zero is said, as Compose does.
func (t *translation) period(n *node, d *types.Duration, to *time.Duration) {
	if d == nil || *d == 0 {
		return
	}
	if *d < 0 {
		t.fault(n, "", "must not be negative")
		return
	}
	*to = duration(d)
}

func duration(d *types.Duration) time.Duration { return time.Duration(*d) }
