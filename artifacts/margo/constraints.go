package margo

import (
	"slices"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// DeviceConstraints say which devices fit (SPEC section 6 of the deployment profile).
type DeviceConstraints struct {
	CapacityRequirements *CapacityRequirements
	EligibilityRules     []EligibilityRule // OR between rules; empty: no rule
}

// CapacityRequirements are minimums.
type CapacityRequirements struct {
	CPU     *CPURequirement
	Memory  string // ^[0-9]+(Mi|Gi|Ki)$; "": none
	Storage string // ^[0-9]+(Mi|Gi|Ki|Ti|Pi|Ei)$; "": none
}

// CPURequirement must be met by a single entry of the device's cpus.
type CPURequirement struct {
	Cores         float64
	Architectures []string
}

// EligibilityRule holds when all of its selectors hold.
type EligibilityRule struct {
	PropertySelector *Selector
	LabelSelector    *Selector
}

// Selector holds when all of its expressions hold.
type Selector struct{ MatchExpressions []MatchExpression }

// MatchExpression compares one value.
type MatchExpression struct {
	Key          string
	Operator     string // In, NotIn, Exists, DoesNotExist, Gt, Lt, ContainsAll, ContainsAny
	Values       []any
	ItemSelector *Selector
}

// Operators of a MatchExpression.
const (
	In           = "In"
	NotIn        = "NotIn"
	Exists       = "Exists"
	DoesNotExist = "DoesNotExist"
	Gt           = "Gt"
	Lt           = "Lt"
	ContainsAll  = "ContainsAll"
	ContainsAny  = "ContainsAny"
)

var operators = []string{In, NotIn, Exists, DoesNotExist, Gt, Lt, ContainsAll, ContainsAny}

// pointerFormat is RFC 6901: "" is the whole, "~" only as "~0" and "~1".
var pointerFormat = strict.Expression(`^(/([^~/]|~[01])*)*$`)

func deviceConstraints(n *strict.Node) *DeviceConstraints {
	if n == nil {
		return nil
	}
	c := &DeviceConstraints{}
	if q := n.Get("capacityRequirements"); q != nil {
		c.CapacityRequirements = &CapacityRequirements{
			Memory:  q.Get("memory").Matching(memoryFormat, "an amount like 512Mi (Ki, Mi, Gi)"),
			Storage: q.Get("storage").Matching(storageFormat, "an amount like 10Gi (Ki, Mi, Gi, Ti, Pi, Ei)"),
		}
		if cpu := q.Get("cpu"); cpu != nil {
			r := &CPURequirement{}
			cores := cpu.Need("cores")
			if r.Cores = cores.Float64(); r.Cores < 0 {
				cores.Faultf("must not be negative")
			}
			for _, a := range cpu.Get("architectures").Items() {
				r.Architectures = append(r.Architectures, a.OneOf(architectures...))
			}
			c.CapacityRequirements.CPU = r
		}
	}
	for _, r := range n.Get("eligibilityRules").Items() {
		rule := EligibilityRule{
			PropertySelector: selector(r.Get("propertySelector"), true),
			LabelSelector:    selector(r.Get("labelSelector"), false),
		}
		if r.Kind() != strict.Object {
			r.Members() // records the wrong kind
		} else if rule.PropertySelector == nil && rule.LabelSelector == nil {
			r.Faultf("has neither propertySelector nor labelSelector, so every device would match")
		}
		c.EligibilityRules = append(c.EligibilityRules, rule)
	}
	return c
}

// selector reads match expressions; their keys are JSON Pointers everywhere but at the top of a label selector.
func selector(n *strict.Node, pointers bool) *Selector {
	if n == nil {
		return nil
	}
	s := &Selector{}
	for _, e := range n.Need("matchExpressions").Items() {
		s.MatchExpressions = append(s.MatchExpressions, matchExpression(e, pointers))
	}
	return s
}

func matchExpression(n *strict.Node, pointer bool) MatchExpression {
	e := MatchExpression{ItemSelector: selector(n.Get("itemSelector"), true)}
	if pointer {
		e.Key = n.Need("key").Matching(pointerFormat, `a JSON Pointer like "/memory"`)
	} else {
		e.Key = n.Need("key").Filled()
	}
	e.Operator = n.Need("operator").OneOf(operators...)
	if !slices.Contains(operators, e.Operator) {
		return e
	}
	values, items := n.Get("values"), n.Get("itemSelector")
	for _, v := range values.Items() {
		e.Values = append(e.Values, v.Value())
	}
	if values != nil && e.Operator != In && e.Operator != NotIn && e.Operator != Gt && e.Operator != Lt {
		values.Faultf("must not be there with %s", e.Operator)
	}
	contains := e.Operator == ContainsAll || e.Operator == ContainsAny
	switch e.Operator {
	case In, NotIn:
		if v := n.Need("values"); v.Kind() != strict.List {
			v.Items() // records the wrong kind
		} else if !sameKind(v.Items()) {
			v.Faultf("must be strings, or numbers, or one boolean")
		}
	case Gt, Lt:
		if v := n.Need("values"); v.Kind() != strict.List {
			v.Items() // records the wrong kind
		} else if len(e.Values) != 1 || v.Items()[0].Kind() != strict.Number {
			v.Faultf("must be exactly one number")
		}
	case ContainsAll, ContainsAny:
		if i := n.Need("itemSelector"); e.ItemSelector == nil {
			i.Members() // records that it is null
		} else if len(e.ItemSelector.MatchExpressions) == 0 {
			i.Faultf("needs at least one expression")
		}
	}
	if items != nil && !contains {
		items.Faultf("must not be there with %s", e.Operator)
	}
	return e
}

func sameKind(items []*strict.Node) bool {
	if len(items) == 0 {
		return false
	}
	first := items[0].Kind()
	for _, i := range items {
		if i.Kind() != first {
			return false
		}
	}
	return first == strict.String || first == strict.Number || first == strict.Bool && len(items) == 1
}
