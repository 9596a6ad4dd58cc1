package fleet

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Kinds of changes of a deployment.
const (
	New     = "new"
	Changed = "changed"
	Removed = "removed"
)

// Change is a plan's change of one deployment of a device.
type Change struct {
	Deployment string            `json:"deployment"`
	Change     string            `json:"change"` // new, changed, removed
	Was        string            `json:"was,omitempty"`
	Version    string            `json:"version,omitempty"` // of the components
	Components []ComponentChange `json:"components,omitempty"`
	Parameters []ParameterChange `json:"parameters,omitempty"`
	Images     []ImageChange     `json:"images,omitempty"`
	Starts     []string          `json:"starts,omitempty"`   // services
	Restarts   []string          `json:"restarts,omitempty"` // services that are replaced
	Stops      []string          `json:"stops,omitempty"`
	Keeps      []string          `json:"keeps,omitempty"` // services that continue unchanged
	Note       string            `json:"note,omitempty"`
}

// ComponentChange is a changed component.
type ComponentChange struct {
	Name      string        `json:"name"`
	Was       string        `json:"was,omitempty"` // version; "": it is new
	WasDigest digest.Digest `json:"wasDigest,omitempty"`
	Version   string        `json:"version,omitempty"` // "": it is removed
	Digest    digest.Digest `json:"digest,omitempty"`
}

// ParameterChange is a parameter with a new value.
type ParameterChange struct {
	Name  string `json:"name"`
	Was   any    `json:"was"` // null: there was none
	Value any    `json:"value"`
}

// ImageChange is a changed image of a service.
type ImageChange struct {
	Service   string        `json:"service"`
	WasImage  string        `json:"wasImage,omitempty"` // its reference in the Compose file
	Image     string        `json:"image"`
	WasDigest digest.Digest `json:"wasDigest,omitempty"`
	Digest    digest.Digest `json:"digest,omitempty"`
}

// Service is a service of a component, as a device would run it.
type Service struct {
	Name   string
	Image  string        // its reference in the Compose file
	Digest digest.Digest // of the image
	Hash   string        // a different hash means that the service is replaced
	Claims []Claim       // exclusive resources on a device; those of a project's networks are listed with its first service
}

// Compare lists the changes of a device's deployments by their documents alone: it does not query a registry, so the restarting services
// are unknown. Equal documents are left out.
func Compare(ctx context.Context, before, now []artifacts.Deployment) ([]Change, error) {
	a := assigned(nil, now)
	same := map[digest.Digest]bool{}
	for _, d := range now {
		same[d.Digest] = true
	}
	unchanged := map[string]bool{}
	before = slices.DeleteFunc(slices.Clone(before), func(d artifacts.Deployment) bool {
		if same[d.Digest] {
			unchanged[strings.ToLower(d.Document.ID)] = true
		}
		return same[d.Digest]
	})
	all, _, err := newPlanner(&Compiled{Fleet: &Fleet{}}, nil, Options{}).compare(ctx, a, "", before, unchanged)
	return all, err
}

// compare lists the changes of a device's deployments: before are those that differ, unchanged
// has the ids of the others.
func (p *planner) compare(ctx context.Context, a *Assignment, platform string, before []artifacts.Deployment, unchanged map[string]bool) ([]Change, []string, error) {
	var out []Change
	var cannot []string
	old := map[string]*margo.ApplicationDeployment{}
	for _, d := range before {
		old[strings.ToLower(d.Document.ID)] = d.Document
	}
	for _, at := range a.Placements {
		id := a.id(at)
		if unchanged[id] {
			continue
		}
		was := old[id]
		delete(old, id)
		if why := immutable(at, was); why != "" {
			cannot = append(cannot, why)
		}
		c, why, err := p.change(ctx, platform, at, was)
		if err != nil {
			return nil, nil, err
		}
		if why != "" {
			cannot = append(cannot, why)
		}
		out = append(out, c)
	}
	for _, id := range slices.Sorted(maps.Keys(old)) {
		was := old[id]
		c := Change{Deployment: was.Metadata.Name, Change: Removed, Was: versions(was.Spec.DeploymentProfile)}
		services, note, err := p.ran(ctx, platform, was)
		if err != nil {
			return nil, nil, err
		}
		c.Stops, c.Note = slices.Sorted(maps.Keys(services)), note
		out = append(out, c)
	}
	return out, cannot, nil
}

// immutable reports a parameter that may not change once it is deployed.
func immutable(at Placement, was *margo.ApplicationDeployment) string {
	if was == nil {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(was.Spec.Parameters)) {
		set, _, ok := at.Release.Description.Configuration.Setting(name)
		before, now := was.Spec.Parameters[name].Value, at.Parameters[name].Value
		if ok && set.Immutable && value(before) != value(now) {
			return fmt.Sprintf("%s: the parameter %s cannot be changed once it is deployed, and was %s", at.Deployment.Name, name, value(before))
		}
	}
	return ""
}

