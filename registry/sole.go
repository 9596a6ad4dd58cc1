package registry

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Sole is what a publisher of a generation believes of a registry that others may write to as well. No registry compares
// before it sets a tag, so Publish looks before and after each tag that it sets, and of several publishers of one
// generation at most one gets nil, all others an error that wraps fault.ErrConflict. This holds whether the registry has
// immutable tags or not, as long as everybody looks: of two always, why is said at [Repository.soleHistory], of more as
// [Repository.settled] says.
type Sole struct {
	Tagged  digest.Digest // what Tags[0] names until now; "": it is not there
	NextTag string        // history tag of the generation above

	// above is what NextTag named before: something that nobody follows. Another one there means that somebody publishes.
	above digest.Digest
}

// maxContest bounds how often a moving tag is put back in place.
const maxContest = 5

// names is what a tag names; "": nothing.
func (r *Repository) names(ctx context.Context, tag string) (digest.Digest, error) {
	return orNothing(r.here(ctx, tag))
}

// here asks what a tag names of the registry itself: mirrors learn of it later.
func (r *Repository) here(ctx context.Context, tag string) (ocispec.Descriptor, error) {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return r.Resolve(ctx, tag)
	}
	a := p.upstream()
	d, err := p.resolveAt(p.reading(ctx, a), a, tag)
	return d, r.fail("resolve", tag, err)
}

// readBack is names, by the bytes that are there, and so tells also that they are.
func (r *Repository) readBack(ctx context.Context, tag string) (digest.Digest, error) {
	var d ocispec.Descriptor
	var err error
	if p, ok := r.place.(*remotePlace); ok {
		a := p.upstream()
		d, _, err = p.manifestAt(p.reading(ctx, a), a, tag, MaxForeignManifest)
	} else {
		d, _, err = r.manifest(ctx, tag, MaxForeignManifest)
	}
	there, err := orNothing(d, err)
	return there, r.fail("read back", tag, err)
}

func (r *Repository) conflict(tag string, there digest.Digest) error {
	return fault.WithHint(r.fail("publish", tag, fmt.Errorf("it names %s now, somebody else published meanwhile: %w", there, fault.ErrConflict)),
		"look at what is there, and publish what follows it")
}

// soleBefore looks before a tag is set.
func (r *Repository) soleBefore(ctx context.Context, desc ocispec.Descriptor, o PublishOptions) error {
	if o.Sole == nil {
		return nil
	}
	there, err := r.names(ctx, o.Tags[0])
	if err == nil && there != o.Sole.Tagged && there != desc.Digest {
		err = r.conflict(o.Tags[0], there)
	}
	if err == nil {
		o.Sole.above, err = r.names(ctx, o.Sole.NextTag)
	}
	return err
}

// taken turns a refusal to set the history tag into a conflict, when that is why: registries with immutable tags say it
// in many ways.
func (r *Repository) taken(ctx context.Context, desc ocispec.Descriptor, o PublishOptions, err error) error {
	if errors.Is(err, fault.ErrTemporary) || o.HistoryTag == "" {
		return err
	}
	if there, lookErr := r.names(ctx, o.HistoryTag); lookErr == nil && there != "" && there != desc.Digest {
		return r.conflict(o.HistoryTag, there)
	}
	return err
}

// soleHistory reads back what was published, by the history tag, and looks at what the moving one names before it is set;
// nil: it was not looked at.
//
// Say A and B publish the same generation and both get nil. The last to set the history tag is B, so A saw its own there
// at the end (soleAfter) before B set it, and had set the moving tag before that. Then B, here, sees A's moving tag.
func (r *Repository) soleHistory(ctx context.Context, desc ocispec.Descriptor, o PublishOptions) (*digest.Digest, error) {
	if o.Sole == nil || o.HistoryTag == "" {
		return nil, nil
	}
	history, err := r.readBack(ctx, o.HistoryTag)
	if err != nil {
		return nil, err
	}
	if history != desc.Digest {
		return nil, r.conflict(o.HistoryTag, history)
	}
	there, err := r.names(ctx, o.Tags[0])
	if err != nil || there == o.Sole.Tagged || there == desc.Digest {
		return &there, err
	}
	if err := r.restore(ctx, o, desc.Digest, there); err != nil {
		return nil, errors.Join(r.conflict(o.Tags[0], there), err)
	}
	return nil, r.conflict(o.Tags[0], there)
}

// generation is one of what is published in generations: of a device's state, of a fleet's rollout.
type generation struct {
	tag      string // the moving one
	number   uint64
	previous digest.Digest // "": none told
}

func openGeneration(manifest []byte) (generation, error) {
	if o, err := artifacts.ReadOutline(manifest); err == nil && o.Kind == artifacts.KindRollout {
		x, err := artifacts.OpenRollout(manifest)
		if err != nil {
			return generation{}, err
		}
		return generation{x.Fleet, x.Revision, x.Previous}, nil
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return generation{}, err
	}
	return generation{x.Device.Tag(), x.Generation, x.Previous}, nil
}

