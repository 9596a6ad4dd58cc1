package main

import (
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/signing/token"
)

// ownPlaces are the files by which this agent is what it is: whoever reads its keys or writes its configuration is its
// master. Containers must not have them unless the device's owner allows it.
func ownPlaces(cfg *config.Config, getenv func(string) string) []workload.Place {
	var out []workload.Place
	add := func(a workload.Access, holds string, files ...string) {
		for _, f := range files {
			if abs, err := filepath.Abs(f); f != "" && err == nil {
				out = append(out, workload.Place{Path: abs, Access: a, Holds: holds})
			}
		}
	}
	key, _ := token.Parse(cfg.Report.Token) // empty: the key is in no token
	add(workload.NoAccess, "the agent's configuration", filepath.Dir(cfg.File), cfg.File, filepath.Dir(cfg.Trust), cfg.Trust)
	add(workload.NoAccess, "the agent's credentials", cfg.Registry.AuthFile, cfg.Registry.KeyFile, cfg.Registry.CertsDir, cfg.Fleet.TokenFile, cfg.Fleet.KeyFile, cfg.Source.Manager.TokenFile, cfg.Source.Manager.KeyFile, cfg.Report.AuthFile, cfg.Report.KeyFile, cfg.Panel.PINFile, cfg.Panel.KeyFile, key.PINFile,
		getenv("REGISTRY_AUTH_FILE"), getenv("DOCKER_CONFIG"), getenv("OTEL_EXPORTER_OTLP_CLIENT_KEY"), getenv("OTEL_EXPORTER_OTLP_TRACES_CLIENT_KEY"))
	add(workload.NoAccess, "the Workload API that the agent has its identity from", strings.TrimPrefix(cfg.Fleet.WorkloadAPI, "unix://"), strings.TrimPrefix(cfg.Source.Manager.WorkloadAPI, "unix://"))
	if home := getenv("HOME"); home != "" {
		add(workload.NoAccess, "the agent's credentials", filepath.Join(home, ".docker"))
	}
	add(workload.ReadOnly, "authorities that the agent trusts", cfg.Registry.CAFile, cfg.Registry.CertFile, cfg.Fleet.CAFile, cfg.Fleet.CertFile, cfg.Fleet.TrustBundle,
		cfg.Source.Manager.CAFile, cfg.Source.Manager.CertFile, cfg.Source.Manager.TrustBundle, cfg.OTLP.CAFile, cfg.Traces.CAFile,
		getenv("OTEL_EXPORTER_OTLP_CERTIFICATE"), getenv("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE"), getenv("OTEL_EXPORTER_OTLP_CLIENT_CERTIFICATE"), getenv("OTEL_EXPORTER_OTLP_TRACES_CLIENT_CERTIFICATE"))
	add(workload.ReadOnly, "the library of the token that has the device's key", key.Module)
	add(workload.ReadOnly, "decisions about changes", cfg.Approvals.Directory)
	add(workload.ReadOnly, "networks of the site", cfg.Network.CNI.ConfDir, cfg.Network.CNI.BinDir)
	return slices.DeleteFunc(out, func(p workload.Place) bool { // beside files of others: the file alone is the agent's
		return p.Path == "/" || p.Path == "/etc" || p.Path == "/usr/local/etc"
	})
}