// change compares one deployment with its previous one; nil: it is new.
func (p *planner) change(ctx context.Context, platform string, at Placement, was *margo.ApplicationDeployment) (Change, string, error) {
	c := Change{Deployment: at.Deployment.Name, Change: New, Version: versions(*at.Profile)}
	services, err := p.services(ctx, platform, *at.Profile, at.Parameters)
	why := ""
	if permanent(err) {
		why, err = fmt.Sprintf("%s %s: %v", at.Deployment.Name, at.Release.Version(), err), nil
	}
	if err != nil {
		return c, "", err
	}
	var before map[string]Service
	if was != nil {
		c.Change, c.Was = Changed, versions(was.Spec.DeploymentProfile)
		if before, c.Note, err = p.ran(ctx, platform, was); err != nil {
			return c, "", err
		}
		c.parameters(was.Spec.Parameters, at.Parameters)
		c.components(was.Spec.DeploymentProfile.Components, at.Profile.Components)
	} else {
		c.components(nil, at.Profile.Components)
	}
	if c.Note == "" { // otherwise starting and unchanged services are unknown
		c.running(before, services)
	}
	if was != nil && c.Note == "" && len(c.Parameters)+len(c.Components)+len(c.Images)+len(c.Starts)+len(c.Restarts)+len(c.Stops) == 0 {
		c.Note = "its document is another one; what runs stays"
	}
	return c, why, nil
}

// ran are the services of a deployment that a device has, or a note why they are unknown: errors in a device's previous
// deployment do not block the new one. The error is ctx's.
func (p *planner) ran(ctx context.Context, platform string, was *margo.ApplicationDeployment) (map[string]Service, string, error) {
	services, err := p.services(ctx, platform, was.Spec.DeploymentProfile, was.Spec.Parameters)
	switch {
	case ctx.Err() != nil:
		return nil, "", ctx.Err()
	case err != nil:
		return nil, fmt.Sprintf("what it runs could not be read: %v", err), nil
	}
	return services, "", nil
}

func (c *Change) parameters(was, now map[string]margo.Parameter) {
	names := slices.Collect(maps.Keys(was))
	for n := range now {
		if _, ok := was[n]; !ok {
			names = append(names, n)
		}
	}
	slices.Sort(names)
	for _, n := range names {
		if value(was[n].Value) != value(now[n].Value) || !reflect.DeepEqual(was[n].Targets, now[n].Targets) {
			c.Parameters = append(c.Parameters, ParameterChange{n, was[n].Value, now[n].Value})
		}
	}
}

func (c *Change) components(was, now []margo.Component) {
	find := func(all []margo.Component, name string) *margo.Component {
		if i := slices.IndexFunc(all, func(c margo.Component) bool { return c.Name == name }); i >= 0 {
			return &all[i]
		}
		return nil
	}
	for _, n := range now {
		x := ComponentChange{Name: n.Name, Version: n.Properties.Revision, Digest: pinOf(n)}
		if b := find(was, n.Name); b != nil {
			x.Was, x.WasDigest = b.Properties.Revision, pinOf(*b)
		}
		if x.Was != x.Version || x.WasDigest != x.Digest {
			c.Components = append(c.Components, x)
		}
	}
	for _, b := range was {
		if find(now, b.Name) == nil {
			c.Components = append(c.Components, ComponentChange{Name: b.Name, Was: b.Properties.Revision, WasDigest: pinOf(b)})
		}
	}
}

// running compares the services before and after.
func (c *Change) running(before, now map[string]Service) {
	for _, name := range slices.Sorted(maps.Keys(now)) {
		n, b := now[name], before[name]
		if n.Digest != b.Digest && n.Digest != "" && b.Digest != "" {
			c.Images = append(c.Images, ImageChange{Service: name, WasImage: b.Image, Image: n.Image, WasDigest: b.Digest, Digest: n.Digest})
		}
		switch {
		case b.Name == "":
			c.Starts = append(c.Starts, name)
		case b.Hash != n.Hash:
			c.Restarts = append(c.Restarts, name)
		default:
			c.Keeps = append(c.Keeps, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(before)) {
		if _, ok := now[name]; !ok {
			c.Stops = append(c.Stops, name)
		}
	}
}

// services are the services of a profile's components, by name; with several components by "component/service". Components
// that are not Compose projects have none.
func (p *planner) services(ctx context.Context, platform string, profile margo.DeploymentProfile, parameters map[string]margo.Parameter) (map[string]Service, error) {
	if p.o.Services == nil || profile.Type != "compose" {
		return nil, nil
	}
	out := map[string]Service{}
	for _, c := range profile.Components {
		env, err := margo.Environment(parameters, c.Name)
		if err != nil {
			return nil, err
		}
		archive, err := p.archives.get(ctx, c)
		if err != nil {
			return nil, err
		}
		key, _ := json.Marshal([]any{pinOf(c), platform, env}) // strings marshal
		all, err := p.loaded.get(ctx, string(key), func(ctx context.Context) ([]Service, error) {
			return p.o.Services(ctx, archive.Archive, env, platform)
		})
		if err != nil {
			return nil, err
		}
		for _, s := range all {
			name := s.Name
			if len(profile.Components) > 1 {
				name = c.Name + "/" + s.Name
			}
			out[name] = s
		}
	}
	return out, nil
}

func pinOf(c margo.Component) digest.Digest {
	d, _, err := c.Pinned()
	if err != nil {
		return "" // refused when it was parsed
	}
	return d
}

// versions is the version of a profile: of its only component, or of each.
func versions(p margo.DeploymentProfile) string {
	if len(p.Components) == 1 {
		return p.Components[0].Properties.Revision
	}
	var out []string
	for _, c := range p.Components {
		out = append(out, c.Name+" "+c.Properties.Revision)
	}
	return strings.Join(out, ", ")
}

// value is a parameter's value for display and comparison: files and documents read 1 and 1.0 as different types.
func value(v any) string {
	if v == nil {
		return "not set"
	}
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Sprint(v)
	}
	return string(b)
}
