package conform

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"strings"
)

// object is a JSON document in the making.
type object = map[string]any

// hosting are the capabilities of a device that runs workloads.
func hosting(device string) object {
	return object{"properties": object{
		"id": device, "vendor": "Northstar Industrial devices", "modelNumber": "332ANZE1-N1", "serialNumber": "PF45343-AA",
		"cpus": []any{object{"cores": 4, "architecture": "amd64"}}, "memory": "16Gi", "storage": "64Gi",
		"peripherals": []any{object{"type": "gpu", "manufacturer": "NVIDIA"}}, "interfaces": []any{object{"type": "ethernet"}},
		"otelCollector": true, "supportedRuntimes": []any{"oci"}, "supportedDeploymentTypes": []any{"compose"},
	}}
}

// relay are the capabilities of a device that runs none.
func relay(device string) object {
	return object{"properties": object{"id": device, "vendor": "Northstar Industrial devices", "modelNumber": "332ANZE1-N1", "serialNumber": "PF45343-AA"}}
}

func capabilitiesPath(device string) string {
	part := strings.Split(device, "/")
	for i := range part {
		part[i] = url.PathEscape(part[i])
	}
	return "/api/v1/capabilities/" + strings.Join(part, "/")
}

// register reports the capabilities of a device.
func (p *peer) register(ctx context.Context, device string) error {
	return p.expect(ctx, "PUT", capabilitiesPath(device), hosting(device), 200, 201)
}

// edit changes a member of the properties; nil removes it.
func edit(name string, value any) func(object) {
	return func(doc object) {
		properties, _ := doc["properties"].(object)
		if properties[name] = value; value == nil {
			delete(properties, name)
		}
	}
}

// root sets a member of the document.
func root(name string, value any) func(object) { return func(doc object) { doc[name] = value } }

// reports is a case of capabilities that are accepted, and of others that are a semantic error.
func reports(id, rules, title string, good, bad map[string]func(object)) Case {
	return Case{id, strings.Fields(rules), title, func(ctx context.Context, s *session) error {
		var all []error
		path := capabilitiesPath(s.client.device)
		for name, change := range good {
			doc := hosting(s.client.device)
			change(doc)
			if err := s.client.expect(ctx, "PUT", path, doc, 200, 201); err != nil {
				all = append(all, fmt.Errorf("%s: %w", name, err))
			}
		}
		for name, change := range bad {
			doc := hosting(s.client.device)
			change(doc)
			if err := s.client.rejects(ctx, "PUT", path, doc, 422, "semantic-error"); err != nil {
				all = append(all, fmt.Errorf("%s: %w", name, err))
			}
		}
		return errors.Join(all...)
	}}
}

type changes = map[string]func(object)

func capabilitiesCases() []Case {
	return []Case{
		{"capabilities.registered", []string{"7.1.1"}, "201 when they are created, 200 when they are updated", registered201},
		{"capabilities.removed", []string{"7.1.2"}, "DELETE is answered 204, then 404", removed},
		reports("capabilities.root", "5.1.1 7.2.3", "members at the root", changes{"hosting": func(object) {}, "labels": root("labels", object{})}, changes{
			"an unknown member": root("site", "graz"), "the envelope of 1.0.0": root("apiVersion", "device.margo.org/v1alpha1"), "no properties": func(doc object) { delete(doc, "properties") },
			"the name of an extension": root("x-Acme-extensions", object{}),
		}),
		reports("capabilities.extension", "5.1.2", "an unknown extension is ignored", changes{"extension": root("x-acme-extensions", object{"rack": 7})}, nil),
		reports("capabilities.identity", "5.1.3 5.1.4", "id, vendor, modelNumber, serialNumber", nil, changes{
			"no id": edit("id", nil), "id with a space": edit("id", "a b"), "no vendor": edit("vendor", nil), "no modelNumber": edit("modelNumber", nil), "no serialNumber": edit("serialNumber", nil),
		}),
		reports("capabilities.hosting", "5.1.5 5.3.1 5.3.2 5.3.3", "members that describe hosting come together, or not at all", changes{
			"none": func(doc object) {
				id := doc["properties"].(object)["id"].(string)
				doc["properties"] = relay(id)["properties"]
			},
		}, changes{"no cpus": edit("cpus", nil), "no memory": edit("memory", nil), "no storage": edit("storage", nil), "no peripherals": edit("peripherals", nil), "no interfaces": edit("interfaces", nil), "no otelCollector": edit("otelCollector", nil), "no supportedRuntimes": edit("supportedRuntimes", nil), "no supportedDeploymentTypes": edit("supportedDeploymentTypes", nil)}),
		reports("capabilities.collector", "5.1.6", "otelCollector: false is accepted", changes{"false": edit("otelCollector", false)}, nil),
		reports("capabilities.runtimes", "5.1.7 5.3.2", "supportedRuntimes", changes{"both": edit("supportedRuntimes", []any{"oci", "custom"})},
			changes{"none": edit("supportedRuntimes", []any{}), "another": edit("supportedRuntimes", []any{"containerd-direct"})}),
		reports("capabilities.types", "5.1.8 5.3.1", "supportedDeploymentTypes", changes{"all": edit("supportedDeploymentTypes", []any{"helm", "compose", "custom"})},
			changes{"none": edit("supportedDeploymentTypes", []any{}), "another": edit("supportedDeploymentTypes", []any{"helm.v3"})}),
		reports("capabilities.hardware", "5.1.9", "types of processors, peripherals and interfaces", changes{
			"processors": edit("cpus", []any{object{"cores": 0.5, "architecture": "arm64"}, object{"cores": 4, "architecture": "arm"}}), "peripherals": edit("peripherals", typed("gpu", "display", "camera", "microphone", "speaker")),
			"interfaces": edit("interfaces", typed("ethernet", "wifi", "cellular", "bluetooth", "usb", "canbus", "rs232")),
		}, changes{
			"processor": edit("cpus", []any{object{"cores": 4, "architecture": "mips"}}), "processor without cores": edit("cpus", []any{object{"architecture": "amd64"}}),
			"peripheral": edit("peripherals", typed("printer")), "interface": edit("interfaces", typed("token-ring")), "peripheral without type": edit("peripherals", []any{object{"model": "x"}}),
		}),
		reports("capabilities.labels", "5.1.10", "types of labels", changes{
			"all": root("labels", object{"acme.example/site": "graz", "line": 7, "spare": false, "zones": []any{"a", "b"}, "ports": []any{1, 2}}),
		}, changes{"an object": root("labels", object{"x": object{}}), "null": root("labels", object{"x": nil}), "booleans": root("labels", object{"x": []any{true}})}),
		reports("capabilities.capacity", "5.1.11", "capacities with a space", changes{"memory": edit("memory", "59 Gi"), "storage": edit("storage", "1862 Gi")}, nil),
		{"capabilities.path", []string{"5.1.14"}, "the capabilities are of the device in the path", func(ctx context.Context, s *session) error {
			return s.client.rejects(ctx, "PUT", capabilitiesPath(s.client.device), hosting(s.client.device+"-2"), 422, "semantic-error")
		}},
		{"capabilities.malformed", []string{"7.2.2"}, "what is no JSON is answered 400", func(ctx context.Context, s *session) error {
			return errors.Join(
				s.client.rejects(ctx, "PUT", capabilitiesPath(s.client.device), []byte(`{"properties":`), 400, "invalid-request"),
				s.client.rejects(ctx, "PUT", capabilitiesPath(s.client.device), []byte{}, 400, "invalid-request"))
		}},
		{"capabilities.parent", []string{"5.1.12", "5.1.15"}, "a parent is registered before its child", parent},
		{"capabilities.scope", []string{"5.1.13", "8.3.2"}, "no client changes a device of another", scope},
	}
}

