package main

import (
	"slices"
	"testing"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Who reaches the socket of the Workload API may be this device: an unprivileged container must not have it.
func TestWorkloadAPIIsNoPlaceForContainers(t *testing.T) {
	cfg := &config.Config{File: "/etc/longshore/agent.yaml", Trust: "/etc/longshore/trust.yaml"}
	cfg.Source.Manager.WorkloadAPI = "unix:///run/spire/agent.sock"
	cfg.Fleet.WorkloadAPI = "unix:///run/spire/other.sock"
	places := ownPlaces(cfg, func(string) string { return "" })
	for _, socket := range []string{"/run/spire/agent.sock", "/run/spire/other.sock"} {
		if !slices.ContainsFunc(places, func(p workload.Place) bool { return p.Path == socket && p.Access == workload.NoAccess }) {
			t.Errorf("%s may be mounted: %+v", socket, places)
		}
	}
}

// Who has the PIN signs as this device, and who replaces the library has the PIN.
func TestTokenIsNoPlaceForContainers(t *testing.T) {
	cfg := &config.Config{File: "/etc/longshore/agent.yaml", Trust: "/etc/longshore/trust.yaml"}
	cfg.Report.Token = "pkcs11:token=a;object=b?module-path=/opt/token/module.so&pin-source=/srv/token.pin"
	places := ownPlaces(cfg, func(string) string { return "" })
	for file, want := range map[string]workload.Access{"/srv/token.pin": workload.NoAccess, "/opt/token/module.so": workload.ReadOnly} {
		if !slices.ContainsFunc(places, func(p workload.Place) bool { return p.Path == file && p.Access == want }) {
			t.Errorf("%s may be mounted: %+v", file, places)
		}
	}
}