func (g generation) historyTag() string { return artifacts.HistoryTag(g.tag, g.number) }

// restore gives the history tag, which names ours, back to who had it: the state that the moving tag names, when it is of
// that generation.
func (r *Repository) restore(ctx context.Context, o PublishOptions, ours, there digest.Digest) error {
	if there == "" {
		return nil
	}
	full, manifest, err := r.Manifest(ctx, there)
	if err != nil {
		return err
	}
	if g, err := openGeneration(manifest); err != nil || g.historyTag() != o.HistoryTag {
		return nil //nolint:nilerr // it is something else: there is nothing to give back
	}
	if err := r.SetTag(ctx, full, manifest, o.HistoryTag, ours); err != nil && !errors.Is(err, errMoved) {
		return err
	}
	// Who had it may have seen ours there, and moved the tag to it.
	if err := r.soleAfter(ctx, full, o); !errors.Is(err, fault.ErrConflict) {
		return err
	}
	return nil
}

// soleAfter looks once the moving tag is set, by whoever set it last: it has to name the newest generation of the history.
// Whoever finds another one there puts that right before it returns, a loser too, so that what the device gets is right
// when all have returned. Only the owner of the newest generation gets nil.
func (r *Repository) soleAfter(ctx context.Context, desc ocispec.Descriptor, o PublishOptions) error {
	if o.Sole == nil || o.HistoryTag == "" {
		return nil
	}
	for range maxContest {
		history, err := r.names(ctx, o.HistoryTag)
		if err != nil {
			return err
		}
		next, err := r.names(ctx, o.Sole.NextTag)
		if err != nil {
			return err
		}
		if next == o.Sole.above {
			next = ""
		}
		newest, followed := history, false
		if next != "" {
			above, previous, err := r.newest(ctx, o, next)
			if err != nil {
				return err
			}
			if above == "" {
				next = ""
			} else {
				newest, followed = above, previous == desc.Digest && history == desc.Digest
			}
		}
		there, err := r.names(ctx, o.Tags[0])
		switch {
		case err != nil:
			return err
		case there != newest && newest != "":
			full, manifest, err := r.Manifest(ctx, newest)
			if err == nil {
				err = r.SetTag(ctx, full, manifest, o.Tags[0], there)
			}
			if err != nil && !errors.Is(err, errMoved) {
				return err
			}
		case next != "" && !followed:
			return r.conflict(o.Sole.NextTag, next)
		case history != desc.Digest:
			return r.conflict(o.HistoryTag, history)
		default:
			return nil
		}
	}
	return fault.WithHint(r.fail("publish", o.Tags[0], fmt.Errorf("others move it all the time: %w", fault.ErrConflict)), "publish again when they are done")
}

// newest goes up the history from the generation above, which is there, as long as each tag names the generation that it
// should; "": that one does not, it is something that nobody follows. previous is what the one above follows.
func (r *Repository) newest(ctx context.Context, o PublishOptions, above digest.Digest) (newest, previous digest.Digest, err error) {
	at := o.Sole.NextTag
	for there := above; there != ""; {
		_, manifest, err := r.Manifest(ctx, there)
		if err != nil {
			return "", "", err
		}
		g, err := openGeneration(manifest)
		if err != nil || g.tag != o.Tags[0] || g.historyTag() != at {
			break
		}
		if newest == "" {
			previous = g.previous
		}
		newest = there
		g.number++
		at = g.historyTag()
		if there, err = r.names(ctx, at); err != nil {
			return "", "", err
		}
	}
	return newest, previous, nil
}

// settled is soleAfter, and again a moment later, when what others had on its way has arrived.
//
// Of three publishers of one generation, what soleAfter sees is not enough: one that has looked already may still set the
// history tag, and another one the moving tag, so that neither tag tells any more who had published, and the history is
// given back to the wrong one. Two tags cannot tell that to three whatever one does: each writes over what another wrote
// before anybody has read it. So the owner waits until all have done what they had decided to do, and it is the history
// tag then that counts: of three and more at most one gets nil as long as each takes less than that moment from its look
// to its tag; one that has to try again looks again.
func (r *Repository) settled(ctx context.Context, desc ocispec.Descriptor, o PublishOptions) error {
	if o.Sole == nil || o.HistoryTag == "" {
		return nil
	}
	if err := r.soleAfter(ctx, desc, o); err != nil {
		return err
	}
	for range 2 { // what is in motion is looked at once more, before it is called a conflict
		if err := settle(ctx); err != nil {
			return err
		}
		ours := true
		for _, tag := range []string{o.HistoryTag, o.Tags[0]} {
			there, err := r.names(ctx, tag)
			if err != nil {
				return err
			}
			ours = ours && there == desc.Digest
		}
		if ours {
			return nil
		}
	}
	return r.soleAfter(ctx, desc, o)
}
