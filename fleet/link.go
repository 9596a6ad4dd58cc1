package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// faults collects faults, to be reported together.
type faults struct{ list []strict.Fault }

func (s *faults) add(at place, hint, format string, args ...any) {
	s.list = append(s.list, strict.Fault{File: at.file, Line: at.line, Column: at.column, Path: at.path, Message: fmt.Sprintf(format, args...), Hint: hint})
}

// err is everything, sorted by file and position; nil when nothing is wrong.
func (s *faults) err() error {
	if len(s.list) == 0 {
		return nil
	}
	slices.SortStableFunc(s.list, func(a, b strict.Fault) int {
		return cmp.Or(strings.Compare(a.File, b.File), a.Line-b.Line, a.Column-b.Column)
	})
	e := &strict.Error{File: File, Faults: s.list}
	if n := len(s.list); n > maxFaults {
		e.Faults = append(slices.Clip(s.list[:maxFaults]), strict.Fault{Message: fmt.Sprintf("and %d more faults", n-maxFaults)})
	}
	return e
}

// loadCapabilities reads each file of capabilities once.
func (f *Fleet) loadCapabilities(fsys fs.FS, seen map[string]*capabilities, sink *faults) {
	load := func(c *capabilities) {
		if c == nil || c.file == "" {
			return
		}
		name := path.Clean(c.file)
		if first, ok := seen[name]; ok {
			c.parsed = first.parsed
			return
		}
		seen[name] = c
		data, err := bounded.FileIn(fsys, name, strict.MaxJSON)
		if err != nil {
			if at, ok := errors.AsType[*fs.PathError](err); ok {
				err = at.Err
			}
			sink.add(c.at, "write it with longshore-agent capabilities, on the device", "%s: %v", c.file, err)
			return
		}
		f.files[name] = digest.FromBytes(data).String()
		if c.parsed, err = margo.ParseDeviceCapabilities(name, data); err != nil {
			var document *strict.Error
			if !errors.As(err, &document) {
				sink.add(c.at, "", "%s: %v", c.file, err)
				return
			}
			for _, x := range document.Faults {
				x.File = name
				sink.list = append(sink.list, x)
			}
		}
	}
	for _, g := range f.Groups {
		load(g.capabilities)
	}
	for _, d := range f.Devices {
		load(d.capabilities)
	}
}

// loadReportKeys reads the public keys of devices that are there.
func (f *Fleet) loadReportKeys(fsys fs.FS, sink *faults) {
	if f.Reports == nil || !fs.ValidPath(f.Reports.Keys) {
		return
	}
	for _, d := range f.Devices {
		name := path.Join(f.Reports.Keys, d.ID.Tag()+".pub")
		data, err := bounded.FileIn(fsys, name, maxReportKey)
		switch {
		case errors.Is(err, fs.ErrNotExist):
			continue
		case err != nil:
			sink.add(place{file: name}, "write it with longshore-agent key, on the device", "%v", err)
			continue
		}
		f.files[name] = digest.FromBytes(data).String()
		d.ReportKey = data
	}
}

// link checks what one part says of another, and puts devices into groups. whole says that all parts have been read: what is
// not in the others is not there.
func (f *Fleet) link(sink *faults, whole bool) {
	absent := sink
	if !whole {
		absent = &faults{}
	}
	uniqueNames(sink, "application", f.Applications, func(a *Application) (string, place) { return a.Name, a.at })
	uniqueNames(sink, "group", f.Groups, func(g *Group) (string, place) { return g.Name, g.at })
	uniqueNames(sink, "deployment", f.Deployments, func(d *Deployment) (string, place) { return d.Name, d.at })
	uniqueNames(sink, "device", f.Devices, func(d *Device) (string, place) { return string(d.ID), d.at })
	slices.SortStableFunc(f.Devices, func(a, b *Device) int { return strings.Compare(string(a.ID), string(b.ID)) })
	for _, d := range f.Devices {
		f.byID[string(d.ID)] = d
	}
	for _, g := range f.Groups {
		if len(g.Select.named(keyGroup)) > 0 {
			sink.add(g.at, "", "a group cannot be made of groups: select by labels")
			continue
		}
		before := len(absent.list)
		f.known(g.Select, g.selected, absent)
		var members []*Device
		for _, d := range f.Devices {
			if d.Matches(g.Select) { // groups of d are not asked
				members = append(members, d)
			}
		}
		for _, d := range members {
			d.Groups = append(d.Groups, g)
		}
		if len(members) == 0 && !g.Select.IsZero() && len(absent.list) == before {
			absent.add(g.selected, f.meant(g.Select), "the selector %q matches no device", g.Select)
		}
		f.knownDeployments(g.Parameters, g.at, absent)
		f.knownWaves(g.Rollout, absent)
	}
	f.knownWaves(f.Rollout, absent)
	for _, d := range f.Deployments {
		if !slices.ContainsFunc(f.Applications, func(a *Application) bool { return a.Name == d.Application }) && d.Application != "" {
			absent.add(d.application, near(d.Application, f.Applications, func(a *Application) string { return a.Name }), "there is no application %q", d.Application)
		}
		f.known(d.Select, d.selected, absent)
		f.known(d.Exclude, d.excluded, absent)
	}
	for _, d := range f.Devices {
		f.equip(d, sink)
		f.knownDeployments(d.Parameters, d.at, absent)
		switch repository, missing := f.Repository(d); {
		case missing != "":
			sink.add(d.at, "", "has no label %s, and states: %s asks for it", missing, f.States)
		case f.States != "" && (!validRepository(repository, false) || len(repository) > maxTemplate):
			sink.add(d.at, "", "its states would be in %q, which is no repository: states: %s has labels of it", repository, f.States)
		}
	}
}

