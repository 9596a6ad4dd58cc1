package margo

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/big"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Check reports whether a device fits. Nil constraints fit every device. The error is a fault.ErrUnfit and names each
// requirement that is not met, with its path.
func (c *DeviceConstraints) Check(d *DeviceCapabilities) error {
	if c == nil {
		return nil
	}
	unmet := c.CapacityRequirements.unmet(d.Properties)
	if len(c.EligibilityRules) > 0 {
		device, err := document(d)
		if err != nil {
			return err
		}
		var reasons []string
		for i, r := range c.EligibilityRules {
			why := r.unmet(device, fmt.Sprintf("eligibilityRules[%d]", i))
			if why == "" {
				reasons = nil
				break
			}
			reasons = append(reasons, why)
		}
		unmet = append(unmet, reasons...)
	}
	if len(unmet) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s", fault.ErrUnfit, strings.Join(unmet, "; "))
}

func (q *CapacityRequirements) unmet(p DeviceProperties) []string {
	if q == nil {
		return nil
	}
	var out []string
	if q.CPU != nil && !slices.ContainsFunc(p.CPUs, q.CPU.fits) {
		has := make([]string, 0, len(p.CPUs))
		for _, c := range p.CPUs {
			has = append(has, strings.TrimSpace(strconv.FormatFloat(c.Cores, 'f', -1, 64)+" "+c.Architecture))
		}
		out = append(out, fmt.Sprintf("needs %s in one processor, device has %s (capacityRequirements.cpu)", q.CPU, cmp.Or(strings.Join(has, ", "), toldNone)))
	}
	for _, a := range []struct{ what, need, has string }{{"memory", q.Memory, p.Memory}, {"storage", q.Storage, p.Storage}} {
		if a.need == "" {
			continue
		}
		need, ok := amount(a.need)
		has, told := amount(a.has)
		if !ok || !told || has.Cmp(need) < 0 {
			out = append(out, fmt.Sprintf("needs %s %s, device has %s (capacityRequirements.%s)", a.what, a.need, cmp.Or(a.has, toldNone), a.what))
		}
	}
	return out
}

const toldNone = "told none"

// String is "2 cores of amd64 or arm64".
func (r *CPURequirement) String() string {
	s := strconv.FormatFloat(r.Cores, 'f', -1, 64) + " cores"
	if len(r.Architectures) > 0 {
		s += " of " + strings.Join(r.Architectures, " or ")
	}
	return s
}

func (r *CPURequirement) fits(c CPU) bool {
	if c.Cores < r.Cores {
		return false
	}
	if len(r.Architectures) == 0 || slices.Contains(r.Architectures, c.Architecture) {
		return true
	}
	return slices.Contains(r.Architectures, "other") && c.Architecture != "" && !slices.Contains(architectures, c.Architecture)
}

// amount is a number of bytes, exactly.
func amount(s string) (*big.Rat, bool) {
	m := capacityFormat.Regexp().FindStringSubmatch(s)
	if m == nil {
		return nil, false
	}
	r, ok := new(big.Rat).SetString(m[1])
	if !ok {
		return nil, false
	}
	shift := 10 * uint(1+slices.Index([]string{"Ki", "Mi", "Gi", "Ti", "Pi", "Ei"}, m[3]))
	return r.Mul(r, new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), shift))), true
}

// unmet names the first thing of the rule that the device does not meet; "" when the rule holds.
func (r EligibilityRule) unmet(device map[string]any, path string) string {
	if why := r.PropertySelector.unmet(path+".propertySelector", func(key string) (any, bool) { return follow(device["properties"], key) }); why != "" {
		return why
	}
	labels, _ := device["labels"].(map[string]any)
	return r.LabelSelector.unmet(path+".labelSelector", func(key string) (any, bool) {
		v, ok := labels[key]
		return v, ok
	})
}

func (s *Selector) unmet(path string, get func(key string) (any, bool)) string {
	if s == nil {
		return ""
	}
	for i, e := range s.MatchExpressions {
		v, found := get(e.Key)
		if !e.holds(v, found) {
			has := "nothing there"
			if found {
				b, _ := json.Marshal(v) // came from JSON
				has = string(b)
			}
			return fmt.Sprintf("needs %s, device has %s (%s.matchExpressions[%d])", e.describe(), has, path, i)
		}
	}
	return ""
}

func (e MatchExpression) describe() string {
	switch {
	case e.ItemSelector != nil:
		parts := make([]string, 0, len(e.ItemSelector.MatchExpressions))
		for _, i := range e.ItemSelector.MatchExpressions {
			parts = append(parts, i.describe())
		}
		return fmt.Sprintf("%s %s (%s)", e.Key, e.Operator, strings.Join(parts, ", "))
	case e.Values != nil:
		b, err := json.Marshal(e.Values)
		if err != nil {
			return e.Key + " " + e.Operator
		}
		return fmt.Sprintf("%s %s %s", e.Key, e.Operator, b)
	}
	return e.Key + " " + e.Operator
}

