package margo

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/artifacts/emit"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Encode writes the deployment as block YAML of rc.3: the same bytes for the same content, keys of maps sorted. Unlike the
// other documents' it is not read back: a publisher writes tens of thousands, and packing parses each.
// What the 1.0.0 line has beyond rc.3 (annotations, package locations) cannot be written and is an error.
func (d *ApplicationDeployment) Encode() ([]byte, error) {
	if len(d.Metadata.Annotations) > 0 {
		return nil, fmt.Errorf("encode deployment %s: annotations are not of rc.3: %w", d.ID, fault.ErrUnsupported)
	}
	profile, err := d.Spec.DeploymentProfile.document()
	if err != nil {
		return nil, fmt.Errorf("encode deployment %s: %w", d.ID, err)
	}
	metadata := emit.Of("name", d.Metadata.Name, "namespace", d.Metadata.Namespace, "deviceId", d.Metadata.DeviceID)
	if len(d.Metadata.Labels) > 0 {
		metadata = append(metadata, emit.Member{Key: "labels", Value: emit.Sorted(d.Metadata.Labels)})
	}
	spec := emit.Of("applicationId", d.Spec.ApplicationID, "deploymentProfile", profile)
	if len(d.Spec.Parameters) > 0 {
		parameters := emit.Object{}
		for _, k := range slices.Sorted(maps.Keys(d.Spec.Parameters)) {
			p := d.Spec.Parameters[k]
			targets := make([]any, 0, len(p.Targets))
			for _, t := range p.Targets {
				targets = append(targets, emit.Of("pointer", t.Pointer, "components", emit.Strings(t.Components)))
			}
			parameters = append(parameters, emit.Member{Key: k, Value: emit.Of("value", p.Value, "targets", targets)})
		}
		spec = append(spec, emit.Member{Key: "parameters", Value: parameters})
	}
	spec = d.Spec.Extensions.onto(spec)
	data, err := emit.YAML(emit.Of("id", d.ID, "metadata", metadata, "spec", spec))
	if err != nil {
		return nil, fmt.Errorf("encode deployment %s: %w", d.ID, err)
	}
	return data, nil
}

func (p DeploymentProfile) document() (emit.Object, error) {
	components := make([]any, 0, len(p.Components))
	for _, c := range p.Components {
		if c.Properties.Repository == "" {
			return nil, fmt.Errorf("component %s is in no registry: %w", c.Name, fault.ErrUnsupported)
		}
		properties := emit.Of("repository", c.Properties.Repository, "revision", c.Properties.Revision)
		if !c.Properties.Wait {
			properties = append(properties, emit.Member{Key: "wait", Value: false})
		}
		if t := c.Properties.Timeout; t > 0 {
			properties = append(properties, emit.Member{Key: "timeout", Value: fmt.Sprintf("%dm%ds", int(t/time.Minute), int(t%time.Minute/time.Second))})
		}
		components = append(components, c.Extensions.onto(emit.Of("name", c.Name, "properties", properties)))
	}
	out := emit.Of("type", p.Type, "components", components)
	if c := p.DeviceConstraints; c != nil {
		out = append(out, emit.Member{Key: "deviceConstraints", Value: c.document()})
	}
	return p.Extensions.onto(out), nil
}

func (c *DeviceConstraints) document() emit.Object {
	out := emit.Object{}
	if q := c.CapacityRequirements; q != nil {
		capacity := emit.Object{}
		if q.CPU != nil {
			cpu := emit.Of("cores", q.CPU.Cores)
			if len(q.CPU.Architectures) > 0 {
				cpu = append(cpu, emit.Member{Key: "architectures", Value: emit.Strings(q.CPU.Architectures)})
			}
			capacity = append(capacity, emit.Member{Key: "cpu", Value: cpu})
		}
		if q.Memory != "" {
			capacity = append(capacity, emit.Member{Key: "memory", Value: q.Memory})
		}
		if q.Storage != "" {
			capacity = append(capacity, emit.Member{Key: "storage", Value: q.Storage})
		}
		out = append(out, emit.Member{Key: "capacityRequirements", Value: capacity})
	}
	var rules []any
	for _, r := range c.EligibilityRules {
		rule := emit.Object{}
		if r.PropertySelector != nil {
			rule = append(rule, emit.Member{Key: "propertySelector", Value: r.PropertySelector.document()})
		}
		if r.LabelSelector != nil {
			rule = append(rule, emit.Member{Key: "labelSelector", Value: r.LabelSelector.document()})
		}
		rules = append(rules, rule)
	}
	if len(rules) > 0 {
		out = append(out, emit.Member{Key: "eligibilityRules", Value: rules})
	}
	return out
}

func (s *Selector) document() emit.Object {
	var all []any
	for _, e := range s.MatchExpressions {
		x := emit.Of("key", e.Key, "operator", e.Operator)
		if e.Values != nil {
			x = append(x, emit.Member{Key: "values", Value: e.Values})
		}
		if e.ItemSelector != nil {
			x = append(x, emit.Member{Key: "itemSelector", Value: e.ItemSelector.document()})
		}
		all = append(all, x)
	}
	return emit.Of("matchExpressions", all)
}

// onto appends extensions, sorted, to an object.
func (x Extensions) onto(o emit.Object) emit.Object { return append(o, emit.Sorted(x)...) }
