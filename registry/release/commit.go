package release

import (
	"context"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

const (
	maxContest = 5 // attempts to restore a moving tag
	maxLinks   = 8 // generations that are followed backwards from another publisher's
)

// commit sets the tags of a generation N: the history tag H, then the moving tag M, with a check of the other tag after each.
// No registry compares before it sets a tag, so:
//
//	read M: it has the planned value; if that is none, read H: it does not exist
//	set H
//	read M: it is unchanged; otherwise another publisher has published, and H is restored for it
//	set M
//	read H: it is still ours; and the history tag of generation N+1: it does not exist
//
// Assume that A and B publish one generation and both get nil, and that B is the last to set H. A read its own digest in H in its
// last step, so before B set H, and had set M before that; then B's second read of M returns A's digest. So of two at most one gets
// nil, independent of their speed, without a wait or a clock. With three and more, the restoring of H can give nil to two of
// them. In every case M names the newest generation of the history when all have returned:
// a publisher that sets M or restores H reads the tags again afterwards, and repairs them; see [publication.reconcile]. A device
// accepts only one content of a generation.
//
// Content of others counts only if Precondition.Verify accepts it: not everyone with write access to the registry
// may publish. Publishers sign before they set H.
//
// A publisher that reads H of an interrupted one publishes N+1 after it. If the interrupted one continues, it
// sets M back to N, and finds N+1 in its last step.
func (p *publication) commit(ctx context.Context) error {
	tag, tagged := p.o.Tags[0], p.o.Precondition.Tagged
	first := tag
	if tagged == "" { // the plan has not read H, see [Chain.FindNext]
		first = p.o.HistoryTag
	}
	there, err := p.repo.ResolveUpstream(ctx, first)
	if err == nil && there != tagged && there != p.desc.Digest {
		err = p.conflict(first, there)
	}
	if err == nil {
		err = p.setHistory(ctx)
	}
	if err != nil {
		return err
	}
	if there, err = p.repo.ResolveUpstream(ctx, tag); err != nil {
		return err
	}
	if there != tagged && there != p.desc.Digest {
		return p.giveBack(ctx, there)
	}
	moved := there == p.desc.Digest
	if !moved {
		err := p.setTag(ctx, p.desc, p.manifest, tag, there)
		if err != nil && !errors.Is(err, registry.ErrMoved) { // reconcile handles tags that another publisher has set meanwhile
			return err
		}
		moved = err == nil
	}
	if err := p.reconcile(ctx, moved); err != nil {
		if !errors.Is(err, fault.ErrConflict) {
			err = fault.WithHint(p.fail("publish", tag, err), "its tags were set, and whether they have held was not looked at: look at what the tag names now")
		}
		return err
	}
	return nil
}

// link is one generation of a chain: of a device's state, or of a fleet's rollout.
type link struct {
	tag      string // the moving one
	number   uint64
	previous digest.Digest // "": none is named
}

func openLink(manifest []byte) (link, error) {
	if o, err := artifacts.ReadOutline(manifest); err == nil && o.Kind == artifacts.KindRollout {
		x, err := artifacts.OpenRollout(manifest)
		if err != nil {
			return link{}, err
		}
		return link{x.Fleet, x.Revision, x.Previous}, nil
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return link{}, err
	}
	return link{x.Device.Tag(), x.Generation, x.Previous}, nil
}

func (p *publication) link() (link, error) { return openLink(p.manifest) }

// giveBack sets the history tag, which names ours, to the published generation: that of the chain that ends at the
// moving tag. If that chain contains ours, ours was published, and has a successor.
func (p *publication) giveBack(ctx context.Context, there digest.Digest) error {
	ours, err := p.link()
	if err != nil {
		return err
	}
	lost := p.conflict(p.o.Tags[0], there)
	at := there
	for range maxLinks {
		if at == "" {
			return lost
		}
		if at == p.desc.Digest {
			return p.reconcile(ctx, false)
		}
		desc, manifest, err := p.repo.ManifestLimit(ctx, at, registry.MaxForeignManifest)
		if err != nil {
			return errors.Join(lost, err)
		}
		l, err := openLink(manifest)
		if err != nil || l.tag != ours.tag || l.number < ours.number {
			return lost // it is another artifact: there is nothing to restore
		}
		if l.number == ours.number {
			if err := p.verify(ctx, at); Unfit(err) {
				return lost
			} else if err != nil {
				return errors.Join(lost, err)
			}
			if err := p.setTag(ctx, desc, manifest, p.o.HistoryTag, p.desc.Digest); err != nil && !errors.Is(err, registry.ErrMoved) {
				return errors.Join(lost, err)
			}
			// Its publisher may have read ours there, and moved the tag to it.
			if err := p.reconcile(ctx, false); err != nil && !errors.Is(err, fault.ErrConflict) {
				return errors.Join(lost, err)
			}
			return lost
		}
		at = l.previous
	}
	return lost
}

// reconcile sets the moving tag to the newest generation of the history. It returns nil if that is ours or a successor
// of ours. moved: the moving tag is known to name ours.
func (p *publication) reconcile(ctx context.Context, moved bool) error {
	tag := p.o.Tags[0]
	ours, err := p.link()
	if err != nil {
		return err
	}
	for range maxContest {
		history, err := p.repo.FetchUpstream(ctx, p.o.HistoryTag)
		if err != nil {
			return err
		}
		if err := p.verify(ctx, history); Unfit(err) {
			return p.conflict(p.o.HistoryTag, history)
		} else if err != nil {
			return err
		}
		newest, followed, err := p.newest(ctx, ours, history)
		if err != nil {
			return err
		}
		there := p.desc.Digest
		if !moved || newest != there {
			if there, err = p.repo.ResolveUpstream(ctx, tag); err != nil {
				return err
			}
		}
		switch {
		case there != newest && newest != "":
			desc, manifest, err := p.repo.ManifestLimit(ctx, newest, registry.MaxForeignManifest)
			if err == nil {
				err = p.setTag(ctx, desc, manifest, tag, there)
			}
			if err != nil && !errors.Is(err, registry.ErrMoved) {
				return err
			}
			moved = false
		case newest != history && !followed:
			return p.conflict(tag, newest)
		case history != p.desc.Digest:
			return p.conflict(p.o.HistoryTag, history)
		default:
			return nil
		}
	}
	return fault.WithHint(p.fail("publish", tag, fmt.Errorf("others move it all the time: %w", fault.ErrConflict)), "publish again when they are done")
}

// verify returns an error if a generation of another publisher must not be followed.
func (p *publication) verify(ctx context.Context, d digest.Digest) error {
	if d == "" || d == p.desc.Digest || p.o.Precondition.Verify == nil {
		return nil
	}
	return p.o.Precondition.Verify(ctx, d)
}

// newest goes up the history from ours, whose history tag names history, like [Chain.FollowHistory]: it skips unacceptable
// generations. followed: the first one above is a successor of ours. Otherwise it was published meanwhile, or existed before, behind a
// gap: if its predecessor was lost, planning used that number for the next one, and devices may have accepted later ones.
func (p *publication) newest(ctx context.Context, ours link, history digest.Digest) (newest digest.Digest, followed bool, err error) {
	newest = history
	for n, skipped := ours.number+1, 0; skipped <= MaxSkipped; n++ {
		at := artifacts.HistoryTag(ours.tag, n)
		there, err := p.repo.ResolveUpstream(ctx, at)
		if err != nil || there == "" {
			return newest, followed, err
		}
		_, manifest, err := p.repo.ManifestLimit(ctx, there, registry.MaxForeignManifest)
		if err != nil && !Unfit(err) {
			return "", false, err
		}
		l, err := openLink(manifest)
		if err != nil || l.tag != ours.tag || l.number != n {
			skipped++
			continue
		}
		if err := p.verify(ctx, there); Unfit(err) {
			skipped++
			continue
		} else if err != nil {
			return "", false, err
		}
		if newest == history {
			followed = l.previous == p.desc.Digest && history == p.desc.Digest
		}
		newest = there
	}
	return newest, followed, nil
}
