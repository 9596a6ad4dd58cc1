package compose

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	maxEnvFile     = 256 << 10 // bytes of one env file
	maxEnvironment = 512 << 10 // bytes of one service's environment: execve takes no more than 2 MiB with the arguments
	maxVariable    = 127 << 10 // bytes of one: execve takes no more than 128 KiB
)

// environment is a service's environment as Compose has it: env files in order, then "environment:" over them. A name
// without a value takes the deployment's; when there is none the variable is not set, whatever a file says.
func (t *translation) environment(n *node, c types.ServiceConfig) []string {
	known := types.Mapping(t.env)
	own := c.Environment.Resolve(known.Resolve)
	vars := own.ToMapping()
	lookup := func(name string) (string, bool) {
		if v, ok := t.env[name]; ok {
			return v, true
		}
		if v, ok := own[name]; ok && v != nil {
			return *v, true
		}
		return "", false
	}
	for i, f := range c.EnvFiles {
		at := n.get("env_file")
		if at != nil && at.kind == listKind && i < len(at.items) {
			at = at.items[i]
		}
		t.envFile(at, f, vars, lookup)
	}
	all := vars.ToMappingWithEquals().OverrideBy(own)
	out := make([]string, 0, len(all))
	size := 0
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		if v == nil {
			continue
		}
		switch entry := name + "=" + *v; {
		case name == "" || strings.ContainsAny(name, "=\x00") || strings.ContainsRune(*v, 0):
			t.fault(n.get("environment"), "", "%q is no variable", clipped(name))
		case len(entry) > maxVariable:
			t.fault(n.get("environment"), "", "variable %s is longer than %d bytes", clipped(name), maxVariable)
		default:
			size += len(entry)
			out = append(out, entry)
		}
	}
	if size > maxEnvironment {
		t.fault(n.get("environment"), "", "the environment is larger than %d bytes", maxEnvironment)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// envFile reads a file of the archive into vars.
func (t *translation) envFile(n *node, f types.EnvFile, vars map[string]string, lookup func(string) (string, bool)) {
	if t.files == nil {
		return
	}
	data, ok, missing := t.open(n, f.Path, maxEnvFile, "an env file")
	switch {
	case !ok:
	case missing != nil && bool(f.Required):
		t.fault(n, inArchive, "%q is not in the archive", f.Path)
	case missing != nil:
	default:
		if err := parseEnv(path.Clean(f.Path), data, vars, lookup, f.Format); err != nil {
			t.fault(n, "", "%v", err)
		}
	}
}

// hookEnvironment is the environment of a command in a container, sorted.
func (t *translation) hookEnvironment(h types.ServiceHook) []string {
	known := types.Mapping(t.env)
	var out []string
	for name, v := range h.Environment.Resolve(known.Resolve) {
		if v != nil {
			out = append(out, name+"="+*v)
		}
	}
	slices.Sort(out)
	return out
}

// parseEnv reads an env file with compose-go, whose errors hold the text around the fault: the name alone is told, for
// these files hold passwords.
func parseEnv(name string, data []byte, vars map[string]string, lookup func(string) (string, bool), format string) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("%s: compose-go: %v", name, r)
		}
	}()
	for i, line := range strings.Split(string(data), "\n") {
		if strings.Count(line, "${") > maxReferences || nesting(line) > maxReferenceIn || strings.Contains(line, "$") && len(line) > maxTemplate {
			return fmt.Errorf("%s: line %d: too long or too deep to replace variables in it", name, i+1)
		}
	}
	switch format {
	case "raw":
		return rawEnv(name, data, vars)
	case "":
	default:
		return fmt.Errorf("%q is no format of env files: raw is", clipped(format))
	}
	if err := dotenv.ParseWithFormat(bytes.NewReader(data), name, vars, lookup, ""); err != nil {
		return fmt.Errorf("%s is no env file: write KEY=value, one a line", name)
	}
	return nil
}

// rawEnv takes what is right of the first "=" as it is: no quotes, no variables. A name alone takes the deployment's
// value or is not set, which is what is there already.
func rawEnv(name string, data []byte, vars map[string]string) error {
	for i, line := range strings.Split(string(data), "\n") {
		line = strings.TrimSuffix(line, "\r")
		if trimmed := strings.TrimSpace(line); trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		key, value, ok := strings.Cut(strings.TrimLeft(line, " \t"), "=")
		if key == "" || strings.ContainsAny(key, " \t") {
			return fmt.Errorf("%s is no env file: line %d: write KEY=value", name, i+1)
		}
		if ok {
			vars[key] = value
		}
	}
	return nil
}
