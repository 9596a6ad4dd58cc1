package compose

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

func (t *translation) health(n *composefile.Node) (h *workload.Health, off bool) {
	if !t.isMapping(n) {
		return nil, false
	}
	probe, test := n.Get(extProbe), n.Get("test")
	var command []string
	if test != nil && test.Kind == composefile.Scalar {
		if !test.IsNull() {
			command = []string{"CMD-SHELL", t.Text(test)}
		}
	} else {
		command = t.command(test)
	}
	if t.flag(n.Get("disable")) || len(command) > 0 && command[0] == "NONE" {
		if probe != nil {
			t.Fault(probe, "", "there is a probe, and the healthcheck is off")
		}
		return nil, true
	}
	h = &workload.Health{}
	switch {
	case probe != nil && test != nil:
		t.Fault(probe, "", "there is a test beside it: a container is judged by one of them")
	case probe != nil:
		h.Probe = t.probe(probe)
	case len(command) == 0: // the image's own test with the settings here
	default:
		h.Probe.Exec = t.test(test, command)
	}
	h.Interval = cmp.Or(t.duration(n.Get("interval")), workload.HealthInterval) // zero is the default, as in Compose
	h.Timeout = cmp.Or(t.duration(n.Get("timeout")), workload.HealthTimeout)
	h.Retries = cmp.Or(int(t.integer(n.Get("retries"), 0, math.MaxInt32)), workload.HealthRetries)
	h.StartPeriod, h.StartInterval = t.duration(n.Get("start_period")), t.duration(n.Get("start_interval"))
	return h, false
}

// test turns Compose's test into the arguments to execute.
func (t *translation) test(n *composefile.Node, test []string) []string {
	switch test[0] {
	case "CMD":
		if len(test) < 2 || test[1] == "" {
			t.Fault(n, "", "there is nothing to execute")
			return nil
		}
		return slices.Clone(test[1:])
	case "CMD-SHELL":
		if len(test) != 2 || strings.TrimSpace(test[1]) == "" {
			t.Fault(n, "", "CMD-SHELL takes one command line")
			return nil
		}
		return []string{"/bin/sh", "-c", test[1]}
	}
	t.Fault(n, "", "a list must begin with CMD, CMD-SHELL or NONE")
	return nil
}

// probe reads our extension: exactly one of http and tcp.
func (t *translation) probe(n *composefile.Node) workload.Probe {
	var p workload.Probe
	http, tcp := n.Get("http"), n.Get("tcp")
	switch {
	case n.Kind != composefile.Map || (http == nil) == (tcp == nil):
		t.Fault(n, "", "must be {http: {port: …, path: …}} or {tcp: port}")
	case tcp != nil:
		p.TCP, _ = t.portNumber(tcp, tcp.Text())
	case http.Get("port") == nil:
		t.Fault(http, "", "port is missing")
	default:
		p.HTTP = &workload.HTTPProbe{Path: http.Get("path").Text()}
		p.HTTP.Port, _ = t.portNumber(http.Get("port"), http.Get("port").Text())
		if path := p.HTTP.Path; path != "" && (!strings.HasPrefix(path, "/") || strings.ContainsFunc(path, func(r rune) bool { return r <= ' ' || r == 0x7f })) {
			t.Fault(http.Get("path"), "", "%s is no path of a URL", strconv.Quote(path))
		}
	}
	return p
}
