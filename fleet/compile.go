package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Compiled has the assignments of all devices of a fleet.
type Compiled struct {
	Fleet       *Fleet
	Releases    map[string]*Release // by application
	Assignments []*Assignment       // by device id
}

// Assignment has the deployments of one device. With Unfit it cannot run all of them, and gets no new state.
type Assignment struct {
	Device     *Device
	Repository string // of its states
	Placements []Placement
	Unfit      []string         // reasons why it cannot run something, one sentence each
	Windows    schedule.Windows // in which it makes changes; the zero value: at any time

	repeats *published // the earlier state with this content; nil: it is made of the files
}

// Placement is one deployment on a device. Devices with the same parameters share the values of the pointers.
type Placement struct {
	Deployment *Deployment
	Release    *Release
	Profile    *margo.DeploymentProfile // with every component pinned
	Parameters map[string]margo.Parameter

	kept  *artifacts.Deployment // the document, if it was published before; nil: it is created
	named bool                  // in a change of one device: each of its parameters must have an effect
	said  map[string]bool       // parameters with a value in the files, which must have an effect
}

// Document is the ApplicationDeployment of a placement.
func (a *Assignment) Document(f *Fleet, p Placement) *margo.ApplicationDeployment {
	if p.kept != nil {
		return p.kept.Document
	}
	return &margo.ApplicationDeployment{
		ID:       artifacts.DeploymentID(a.Device.ID, p.Deployment.Name),
		Metadata: margo.DeploymentMetadata{Name: p.Deployment.Name, Namespace: f.Namespace, DeviceID: string(a.Device.ID)},
		Spec:     margo.DeploymentSpec{ApplicationID: p.Release.Description.ID, DeploymentProfile: *p.Profile, Parameters: p.Parameters},
	}
}

// id is the id of a placement's deployment.
func (a *Assignment) id(p Placement) string {
	if p.kept != nil {
		return strings.ToLower(p.kept.Document.ID)
	}
	return artifacts.DeploymentID(a.Device.ID, p.Deployment.Name)
}

// packages are the application packages that a device's documents are made of. Components have their own versions.
func (a *Assignment) packages() map[string]artifacts.ApplicationVersion {
	out := map[string]artifacts.ApplicationVersion{}
	for _, p := range a.Placements {
		if r := p.Release; p.kept == nil && !r.free {
			out[r.Application.Name] = artifacts.ApplicationVersion{Repository: r.Repository, Version: r.Version(), Digest: r.Digest}
		}
	}
	return out
}

// Documents are the ApplicationDeployments of a device, as they are published.
func (a *Assignment) Documents(f *Fleet) ([][]byte, error) {
	out := make([][]byte, 0, len(a.Placements))
	for _, p := range a.Placements {
		if p.kept != nil {
			out = append(out, p.kept.Bytes)
			continue
		}
		data, err := a.Document(f, p).Encode()
		if err != nil {
			return nil, fmt.Errorf("%s on %s: %w", p.Deployment.Name, a.Device.ID, err)
		}
		out = append(out, data)
	}
	return out, nil
}

func digestsOf(documents [][]byte) []digest.Digest {
	out := make([]digest.Digest, len(documents))
	for i, doc := range documents {
		out[i] = digest.FromBytes(doc)
	}
	return out
}

// Sum is all documents of the device, and its windows, in one digest; "" if the device cannot run them.
func (a *Assignment) Sum(f *Fleet) (digest.Digest, error) {
	if len(a.Unfit) > 0 {
		return "", nil
	}
	documents, err := a.Documents(f)
	if err != nil {
		return "", err
	}
	return contentOf(digestsOf(documents), a.Windows), nil
}

