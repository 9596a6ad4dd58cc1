package margo

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Untaken is a parameter without an effect: none of its components uses its variable.
type Untaken struct {
	Parameter  string
	Variable   string
	Components []string
	uses       []string // variables of these components
}

// String says why the parameter has no effect.
func (u Untaken) String() string {
	return fmt.Sprintf("component %s does not use the variable %s", strings.Join(u.Components, ", "), u.Variable)
}

// Hint names the variable that was probably meant, otherwise all that the components use.
func (u Untaken) Hint() string {
	if best := strict.Nearest(u.Variable, u.uses); best != "" {
		return "did you mean " + best + "?"
	}
	if len(u.uses) == 0 {
		return "its compose.yaml has no variables"
	}
	return "it uses " + strings.Join(u.uses, ", ")
}

// Effects returns the components that take each parameter, and the parameters that none of their components takes: a misspelled one would
// be published without any effect. unused returns those of the variables that a component does not use, and the variables that it uses.
func Effects(parameters map[string]Parameter, components []Component, unused func(c Component, variables []string) (idle, uses []string, err error)) (map[string][]string, []Untaken, error) {
	takers, all := map[string][]string{}, map[string]*Untaken{}
	for _, c := range components {
		sets := map[string][]string{} // parameters by the variable that they set here
		for name, p := range parameters {
			for _, t := range p.Targets {
				if slices.Contains(t.Components, c.Name) {
					sets[t.variable()] = append(sets[t.variable()], name)
				}
			}
		}
		if len(sets) == 0 {
			continue
		}
		idle, uses, err := unused(c, slices.Sorted(maps.Keys(sets)))
		if err != nil {
			return nil, nil, err
		}
		for _, v := range slices.Sorted(maps.Keys(sets)) {
			for _, name := range sets[v] {
				if !slices.Contains(idle, v) {
					takers[name] = append(takers[name], c.Name)
					continue
				}
				u := all[name]
				if u == nil {
					u = &Untaken{Parameter: name, Variable: v}
					all[name] = u
				}
				if u.uses = append(u.uses, uses...); !slices.Contains(u.Components, c.Name) {
					u.Components = append(u.Components, c.Name)
				}
			}
		}
	}
	var out []Untaken
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if u := all[name]; len(takers[name]) == 0 {
			slices.Sort(u.uses)
			u.uses = slices.Compact(u.uses)
			out = append(out, *u)
		}
	}
	return takers, out, nil
}
