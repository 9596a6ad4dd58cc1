package margo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Encode writes the manifest: compact JSON, keys sorted, the same bytes for the same content. What Parse would refuse is
// an error.
func (m *StateManifest) Encode() ([]byte, error) {
	c := *m
	if c.Deployments == nil {
		c.Deployments = []DeploymentRef{}
	}
	return encode(&c, nil, ParseStateManifest)
}

// Encode writes the report: compact JSON, keys sorted, the same bytes for the same content. What Parse would refuse is an
// error.
func (s *DeploymentStatus) Encode() ([]byte, error) {
	c := *s
	if c.Components == nil {
		c.Components = []ComponentStatus{}
	}
	return encode(&c, nil, ParseDeploymentStatus)
}

// Encode writes the capabilities: compact JSON, keys sorted, the same bytes for the same content. What Parse would refuse
// is an error. A device that hosts workloads tells its peripherals and interfaces also when it has none.
func (c *DeviceCapabilities) Encode() ([]byte, error) {
	return encode(c, func(doc map[string]any) {
		tellEmpty(c, doc)
		maps.Copy(doc, c.Extensions)
	}, ParseDeviceCapabilities)
}

// tellEmpty adds the lists that a hosting device tells even when they are empty.
func tellEmpty(c *DeviceCapabilities, doc map[string]any) {
	p, ok := doc["properties"].(map[string]any)
	if !ok || len(c.Properties.SupportedRuntimes) == 0 {
		return
	}
	for _, k := range []string{"cpus", "peripherals", "interfaces"} {
		if p[k] == nil {
			p[k] = []any{}
		}
	}
}

// Encode writes the problem: compact JSON, keys sorted, the same bytes for the same content. What Parse would refuse is an
// error.
func (p *Problem) Encode() ([]byte, error) { return encode(p, nil, ParseProblem) }

// encode sorts keys by way of a map, numbers untouched, and reads back what it wrote.
func encode[T any](v any, more func(map[string]any), parse func(string, []byte) (T, error)) ([]byte, error) {
	name := fmt.Sprintf("%T", v)[len("*margo."):]
	b, err := json.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("encode %s: %w: %w", name, fault.ErrInvalid, err)
	}
	doc := make(map[string]any)
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	if more != nil {
		more(doc)
	}
	if b, err = plainJSON(doc); err != nil {
		return nil, fmt.Errorf("encode %s: %w: %w", name, fault.ErrInvalid, err)
	}
	if _, err := parse(name, b); err != nil {
		return nil, fmt.Errorf("encode %s: %w", name, err)
	}
	return b, nil
}
