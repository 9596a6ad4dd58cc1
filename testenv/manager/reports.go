package manager

import (
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"strings"
)

// maxBody bounds a report, in bytes.
const maxBody = 1 << 20

// body reads a report: one JSON object.
func body(w http.ResponseWriter, r *http.Request) (map[string]any, bool) {
	data, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxBody))
	var out map[string]any
	if err == nil {
		d := json.NewDecoder(strings.NewReader(string(data)))
		d.UseNumber()
		err = d.Decode(&out)
	}
	if err != nil {
		problem(w, 400, "invalid-request", err.Error(), nil)
		return nil, false
	}
	return out, true
}

// capabilities registers a device, or removes it. A gateway comes before its children.
func (m *Manager) capabilities(w http.ResponseWriter, r *http.Request, client, device string) {
	m.mu.Lock()
	old, there := m.devices[device]
	m.mu.Unlock()
	if there && old.Client != client {
		problem(w, 403, "not-authorized", "another client's device", nil)
		return
	}
	if r.Method == http.MethodDelete {
		if !there {
			problem(w, 404, "device-not-found", device, nil)
			return
		}
		m.mu.Lock()
		delete(m.devices, device)
		m.mu.Unlock()
		w.WriteHeader(http.StatusNoContent)
		return
	}
	document, ok := body(w, r)
	if !ok {
		return
	}
	m.mu.Lock()
	deviates := m.deviates
	m.mu.Unlock()
	if faults := capabilityFaults(document, device, deviates); len(faults) > 0 {
		problem(w, 422, "semantic-error", "capabilities of "+device, faults)
		return
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if i := strings.LastIndexByte(device, '/'); i > 0 {
		if parent, ok := m.devices[device[:i]]; !ok || parent.Client != client {
			problem(w, 404, "gateway-not-found", device[:i], nil)
			return
		}
	}
	m.devices[device] = Capabilities{client, document}
	if there {
		w.WriteHeader(http.StatusOK)
		return
	}
	w.WriteHeader(http.StatusCreated)
}

// capabilityFaults holds a report against what the specification says of it.
func capabilityFaults(document map[string]any, device string, deviates Deviations) []any {
	var out []any
	fault := func(field, message string) { out = append(out, map[string]any{"field": field, "message": message}) }
	for k := range document {
		if k != "properties" && k != "labels" && !(strings.HasPrefix(k, "x-") && strings.HasSuffix(k, "-extensions")) {
			fault(k, "unknown")
		}
	}
	p, _ := document["properties"].(map[string]any)
	if p["id"] != device {
		fault("properties.id", "differs from the path")
	}
	for _, name := range []string{"vendor", "modelNumber", "serialNumber"} {
		if s, ok := p[name].(string); !ok || s == "" {
			fault("properties."+name, "missing")
		}
	}
	runtimes, _ := p["supportedRuntimes"].([]any)
	for _, r := range runtimes {
		if r != "oci" && r != "custom" {
			fault("properties.supportedRuntimes", "neither oci nor custom")
		}
	}
	if len(runtimes) == 0 {
		return out // a gateway that only relays
	}
	for _, name := range []string{"cpus", "peripherals", "interfaces", "supportedDeploymentTypes"} {
		if _, ok := p[name].([]any); !ok {
			fault("properties."+name, "missing on a device that hosts")
		}
	}
	for _, name := range []string{"memory", "storage"} {
		if s, ok := p[name].(string); !ok || deviates.StrictCapacity && strings.Contains(s, " ") {
			fault("properties."+name, "no capacity")
		}
	}
	if deviates.SchemaEnums {
		types, _ := p["supportedDeploymentTypes"].([]any)
		for _, kind := range types {
			if kind != "helm" && kind != "compose" {
				fault("properties.supportedDeploymentTypes", "neither helm nor compose")
			}
		}
		cpus, _ := p["cpus"].([]any)
		for _, cpu := range cpus {
			x, _ := cpu.(map[string]any)
			if a, there := x["architecture"]; there && a != "amd64" && a != "arm64" && a != "arm" { // a riscv64 device leaves it out
				fault("properties.cpus", "unknown architecture")
			}
		}
	}
	if _, ok := p["otelCollector"].(bool); !ok {
		fault("properties.otelCollector", "missing on a device that hosts")
	}
	return out
}

// postStatus takes a report of a deployment.
func (m *Manager) postStatus(w http.ResponseWriter, r *http.Request, client, deployment string) {
	document, ok := body(w, r)
	if !ok {
		return
	}
	status, _ := document["status"].(map[string]any)
	s := Status{Client: client, Deployment: deployment}
	s.State, _ = status["state"].(string)
	s.Device, _ = document["deviceId"].(string)
	s.Error, _ = status["error"].(map[string]any)
	s.Components, _ = document["components"].([]any)
	adopted, _ := document["adoptedManifestVersion"].(json.Number)
	n, err := json.Number(adopted).Int64()
	s.Adopted = uint64(n)
	var faults []any
	fault := func(field string) { faults = append(faults, map[string]any{"field": field, "message": "invalid"}) }
	if document["deploymentId"] != deployment {
		fault("deploymentId")
	}
	if err != nil || n < 1 {
		fault("adoptedManifestVersion")
	}
	if !slices.Contains([]string{"pending", "installing", "installed", "failed", "removing", "removed"}, s.State) {
		fault("status.state")
	}
	if document["components"] == nil {
		fault("components")
	}
	for _, c := range s.Components {
		if x, _ := c.(map[string]any); x["name"] == nil || x["state"] == nil {
			fault("components[]")
		}
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if owner, there := m.devices[s.Device]; s.Device != "" && there && owner.Client != client {
		problem(w, 403, "not-authorized", "another client's device", nil)
		return
	}
	if len(faults) > 0 {
		problem(w, 422, "semantic-error", "status of "+deployment, faults)
		return
	}
	first := !slices.ContainsFunc(m.statuses, func(o Status) bool { return o.Deployment == deployment && o.Client == client })
	m.statuses = append(m.statuses, s)
	if first {
		w.WriteHeader(http.StatusCreated)
		return
	}
	w.WriteHeader(http.StatusOK)
}
