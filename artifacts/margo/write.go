package margo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Encode writes the deployment as block YAML of rc.3: the same bytes for the same content, keys of maps sorted. Unlike the
// other documents' it is not read back: a publisher writes tens of thousands, and whoever packs them parses each.
// What the 1.0.0 line has beyond rc.3 (annotations, package locations) cannot be written and is an error.
func (d *ApplicationDeployment) Encode() ([]byte, error) {
	if len(d.Metadata.Annotations) > 0 {
		return nil, fmt.Errorf("encode deployment %s: annotations are not of rc.3: %w", d.ID, fault.ErrUnsupported)
	}
	profile, err := d.Spec.DeploymentProfile.document()
	if err != nil {
		return nil, fmt.Errorf("encode deployment %s: %w", d.ID, err)
	}
	metadata := object{{"name", d.Metadata.Name}, {"namespace", d.Metadata.Namespace}, {"deviceId", d.Metadata.DeviceID}}
	if len(d.Metadata.Labels) > 0 {
		labels := object{}
		for _, k := range slices.Sorted(maps.Keys(d.Metadata.Labels)) {
			labels = append(labels, member{k, d.Metadata.Labels[k]})
		}
		metadata = append(metadata, member{"labels", labels})
	}
	spec := object{{"applicationId", d.Spec.ApplicationID}, {"deploymentProfile", profile}}
	if len(d.Spec.Parameters) > 0 {
		parameters := object{}
		for _, k := range slices.Sorted(maps.Keys(d.Spec.Parameters)) {
			p := d.Spec.Parameters[k]
			targets := make([]any, 0, len(p.Targets))
			for _, t := range p.Targets {
				targets = append(targets, object{{"pointer", t.Pointer}, {"components", anyList(t.Components)}})
			}
			parameters = append(parameters, member{k, object{{"value", p.Value}, {"targets", targets}}})
		}
		spec = append(spec, member{"parameters", parameters})
	}
	spec = d.Spec.Extensions.onto(spec)
	w := &yamlWriter{}
	w.object(object{{"id", d.ID}, {"metadata", metadata}, {"spec", spec}}, 0)
	if w.err != nil {
		return nil, fmt.Errorf("encode deployment %s: %w", d.ID, w.err)
	}
	return w.Bytes(), nil
}

func (p DeploymentProfile) document() (object, error) {
	components := make([]any, 0, len(p.Components))
	for _, c := range p.Components {
		if c.Properties.Repository == "" {
			return nil, fmt.Errorf("component %s is in no registry: %w", c.Name, fault.ErrUnsupported)
		}
		properties := object{{"repository", c.Properties.Repository}, {"revision", c.Properties.Revision}}
		if !c.Properties.Wait {
			properties = append(properties, member{"wait", false})
		}
		if t := c.Properties.Timeout; t > 0 {
			properties = append(properties, member{"timeout", fmt.Sprintf("%dm%ds", int(t/time.Minute), int(t%time.Minute/time.Second))})
		}
		components = append(components, c.Extensions.onto(object{{"name", c.Name}, {"properties", properties}}))
	}
	out := object{{"type", p.Type}, {"components", components}}
	if c := p.DeviceConstraints; c != nil {
		out = append(out, member{"deviceConstraints", c.document()})
	}
	return p.Extensions.onto(out), nil
}

func (c *DeviceConstraints) document() object {
	out := object{}
	if q := c.CapacityRequirements; q != nil {
		capacity := object{}
		if q.CPU != nil {
			cpu := object{{"cores", q.CPU.Cores}}
			if len(q.CPU.Architectures) > 0 {
				cpu = append(cpu, member{"architectures", anyList(q.CPU.Architectures)})
			}
			capacity = append(capacity, member{"cpu", cpu})
		}
		if q.Memory != "" {
			capacity = append(capacity, member{"memory", q.Memory})
		}
		if q.Storage != "" {
			capacity = append(capacity, member{"storage", q.Storage})
		}
		out = append(out, member{"capacityRequirements", capacity})
	}
	var rules []any
	for _, r := range c.EligibilityRules {
		rule := object{}
		if r.PropertySelector != nil {
			rule = append(rule, member{"propertySelector", r.PropertySelector.document()})
		}
		if r.LabelSelector != nil {
			rule = append(rule, member{"labelSelector", r.LabelSelector.document()})
		}
		rules = append(rules, rule)
	}
	if len(rules) > 0 {
		out = append(out, member{"eligibilityRules", rules})
	}
	return out
}

