package registry

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Signer signs what is about to be published. Its signature has to be listed when it returns.
type Signer interface {
	Sign(ctx context.Context, repo *Repository, subject ocispec.Descriptor) error
}

// FreshSigner is a [Signer] that is told what nobody can have signed yet, and need not look.
type FreshSigner interface {
	Signer
	// SignFresh is Sign of a subject that was not in the repository a moment ago.
	SignFresh(ctx context.Context, repo *Repository, subject ocispec.Descriptor) error
}

// Action is what became of one thing that Publish had to do.
type Action string

// What Publish tells about.
const (
	ActionPushed  Action = "pushed"
	ActionMounted Action = "mounted" // shared from another repository: no bytes were sent
	ActionExists  Action = "exists"  // there already
	ActionSigned  Action = "signed"
	ActionTagged  Action = "tagged"
)

// Progress is one finished step of a push, for people to look at.
type Progress struct {
	Action     Action
	Descriptor ocispec.Descriptor
	Tag        string // of ActionTagged
}

// PublishOptions choose what happens around the push.
type PublishOptions struct {
	Signer     Signer          // nil: not signed
	HistoryTag string          // immutable tag, set before Tags; "" for none. Taken by another digest: fault.ErrConflict
	Tags       []string        // moving tags, set last, in this order
	MountFrom  []string        // repositories of the same registry (path without host) that may hold blobs already
	Held       []digest.Digest // blobs that a manifest of this repository names, which was read a moment ago: they are not looked for
	Progress   func(Progress)  // nil: silent; never called by two goroutines at once

	// Sole makes sure that nobody else publishes under the same tags at the same time; see [Sole]. nil: not looked at.
	Sole *Sole
}

// Publish pushes an artifact so that whoever reads meanwhile sees the old one or the new one, whole and signed: blobs,
// manifest by digest, signature, a look whether it is really there, history tag, moving tags. It may be repeated after any
// interruption; what is there is not sent again, but for blobs so small that to ask costs as much.
func (r *Repository) Publish(ctx context.Context, a *artifacts.Artifact, o PublishOptions) (ocispec.Descriptor, error) {
	desc := ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	if err := r.checkPublish(a, o); err != nil {
		return desc, r.fail("publish", desc.Digest.String(), err)
	}
	tell := teller(o.Progress)
	// Before anything is sent: a history tag that is taken makes the rest pointless. Who has planned has looked just now.
	if o.Sole == nil {
		if _, err := r.historyFree(ctx, desc, o.HistoryTag); err != nil {
			return desc, err
		}
	}
	fresh, err := r.pushAll(ctx, desc, a, o, tell)
	if err != nil {
		return desc, err
	}
	tell(Progress{Action: ActionPushed, Descriptor: desc})
	if o.Signer != nil {
		sign := o.Signer.Sign
		if f, ok := o.Signer.(FreshSigner); ok && fresh {
			sign = f.SignFresh
		}
		if err := sign(ctx, r, desc); err != nil {
			return desc, err
		}
		tell(Progress{Action: ActionSigned, Descriptor: desc})
	}
	if o.Sole == nil || o.HistoryTag == "" { // else soleHistory reads back what the history tag names
		if _, back, err := r.ManifestLimit(ctx, desc.Digest, MaxForeignManifest); err != nil {
			return desc, err
		} else if !bytes.Equal(back, a.Manifest) {
			return desc, r.fail("read back", desc.Digest.String(), fmt.Errorf("another manifest: %w", fault.ErrDigestMismatch))
		}
	}
	free, err := r.historyFree(ctx, desc, o.HistoryTag)
	if err == nil {
		err = r.soleBefore(ctx, desc, o)
	}
	if err != nil {
		return desc, err
	}
	put := func(tag string, was *digest.Digest) (err error) {
		if was == nil {
			err = r.PushManifest(ctx, desc, a.Manifest, tag)
		} else {
			err = r.SetTag(ctx, desc, a.Manifest, tag, *was)
		}
		if err == nil {
			tell(Progress{Action: ActionTagged, Descriptor: desc, Tag: tag})
		}
		return err
	}
	if free {
		nothing := digest.Digest("")
		if err := put(o.HistoryTag, &nothing); err != nil {
			return desc, r.taken(ctx, desc, o, err)
		}
	}
	was, err := r.soleHistory(ctx, desc, o)
	if err != nil {
		return desc, err
	}
	for _, tag := range o.Tags {
		// One that somebody else has set meanwhile is settled's to judge.
		if err := put(tag, was); err != nil && (was == nil || !errors.Is(err, errMoved)) {
			return desc, err
		}
		was = nil // of the first
	}
	err = r.settled(ctx, desc, o)
	if err != nil && !errors.Is(err, fault.ErrConflict) {
		err = fault.WithHint(r.fail("publish", o.Tags[0], err), "its tags were set, and nobody has looked whether they have held: look at what the tag names now")
	}
	return desc, err
}

