package main

import (
	"context"
	"encoding/json"
	"os"
	"reflect"
	"runtime"
	"time"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/machine"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// askLimit bounds a question to containerd about itself, also one that does not answer.
const askLimit = 5 * time.Second

// machineLook returns a look at this machine: what it has now, with what agent.yaml says of it. unread is told of each thing that cannot
// be looked at, once. What containerd offers stays as it was while offered fails, at first as kept says: a device does not lose it while it boots.
// kept is nil where nothing is kept. It is for one goroutine at a time.
func machineLook(cfg *config.Config, offered func() (features.Features, error), kept *store.Store, unread func(what string)) func() margo.DeviceCapabilities {
	told := map[string]bool{}
	once := func(what string) {
		if !told[what] {
			told[what] = true
			unread(what)
		}
	}
	known, err := keptRuntime(kept)
	if err != nil {
		unread("what containerd offered: " + err.Error())
	}
	written := known
	silent := false
	var before machine.Facts
	own := margo.DeviceProperties{
		ID: string(cfg.Device), Vendor: cfg.Capabilities.Vendor, ModelNumber: cfg.Capabilities.ModelNumber, SerialNumber: cfg.Capabilities.SerialNumber,
	}
	if cfg.OTLP.Endpoint != "" {
		own.OTELCollector = new(true)
	}
	place := machine.Place{Data: cfg.DataDir, CDIDirs: cfg.Runtime.CDIDirs, Cores: runtime.NumCPU(), Architecture: runtime.GOARCH}
	return func() margo.DeviceCapabilities {
		facts := machine.Read(os.DirFS("/"), place).Since(before)
		before = facts
		if f, err := offered(); err == nil {
			known = machine.Runtime{Containerd: f.Containerd, Runc: f.Runc, Snapshotter: f.Snapshotter, Features: f.Offered, Others: f.Runtimes}
			silent = false
			if err := keepRuntime(kept, written, known); err != nil {
				once("what containerd offers is not kept: " + err.Error())
			} else {
				written = known
			}
		} else if !silent {
			silent = true
			unread("containerd: " + err.Error())
		}
		facts.Runtime = known
		for _, what := range facts.Unread {
			once(what)
		}
		return facts.Capabilities(own, cfg.Capabilities.Labels)
	}
}

// keptRuntime is what containerd offered when the agent ran before.
func keptRuntime(s *store.Store) (r machine.Runtime, err error) {
	if s == nil {
		return r, nil
	}
	data, err := s.Runtime()
	if err == nil && data != nil {
		err = json.Unmarshal(data, &r)
	}
	return r, err
}

// keepRuntime saves it where it is another than before.
func keepRuntime(s *store.Store, before, now machine.Runtime) error {
	if s == nil || reflect.DeepEqual(before, now) {
		return nil
	}
	data, err := json.Marshal(now)
	if err != nil {
		return err
	}
	return s.SaveRuntime(data)
}

// offered asks containerd what it offers.
func offered(ctx context.Context, ask func(context.Context) (features.Features, error)) func() (features.Features, error) {
	return func() (features.Features, error) {
		ctx, cancel := context.WithTimeout(ctx, askLimit)
		defer cancel()
		return ask(ctx)
	}
}
