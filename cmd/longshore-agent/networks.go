package main

import (
	"log/slog"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/network"
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

var _ agent.Repairer = (*network.Manager)(nil)
