package fleet

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

// Kinds of [Content].
const (
	ContentComponent = "component"
	ContentImage     = "image"
)

// Content is something that devices load.
type Content struct {
	Kind       string
	Type       string        // of a component: "compose", "helm"
	Repository string        // of a component, "host/path"
	Reference  string        // of an image, as Compose files write it
	Digest     digest.Digest // by which it is pinned, and what is signed
	Platform   digest.Digest // of an image's platform that is loaded; of a component Digest
}

// Name is the content for people.
func (c Content) Name() string {
	at := "@" + printable.Digest(c.Digest)
	if c.Kind == ContentImage {
		name, _, _ := strings.Cut(c.Reference, "@")
		return "image " + name + at
	}
	return "component " + c.Repository + at
}

// Finding is the result of a check of content. The zero value: no problems.
type Finding struct {
	Wrong []string // why devices must not get it, a sentence each
	Notes []string // failed checks
}

func (f *Finding) add(more Finding) {
	for _, w := range more.Wrong {
		if !slices.Contains(f.Wrong, w) {
			f.Wrong = append(f.Wrong, w)
		}
	}
	for _, n := range more.Notes {
		if !slices.Contains(f.Notes, n) {
			f.Notes = append(f.Notes, n)
		}
	}
}

// Claim is something of a device that one service has for itself. Two services clash when What is equal and At overlaps.
type Claim struct {
	What string       // "port 8080/tcp"
	At   netip.Prefix // addresses; zero: all
}

func (c Claim) clashes(o Claim) bool {
	return c.What == o.What && (!c.At.IsValid() || !o.At.IsValid() || c.At.Overlaps(o.At))
}

// prefetch checks everything that a device of a platform would load for its placements.
func (p *planner) prefetch(ctx context.Context, a *Assignment, platform string) (all Finding, err error) {
	for _, at := range a.Placements {
		for _, c := range at.Profile.Components {
			found, err := p.contents(ctx, at.Profile.Type, c, platform)
			if err != nil {
				return all, err
			}
			all.add(found)
		}
	}
	return all, nil
}

// contents checks a component and its images.
func (p *planner) contents(ctx context.Context, kind string, c margo.Component, platform string) (Finding, error) {
	if p.o.Content == nil && p.o.Trusted == nil {
		return Finding{}, nil
	}
	key := kind + " " + c.Properties.Repository + "@" + pinOf(c).String() + " " + platform
	return p.looked.get(ctx, key, func(ctx context.Context) (Finding, error) {
		repository, ok := strings.CutPrefix(c.Properties.Repository, "oci://")
		if !ok {
			return Finding{}, nil // it is reported elsewhere
		}
		d := pinOf(c)
		all, err := p.content(ctx, Content{Kind: ContentComponent, Type: kind, Repository: repository, Digest: d, Platform: d})
		if err != nil || kind != "compose" {
			return all, err
		}
		archive, err := p.archives.get(ctx, c)
		if permanent(err) {
			if len(all.Wrong) == 0 { // otherwise it was reported
				all.Wrong = append(all.Wrong, fault.Summary(err))
			}
			return all, nil
		}
		if err != nil || archive.Lock == nil {
			return all, err
		}
		for _, image := range archive.Lock.Images {
			for _, d := range loadable(image, platform) {
				found, err := p.content(ctx, Content{Kind: ContentImage, Reference: image.Reference, Digest: image.Digest, Platform: d})
				if err != nil {
					return all, err
				}
				all.add(found)
			}
		}
		return all, nil
	})
}

// loadable are the platforms of an image that a device may load: every one of a device of which no platform is known.
func loadable(image artifacts.LockedImage, platform string) []digest.Digest {
	var out []digest.Digest
	for _, x := range image.Platforms {
		if platform == "" {
			out = append(out, x.Digest)
		} else if x.Platform == platform || strings.HasPrefix(x.Platform, platform+"/") {
			return []digest.Digest{x.Digest}
		}
	}
	return out
}

// content checks one thing once.
func (p *planner) content(ctx context.Context, c Content) (Finding, error) {
	key := strings.Join([]string{c.Kind, c.Type, c.Repository, c.Reference, c.Digest.String(), c.Platform.String()}, " ")
	return p.single.get(ctx, key, func(ctx context.Context) (found Finding, err error) {
		if p.o.Content != nil {
			if found, err = p.o.Content(ctx, c); err != nil {
				return found, err
			}
		}
		if p.o.Trusted == nil {
			return found, nil
		}
		key := strings.Join([]string{c.Kind, c.Repository, c.Reference, c.Digest.String()}, " ")
		_, err = p.judged.get(ctx, key, func(ctx context.Context) (struct{}, error) { return struct{}{}, p.o.Trusted(ctx, c) })
		if err != nil && !errors.Is(err, fault.ErrTemporary) && ctx.Err() == nil {
			found.Wrong, err = append(found.Wrong, c.Name()+": "+fault.Summary(err)), nil
		}
		return found, err
	})
}

// claimed is the owner of a claim on a device.
type claimed struct {
	Claim
	deployment, component string
	who                   string
}

