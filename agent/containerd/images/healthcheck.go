package images

import (
	"cmp"
	"encoding/json"
	"time"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// imageHealth reads Docker's HEALTHCHECK out of an image's configuration: OCI's own has no such field. nil: none.
func imageHealth(config []byte) (*workload.Health, error) {
	var doc struct {
		Config struct {
			Shell       []string
			Healthcheck *struct {
				Test                                          []string
				Interval, Timeout, StartPeriod, StartInterval time.Duration // nanoseconds; 0: not set
				Retries                                       int
			}
		} `json:"config"`
	}
	if err := json.Unmarshal(config, &doc); err != nil {
		return nil, failure.As(fault.ErrInvalid, err)
	}
	c := doc.Config.Healthcheck
	if c == nil || len(c.Test) == 0 {
		return nil, nil
	}
	h := &workload.Health{
		Interval: cmp.Or(max(c.Interval, 0), workload.HealthInterval), Timeout: cmp.Or(max(c.Timeout, 0), workload.HealthTimeout),
		Retries: cmp.Or(max(c.Retries, 0), workload.HealthRetries), StartPeriod: max(c.StartPeriod, 0), StartInterval: max(c.StartInterval, 0),
	}
	switch args := c.Test[1:]; {
	case c.Test[0] == "CMD" && len(args) > 0:
		h.Probe.Exec = args
	case c.Test[0] == "CMD-SHELL" && len(args) == 1:
		shell := doc.Config.Shell
		if len(shell) == 0 {
			shell = []string{"/bin/sh", "-c"}
		}
		h.Probe.Exec = append(append([]string{}, shell...), args...)
	default: // NONE, and forms that other engines do not run either
		return nil, nil
	}
	return h, nil
}