// teller keeps calls of a progress function apart.
func teller(f func(Progress)) func(Progress) {
	if f == nil {
		return func(Progress) {}
	}
	var mu sync.Mutex
	return func(p Progress) {
		mu.Lock()
		defer mu.Unlock()
		f(p)
	}
}

func (r *Repository) checkPublish(a *artifacts.Artifact, o PublishOptions) error {
	if err := checkContent(a.Descriptor, a.Manifest); err != nil {
		return err
	}
	if len(a.Manifest) > MaxManifest {
		return fmt.Errorf("a manifest of %d bytes, %d are allowed: %w", len(a.Manifest), MaxManifest, fault.ErrTooLarge)
	}
	for _, b := range a.Blobs {
		if err := checkContent(b.Descriptor, b.Data); err != nil {
			return err
		}
	}
	for _, t := range append([]string{o.HistoryTag}, o.Tags...) {
		if t != "" && !validTag(t) {
			return fmt.Errorf("tag %q: %w", t, fault.ErrInvalid)
		}
	}
	return nil
}

// historyFree tells whether the history tag has still to be set. One that names another digest stays as it is.
func (r *Repository) historyFree(ctx context.Context, desc ocispec.Descriptor, tag string) (bool, error) {
	if tag == "" {
		return false, nil
	}
	there, err := r.here(ctx, tag) // mirrors learn of it later
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return true, nil
	case err != nil:
		return false, err
	case there.Digest != desc.Digest:
		return false, fault.WithHint(r.fail("publish", tag, fmt.Errorf("it names %s already: %w", there.Digest, fault.ErrConflict)),
			"somebody else published this generation; look at it and publish the next one")
	}
	return false, nil
}

// pushAll pushes blobs and manifest, and tells whether the manifest is known not to have been there: one of its blobs was
// not. A registry that has lost a blob which was believed to be there gets all of them.
func (r *Repository) pushAll(ctx context.Context, desc ocispec.Descriptor, a *artifacts.Artifact, o PublishOptions, tell func(Progress)) (fresh bool, err error) {
	blobs := slices.DeleteFunc(slices.Clone(a.Blobs), func(b artifacts.Blob) bool { return slices.Contains(o.Held, b.Descriptor.Digest) })
	p, remote := r.place.(*remotePlace)
	tells := !remote || p.tellsMissing()
	if fresh, err = r.pushBlobs(ctx, blobs, o.MountFrom, tell); err != nil {
		return false, err
	}
	if _, wanted := o.Signer.(FreshSigner); wanted && !tells {
		there, err := p.existsAt(p.reading(ctx, p.upstream()), p.upstream(), desc)
		if fresh = !there; err != nil {
			return false, r.fail("look for", desc.Digest.String(), err)
		}
	}
	err = r.PushManifest(ctx, desc, a.Manifest, "")
	if remote && (errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrInvalid)) {
		p.again()
		if _, err := r.pushBlobs(ctx, a.Blobs, o.MountFrom, tell); err != nil {
			return false, err
		}
		err = r.PushManifest(ctx, desc, a.Manifest, "")
	}
	return fresh, err
}

// pushBlobs tells whether a blob had to be sent.
func (r *Repository) pushBlobs(ctx context.Context, blobs []artifacts.Blob, from []string, tell func(Progress)) (sent bool, err error) {
	group, ctx := errgroup.WithContext(ctx)
	group.SetLimit(max(r.concurrency, 1))
	var lacked atomic.Bool
	for _, b := range blobs {
		group.Go(func() error {
			action, err := r.bring(ctx, b, from)
			if err != nil {
				return r.fail("push blob", b.Descriptor.Digest.String(), err)
			}
			if action != ActionExists {
				lacked.Store(true)
			}
			tell(Progress{Action: action, Descriptor: b.Descriptor})
			return nil
		})
	}
	err = group.Wait()
	return lacked.Load(), err
}

// bring makes a blob present the cheapest way: there already, in another repository, sent.
func (r *Repository) bring(ctx context.Context, b artifacts.Blob, from []string) (Action, error) {
	if len(from) > 0 {
		there, err := r.exists(ctx, b.Descriptor)
		if err != nil {
			return "", err
		}
		if there {
			return ActionExists, nil
		}
	}
	for i, repository := range from {
		if i < len(from)-1 && !r.holds(ctx, repository, b.Descriptor) {
			continue
		}
		mounted, err := r.mount(ctx, b.Descriptor, repository, b.Data)
		if err != nil {
			return "", err
		}
		if mounted {
			return ActionMounted, nil
		}
		return ActionPushed, nil
	}
	sent, err := r.pushBlob(ctx, b.Descriptor, b.Data)
	if err != nil {
		return "", err
	}
	if !sent {
		return ActionExists, nil
	}
	return ActionPushed, nil
}