func typed(kinds ...string) (out []any) {
	for _, k := range kinds {
		out = append(out, object{"type": k})
	}
	return out
}

func registered201(ctx context.Context, s *session) error {
	path := capabilitiesPath(s.client.device)
	if err := s.client.expect(ctx, "DELETE", path, nil, 204, 404); err != nil {
		return err
	}
	return errors.Join(s.client.expect(ctx, "PUT", path, hosting(s.client.device), 201), s.client.expect(ctx, "PUT", path, hosting(s.client.device), 200))
}

func removed(ctx context.Context, s *session) error {
	path := capabilitiesPath(s.client.device)
	if err := s.client.register(ctx, s.client.device); err != nil {
		return err
	}
	err := errors.Join(s.client.expect(ctx, "DELETE", path, nil, 204), s.client.rejects(ctx, "DELETE", path, nil, 404, "device-not-found"))
	return errors.Join(err, s.client.register(ctx, s.client.device))
}

func parent(ctx context.Context, s *session) error {
	gateway := s.client.device
	child := gateway + "/conform-1"
	grandchild := child + "/conform-2"
	if err := s.client.expect(ctx, "DELETE", capabilitiesPath(gateway), nil, 204, 404); err != nil {
		return err
	}
	steps := []error{
		s.client.rejects(ctx, "PUT", capabilitiesPath(child), hosting(child), 404, "gateway-not-found"),
		s.client.expect(ctx, "PUT", capabilitiesPath(gateway), relay(gateway), 200, 201),
		s.client.rejects(ctx, "PUT", capabilitiesPath(grandchild), hosting(grandchild), 404, "gateway-not-found"),
		s.client.expect(ctx, "PUT", capabilitiesPath(child), hosting(child), 200, 201),
		s.client.expect(ctx, "PUT", capabilitiesPath(grandchild), hosting(grandchild), 200, 201),
		s.client.expect(ctx, "DELETE", capabilitiesPath(grandchild), nil, 204),
		s.client.expect(ctx, "DELETE", capabilitiesPath(child), nil, 204),
		s.client.register(ctx, gateway),
	}
	return errors.Join(steps...)
}

func scope(ctx context.Context, s *session) error {
	other, err := s.other()
	if err != nil {
		return err
	}
	if err := other.register(ctx, other.device); err != nil {
		return err
	}
	// A manager may reject the id, or take it for another device of this client.
	path := capabilitiesPath(other.device)
	return errors.Join(
		s.client.expect(ctx, "PUT", path, hosting(other.device), 403, 201),
		s.client.expect(ctx, "PUT", capabilitiesPath(other.device+"/conform-1"), hosting(other.device+"/conform-1"), 403, 404, 201),
		s.client.expect(ctx, "DELETE", path, nil, 403, 404, 204),
		other.expect(ctx, "PUT", path, hosting(other.device), 200)) // it is there still
}
