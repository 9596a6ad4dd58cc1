package composefile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/template"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Limits on interpolation: the substitution of compose-go looks at the rest of a value again for each reference in it.
const (
	maxTemplate     = 16 << 10  // bytes of one value that holds references
	maxTemplates    = 512 << 10 // bytes of all of them
	maxReferences   = 256       // references in one value
	maxReferenceIn  = 8         // references within the default of another
	maxInterpolated = 4 << 20   // bytes that variables may add in all
)

// Interpolation replaces the variables of a tree's values in place. Keys and extensions are left alone.
type Interpolation struct {
	Env    map[string]string
	Assume bool // values of the device are unknown: values that need them are left out of the checks
	total  int  // bytes of templates read
	added  int  // bytes of variables put in
	Faults []strict.Fault
	Open   map[*Node]bool     // assume: values that need a variable without a value
	Unset  map[*Node][]string // when not nil: variables without value and default that a value needs
}

func (i *Interpolation) Walk(n *Node) {
	switch n.Kind {
	case Map:
		for _, k := range n.Keys {
			i.Walk(n.Fields[k])
		}
	case List:
		for _, item := range n.Items {
			i.Walk(item)
		}
	default:
		if s, ok := n.Value.(string); ok && strings.Contains(s, "$") {
			i.scalar(n, s)
		}
	}
}

func (i *Interpolation) fail(n *Node, hint, format string, args ...any) {
	i.Faults = append(i.Faults, strict.Fault{File: n.File, Line: n.Line, Column: n.Column, Path: n.Path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (i *Interpolation) scalar(n *Node, s string) {
	i.total += len(s)
	if len(s) > maxTemplate || i.total > maxTemplates || strings.Count(s, "${") > maxReferences || nesting(s) > maxReferenceIn {
		i.fail(n, "", "too long or too deep to replace variables in it")
		return
	}
	if i.Assume {
		if len(Unset(s, i.Env)) > 0 && wellFormed(s) {
			i.Open[n] = true
			return
		}
	}
	if i.Unset != nil {
		i.Unset[n] = Unset(s, i.Env)
	}
	lookup := func(name string) (string, bool) {
		v, ok := i.Env[name]
		if i.added += len(v); i.added > maxInterpolated {
			return "", ok
		}
		return v, ok
	}
	out, err := template.SubstituteWithOptions(s, lookup, template.WithoutLogging)
	var missing *template.MissingRequiredError
	var broken *template.InvalidTemplateError
	switch {
	case i.added > maxInterpolated:
		i.fail(n, "", "variables grow the file by more than %d bytes", maxInterpolated)
	case errors.As(err, &missing):
		why := "variable %s has no value"
		args := []any{missing.Variable}
		if missing.Reason != "" {
			why, args = why+": %s", append(args, missing.Reason)
		}
		i.fail(n, "set it with a parameter of the deployment whose pointer is "+missing.Variable, why, args...)
	case errors.As(err, &broken):
		i.fail(n, "a dollar sign that is no variable is written $$", "%q is no valid use of variables", s)
	case err != nil:
		i.fail(n, "", "%v", err)
	default:
		n.Value, n.Raw = out, out
	}
}

// nesting is how deep references stand in each other.
func nesting(s string) int {
	depth, deepest := 0, 0
	for i := 0; i < len(s); i++ {
		switch {
		case s[i] == '}' && depth > 0:
			depth--
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '{':
			depth++
			deepest = max(deepest, depth)
		}
	}
	return deepest
}

// wellFormed reports whether a value can be filled in, whatever the variables are.
func wellFormed(s string) bool {
	_, err := template.SubstituteWithOptions(s, func(string) (string, bool) { return "x", true }, template.WithoutLogging)
	return err == nil
}

// Unset lists the variables that env does not set and that have no default either.
func Unset(s string, env map[string]string) []string {
	var out []string
	vars := template.ExtractVariables(map[string]any{"": s}, template.DefaultPattern)
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if _, ok := env[name]; !ok && vars[name].DefaultValue == "" && vars[name].PresenceValue == "" {
			out = append(out, name)
		}
	}
	return out
}
