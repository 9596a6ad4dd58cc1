package composefile

import (
	"fmt"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/bounded"
)

// included is one entry of include.
type included struct {
	names   []string          // of its files, from the root
	project string            // the directory that their paths are relative to
	env     map[string]string // of its env files: default values of variables
}

// envOf reads the env files of an entry of include, later ones override earlier ones; nil when there is a fault.
func (f *flattening) envOf(n *Node, base string) map[string]string {
	env := map[string]string{}
	if n.IsNull() {
		return env
	}
	for _, item := range f.Elements(n) {
		name := f.resolvePath(item, base)
		if name == "" {
			return nil
		}
		data, err := bounded.FileIn(f.fsys, name, MaxEnvFile)
		if err == nil {
			err = ParseEnv(name, data, env, func(k string) (string, bool) { v, ok := env[k]; return v, ok }, "")
		}
		if err != nil {
			f.Fault(item, "", "read env file: %v", err)
			return nil
		}
	}
	return env
}

// defaults writes the values of env files into the variables of a tree as their defaults: parameters of the deployment override them.
func (f *flattening) defaults(n *Node, env map[string]string) {
	if len(env) == 0 {
		return
	}
	Each(n.Get("services"), func(_ string, s *Node) { bareVariables(s.Get("environment"), env) })
	f.defaultsIn(n, env)
}

func (f *flattening) defaultsIn(n *Node, env map[string]string) {
	for _, item := range n.Items {
		f.defaultsIn(item, env)
	}
	for _, k := range n.Keys {
		f.defaultsIn(n.Fields[k], env)
	}
	s, ok := n.Value.(string)
	if n.Kind != Scalar || !ok || !strings.Contains(s, "$") || len(s) > maxTemplate || nesting(s) > maxReferenceIn {
		return
	}
	out, err := withDefaults(s, env)
	if err != nil {
		f.Fault(n, "write the default into the file: ${NAME:-default}", "%v", err)
		return
	}
	n.Value, n.Raw = out, out
}

// bareVariables sets variables of a service's environment without a value to those of the env files.
func bareVariables(n *Node, env map[string]string) {
	reference := func(name string) string { return "${" + name + "}" }
	switch {
	case n.IsNull():
	case n.Kind == List:
		for _, item := range n.Items {
			if name := item.Text(); item.Kind == Scalar && !strings.Contains(name, "=") {
				if _, ok := env[name]; ok {
					item.Value, item.Raw = name+"="+reference(name), name+"="+reference(name)
				}
			}
		}
	case n.Kind == Map:
		for _, k := range n.Keys {
			if c := n.Fields[k]; c.IsNull() {
				if _, ok := env[k]; ok {
					c.Kind, c.Value, c.Raw = Scalar, reference(k), reference(k)
				}
			}
		}
	}
}

// withDefaults writes values into the variables of a text: ${NAME} becomes ${NAME-value}, in place of another default.
func withDefaults(s string, env map[string]string) (string, error) {
	var out strings.Builder
	for i := 0; i < len(s); {
		switch {
		case s[i] != '$' || i+1 == len(s):
			out.WriteByte(s[i])
			i++
		case s[i+1] == '$':
			out.WriteString("$$")
			i += 2
		case s[i+1] == '{':
			end := closing(s, i+2)
			if end < 0 {
				return s, nil // refused where variables are filled in
			}
			text, err := referenceWith(s[i+2:end], env)
			if err != nil {
				return "", err
			}
			out.WriteString(text)
			i = end + 1
		default:
			name := variableName(s[i+1:])
			text := "$" + name
			if _, ok := env[name]; ok {
				var err error
				if text, err = referenceWith(name, env); err != nil {
					return "", err
				}
			}
			out.WriteString(text)
			i += 1 + len(name)
		}
	}
	return out.String(), nil
}

// referenceWith writes a value into the inside of ${…}.
func referenceWith(inside string, env map[string]string) (string, error) {
	name := variableName(inside)
	rest := inside[len(name):]
	op := rest[:len(rest)-len(strings.TrimLeft(rest, ":-+?"))]
	if len(op) > 2 || len(op) == 2 && op[0] != ':' {
		op = op[:1]
	}
	other, err := withDefaults(rest[len(op):], env)
	if err != nil {
		return "", err
	}
	kept := "${" + name + op + other + "}"
	value, ok := env[name]
	if !ok || value == "" && strings.HasPrefix(op, ":") {
		return kept, nil
	}
	if strings.ContainsAny(value, "{}") {
		return "", fmt.Errorf("the value of %s in the env file holds a brace, which no default can", name)
	}
	value = strings.ReplaceAll(value, "$", "$$")
	switch op {
	case "", "-", "?":
		return "${" + name + "-" + value + "}", nil
	case ":-", ":?":
		return "${" + name + ":-" + value + "}", nil
	case "+", ":+":
		return other, nil
	}
	return kept, nil
}

// closing is the position of the brace that closes one opened before from; -1 when there is none.
func closing(s string, from int) int {
	depth := 1
	for i := from; i < len(s); i++ {
		switch {
		case s[i] == '}':
			if depth--; depth == 0 {
				return i
			}
		case s[i] == '$' && i+1 < len(s) && s[i+1] == '{':
			depth++
		}
	}
	return -1
}

// variableName is the name that a text begins with.
func variableName(s string) string {
	n := 0
	for n < len(s) && (s[n] == '_' || s[n] >= 'a' && s[n] <= 'z' || s[n] >= 'A' && s[n] <= 'Z' || n > 0 && s[n] >= '0' && s[n] <= '9') {
		n++
	}
	return s[:n]
}