// beside reports conflicts between the deployments of one device; those inside of one component are the project's own.
func (p *planner) beside(ctx context.Context, a *Assignment, platform string) ([]string, error) {
	var all []claimed
	for _, at := range a.Placements {
		services, err := p.services(ctx, platform, *at.Profile, at.Parameters)
		if permanent(err) {
			continue // reported by itself
		}
		if err != nil {
			return nil, err
		}
		for _, name := range sortedKeys(services) {
			component, _, several := strings.Cut(name, "/")
			if !several {
				component = ""
			}
			for _, c := range services[name].Claims {
				all = append(all, claimed{c, at.Deployment.Name, component, fmt.Sprintf("service %s of %s", name, at.Deployment.Name)})
			}
		}
	}
	var out []string
	for i, c := range all {
		for _, before := range all[:i] {
			if c.clashes(before.Claim) && (c.deployment != before.deployment || c.component != before.component) {
				if s := fmt.Sprintf("%s is used by %s and by %s", c.What, before.who, c.who); !slices.Contains(out, s) {
					out = append(out, s)
				}
				break
			}
		}
	}
	return out, nil
}

// runnable reports everything that prevents a device from running what the files put on it, as far as that is known before.
func (p *planner) runnable(ctx context.Context, a *Assignment) (Finding, error) {
	platform := platformOf(a.Device)
	all, err := p.prefetch(ctx, a, platform)
	if err != nil {
		return all, err
	}
	clashes, err := p.beside(ctx, a, platform)
	if err != nil {
		return all, err
	}
	all.add(Finding{Wrong: clashes})
	for _, at := range a.Placements {
		unused, err := p.unused(ctx, at)
		if err != nil {
			return all, err
		}
		all.add(unused)
	}
	return all, nil
}

// unused reports parameters that have no effect: nothing in their components refers to them. A misspelled name would be signed and
// published otherwise. A value that only the package sets is reported in a note: the files cannot change it.
func (p *planner) unused(ctx context.Context, at Placement) (Finding, error) {
	if p.o.Unused == nil || at.Profile.Type != "compose" {
		return Finding{}, nil
	}
	key := fmt.Sprintf("%p %p", at.Profile, at.Parameters)
	return p.idle.get(ctx, key, func(ctx context.Context) (Finding, error) {
		unread := false
		_, untaken, err := margo.Effects(at.Parameters, at.Profile.Components, func(c margo.Component, variables []string) (idle, uses []string, err error) {
			archive, err := p.archives.get(ctx, c)
			if permanent(err) {
				unread = true // reported by itself
				return nil, nil, nil
			}
			if err != nil {
				return nil, nil, err
			}
			return p.o.Unused(archive.Archive, variables)
		})
		if err != nil || unread {
			return Finding{}, err
		}
		var out Finding
		for _, u := range untaken {
			s := fmt.Sprintf("%s: parameter %s: %s (%s)", at.Deployment.Name, u.Parameter, u, u.Hint())
			if at.named || at.said[u.Parameter] {
				out.Wrong = append(out.Wrong, s)
			} else {
				out.Notes = append(out.Notes, s+"; its value is the package's own")
			}
		}
		return out, nil
	})
}

// Check looks whether every device could run and load what the files put on it, whatever it has now: platforms, projects
// with their parameters, ports and the like that two deployments want, and [Options.Content]. The error is of devices that
// cannot, those of one reason together, and wraps fault.ErrUnfit; any other says that something could not be asked. Notes
// are what could not be found out.
func (c *Compiled) Check(ctx context.Context, from Registry, o Options) (notes []string, err error) {
	plan, err := c.planEach(ctx, from, o, "check", func(ctx context.Context, p *planner, a *Assignment) (*DevicePlan, error) {
		d := &DevicePlan{Device: a.Device.ID, Repository: a.Repository, Action: Same, assignment: a}
		if len(a.Unfit) > 0 {
			d.Action, d.Reasons = Cannot, a.Unfit
			return d, nil
		}
		found, err := p.checked.get(ctx, likeness(a), func(ctx context.Context) (Finding, error) { return p.check(ctx, a) })
		if d.Reasons = found.Notes; len(found.Wrong) > 0 {
			d.Action, d.Reasons = Cannot, found.Wrong
		}
		return d, err
	})
	if err != nil {
		return nil, err
	}
	var all Finding
	for _, d := range plan.Devices {
		if d.Action == Same {
			all.add(Finding{Notes: d.Reasons})
		}
	}
	return all.Notes, plan.unfit("")
}

// likeness is the same for devices of one platform that run the same with the same parameters: these share what is behind
// the pointers.
func likeness(a *Assignment) string {
	key := platformOf(a.Device)
	for _, at := range a.Placements {
		key += fmt.Sprintf(" %s %p %p", at.Deployment.Name, at.Profile, at.Parameters)
	}
	return key
}

// check is runnable, with the other checks of a plan.
func (p *planner) check(ctx context.Context, a *Assignment) (Finding, error) {
	all, err := p.runnable(ctx, a)
	if err != nil {
		return all, err
	}
	platform := platformOf(a.Device)
	for _, at := range a.Placements {
		_, why, err := p.change(ctx, platform, at, nil)
		if err != nil {
			return all, err
		}
		if why != "" && !slices.ContainsFunc(all.Wrong, func(w string) bool { return strings.HasSuffix(why, w) }) {
			all.add(Finding{Wrong: []string{why}})
		}
		_, missing, err := p.price(ctx, platform, nil, []margo.DeploymentProfile{*at.Profile})
		if err != nil && !permanent(err) {
			return all, err
		}
		if missing != "" && len(all.Wrong) == 0 {
			all.add(Finding{Wrong: []string{missing}})
		}
	}
	return all, nil
}