// holds evaluates one expression. A value of another JSON type than the operator asks for does not hold.
func (e MatchExpression) holds(v any, found bool) bool {
	switch e.Operator {
	case Exists:
		return found
	case DoesNotExist:
		return !found
	}
	if !found {
		return false
	}
	switch e.Operator {
	case In:
		return slices.ContainsFunc(e.Values, func(w any) bool { return same(v, w) })
	case NotIn:
		// Only a value of the type that is asked for can be "not one of".
		return len(e.Values) > 0 && alike(v, e.Values[0]) && !slices.ContainsFunc(e.Values, func(w any) bool { return same(v, w) })
	case Gt, Lt:
		if len(e.Values) != 1 {
			return false
		}
		a, ok := number(v)
		b, ok2 := number(e.Values[0])
		if !ok || !ok2 {
			return false
		}
		if e.Operator == Gt {
			return a.Cmp(b) > 0
		}
		return a.Cmp(b) < 0
	case ContainsAll, ContainsAny:
		items, ok := v.([]any)
		return ok && e.ItemSelector != nil && slices.ContainsFunc(items, e.itemHolds)
	}
	return false
}

// itemHolds reports whether one element of a list satisfies all (ContainsAll) or any (ContainsAny) of the expressions.
func (e MatchExpression) itemHolds(item any) bool {
	if len(e.ItemSelector.MatchExpressions) == 0 {
		return false
	}
	for _, i := range e.ItemSelector.MatchExpressions {
		v, found := follow(item, i.Key)
		if i.holds(v, found) != (e.Operator == ContainsAll) {
			return e.Operator == ContainsAny
		}
	}
	return e.Operator == ContainsAll
}

func same(a, b any) bool {
	if x, ok := number(a); ok {
		y, ok := number(b)
		return ok && x.Cmp(y) == 0
	}
	switch a.(type) {
	case string, bool:
		return a == b
	}
	return false
}

// alike reports whether two values, of which b is no list and no object, have one JSON type.
func alike(a, b any) bool {
	_, x := number(a)
	_, y := number(b)
	return x && y || reflect.TypeOf(a) == reflect.TypeOf(b)
}

// number holds every number of a document exactly.
func number(v any) (*big.Rat, bool) {
	switch v := v.(type) {
	case float64:
		r := new(big.Rat).SetFloat64(v)
		return r, r != nil
	case int:
		return new(big.Rat).SetInt64(int64(v)), true
	case int64:
		return new(big.Rat).SetInt64(v), true
	case uint64:
		return new(big.Rat).SetUint64(v), true
	}
	return nil, false
}

// follow walks a JSON Pointer (RFC 6901).
func follow(v any, pointer string) (any, bool) {
	if pointer == "" {
		return v, true
	}
	if pointer[0] != '/' {
		return nil, false
	}
	for _, step := range strings.Split(pointer[1:], "/") {
		step = strings.ReplaceAll(strings.ReplaceAll(step, "~1", "/"), "~0", "~")
		switch at := v.(type) {
		case map[string]any:
			next, ok := at[step]
			if !ok {
				return nil, false
			}
			v = next
		case []any:
			i, err := strconv.Atoi(step)
			if err != nil || i < 0 || i >= len(at) || strconv.Itoa(i) != step {
				return nil, false
			}
			v = at[i]
		default:
			return nil, false
		}
	}
	return v, true
}

// document is the device as the selectors see it: its JSON.
func document(d *DeviceCapabilities) (map[string]any, error) {
	b, err := json.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("look at the capabilities of %s: %w: %w", d.Properties.ID, fault.ErrInvalid, err)
	}
	var out map[string]any
	if err := json.Unmarshal(b, &out); err != nil {
		return nil, fmt.Errorf("look at the capabilities of %s: %w", d.Properties.ID, err)
	}
	tellEmpty(d, out)
	return out, nil
}

// Summary says for people what is asked of a device, one requirement each; rules of which one suffices are one.
func (c *DeviceConstraints) Summary() []string {
	if c == nil {
		return nil
	}
	var out []string
	if q := c.CapacityRequirements; q != nil {
		if q.CPU != nil {
			out = append(out, q.CPU.String())
		}
		if q.Memory != "" {
			out = append(out, "memory "+q.Memory)
		}
		if q.Storage != "" {
			out = append(out, "storage "+q.Storage)
		}
	}
	var rules []string
	for _, r := range c.EligibilityRules {
		var parts []string
		for _, s := range []*Selector{r.PropertySelector, r.LabelSelector} {
			if s == nil {
				continue
			}
			for _, e := range s.MatchExpressions {
				parts = append(parts, e.describe())
			}
		}
		rules = append(rules, strings.Join(parts, " and "))
	}
	if len(rules) > 0 {
		out = append(out, strings.Join(rules, ", or "))
	}
	return out
}
