package compose

import (
	"bytes"
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/dotenv"
	"github.com/compose-spec/compose-go/v2/types"
)

const (
	maxEnvFile     = 256 << 10 // bytes of one env file
	maxEnvironment = 512 << 10 // bytes of one service's environment: execve takes no more than 2 MiB with the arguments
	maxVariable    = 127 << 10 // bytes of one: execve takes no more than 128 KiB
	maxLines       = 10        // lines of an env file that one notice names
)

// environment is a service's environment as Compose has it: env files in order, then "environment:" over them. A name
// without a value takes the deployment's; when there is none the variable is not set, whatever a file says.
func (t *translation) environment(n *node) []string {
	own := t.variables(n.get("environment"))
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
	files := n.get("env_file")
	if files != nil && files.kind == mapKind {
		t.fault(files, "", "must be a list")
	} else if files != nil && files.kind == listKind {
		for _, item := range files.items {
			t.envFile(item, vars, lookup)
		}
	} else if !files.isNull() {
		t.envFile(files, vars, lookup)
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

// envFile reads a file of the archive into vars. n is its name, or a mapping of path, required and format.
func (t *translation) envFile(n *node, vars map[string]string, lookup func(string) (string, bool)) {
	name, required, format := n, true, ""
	if n.kind == mapKind {
		name, format = n.get("path"), t.text(n.get("format"))
		required, _ = t.truth(n.get("required"), true)
	}
	file := t.text(name)
	if file == "" {
		t.fault(n, "", "path is missing")
		return
	}
	if t.files == nil {
		return
	}
	data, ok, missing := t.open(n, file, maxEnvFile, "an env file")
	switch {
	case !ok:
	case missing != nil && required:
		t.fault(n, inArchive, "%q is not in the archive", file)
	case missing != nil:
	default:
		missed := map[string]bool{} // variables that had no value when they were looked for
		noted := func(name string) (string, bool) {
			value, ok := lookup(name)
			if _, said := vars[name]; !ok && !said {
				missed[name] = true
			}
			return value, ok
		}
		if err := parseEnv(path.Clean(file), data, vars, noted, format); err != nil {
			t.fault(n, "", "%v", err)
			return
		}
		t.emptyVariables(n, file, string(data), missed)
	}
}

// emptyVariables gives notice of the lines of an env file that refer to a variable without a value. It does not name the
// variable: what follows the dollar sign of a password looks like one.
func (t *translation) emptyVariables(n *node, file, text string, missed map[string]bool) {
	if len(missed) == 0 {
		return
	}
	var lines []string
	for i, line := range strings.Split(text, "\n") {
		if comment := strings.HasPrefix(strings.TrimSpace(line), "#"); !comment && slices.ContainsFunc(unknown(line, nil), func(name string) bool { return missed[name] }) {
			lines = append(lines, strconv.Itoa(i+1))
		}
	}
	switch more := len(lines) - maxLines; {
	case len(lines) == 0:
		return
	case len(lines) == 1:
		t.notice(n, "line %s of %s refers to a variable without a value: it is empty unless a parameter of the deployment gives it one", lines[0], clipped(file))
		return
	case more > 0:
		lines = append(lines[:maxLines], fmt.Sprintf("%d more", more))
	}
	last := len(lines) - 1
	t.notice(n, "lines %s and %s of %s refer to variables without a value: they are empty unless parameters of the deployment give them one",
		strings.Join(lines[:last], ", "), lines[last], clipped(file))
}

// variables are those of "environment:". One without a value has that of the deployment; nil where there is none.
func (t *translation) variables(n *node) types.MappingWithEquals {
	out := types.MappingWithEquals{}
	for _, p := range t.pairsOf(n) {
		value, ok := p.value, p.set
		if !ok {
			value, ok = t.env[p.key]
		}
		if out[p.key] = nil; ok {
			out[p.key] = &value
		}
	}
	return out
}

// hookEnvironment is the environment of a command in a container, sorted.
func (t *translation) hookEnvironment(n *node) []string {
	var out []string
	for name, v := range t.variables(n) {
		if v != nil {
			out = append(out, name+"="+*v)
		}
	}
	slices.Sort(out)
	return out
}

// parseEnv reads an env file with compose-go, whose errors hold the text around the fault: only the name is shown, for
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
