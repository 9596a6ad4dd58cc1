package main

import (
	"context"
	"log/slog"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/workload"
)

// networkOptions are what agent.yaml says about networks.
func networkOptions(cfg *config.Config, saved network.Store, log *slog.Logger) network.Options {
	o := network.Options{
		Store: saved, DataDir: cfg.DataDir, RunDir: cfg.RunDir, Pool: cfg.Network.Pool, Table: cfg.Network.Table,
		CNI: network.CNI(cfg.Network.CNI), Logger: log,
	}
	for _, s := range cfg.Network.Shared {
		o.Shared = append(o.Shared, network.Shared(s))
	}
	return o
}

// attacher gives the runtime its networks: two rooms that do not know each other, in one word each.
type attacher struct{ *network.Manager }

func (a attacher) Attach(ctx context.Context, project string, c workload.Container) (containerd.Attachment, error) {
	at, err := a.Manager.Attach(ctx, project, c)
	return containerd.Attachment(at), err
}

var _ agent.Repairer = attacher{}
