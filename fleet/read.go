package fleet

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"runtime"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

var (
	nameFormat       = strict.Expression(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	namespaceFormat  = strict.Expression(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9])?$`)
	repositoryFormat = strict.Expression(`^[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*(/[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*)*$`)
	hostFormat       = strict.Expression(`^([A-Za-z0-9.-]+|\[[0-9a-fA-F:]+\])(:[0-9]{1,5})?$`)
	templatePart     = strict.Expression(`\{(fleet|labels\.[A-Za-z0-9._~/-]+)\}`)
	endpointFormat   = strict.Expression(`^https?://[A-Za-z0-9._:\[\]-]+(/[A-Za-z0-9._~/-]*)?$`)
	tagFormat        = strict.Expression(`^[A-Za-z0-9_][A-Za-z0-9._-]{0,127}$`)
)

// Tags of lists of signatures begin so.
const (
	signaturePrefix = "sha256-"
	signatureWords  = "what begins with " + signaturePrefix + " is a list of signatures in a registry"
)

const nameWords = "a name (lower-case letters, digits, dashes, at most 63)"

// Read reads the fleet in a directory: fleet.yaml and the files that it includes. Its error is a *[strict.Error] with
// every fault of every file, or says that fleet.yaml is not there.
func Read(fsys fs.FS) (*Fleet, error) {
	if _, err := fs.Stat(fsys, File); errors.Is(err, fs.ErrNotExist) {
		return nil, fault.WithHint(fmt.Errorf("there is no %s: %w", File, fault.ErrNotFound),
			"name the directory of a fleet, or begin one: longshore fleet init")
	}
	f := &Fleet{files: map[string]string{}, byID: map[string]*Device{}}
	first := readFile(fsys, File, f)
	parts := append([]*part{first}, included(fsys, first)...)
	sink, whole := &faults{}, true
	caps := map[string]*capabilities{}
	for _, p := range parts {
		sink.list = append(sink.list, p.faults...)
		whole = whole && !slices.ContainsFunc(p.faults, hides)
		if p.digest != "" {
			f.files[p.name] = p.digest
		}
		f.Groups = append(f.Groups, p.groups...)
		f.Applications = append(f.Applications, p.applications...)
		f.Deployments = append(f.Deployments, p.deployments...)
		f.Devices = append(f.Devices, p.devices...)
	}
	if len(f.Devices) > maxDevices {
		sink.add(place{file: File}, "", "%d devices, more than %d", len(f.Devices), maxDevices)
		return nil, sink.err()
	}
	f.loadCapabilities(fsys, caps, sink)
	f.loadReportKeys(fsys, sink)
	f.readLock(fsys, sink)
	f.link(sink, whole)
	if err := sink.err(); err != nil {
		if whole {
			f.idle(sink)
			err = sink.err()
		}
		return nil, err
	}
	return f, nil
}

// part is the content of one file.
type part struct {
	name         string
	digest       string
	include      []*strict.Node
	faults       []strict.Fault
	groups       []*Group
	applications []*Application
	deployments  []*Deployment
	devices      []*Device
}

// hides reports whether a fault may hide other content of the files: a file that is not read, a section that is misspelt. What is missing is then
// reported only where it is certain.
func hides(x strict.Fault) bool {
	head := []string{"fleet", "namespace", "registry", "states", "endpoint", "reports", "rollout", "windows"}
	return x.Path == "" && !strings.HasSuffix(x.Message, " is missing") || strings.HasPrefix(x.Path, "include") ||
		x.Path != "" && !strings.ContainsAny(x.Path, ".[") && !slices.Contains(head, x.Path)
}

// included reads the files that fleet.yaml names, several at a time; in the order of their names.
func included(fsys fs.FS, first *part) []*part {
	var names []string
	bad := func(n *strict.Node, format string, args ...any) {
		first.faults = append(first.faults, strict.Fault{File: File, Line: n.Line, Column: n.Column, Path: n.Path(), Message: fmt.Sprintf(format, args...)})
	}
	for _, n := range first.include {
		found, err := fs.Glob(fsys, n.Text())
		switch {
		case err != nil || !fs.ValidPath(n.Text()):
			bad(n, "%q is no pattern of files in the fleet's directory", n.Text())
		case len(found) == 0:
			bad(n, "there is no file %s", n.Text())
		}
		if n.Text() == File {
			bad(n, "%s is read anyway: name the further files", File)
		}
		for _, name := range found {
			if name != File && !slices.Contains(names, name) {
				names = append(names, name)
			}
		}
	}
	if len(names) > maxFiles {
		bad(first.include[0], "%d files, more than %d", len(names), maxFiles)
		return nil
	}
	slices.Sort(names)
	parts := make([]*part, len(names))
	var g errgroup.Group
	g.SetLimit(runtime.GOMAXPROCS(0))
	for i, name := range names {
		g.Go(func() error {
			parts[i] = readFile(fsys, name, nil)
			return nil
		})
	}
	_ = g.Wait() // its functions have no errors
	return parts
}

// readFile reads one file; f is given for fleet.yaml, which has members of its own.
func readFile(fsys fs.FS, name string, f *Fleet) *part {
	p := &part{name: name}
	data, err := bounded.FileIn(fsys, name, strict.MaxYAML)
	if err != nil {
		text := err.Error()
		if at, ok := errors.AsType[*fs.PathError](err); ok {
			text = at.Err.Error()
		}
		hint := ""
		if errors.Is(err, fault.ErrTooLarge) {
			text, hint = fmt.Sprintf("has more than the %d bytes that are allowed", strict.MaxYAML), "split it, and name the parts under include"
		}
		p.faults = append(p.faults, strict.Fault{File: name, Message: text, Hint: hint})
		return p
	}
	p.digest = digest.FromBytes(data).String()
	root, err := strict.YAML(name, data)
	if err == nil {
		if f != nil {
			f.head(root)
			p.include = root.Get("include").Items()
			for _, n := range p.include {
				n.Filled()
			}
		}
		p.sections(root)
		root.Close()
		err = root.Err()
	}
	if document, ok := errors.AsType[*strict.Error](err); ok {
		for _, x := range document.Faults {
			x.File = name
			p.faults = append(p.faults, x)
		}
	}
	return p
}

// head reads the members that only fleet.yaml has.
func (f *Fleet) head(root *strict.Node) {
	name := root.Need("fleet")
	if f.Name = name.Matching(nameFormat, nameWords); strings.HasPrefix(f.Name, signaturePrefix) {
		name.Faultf("%q is no name of a fleet: %s", f.Name, signatureWords)
	}
	f.Namespace = artifacts.DefaultNamespace
	if n := root.Get("namespace"); n != nil {
		f.Namespace = n.Matching(namespaceFormat, "a namespace (letters, digits, dots, dashes)")
	}
	base := root.Need("registry")
	f.Registry = strings.TrimSuffix(strings.TrimPrefix(base.Text(), "oci://"), "/")
	if base.Kind() == strict.String && !validRepository(f.Registry, true) {
		base.HintFaultf(`write it like "harbor.example.com/plant"`, "%q is no registry host with a path", base.Text())
	}
	f.States = f.repository(root.Get("states"), "state")
	if r := root.Get("reports"); r != nil {
		f.Reports = &Reports{Repository: f.States}
		keys := r.Need("keys")
		if f.Reports.Keys = path.Clean(keys.Filled()); keys.Kind() == strict.String && !fs.ValidPath(f.Reports.Keys) {
			keys.Faultf("%q is no directory in the fleet's directory", keys.Text())
		}
		if at := r.Get("repository"); at != nil {
			f.Reports.Repository = f.repository(at, "")
		}
		r.Close()
	}
	f.Rollout = rollout(File, root.Get("rollout"))
	if w := windows(root.Get("windows")); w != nil {
		f.Windows = *w
	}
	if n := root.Get("endpoint"); n != nil {
		if f.Endpoint = n.Filled(); f.Endpoint != "" && !endpointFormat.MatchString(f.Endpoint) {
			n.HintFaultf(`write it like "https://fleet.example.com"`, "%q is no address of a fleet endpoint", f.Endpoint)
		}
	}
}

// repository is a repository as the files name them: below the fleet's registry, or with a host. "": it is none, which is reported here or
// at registry.
func (f *Fleet) repository(n *strict.Node, otherwise string) string {
	text := otherwise
	if n != nil {
		text = n.Filled()
	}
	out := Absolute(f.Registry, text)
	valid := validRepository(templatePart.Regexp().ReplaceAllString(out, "x"), false)
	if n != nil && n.Kind() == strict.String && (!valid || len(out) > maxTemplate) {
		n.Faultf("%q is no repository; it may have {fleet} and {labels.KEY} in it", text)
	}
	if !valid {
		return ""
	}
	return out
}

// ValidName reports whether a name is allowed for a fleet: it is the tag of its rollouts.
func ValidName(s string) bool {
	return nameFormat.MatchString(s) && !strings.HasPrefix(s, signaturePrefix)
}

// Absolute is a repository as "host/path": as it is when it begins with "oci://", else below base.
func Absolute(base, repository string) string {
	if full, ok := strings.CutPrefix(repository, "oci://"); ok {
		return full
	}
	return base + "/" + repository
}

// IsRepository reports whether s is a repository as "host/path".
func IsRepository(s string) bool { return validRepository(s, false) }

// validRepository reports whether s is "host/path", or, where that is allowed, a host alone.
func validRepository(s string, hostOnly bool) bool {
	host, rest, ok := strings.Cut(s, "/")
	if !ok {
		return hostOnly && hostFormat.MatchString(host)
	}
	return hostFormat.MatchString(host) && repositoryFormat.MatchString(rest)
}

// sections reads the members that every file may have.
func (p *part) sections(root *strict.Node) {
	for _, n := range root.Get("applications").Members() {
		p.applications = append(p.applications, p.application(n))
	}
	for _, n := range root.Get("groups").Members() {
		g := &Group{Name: p.name63(n), at: keyPlace(p.name, n)}
		s := n.Need("select")
		g.Select, g.selected = selector(s), placeOf(p.name, s)
		g.Parameters = p.leveled(n.Get("parameters"))
		g.Rollout = rollout(p.name, n.Get("rollout"))
		g.capabilities = p.capabilitiesOf(n.Get("capabilities"))
		w := n.Get("windows")
		g.Windows, g.windows = windows(w), placeOf(p.name, w)
		n.Close()
		p.groups = append(p.groups, g)
	}
	for _, n := range root.Get("deployments").Members() {
		d := &Deployment{Name: p.name63(n), at: keyPlace(p.name, n)}
		application := n.Need("application")
		d.Application, d.application = application.Filled(), placeOf(p.name, application)
		d.Profile = n.Get("profile").Text()
		s, x := n.Need("select"), n.Get("exclude")
		d.Select, d.selected = selector(s), placeOf(p.name, s)
		d.Exclude, d.excluded = selector(x), placeOf(p.name, x)
		d.Parameters = p.values(n.Get("parameters"))
		n.Close()
		p.deployments = append(p.deployments, d)
	}
	for _, n := range root.Get("devices").Items() {
		p.devices = append(p.devices, p.device(n))
	}
}

// name63 is the key of a member that names something.
func (p *part) name63(n *strict.Node) string {
	if !nameFormat.MatchString(n.Key()) {
		p.faults = append(p.faults, strict.Fault{
			File: p.name, Line: n.KeyLine, Column: n.KeyColumn, Path: n.Path(), Message: fmt.Sprintf("%q is not %s", n.Key(), nameWords),
		})
	}
	return n.Key()
}

func (p *part) application(n *strict.Node) *Application {
	a := &Application{Name: p.name63(n), at: keyPlace(p.name, n)}
	pkg, component, version, channel := n.Get("package"), n.Get("component"), n.Get("version"), n.Get("channel")
	switch {
	case pkg != nil && component != nil:
		component.Faultf("either package or component, not both")
	case pkg == nil && component == nil && n.Kind() == strict.Object:
		n.Faultf("package is missing, or component for one that has no description")
	}
	switch {
	case version != nil && channel != nil:
		channel.Faultf("either version or channel, not both")
	case version == nil && channel == nil && n.Kind() == strict.Object:
		n.Faultf("version is missing, or channel for a tag that moves")
	}
	reference := func(n *strict.Node) string {
		s := n.Filled()
		if full := Absolute("host", s); n.Kind() == strict.String && s != "" && !validRepository(full, false) {
			n.HintFaultf("set its version under version or channel", "%q is no repository", s)
		}
		return s
	}
	a.Package, a.Component = reference(pkg), reference(component)
	a.Version, a.version = version.Filled(), placeOf(p.name, version)
	if version != nil && version.Kind() == strict.String && a.Version != "" {
		if _, err := parseVersion(a.Version); err != nil {
			version.HintFaultf(`write "1.4.2", "~1.4", "^1" or ">=1.2 <2"`, "%q is neither a version nor a range", a.Version)
		}
	}
	if channel != nil {
		a.version = placeOf(p.name, channel)
		a.Channel = channel.Matching(tagFormat, "a tag")
	}
	if profile := n.Get("profile"); profile != nil {
		a.Profile = profile.Filled()
		if component != nil {
			profile.Faultf("a component without a description has no profiles")
		}
	}
	n.Close()
	return a
}

func (p *part) device(n *strict.Node) *Device {
	id := n.Need("id")
	d := &Device{at: placeOf(p.name, id)}
	if text := id.Text(); id.Kind() == strict.String {
		var err error
		if d.ID, err = artifacts.ParseDeviceID(text); err != nil {
			id.HintFaultf(fault.Hint(err), "%q is not a device id", text)
		}
	}
	for _, l := range n.Get("labels").Members() {
		if d.Labels == nil {
			d.Labels = map[string]string{}
		}
		value := l.Text()
		switch {
		case l.Key() == keyDevice || l.Key() == keyGroup:
			l.Faultf("is no label: it is what selectors call the device's id, or its groups")
		case !validToken(l.Key()) || l.Kind() == strict.String && !validToken(value):
			l.Faultf("labels have letters, digits and \". _ ~ / -\", at most 253")
		}
		d.Labels[l.Key()] = value
	}
	d.Parameters = p.leveled(n.Get("parameters"))
	d.capabilities = p.capabilitiesOf(n.Get("capabilities"))
	d.Windows = windows(n.Get("windows"))
	n.Close()
	return d
}

// windows are those of one level: nil leaves them to the wider one, "none" is the zero value.
func windows(n *strict.Node) *schedule.Windows {
	switch {
	case n == nil:
		return nil
	case n.Kind() == strict.String:
		n.OneOf("none")
		return &schedule.Windows{}
	}
	w := schedule.Parse(n)
	if size := len(w.JSON()); size > artifacts.MaxWindows {
		n.Faultf("has %d bytes, more than %d", size, artifacts.MaxWindows)
	}
	return &w
}

// leveled reads parameters by deployment.
func (p *part) leveled(n *strict.Node) map[string]Values {
	var out map[string]Values
	for _, m := range n.Members() {
		if out == nil {
			out = map[string]Values{}
		}
		out[m.Key()] = p.values(m)
	}
	return out
}

func (p *part) values(n *strict.Node) Values {
	if n == nil {
		return nil
	}
	out := Values{}
	for _, m := range n.Members() {
		if m.Kind() == strict.Object {
			m.Faultf("must be a string, a number, a boolean or a list of them, is an object")
		}
		for _, i := range elements(m) {
			if k := i.Kind(); k == strict.Object || k == strict.List || k == strict.Null {
				i.Faultf("must be a string, a number or a boolean, is %s", k)
			}
		}
		out[m.Key()] = Value{Value: m.Value(), at: placeOf(p.name, m)}
	}
	return out
}

func elements(n *strict.Node) []*strict.Node {
	if n.Kind() != strict.List {
		return nil
	}
	return n.Items()
}

func selector(n *strict.Node) Selector {
	if n.Kind() != strict.String {
		n.Text() // records the wrong kind
		return Selector{}
	}
	s, err := ParseSelector(n.Text())
	if err != nil {
		n.HintFaultf(`write it like "site=graz, line in (a, b), !retired"`, "is no selector: %v", err)
	}
	return s
}

func rollout(file string, n *strict.Node) *Rollout {
	if n == nil {
		return nil
	}
	r := &Rollout{}
	if f := n.Get("onFailure"); f != nil {
		r.OnFailure = f.OneOf("halt", "rollback")
	}
	percent := func(n *strict.Node) int {
		v := n.Int64()
		if n != nil && n.Kind() == strict.Number && (v < 1 || v > 100) {
			n.Faultf("must be from 1 to 100")
			return 0
		}
		return int(v)
	}
	names := map[string]bool{}
	last := 0
	for _, i := range n.Need("waves").Items() {
		w := Wave{
			Name: i.Need("name").Matching(nameFormat, nameWords), Soak: i.Get("soak").Duration(), Success: percent(i.Get("success")),
			Deadline: i.Get("deadline").Duration(),
		}
		if names[w.Name] && w.Name != "" {
			i.Get("name").Faultf("the wave %q is there already", w.Name)
		}
		names[w.Name] = true
		sel, share := i.Get("select"), i.Get("percent")
		switch {
		case (sel == nil) == (share == nil) && i.Kind() == strict.Object:
			i.Faultf("either select or percent")
		case sel != nil:
			w.Select, w.selected = selector(sel), placeOf(file, sel)
		case share != nil:
			if w.Percent = percent(share); w.Percent > 0 && w.Percent <= last {
				share.Faultf("must be above the %d of the wave before: it counts from the beginning", last)
			}
			last = max(last, w.Percent)
		}
		i.Close()
		r.Waves = append(r.Waves, w)
	}
	n.Close()
	return r
}

// capabilities is a file with the capabilities of devices; several devices may share it.
type capabilities struct {
	file      string // "": unchecked or reported
	unchecked bool
	reported  bool
	at        place
	parsed    *margo.DeviceCapabilities
}

func (p *part) capabilitiesOf(n *strict.Node) *capabilities {
	if n == nil {
		return nil
	}
	c := &capabilities{at: placeOf(p.name, n)}
	switch c.file = n.Filled(); c.file {
	case "unchecked":
		return &capabilities{unchecked: true, at: c.at}
	case "reported":
		return &capabilities{reported: true, at: c.at}
	}
	if n.Kind() == strict.String && c.file != "" && !fs.ValidPath(path.Clean(c.file)) {
		n.Faultf("%q is no file in the fleet's directory", c.file)
		return nil
	}
	return c
}
