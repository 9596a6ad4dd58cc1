package main

import (
	"os"
	"runtime"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/machine"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// machineLook returns a look at this machine: what it has now, with what agent.yaml says of it. unread is told of each thing that cannot
// be looked at, once. It is for one goroutine at a time.
func machineLook(cfg *config.Config, unread func(what string)) func() margo.DeviceCapabilities {
	told := map[string]bool{}
	var before machine.Facts
	own := margo.DeviceProperties{
		ID: string(cfg.Device), Vendor: cfg.Capabilities.Vendor, ModelNumber: cfg.Capabilities.ModelNumber, SerialNumber: cfg.Capabilities.SerialNumber,
	}
	if cfg.OTLP.Endpoint != "" {
		yes := true
		own.OTELCollector = &yes
	}
	place := machine.Place{Data: cfg.DataDir, CDIDirs: cfg.Runtime.CDIDirs, Cores: runtime.NumCPU(), Architecture: runtime.GOARCH}
	return func() margo.DeviceCapabilities {
		facts := machine.Read(os.DirFS("/"), place).Since(before)
		before = facts
		for _, what := range facts.Unread {
			if !told[what] {
				told[what] = true
				unread(what)
			}
		}
		return facts.Capabilities(own, cfg.Capabilities.Labels)
	}
}
