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
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// Published is one published generation of a device, by its history tag.
type Published struct {
	Generation  uint64
	Tag         string           // of the history; the device's own tag if there is none
	Digest      digest.Digest    // "": it could not be read
	Current     bool             // the device's tag names it
	Created     time.Time        // zero: unknown
	Expires     time.Time        // zero: never
	Windows     schedule.Windows // in which the device makes changes; the zero value: at any time
	Revision    string           // of its source files, by its annotation; "": unknown
	Previous    digest.Digest
	Repeats     digest.Digest // of the earlier generation whose content it has; "": none
	Deployments []artifacts.Deployment
	Problem     error // why it does not match its tag; nil: it does
}

// History lists the published generations of a device, the newest first and at most limit, and returns their total
// number. Signatures are not verified. The generation of the device's tag is included, also without a history tag.
func History(ctx context.Context, repo Repository, device artifacts.DeviceID, limit int) ([]Published, int, error) {
	tag := device.Tag()
	desc, err := repo.Resolve(ctx, tag)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, 0, err
	}
	tags, err := repo.Tags(ctx)
	if err != nil && !errors.Is(err, fault.ErrNotFound) { // an empty repository
		return nil, 0, err
	}
	all := Generations(tags)[tag]
	var out []Published
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
	return append([]Published{*g}, out...), len(all) + 1, nil
}

// generationAt reads one generation; it returns an error if it could not be read.
func generationAt(ctx context.Context, repo Repository, device artifacts.DeviceID, tag string) (*Published, error) {
	g := &Published{Tag: tag}
	c, err := Read(ctx, repo, tag)
	if err != nil {
		if !Unfit(err) {
			return nil, err
		}
		g.Problem = err
		return g, nil
	}
	x := c.Index
	g.Generation, g.Digest, g.Expires, g.Windows, g.Previous, g.Repeats = x.Generation, c.Descriptor.Digest, x.Expires, x.Windows, x.Previous, x.Repeats
	g.Deployments, g.Revision = c.State.Deployments, x.Annotations[ocispec.AnnotationRevision]
	if t, err := time.Parse(time.RFC3339, x.Annotations[ocispec.AnnotationCreated]); err == nil {
		g.Created = t.UTC()
	}
	if x.Device != device {
		g.Problem = fmt.Errorf("it is the state of %s: %w", x.Device, fault.ErrConflict)
	}
	return g, nil
}

// Newest finds the subject of a freshness statement for a device: the generation of its tag, which must be the newest
// one and accepted by verify. Otherwise anyone with push rights could get a statement for an old
// one.
func Newest(ctx context.Context, repo Repository, device artifacts.DeviceID, verify func(ctx context.Context, state ocispec.Descriptor) error) (*Current, error) {
	c := chain(repo, device, verify)
	h, err := c.ReadTag(ctx)
	if err == nil && h.Tagged == "" {
		err = fmt.Errorf("%s:%s: %w", c.Repository, c.Tag, fault.ErrNotFound)
	}
	if err == nil {
		err = c.Search(ctx, h)
	}
	switch {
	case err != nil:
		return nil, err
	case h.Lags():
		err := fmt.Errorf("%s:%s names an older state than generation %d, which is there: %w", c.Repository, c.Tag, h.Number(), fault.ErrRollback)
		return nil, fault.WithHint(err, "the tag was moved back, or a push was interrupted: publish that generation again, or a new one")
	case len(h.Skipped) > MaxSkipped:
		return nil, fmt.Errorf("%s:%s: more than %d newer generations that cannot be followed: %w", c.Repository, c.Tag, MaxSkipped, h.Reason)
	}
	return h.Current.Value, nil
}

// chain is the chain of a device's states.
func chain(repo Repository, device artifacts.DeviceID, verify func(context.Context, ocispec.Descriptor) error) *Chain[*Current] {
	c := &Chain[*Current]{Repository: repo.Name(), Tag: device.Tag(), Resolve: repo.Resolve, Tagged: repo.Tagged}
	c.Open = func(d digest.Digest, manifest []byte) (*Current, uint64, error) {
		x, err := open(repo.Name(), ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(manifest))}, manifest)
		if err == nil && x.Index.Device != device {
			err = fmt.Errorf("%s@%s is the state of %s and not of %s: %w", repo.Name(), d, x.Index.Device, device, fault.ErrConflict)
		}
		if err != nil {
			return nil, 0, err
		}
		return x, x.Index.Generation, nil
	}
	c.Read = func(ctx context.Context, x *Current) (*Current, error) { return x.read(ctx, repo) }
	if verify != nil {
		c.Verify = func(ctx context.Context, d digest.Digest) error {
			return verify(ctx, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d})
		}
	}
	c.Generations = func(ctx context.Context) ([]uint64, error) {
		tags, err := repo.Tags(ctx)
		return Generations(tags)[c.Tag], err
	}
	return c
}
