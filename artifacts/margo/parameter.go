package margo

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// EnvironmentValue is the value as Compose's interpolation gets it: strings as they are, numbers in decimal, "true" or
// "false", nothing for null, and compact JSON for lists and objects.
func (p Parameter) EnvironmentValue() (string, error) {
	switch v := p.Value.(type) {
	case nil:
		return "", nil
	case string:
		if strings.ContainsRune(v, 0) {
			return "", fmt.Errorf("a value with a NUL character cannot be an environment variable: %w", fault.ErrInvalid)
		}
		return v, nil
	case bool:
		return strconv.FormatBool(v), nil
	case int:
		return strconv.Itoa(v), nil
	case int64:
		return strconv.FormatInt(v, 10), nil
	case uint64:
		return strconv.FormatUint(v, 10), nil
	case float64:
		return strconv.FormatFloat(v, 'f', -1, 64), nil
	case []any, map[string]any:
		b, err := plainJSON(v)
		if err != nil {
			return "", fmt.Errorf("write value %v as JSON: %w: %w", v, fault.ErrInvalid, err)
		}
		return string(b), nil
	}
	return "", fmt.Errorf("a value of type %T cannot be an environment variable: %w", p.Value, fault.ErrInvalid)
}

// plainJSON is compact JSON with sorted keys and without the escapes that are for HTML.
func plainJSON(v any) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return nil, err
	}
	return bytes.TrimSuffix(b.Bytes(), []byte("\n")), nil
}

// ClashError is two parameters that give one variable of a component different values. It wraps fault.ErrInvalid.
type ClashError struct {
	First, Second string // names of the parameters, in alphabetical order
	Variable      string
	Component     string
}

func (e *ClashError) Error() string {
	return fmt.Sprintf("parameters %s and %s both set %s of component %s: %v", e.First, e.Second, e.Variable, e.Component, fault.ErrInvalid)
}

// Unwrap returns fault.ErrInvalid.
func (e *ClashError) Unwrap() error { return fault.ErrInvalid }

// Environment is what parameters, by name, say to one Compose component: the values of its variables. Errors wrap
// fault.ErrInvalid; of several the one of the first parameter in alphabetical order is returned. See [ClashError].
func Environment(parameters map[string]Parameter, component string) (map[string]string, error) {
	env, by := map[string]string{}, map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(parameters)) {
		p := parameters[name]
		for _, t := range p.Targets {
			if !slices.Contains(t.Components, component) {
				continue
			}
			v, err := p.EnvironmentValue()
			if err != nil {
				return nil, fmt.Errorf("parameter %s: %w", name, err)
			}
			key := t.variable()
			if old, ok := env[key]; ok && old != v {
				return nil, &ClashError{by[key], name, key, component}
			}
			if by[key] == "" {
				env[key], by[key] = v, name
			}
		}
	}
	return env, nil
}

// Environment is what the deployment's parameters say to one of its Compose components, see the function [Environment].
func (d *ApplicationDeployment) Environment(component string) (map[string]string, error) {
	return Environment(d.Spec.Parameters, component)
}

// variable is the name of the environment variable that a target of a Compose component names.
func (t ParameterTarget) variable() string { return strings.TrimPrefix(t.Pointer, "ENV.") }

// Variables are the names of the variables that the deployment's parameters give values to, sorted.
func (d *ApplicationDeployment) Variables() []string {
	names := map[string]bool{}
	for _, p := range d.Spec.Parameters {
		for _, t := range p.Targets {
			names[t.variable()] = true
		}
	}
	return slices.Sorted(maps.Keys(names))
}

// SetVariable gives a variable a value: by the parameters that set it already, else by a new one of its name, for these
// components. An error wraps fault.ErrConflict when a parameter says more than this variable.
func (d *ApplicationDeployment) SetVariable(name, value string, components []string) error {
	found := false
	for key, p := range d.Spec.Parameters {
		others := slices.DeleteFunc(slices.Clone(p.Targets), func(t ParameterTarget) bool { return t.variable() == name })
		if len(others) == len(p.Targets) && key != name {
			continue
		}
		if len(others) > 0 {
			err := fmt.Errorf("set %s: the parameter %s also sets %s: %w", name, key, others[0].variable(), fault.ErrConflict)
			return fault.WithHint(err, "change it in the deployment's document")
		}
		p.Value, found = value, true
		d.Spec.Parameters[key] = p
	}
	if !found {
		if d.Spec.Parameters == nil {
			d.Spec.Parameters = map[string]Parameter{}
		}
		d.Spec.Parameters[name] = Parameter{Value: value, Targets: []ParameterTarget{{Pointer: name, Components: components}}}
	}
	return nil
}

// UnsetVariable takes the value of a variable away, and the parameters that set nothing else.
func (d *ApplicationDeployment) UnsetVariable(name string) {
	for key, p := range d.Spec.Parameters {
		others := slices.DeleteFunc(slices.Clone(p.Targets), func(t ParameterTarget) bool { return t.variable() == name })
		if len(others) == 0 {
			delete(d.Spec.Parameters, key)
		} else {
			d.Spec.Parameters[key] = Parameter{Value: p.Value, Targets: others}
		}
	}
}
