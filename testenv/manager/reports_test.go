package manager

import (
	"fmt"
	"testing"
)

// The schema has fewer architectures and types than the text. A processor without an architecture, which it does not require, is taken.
func TestSchemaEnums(t *testing.T) {
	for _, c := range []struct {
		cpu    map[string]any
		kind   string
		refuse string
	}{
		{map[string]any{"cores": 4, "architecture": "arm64"}, "compose", "[]"},
		{map[string]any{"cores": 4}, "compose", "[]"},
		{map[string]any{"cores": 4, "architecture": "riscv64"}, "compose", "[map[field:properties.cpus message:unknown architecture]]"},
		{map[string]any{"cores": 4}, "custom", "[map[field:properties.supportedDeploymentTypes message:neither helm nor compose]]"},
	} {
		document := map[string]any{"properties": map[string]any{
			"id": "press-07", "vendor": "acme", "modelNumber": "1", "serialNumber": "2", "supportedRuntimes": []any{"oci"}, "peripherals": []any{}, "interfaces": []any{},
			"cpus": []any{c.cpu}, "supportedDeploymentTypes": []any{c.kind}, "memory": "1Gi", "storage": "1Gi", "otelCollector": false,
		}}
		if got := fmt.Sprint(capabilityFaults(document, "press-07", Deviations{SchemaEnums: true})); got != c.refuse {
			t.Errorf("%v, %s: %s, want %s", c.cpu, c.kind, got, c.refuse)
		}
		if got := capabilityFaults(document, "press-07", Deviations{}); len(got) > 0 {
			t.Errorf("%v, %s, by the text: %v", c.cpu, c.kind, got)
		}
	}
}
