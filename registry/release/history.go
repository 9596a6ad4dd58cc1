package release

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Generation is one published generation of a device, as its history tag names it.
type Generation struct {
	Generation  uint64
	Tag         string        // of the history; the device's own when it has none there
	Digest      digest.Digest // "": it could not be read
	Current     bool          // the device's tag names it
	Created     time.Time     // zero: not told
	Expires     time.Time     // zero: never
	Previous    digest.Digest
	Repeats     digest.Digest // of the earlier generation whose content it has; "": none told
	Deployments []artifacts.Deployment
	Problem     error // why it is not what its tag says; nil: it is
}

// History lists what is published for a device, the newest first and at most limit of it, and how many generations there
// are. Who signed is not looked at. What the device's tag names is in it, also where it has no history tag.
func History(ctx context.Context, repo Repository, device artifacts.DeviceID, limit int) ([]Generation, int, error) {
	tag := device.Tag()
	desc, err := repo.Resolve(ctx, tag)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, 0, err
	}
	all, err := history(ctx, repo, tag)
	if err != nil {
		return nil, 0, err
	}
	var out []Generation
	current := desc.Digest == ""
	for _, n := range all[:min(len(all), limit)] {
		g, err := generationAt(ctx, repo, device, artifacts.HistoryTag(tag, n))
		if err != nil {
			return nil, 0, err
		}
		if g.Problem == nil && g.Generation != n {
			g.Problem = fmt.Errorf("it is generation %d: %w", g.Generation, fault.ErrConflict)
		}
		g.Generation, g.Current = n, g.Digest != "" && g.Digest == desc.Digest
		current = current || g.Current
		out = append(out, *g)
	}
	if current {
		return out, len(all), nil
	}
	g, err := generationAt(ctx, repo, device, tag)
	if err != nil {
		return nil, 0, err
	}
	g.Current = true
	return append([]Generation{*g}, out...), len(all) + 1, nil
}

// generationAt reads one; an error says that nobody could.
func generationAt(ctx context.Context, repo Repository, device artifacts.DeviceID, tag string) (*Generation, error) {
	g := &Generation{Tag: tag}
	c, err := Read(ctx, repo, tag)
	if err != nil {
		if !unfit(err) {
			return nil, err
		}
		g.Problem = err
		return g, nil
	}
	x := c.Index
	g.Generation, g.Digest, g.Expires, g.Previous, g.Repeats = x.Generation, c.Descriptor.Digest, x.Expires, x.Previous, x.Repeats
	g.Deployments = c.State.Deployments
	if t, err := time.Parse(time.RFC3339, x.Annotations[ocispec.AnnotationCreated]); err == nil {
		g.Created = t.UTC()
	}
	if x.Device != device {
		g.Problem = fmt.Errorf("it is the state of %s: %w", x.Device, fault.ErrConflict)
	}
	return g, nil
}

// Rollback makes the state that follows the newest one and has the content of an earlier generation, which o.Verify must
// let pass, too. o.Deployments, KeepOthers and Repeats follow from it.
func Rollback(ctx context.Context, from Components, repo Repository, o Options, to uint64) (*Next, error) {
	b := &base{device: o.Device, tag: o.Device.Tag(), where: repo.Name()}
	tag := artifacts.HistoryTag(b.tag, to)
	c, err := b.read(ctx, repo, o.Verify, tag)
	if err == nil && c.Index.Generation != to {
		err = fmt.Errorf("%s:%s is generation %d: %w", b.where, tag, c.Index.Generation, fault.ErrConflict)
	}
	if err != nil {
		err = fmt.Errorf("go back to generation %d: %w", to, err)
		if fault.Hint(err) == "" {
			err = fault.WithHint(err, "see what there is: longshore state history --device "+string(o.Device)+" "+b.where)
		}
		return nil, err
	}
	o.KeepOthers, o.Deployments, o.Repeats = false, nil, c.Descriptor.Digest
	for _, d := range c.State.Deployments {
		o.Deployments = append(o.Deployments, Document{File: fmt.Sprintf("generation %d: %s", to, d.Document.ID), Data: d.Bytes})
	}
	var notes []string
	if o.Look != nil {
		if notes, err = o.Look(ctx, c.State.Deployments); err != nil {
			return nil, fmt.Errorf("go back to generation %d: %w", to, err)
		}
	}
	next, err := State(ctx, from, repo, o)
	if err != nil {
		return nil, err
	}
	next.Notes = append(next.Notes, notes...)
	if next.Previous == c.Descriptor.Digest {
		return nil, fmt.Errorf("go back to generation %d: it is the newest: %w", to, fault.ErrConflict)
	}
	return next, nil
}

// Newest finds what a freshness statement about a device may be made of: what its tag names, which must be the newest
// generation that there is, and which verify lets pass. Whoever may write to the registry could have an old one called
// fresh otherwise.
func Newest(ctx context.Context, repo Repository, device artifacts.DeviceID, verify func(ctx context.Context, state ocispec.Descriptor) error) (*Current, error) {
	b, err := findBase(ctx, repo, Options{Device: device, Verify: verify})
	switch {
	case err != nil:
		return nil, err
	case b.tagged == "":
		return nil, fmt.Errorf("%s:%s: %w", b.where, b.tag, fault.ErrNotFound)
	case b.refused != nil:
		return nil, b.refused
	case b.lags():
		err := fmt.Errorf("%s:%s names an older state than generation %d, which is there: %w", b.where, b.tag, b.generation(), fault.ErrRollback)
		return nil, fault.WithHint(err, "somebody moved the tag back, or a push was interrupted: publish that generation again, or a new one")
	case len(b.ignored) > maxIgnored:
		return nil, fmt.Errorf("%s:%s: more than %d newer generations that cannot be followed: %w", b.where, b.tag, maxIgnored, b.reason)
	}
	return b.current, nil
}
