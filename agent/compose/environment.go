package compose

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/artifacts/composefile"
)

const (
	maxEnvironment = 512 << 10 // bytes of one service's environment: execve accepts at most 2 MiB with the arguments
	maxVariable    = 127 << 10 // bytes of one: execve accepts at most 128 KiB
	maxLines       = 10        // lines of an env file that one notice names
)

// environment is a service's environment as in Compose: env files in order, then "environment:" over them. A name without a value gets
// the deployment's value; without that the variable is not set, even if a file sets it.
func (t *translation) environment(n *composefile.Node) []string {
	own := t.variables(n.Get("environment"))
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
	files := n.Get("env_file")
	if files != nil && files.Kind == composefile.Map {
		t.Fault(files, "", "must be a list")
	} else if files != nil && files.Kind == composefile.List {
		for _, item := range files.Items {
			t.envFile(item, vars, lookup)
		}
	} else if !files.IsNull() {
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
			t.Fault(n.Get("environment"), "", "%q is no variable", composefile.Clip(name))
		case len(entry) > maxVariable:
			t.Fault(n.Get("environment"), "", "variable %s is longer than %d bytes", composefile.Clip(name), maxVariable)
		default:
			size += len(entry)
			out = append(out, entry)
		}
	}
	if size > maxEnvironment {
		t.Fault(n.Get("environment"), "", "the environment is larger than %d bytes", maxEnvironment)
	}
	if len(out) == 0 {
		return nil
	}
	return out
}

// envFile reads a file of the archive into vars. n is its name, or a mapping of path, required and format.
func (t *translation) envFile(n *composefile.Node, vars map[string]string, lookup func(string) (string, bool)) {
	name, required, format := n, true, ""
	if n.Kind == composefile.Map {
		name, format = n.Get("path"), t.Text(n.Get("format"))
		required, _ = t.boolean(n.Get("required"), true)
	}
	file := t.Text(name)
	if file == "" {
		t.Fault(n, "", "path is missing")
		return
	}
	if t.files == nil {
		return
	}
	data, ok, missing := t.open(n, file, composefile.MaxEnvFile, "an env file")
	switch {
	case !ok:
	case missing != nil && required:
		t.Fault(n, inArchive, "%q is not in the archive", file)
	case missing != nil:
	default:
		missed := map[string]bool{} // variables without a value when they were looked up
		noted := func(name string) (string, bool) {
			value, ok := lookup(name)
			if _, said := vars[name]; !ok && !said {
				missed[name] = true
			}
			return value, ok
		}
		if err := composefile.ParseEnv(path.Clean(file), data, vars, noted, format); err != nil {
			t.Fault(n, "", "%v", err)
			return
		}
		t.emptyVariables(n, file, string(data), missed)
	}
}

// emptyVariables adds a notice about the lines of an env file that refer to a variable without a value. It does not name the variable:
// it may be a part of a password with a dollar sign.
func (t *translation) emptyVariables(n *composefile.Node, file, text string, missed map[string]bool) {
	if len(missed) == 0 {
		return
	}
	var lines []string
	for i, line := range strings.Split(text, "\n") {
		if comment := strings.HasPrefix(strings.TrimSpace(line), "#"); !comment && slices.ContainsFunc(composefile.Unset(line, nil), func(name string) bool { return missed[name] }) {
			lines = append(lines, strconv.Itoa(i+1))
		}
	}
	switch more := len(lines) - maxLines; {
	case len(lines) == 0:
		return
	case len(lines) == 1:
		t.Notice(n, "line %s of %s refers to a variable without a value: it is empty unless a parameter of the deployment gives it one", lines[0], composefile.Clip(file))
		return
	case more > 0:
		lines = append(lines[:maxLines], fmt.Sprintf("%d more", more))
	}
	last := len(lines) - 1
	t.Notice(n, "lines %s and %s of %s refer to variables without a value: they are empty unless parameters of the deployment give them one",
		strings.Join(lines[:last], ", "), lines[last], composefile.Clip(file))
}

// variables are those of "environment:". One without a value gets that of the deployment, else nil.
func (t *translation) variables(n *composefile.Node) types.MappingWithEquals {
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
func (t *translation) hookEnvironment(n *composefile.Node) []string {
	var out []string
	for name, v := range t.variables(n) {
		if v != nil {
			out = append(out, name+"="+*v)
		}
	}
	slices.Sort(out)
	return out
}
