package compose

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

// interpolation replaces the variables of a tree's values in place. Keys and extensions are left alone.
type interpolation struct {
	env    map[string]string
	assume bool // values of the device are not known: what needs them is left out of the checks
	total  int  // bytes of templates read
	added  int  // bytes of variables put in
	faults []strict.Fault
	open   map[*node]bool     // assume: values that need a variable without a value
	unset  map[*node][]string // when not nil: variables without value and default that a value needs
}

func (i *interpolation) walk(n *node) {
	switch n.kind {
	case mapKind:
		for _, k := range n.keys {
			i.walk(n.fields[k])
		}
	case listKind:
		for _, item := range n.items {
			i.walk(item)
		}
	default:
		if s, ok := n.value.(string); ok && strings.Contains(s, "$") {
			i.scalar(n, s)
		}
	}
}

func (i *interpolation) fail(n *node, hint, format string, args ...any) {
	i.faults = append(i.faults, strict.Fault{File: n.file, Line: n.line, Column: n.column, Path: n.path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

func (i *interpolation) scalar(n *node, s string) {
	i.total += len(s)
	if len(s) > maxTemplate || i.total > maxTemplates || strings.Count(s, "${") > maxReferences || nesting(s) > maxReferenceIn {
		i.fail(n, "", "too long or too deep to replace variables in it")
		return
	}
	if i.assume {
		if len(unknown(s, i.env)) > 0 && wellFormed(s) {
			i.open[n] = true
			return
		}
	}
	if i.unset != nil {
		i.unset[n] = unknown(s, i.env)
	}
	lookup := func(name string) (string, bool) {
		v, ok := i.env[name]
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
		n.value, n.text = out, out
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

// unknown lists the variables that env does not set and that have no default either.
func unknown(s string, env map[string]string) []string {
	var out []string
	vars := template.ExtractVariables(map[string]any{"": s}, template.DefaultPattern)
	for _, name := range slices.Sorted(maps.Keys(vars)) {
		if _, ok := env[name]; !ok && vars[name].DefaultValue == "" && vars[name].PresenceValue == "" {
			out = append(out, name)
		}
	}
	return out
}
