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

// Action is the result of one step of a push.
type Action string

// Results of the steps of a push.
const (
	ActionPushed  Action = "pushed"
	ActionMounted Action = "mounted" // shared from another repository: no bytes were sent
	ActionExists  Action = "exists"  // there already
	ActionSigned  Action = "signed"
	ActionTagged  Action = "tagged"
)

// Progress is one finished step of a push, for display.
type Progress struct {
	Action     Action
	Descriptor ocispec.Descriptor
	Tag        string // of ActionTagged
}

// PushOptions configure a push.
type PushOptions struct {
	MountFrom []string        // repositories of the same registry (path without host) that may have blobs already
	Held      []digest.Digest // blobs of a manifest of this repository that was read a moment ago: their existence is not checked
	// Absent also checks whether the manifest existed before.
	Absent   bool
	Progress func(Progress) // nil: silent; never called by two goroutines at once
}

// Push pushes blobs and manifest of an artifact without a tag. It may be repeated after any interruption; existing
// content is not sent again, except blobs so small that a check costs as much. absent reports whether the manifest is known
// not to have existed; only with o.Absent.
func (r *Repository) Push(ctx context.Context, a *artifacts.Artifact, o PushOptions) (desc ocispec.Descriptor, absent bool, err error) {
	desc = ocispec.Descriptor{MediaType: a.Descriptor.MediaType, Digest: a.Descriptor.Digest, Size: a.Descriptor.Size}
	if err := checkArtifact(a); err != nil {
		return desc, false, r.fail(opPush, desc.Digest.String(), err)
	}
	tell := teller(o.Progress)
	if absent, err = r.pushAll(ctx, desc, a, o, tell); err != nil {
		return desc, false, err
	}
	tell(Progress{Action: ActionPushed, Descriptor: desc})
	return desc, absent, nil
}

// teller serializes calls of a progress function.
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

// pushAll pushes blobs and manifest, and reports whether the manifest is known not to have existed, because one of its blobs
// did not. If the registry has lost a blob that was expected to exist, all of them are sent.
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
		p.forgetExisting()
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
				return r.fail(opPushBlob, b.Descriptor.Digest.String(), err)
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

// bring pushes a blob in the cheapest way: it exists, it is mounted from another repository, or it is sent.
func (r *Repository) bring(ctx context.Context, b artifacts.Blob, from []string) (Action, error) {
	if len(from) > 0 {
		there, err := r.Upstream().exists(ctx, b.Descriptor) // a mirror may have a blob that the registry has lost
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
