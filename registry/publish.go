package registry

import (
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

// Action is what became of one thing that a push had to do.
type Action string

// What is told of a push.
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

// PushOptions choose how an artifact is pushed.
type PushOptions struct {
	MountFrom []string        // repositories of the same registry (path without host) that may hold blobs already
	Held      []digest.Digest // blobs that a manifest of this repository names, which was read a moment ago: they are not looked for
	// Absent asks whether the manifest was there before; else it is not looked at.
	Absent   bool
	Progress func(Progress) // nil: silent; never called by two goroutines at once
}

// Push makes blobs and manifest of an artifact present; no tag names them. It may be repeated after any interruption; what
// is there is not sent again, but for blobs so small that to ask costs as much. absent reports whether the manifest is known
// not to have been there; only where o.Absent asks.
func (r *Repository) Push(ctx context.Context, a *artifacts.Artifact, o PushOptions) (desc ocispec.Descriptor, absent bool, err error) {
	desc = ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	if err := checkArtifact(a); err != nil {
		return desc, false, r.fail("push", desc.Digest.String(), err)
	}
	tell := teller(o.Progress)
	if absent, err = r.pushAll(ctx, desc, a, o, tell); err != nil {
		return desc, false, err
	}
	tell(Progress{Action: ActionPushed, Descriptor: desc})
	return desc, absent, nil
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

func checkArtifact(a *artifacts.Artifact) error {
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
	return nil
}

// pushAll pushes blobs and manifest, and reports whether the manifest is known not to have been there: one of its blobs was
// not. A registry that has lost a blob which was believed to be there gets all of them.
func (r *Repository) pushAll(ctx context.Context, desc ocispec.Descriptor, a *artifacts.Artifact, o PushOptions, tell func(Progress)) (fresh bool, err error) {
	blobs := slices.DeleteFunc(slices.Clone(a.Blobs), func(b artifacts.Blob) bool { return slices.Contains(o.Held, b.Descriptor.Digest) })
	p, remote := r.place.(*remotePlace)
	tells := !remote || p.tellsMissing()
	if fresh, err = r.pushBlobs(ctx, blobs, o.MountFrom, tell); err != nil {
		return false, err
	}
	if o.Absent && !tells {
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

// pushBlobs reports whether a blob had to be sent.
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
		there, err := r.Upstream().exists(ctx, b.Descriptor) // a mirror has what the registry may have lost
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
		mounted, err := r.mount(ctx, b.Descriptor, repository, func() ([]byte, error) { return b.Data, nil })
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
