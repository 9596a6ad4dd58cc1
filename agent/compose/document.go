package compose

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/template"
	"github.com/compose-spec/compose-go/v2/types"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// maxFaults is how many faults of one file are told: more help nobody.
const maxFaults = 100

// document is one Compose file on its way to a project.
type document struct {
	file    string
	root    *node
	env     map[string]string
	faults  []strict.Fault
	notices []strict.Fault
	filled  bool               // variables are filled in
	unset   map[*node][]string // variables without a value that a value used
	cut     map[string]bool    // paths that were left out because they need values of a device
	before  map[string]*node   // containers before services, by their name for compose-go, which types only services
}

// isCut tells that a value, or what it is part of, was left out because it needs values of a device.
func (d *document) isCut(path string) bool {
	for path != "" {
		if d.cut[path] {
			return true
		}
		path = path[:max(strings.LastIndexByte(path, '.'), 0)]
	}
	return false
}

// open reads a file up to interpolated, supported keys.
func open(file string, data []byte, env map[string]string) (*document, error) {
	d := &document{file: file, env: env, cut: map[string]bool{}}
	d.root, d.faults = parse(data)
	if len(d.faults) > 0 {
		return nil, d.err()
	}
	return d, d.prepare(false)
}

// prepare brings a tree up to interpolated, supported keys. assume leaves out what needs unknown variables.
func (d *document) prepare(assume bool) error {
	d.screen(d.root, supported(), "")
	i := &interpolation{env: d.env, assume: assume, open: map[*node]bool{}}
	i.walk(d.root)
	d.faults = append(d.faults, i.faults...)
	if len(i.faults) > 0 {
		return d.err() // what is left would be judged by wrong values
	}
	if len(i.open) > 0 {
		d.prune(i.open)
	}
	d.filled = true
	d.screen(d.root, supported(), "")
	if services := d.root.get("services"); services == nil || services.kind != mapKind || len(services.keys) == 0 {
		d.fault(d.root, "", "there are no services")
		return d.err()
	}
	return nil
}

// prune takes out what cannot be judged: single entries where a key holds a list of independent ones, else the key.
func (d *document) prune(open map[*node]bool) {
	entries := []string{
		"ports", "expose", "volumes", "tmpfs", "environment", "labels", "env_file", "annotations", "cap_add", "cap_drop", "devices", "dns",
		"extra_hosts", "group_add", "security_opt", "sysctls", "configs", "secrets", "profiles",
	}
	for _, section := range []string{"services", "networks", "volumes", "configs", "secrets"} {
		s := d.root.get(section)
		if s == nil {
			continue
		}
		for _, name := range s.keys {
			n := s.fields[name]
			if holds(n, open) && n.kind != mapKind {
				d.cut[n.path] = true
				continue
			}
			for _, key := range slices.Clone(n.keys) {
				child := n.fields[key]
				if !holds(child, open) {
					continue
				}
				d.cut[child.path] = true
				if child.kind == scalarKind || !slices.Contains(entries, key) {
					n.drop(key)
					continue
				}
				child.items = slices.DeleteFunc(child.items, func(item *node) bool { return holds(item, open) })
				for _, k := range slices.Clone(child.keys) {
					if holds(child.fields[k], open) {
						child.drop(k)
					}
				}
			}
		}
	}
}

func holds(n *node, open map[*node]bool) bool {
	if open[n] {
		return true
	}
	for _, item := range n.items {
		if holds(item, open) {
			return true
		}
	}
	for _, k := range n.keys {
		if holds(n.fields[k], open) {
			return true
		}
	}
	return false
}

// err is everything that was found, in order of the file; nil when nothing was.
func (d *document) err() error {
	if len(d.faults) == 0 {
		return nil
	}
	slices.SortStableFunc(d.faults, func(a, b strict.Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
	faults := slices.Compact(d.faults) // an anchor used twice is wrong once
	if len(faults) > maxFaults {
		more := len(faults) - maxFaults
		faults = append(faults[:maxFaults:maxFaults], strict.Fault{Message: fmt.Sprintf("and %d more faults", more)})
	}
	return &strict.Error{File: d.file, Faults: faults}
}

// sortNotices orders what people are told by the file.
func (d *document) sortNotices() {
	slices.SortStableFunc(d.notices, func(a, b strict.Fault) int {
		return cmp.Or(cmp.Compare(a.File, b.File), cmp.Compare(a.Line, b.Line), cmp.Compare(a.Column, b.Column))
	})
}

func faultAt(n *node) strict.Fault {
	if n == nil {
		return strict.Fault{Line: 1, Column: 1}
	}
	return strict.Fault{Line: n.line, Column: n.column, Path: n.path, File: n.file}
}

// project has compose-go validate the tree and type its values.
func (d *document) project(ctx context.Context, name string) (p *types.Project, err error) {
	defer func() {
		if r := recover(); r != nil { // a library on a stranger's file: one project must not take the agent down
			p, err = nil, fmt.Errorf("read %s: compose-go: %v: %w", d.file, r, fault.ErrInvalid)
		}
	}()
	details := types.ConfigDetails{
		WorkingDir:  "/",
		ConfigFiles: []types.ConfigFile{{Filename: d.file, Config: d.config()}},
		Environment: maps.Clone(d.env), // compose-go writes into it
	}
	p, err = loader.LoadWithContext(ctx, details, func(o *loader.Options) {
		o.SetProjectName(name, true)
		o.SkipInclude, o.SkipExtends = true, true
		o.ResolvePaths = false
		o.SkipResolveEnvironment, o.SkipResolveLabels = true, true // both would read files of the host
		o.SkipConsistencyCheck = true                              // ours has positions
		o.Interpolate.LookupValue = func(string) (string, bool) { return "", false }
		o.Interpolate.Substitute = asWritten // done already; the step still casts "80" to 80
	})
	if err != nil {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("read %s: %w", d.file, context.Cause(ctx))
		}
		d.foreign(err)
		return nil, d.err()
	}
	return p, nil
}

// foreign places an error of compose-go, which tells a path at best.
func (d *document) foreign(err error) {
	msg := err.Error()
	for e := err; e != nil; e = errors.Unwrap(e) {
		msg = e.Error()
	}
	msg = strings.TrimPrefix(msg, "validating "+d.file+": ")
	best, said := d.root, ""
	for _, word := range strings.FieldsFunc(msg, func(r rune) bool { return strings.ContainsRune(" \t\n:,\"'`()", r) }) {
		path := strings.NewReplacer(".[]", "", "[", ".", "]", "").Replace(word)
		n := d.root.nearest(path)
		if name, below, _ := strings.Cut(strings.TrimPrefix(path, "services."), "."); d.before[name] != nil {
			n = d.before[name].nearest(below)
		}
		if len(n.path) > len(best.path) {
			best, said = n, word
		}
	}
	if at := strings.Index(msg, said); said != "" && at <= 1 { // the fault's own path says it already
		msg = strings.TrimLeft(msg[at+len(said):], "': ")
	}
	d.fault(best, "", "%s", msg)
}

func asWritten(s string, _ template.Mapping) (string, error) { return s, nil }