// idle reports deployments that select no device, beside other faults: without other faults Compile reports it, with what it
// finds itself. Groups may be among the faults, so selectors that ask for one are left out.
func (f *Fleet) idle(sink *faults) {
	for _, d := range f.Deployments {
		named := slices.Concat(d.Select.named(keyDevice), d.Exclude.named(keyDevice))
		there := func(id string) bool { return f.byID[id] != nil }
		takes := func(x *Device) bool { return x.Matches(d.Select) && !x.Matches(d.Exclude) }
		switch {
		case d.Select.IsZero(), d.Select.asks(keyGroup), d.Exclude.asks(keyGroup), slices.ContainsFunc(f.Devices, takes):
		case slices.ContainsFunc(named, func(id string) bool { return !there(id) }): // reported already
		default:
			f.reportIdle(d, sink)
		}
	}
}

func (f *Fleet) reportIdle(d *Deployment, sink *faults) {
	but := ""
	if !d.Exclude.IsZero() {
		but = fmt.Sprintf(", exclude %q", d.Exclude)
	}
	sink.add(d.selected, f.meant(d.Select), "no device is selected: select %q%s", d.Select, but)
}

// equip finds what is known of a device: by itself, else by its groups.
func (f *Fleet) equip(d *Device, sink *faults) {
	c := d.capabilities
	for _, g := range d.Groups {
		switch {
		case g.capabilities == nil || c == g.capabilities || c != nil && c == d.capabilities:
		case c == nil:
			c = g.capabilities
		case c.words() != g.capabilities.words():
			sink.add(d.at, "set the capabilities of the device itself", "its groups have different capabilities, %s and %s", c.words(), g.capabilities.words())
		}
	}
	if c != nil {
		d.Capabilities, d.Unchecked, d.Reported = c.parsed, c.unchecked, c.reported
	}
}

func (c *capabilities) words() string {
	switch {
	case c.unchecked:
		return "unchecked"
	case c.reported:
		return "reported"
	}
	return c.file
}

// known reports devices and groups that a selector names and that do not exist.
func (f *Fleet) known(s Selector, at place, sink *faults) {
	for _, id := range s.named(keyDevice) {
		if f.byID[id] == nil {
			sink.add(at, near(id, f.Devices, func(d *Device) string { return string(d.ID) }), "there is no device %q", id)
		}
	}
	for _, name := range s.named(keyGroup) {
		if !slices.ContainsFunc(f.Groups, func(g *Group) bool { return g.Name == name }) {
			sink.add(at, near(name, f.Groups, func(g *Group) string { return g.Name }), "there is no group %q", name)
		}
	}
}

func (f *Fleet) knownWaves(r *Rollout, sink *faults) {
	if r == nil {
		return
	}
	for _, w := range r.Waves {
		f.known(w.Select, w.selected, sink)
	}
}

func (f *Fleet) knownDeployments(all map[string]Values, at place, sink *faults) {
	for name := range all {
		if !slices.ContainsFunc(f.Deployments, func(d *Deployment) bool { return d.Name == name }) {
			sink.add(at, near(name, f.Deployments, func(d *Deployment) string { return d.Name }), "parameters: there is no deployment %q", name)
		}
	}
}

// uniqueNames reports names that are used twice.
func uniqueNames[T any](sink *faults, what string, all []T, of func(T) (string, place)) {
	first := make(map[string]place, len(all))
	for _, x := range all {
		name, at := of(x)
		if name == "" {
			continue
		}
		if there, ok := first[name]; ok {
			sink.add(at, "", "the %s %q is there already", what, name)
			sink.list[len(sink.list)-1].Also = fmt.Sprintf("%s:%d:%d", there.file, there.line, there.column)
			continue
		}
		first[name] = at
	}
}

// meant is a hint that names the labels that a selector could have asked for, when no device has those that it asks for.
func (f *Fleet) meant(s Selector) string {
	for _, r := range s.parts {
		if r.key == keyDevice || r.key == keyGroup || r.not {
			continue
		}
		values, keys := map[string]bool{}, map[string]bool{}
		for _, d := range f.Devices {
			for key, value := range d.Labels {
				if keys[key] = true; key == r.key {
					values[value] = true
				}
			}
		}
		switch fits := func(v string) bool { return slices.ContainsFunc(r.values, func(x string) bool { return like(x, v) }) }; {
		case len(keys) == 0:
			return "devices have no labels: give them some, or select them by name: device=ID"
		case len(values) == 0:
			return fmt.Sprintf("no device has the label %q; there are: %s", r.key, some(sortedKeys(keys)))
		case r.values != nil && !slices.ContainsFunc(sortedKeys(values), fits):
			return fmt.Sprintf("of %s there are: %s", r.key, some(sortedKeys(values)))
		}
	}
	return ""
}

// near is a hint that names what was probably meant; "" when nothing is like it.
func near[T any](word string, all []T, name func(T) string) string {
	names := make([]string, len(all))
	for i, x := range all {
		names[i] = name(x)
	}
	if best := strict.Nearest(word, names); best != "" {
		return fmt.Sprintf("did you mean %q?", best)
	}
	return ""
}