func (s *Selector) document() object {
	var all []any
	for _, e := range s.MatchExpressions {
		x := object{{"key", e.Key}, {"operator", e.Operator}}
		if e.Values != nil {
			x = append(x, member{"values", e.Values})
		}
		if e.ItemSelector != nil {
			x = append(x, member{"itemSelector", e.ItemSelector.document()})
		}
		all = append(all, x)
	}
	return object{{"matchExpressions", all}}
}

// onto appends extensions, sorted, to an object.
func (x Extensions) onto(o object) object {
	for _, k := range slices.Sorted(maps.Keys(x)) {
		o = append(o, member{k, x[k]})
	}
	return o
}

func anyList(all []string) []any {
	out := make([]any, 0, len(all))
	for _, s := range all {
		out = append(out, s)
	}
	return out
}

// object is a mapping with an order.
type object []member

type member struct {
	key   string
	value any
}

// yamlWriter writes the YAML that every reader of YAML understands alike: block style, strings quoted where they could
// be taken for something else.
type yamlWriter struct {
	bytes.Buffer
	err error
}

func (w *yamlWriter) object(o object, indent int) {
	for i, m := range o {
		if i > 0 || indent == 0 {
			w.WriteString(strings.Repeat(" ", indent))
		}
		w.WriteString(word(m.key) + ":")
		w.value(m.value, indent)
	}
}

// value writes what follows a key, up to the end of its lines.
func (w *yamlWriter) value(v any, indent int) {
	switch v := v.(type) {
	case map[string]any:
		w.value(Extensions(v).onto(nil), indent)
	case Extensions:
		w.value(v.onto(nil), indent)
	case object:
		if len(v) == 0 {
			w.WriteString(" {}\n")
			return
		}
		w.WriteString("\n" + strings.Repeat(" ", indent+2))
		w.object(v, indent+2)
	case []any:
		if len(v) == 0 {
			w.WriteString(" []\n")
			return
		}
		w.WriteByte('\n')
		for _, item := range v {
			w.WriteString(strings.Repeat(" ", indent+2) + "-")
			w.item(item, indent+2)
		}
	default:
		w.WriteString(" " + w.scalar(v) + "\n")
	}
}

// item writes what follows the dash of a list.
func (w *yamlWriter) item(v any, indent int) {
	switch x := v.(type) {
	case map[string]any:
		v = Extensions(x).onto(nil)
	case []any: // a list in a list is written as JSON
		if b, err := plainJSON(x); err == nil {
			w.WriteString(" " + string(b) + "\n")
		} else {
			w.err = fmt.Errorf("%w: %w", fault.ErrInvalid, err)
		}
		return
	}
	if o, ok := v.(object); ok && len(o) > 0 {
		w.WriteByte(' ')
		w.object(o, indent+2)
		return
	}
	w.value(v, indent)
}

func (w *yamlWriter) scalar(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case string:
		return word(v)
	case bool:
		return strconv.FormatBool(v)
	case int:
		return strconv.Itoa(v)
	case int64:
		return strconv.FormatInt(v, 10)
	case uint64:
		return strconv.FormatUint(v, 10)
	case float64:
		if b, err := json.Marshal(v); err == nil && !math.IsInf(v, 0) {
			return string(b)
		}
	}
	w.err = fmt.Errorf("a value of type %T: %w", v, fault.ErrInvalid)
	return "null"
}

// word is a string as YAML: plain where that means nothing else to anybody, else in double quotes.
func word(s string) string {
	plain := s != "" && (s[0] >= 'a' && s[0] <= 'z' || s[0] >= 'A' && s[0] <= 'Z' || s[0] == '/')
	for i := 0; plain && i < len(s); i++ {
		c := s[i]
		plain = c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.IndexByte("-_./", c) >= 0 ||
			c == ':' && strings.HasPrefix(s[i:], "://")
	}
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
		plain = false
	}
	if plain {
		return s
	}
	b, err := plainJSON(s)
	if err != nil { // strings always marshal
		return `""`
	}
	return string(b)
}