// some names a few and counts the rest.
func some(all []string) string {
	const most = 3
	if len(all) <= most+1 {
		return strings.Join(all, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(all[:most], ", "), len(all)-most)
}

const (
	nothingKnown     = "nothing is known of the device"
	nothingKnownHint = "name its capabilities (longshore-agent capabilities writes them), or say capabilities: unchecked"
)

// compiler places deployments.
type compiler struct {
	f        *Fleet
	releases map[string]*Release
	sink     faults
	found    map[strict.Fault]bool
	byName   map[string]*Deployment
	fits     map[fitKey]string
	profiles map[profileKey]*pinnedProfile
	sets     map[string]*effective      // parameters by their source
	runs     map[*Group]map[string]bool // deployments that members of a group run
}

type fitKey struct {
	capabilities *margo.DeviceCapabilities
	profile      *margo.DescribedProfile
}

type profileKey struct {
	release *Release
	id      string
}

type pinnedProfile struct {
	profile *margo.DeploymentProfile
	err     error
}

// Compile places every deployment of the fleet on the devices that it selects, and sets its parameters. The error is a
// *[strict.Error] with all errors in the files; for devices that cannot run something see
// [Compiled.Unfit].
func Compile(f *Fleet, releases map[string]*Release) (*Compiled, error) {
	c := &compiler{
		f: f, releases: releases, found: map[strict.Fault]bool{}, byName: map[string]*Deployment{}, fits: map[fitKey]string{},
		profiles: map[profileKey]*pinnedProfile{}, sets: map[string]*effective{}, runs: map[*Group]map[string]bool{},
	}
	for _, d := range f.Deployments {
		c.byName[d.Name] = d
		c.values(d, d.Parameters)
		c.knownProfile(d)
	}
	for _, g := range f.Groups {
		c.runs[g] = map[string]bool{}
		for _, name := range slices.Sorted(maps.Keys(g.Parameters)) {
			c.values(c.byName[name], g.Parameters[name])
		}
	}
	out := &Compiled{Fleet: f, Releases: releases, Assignments: make([]*Assignment, 0, len(f.Devices))}
	used := map[*Deployment]bool{}
	for _, d := range f.Devices {
		a := &Assignment{Device: d, Windows: c.windows(d)}
		a.Repository, _ = f.Repository(d) // Read has reported what is missing
		for _, dep := range f.Deployments {
			if !d.Matches(dep.Select) || d.Matches(dep.Exclude) {
				if v, ok := d.Parameters[dep.Name]; ok {
					c.fault(firstPlace(v, d.at), "", "%s does not run %s", d.ID, dep.Name)
				}
				continue
			}
			used[dep] = true
			for _, g := range d.Groups {
				c.runs[g][dep.Name] = true
			}
			c.place(a, dep)
		}
		out.Assignments = append(out.Assignments, a)
	}
	for _, dep := range f.Deployments {
		if !used[dep] {
			f.reportIdle(dep, &c.sink)
		}
	}
	for _, g := range f.Groups {
		for _, name := range slices.Sorted(maps.Keys(g.Parameters)) {
			if !c.runs[g][name] {
				c.fault(firstPlace(g.Parameters[name], g.at), "", "no device of the group runs %s", name)
			}
		}
	}
	if err := c.sink.err(); err != nil {
		return nil, err
	}
	return out, nil
}

// windows are those of a device: its own, else those of its groups, else the fleet's. Different ones of two groups are a fault.
func (c *compiler) windows(d *Device) schedule.Windows {
	if d.Windows != nil {
		return *d.Windows
	}
	var from *Group
	for _, g := range d.Groups {
		if g.Windows == nil {
			continue
		}
		if from != nil && from.Windows.JSON() != g.Windows.JSON() {
			c.once(g.windows, from.Name, func() {
				c.fault(g.windows, "let one of the groups leave them out, or the device decide", "%s is in the groups %s and %s, which have different windows", d.ID, from.Name, g.Name)
			})
		}
		from = g
	}
	if from != nil {
		return *from.Windows
	}
	return c.f.Windows
}

// fault records a fault once.
func (c *compiler) fault(at place, hint, format string, args ...any) {
	key := strict.Fault{File: at.file, Line: at.line, Column: at.column, Path: at.path, Message: fmt.Sprintf(format, args...)}
	if !c.found[key] {
		c.found[key] = true
		c.sink.add(at, hint, "%s", key.Message)
	}
}

// once calls do only for the first use of a place and a word: a fault of thousands of devices is reported for one of them.
func (c *compiler) once(at place, word string, do func()) {
	key := strict.Fault{File: at.file, Line: at.line, Column: at.column, Hint: word}
	if !c.found[key] {
		c.found[key] = true
		do()
	}
}

// firstPlace is the position of the first value of a set.
func firstPlace(all Values, otherwise place) place {
	at := otherwise
	for _, v := range all {
		if at == otherwise || v.at.line < at.line || v.at.line == at.line && v.at.column < at.column {
			at = v.at
		}
	}
	return at
}

func (c *compiler) knownProfile(d *Deployment) {
	r := c.releases[d.Application]
	id := d.Profile
	if r != nil && id == "" {
		id = r.Application.Profile
	}
	if r == nil || id == "" {
		return
	}
	var there []string
	for _, p := range r.Description.DeploymentProfiles {
		there = append(there, p.ID)
	}
	if !slices.Contains(there, id) {
		c.fault(d.at, "there are: "+strings.Join(there, ", "), "%s %s has no profile %q", r.Application.Name, r.Version(), id)
	}
}

// place puts a deployment on a device, or records why that is not possible.
func (c *compiler) place(a *Assignment, dep *Deployment) {
	r := c.releases[dep.Application]
	if r == nil {
		return // reported by Resolve
	}
	if v, ok := a.Device.Parameters[dep.Name]; ok {
		c.values(dep, v)
	}
	p, reasons := c.choose(a.Device, dep, r)
	if p != nil { // the device's profile does not depend on the current content of a registry
		pinned := c.pinned(r, p)
		if pinned.err == nil {
			set := c.parameters(a.Device, dep, r, p)
			a.Placements = append(a.Placements, Placement{Deployment: dep, Release: r, Profile: pinned.profile, Parameters: set.parameters, said: set.said})
			return
		}
		why := pinned.err.Error()
		if len(r.Description.DeploymentProfiles) > 1 {
			why = "profile " + p.ID + ": " + why
			if dep.Profile == "" && r.Application.Profile == "" {
				why += "; another one can be named with profile:"
			}
		}
		reasons = []string{why}
	}
	if len(reasons) > 0 {
		a.Unfit = append(a.Unfit, dep.Name+" "+r.Version()+": "+strings.Join(reasons, "; "))
	}
}

// choose finds the profile of a deployment for a device: the named one, or the first that the device can run;
// nil and the reason if it can run none.
func (c *compiler) choose(d *Device, dep *Deployment, r *Release) (p *margo.DescribedProfile, reasons []string) {
	want := cmp.Or(dep.Profile, r.Application.Profile)
	for i := range r.Description.DeploymentProfiles {
		p := &r.Description.DeploymentProfiles[i]
		if want != "" && p.ID != want {
			continue
		}
		why := c.fit(d, p)
		if why == "" {
			return p, nil
		}
		if len(r.Description.DeploymentProfiles) > 1 {
			why = "profile " + p.ID + ": " + why
		}
		reasons = append(reasons, why)
	}
	return nil, reasons
}

func (c *compiler) pinned(r *Release, p *margo.DescribedProfile) *pinnedProfile {
	key := profileKey{r, p.ID}
	if there := c.profiles[key]; there != nil {
		return there
	}
	profile, err := r.pinned(p.DeploymentProfile)
	c.profiles[key] = &pinnedProfile{&profile, err}
	return c.profiles[key]
}

// fit is the reason why a device cannot run a profile; "" if it can.
func (c *compiler) fit(d *Device, p *margo.DescribedProfile) string {
	switch {
	case d.Unchecked:
		return ""
	case d.Capabilities == nil && p.DeviceConstraints == nil:
		return ""
	case d.Capabilities == nil:
		return nothingKnown + ", and the profile has constraints"
	}
	key := fitKey{d.Capabilities, p}
	own := asksForID(p.DeviceConstraints)
	if why, ok := c.fits[key]; ok && !own {
		return why
	}
	why := fit(d, p)
	if !own {
		c.fits[key] = why
	}
	return why
}

func fit(d *Device, p *margo.DescribedProfile) string {
	types := d.Capabilities.Properties.SupportedDeploymentTypes
	if len(types) == 0 {
		return "the device hosts no workloads (supportedDeploymentTypes)"
	}
	if !slices.Contains(types, p.Type) {
		return fmt.Sprintf("needs %s, device runs %s (supportedDeploymentTypes)", p.Type, strings.Join(types, ", "))
	}
	own := *d.Capabilities
	own.Properties.ID = string(d.ID)
	if err := p.DeviceConstraints.Check(&own); err != nil {
		return strings.TrimPrefix(err.Error(), fault.ErrUnfit.Error()+": ")
	}
	return ""
}

// asksForID reports whether constraints can differ between devices with the same capabilities.
func asksForID(c *margo.DeviceConstraints) bool {
	if c == nil {
		return false
	}
	for _, r := range c.EligibilityRules {
		if r.PropertySelector == nil {
			continue
		}
		for _, e := range r.PropertySelector.MatchExpressions {
			if e.Key == "" || e.Key == "/id" {
				return true
			}
		}
	}
	return false
}

var variable = strict.Expression(`^[A-Za-z_][A-Za-z0-9_]*$`)

// values checks the values of a deployment's parameters on one level.
func (c *compiler) values(dep *Deployment, all Values) {
	if dep == nil || c.releases[dep.Application] == nil {
		return
	}
	r := c.releases[dep.Application]
	for _, name := range slices.Sorted(maps.Keys(all)) {
		v := all[name]
		if r.free {
			if !variable.MatchString(name) {
				c.fault(v.at, "", "%q is not the name of an environment variable", name)
			}
			continue
		}
		if _, ok := r.Description.Parameters[name]; !ok {
			names := slices.Sorted(maps.Keys(r.Description.Parameters))
			hint := near(name, names, func(s string) string { return s })
			if hint == "" && len(names) > 0 {
				hint = "there are: " + strings.Join(names[:min(len(names), 12)], ", ")
			}
			c.fault(v.at, hint, "%s %s has no parameter %q", r.Application.Name, r.Version(), name)
			continue
		}
		if _, schema, ok := r.Description.Configuration.Setting(name); ok && v.Value != nil {
			if why := schema.Check(v.Value); why != "" {
				c.fault(v.at, "", "%s", why)
			}
		}
	}
}

// effective are the parameters of a deployment on a device.
type effective struct {
	parameters map[string]margo.Parameter
	said       map[string]bool // of these, with a value in the files; the others have the package's
}

// parameters are the effective parameters of a deployment on a device: the package's own, the deployment's, those of the
// device's groups, the device's; each overrides the previous ones.
func (c *compiler) parameters(d *Device, dep *Deployment, r *Release, p *margo.DescribedProfile) *effective {
	key := dep.Name + "\n" + p.ID
	for _, g := range d.Groups {
		if _, ok := g.Parameters[dep.Name]; ok {
			key += "\n" + g.Name
		}
	}
	own, ok := d.Parameters[dep.Name]
	if ok {
		key += "\n\n" + string(d.ID)
	}
	if set, ok := c.sets[key]; ok {
		return set
	}
	values := Values{}
	for name, parameter := range r.Description.Parameters {
		values[name] = Value{Value: parameter.Value}
	}
	maps.Copy(values, dep.Parameters)
	c.grouped(d, dep, values)
	maps.Copy(values, own)
	set := &effective{map[string]margo.Parameter{}, map[string]bool{}}
	for _, name := range slices.Sorted(maps.Keys(values)) {
		value := values[name].Value
		if _, schema, ok := r.Description.Configuration.Setting(name); ok && value == nil && schema.Check(nil) != "" {
			c.once(dep.at, name, func() {
				c.fault(dep.at, "", "the parameter %q of %s %s needs a value, on %s for one", name, r.Application.Name, r.Version(), d.ID)
			})
		}
		targets := r.targets(name, p)
		if value == nil || len(targets) == 0 {
			continue
		}
		set.parameters[name] = margo.Parameter{Value: value, Targets: targets}
		set.said[name] = values[name].at != place{}
	}
	for _, component := range p.Components {
		var e *margo.ClashError
		if _, err := margo.Environment(set.parameters, component.Name); p.Type == "compose" && errors.As(err, &e) {
			c.clash(d, dep, r, values, e)
		}
	}
	c.sets[key] = set
	return set
}

// clash reports two parameters that give one variable of a component different values: the device would reject the document.
func (c *compiler) clash(d *Device, dep *Deployment, r *Release, values Values, e *margo.ClashError) {
	at := dep.at
	said := func(name string) string {
		v := values[name]
		if v.at == (place{}) {
			return fmt.Sprintf("%q (%s, of the package)", name, value(v.Value))
		}
		if at == dep.at {
			at = v.at
		}
		return fmt.Sprintf("%q (%s, %s:%d:%d)", name, value(v.Value), v.at.file, v.at.line, v.at.column)
	}
	first, second := said(e.First), said(e.Second)
	c.once(at, e.First+"\n"+e.Second+"\n"+e.Variable, func() {
		c.fault(at, "give both the same value, or change the package", "the parameters %s and %s of %s %s both set %s of component %s, on %s for one",
			first, second, r.Application.Name, r.Version(), e.Variable, e.Component, d.ID)
	})
}

// grouped adds the values of a device's groups; different values in two groups are a fault, unless the device sets its own.
func (c *compiler) grouped(d *Device, dep *Deployment, values Values) {
	from := map[string]*Group{}
	for _, g := range d.Groups {
		for _, name := range slices.Sorted(maps.Keys(g.Parameters[dep.Name])) {
			v := g.Parameters[dep.Name][name]
			_, decided := d.Parameters[dep.Name][name]
			if first := from[name]; first != nil && !decided && value(first.Parameters[dep.Name][name].Value) != value(v.Value) {
				c.once(v.at, first.Name, func() {
					c.fault(v.at, "let one of the groups leave it out, or the device decide",
						"%s is in the groups %s and %s, which give %s different values", d.ID, first.Name, g.Name, name)
				})
			}
			from[name], values[name] = g, v
		}
	}
}

// targets are the targets of a parameter in a profile.
func (r *Release) targets(name string, p *margo.DescribedProfile) []margo.ParameterTarget {
	if r.free {
		return []margo.ParameterTarget{{Pointer: name, Components: []string{p.Components[0].Name}}}
	}
	var out []margo.ParameterTarget
	for _, t := range r.Description.Parameters[name].Targets {
		var here []string
		for _, c := range p.Components {
			if slices.Contains(t.Components, c.Name) {
				here = append(here, c.Name)
			}
		}
		if len(here) > 0 {
			out = append(out, margo.ParameterTarget{Pointer: t.Pointer, Components: here})
		}
	}
	return out
}
