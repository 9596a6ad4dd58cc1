package fleet

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/release"
)

// Publisher puts states into registries, in the safe order: blobs, manifest, signature, history tag, moving tag.
type Publisher interface {
	// Publish may be repeated. It is an error that wraps fault.ErrConflict if another publisher published meanwhile: of two
	// at once at most one gets nil.
	Publish(ctx context.Context, repository string, a *artifacts.Artifact, p Publication) error
}

// Publication is the destination of a state.
type Publication struct {
	Tag        string        // moving
	Tagged     digest.Digest // required previous digest of Tag; "": none
	HistoryTag string
	Held       []digest.Digest // blobs that what it follows has, in the same repository
	New        bool            // nothing of it was there when it was planned: it cannot be signed yet
	// Verify reports whether what another publisher has published meanwhile may be followed, as Options.Verify does. Nothing that it
	// refuses is put under Tag. nil: every state may.
	Verify func(ctx context.Context, d digest.Digest) error
}

// Progress of publishing a plan.
type Progress struct {
	Done, All int
	Bytes     int64 // of the states that were published
	Device    artifacts.DeviceID
}

// Report is the result of a publication.
type Report struct {
	Published []*DevicePlan
	Failed    map[artifacts.DeviceID]error
	Bytes     int64 // of manifests and blobs of the published states
}

// Publish publishes the plan's states, several at a time. A conflict on one device does not keep the others. After any
// other error no state is begun, and those that are on their way are waited for: if one is cut off it is not known
// whether its tag has moved. The report is valid with an error too; what is not in it is published by the next run. progress
// may be nil; it is never called twice at once.
func (p *Plan) Publish(ctx context.Context, to Publisher, progress func(Progress)) (*Report, error) {
	var todo []*DevicePlan
	for _, d := range p.Devices {
		if d.Action == Publish {
			todo = append(todo, d)
		}
	}
	r := &Report{Failed: map[artifacts.DeviceID]error{}}
	var mu sync.Mutex
	var g errgroup.Group
	limit := p.o.concurrency()
	if limit > 1 { // 1: one after the other
		limit *= inFlight
	}
	g.SetLimit(limit)
	ended := false
	for _, d := range todo {
		g.Go(func() error {
			mu.Lock()
			end := ended
			mu.Unlock()
			if end || ctx.Err() != nil {
				return nil
			}
			size, err := p.publish(ctx, to, d)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				r.Published = append(r.Published, d)
				r.Bytes += size
				if progress != nil {
					progress(Progress{Done: len(r.Published), All: len(todo), Bytes: r.Bytes, Device: d.Device})
				}
			case ctx.Err() != nil && errors.Is(err, ctx.Err()): // ended by the caller
			default:
				r.Failed[d.Device] = err
				ended = ended || !errors.Is(err, fault.ErrConflict)
			}
			return nil
		})
	}
	_ = g.Wait() // its functions have no errors
	slices.SortFunc(r.Published, func(a, b *DevicePlan) int { return compareText(string(a.Device), string(b.Device)) })
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("%d of %s published: %w", len(r.Published), Counted(len(todo), "state"), err)
	}
	return r, r.failures(len(todo))
}

// publish publishes one state.
func (p *Plan) publish(ctx context.Context, to Publisher, d *DevicePlan) (int64, error) {
	a := d.artifact
	if d.artifact = nil; a == nil {
		documents, err := d.assignment.Documents(p.c.Fleet)
		if err != nil {
			return 0, err
		}
		if a, err = packState(p.o, p.compressors, d.assignment, d.Generation, d.Previous, documents); err != nil {
			return 0, err
		}
	}
	if d.resigned != nil {
		a = d.there(a)
	}
	if a.Descriptor.Digest != d.Digest {
		// Not caused by another publisher, which would be a conflict of this device alone.
		return 0, fault.WithHint(fmt.Errorf("generation %d is packed as %s, and was planned as %s: %w", d.Generation, a.Descriptor.Digest, d.Digest, fault.ErrDigestMismatch),
			"plan and publish again; when that says the same, it is a fault of longshore or of this machine: please report it")
	}
	return a.Size(), to.Publish(ctx, d.Repository, a, d.publication(p.o))
}

// publication is the destination of the state.
func (d *DevicePlan) publication(o Options) Publication {
	tag := d.Device.Tag()
	return Publication{
		Tag: tag, Tagged: d.Tagged, HistoryTag: artifacts.HistoryTag(tag, d.Generation),
		Held: d.held, New: d.fresh, Verify: VerifyAt(d.Repository, o.Verify),
	}
}

// VerifyAt is verify for one repository; nil if verify is nil.
func VerifyAt(repository string, verify func(context.Context, string, digest.Digest) error) func(context.Context, digest.Digest) error {
	if verify == nil {
		return nil
	}
	return func(ctx context.Context, d digest.Digest) error { return verify(ctx, repository, d) }
}

// failures is one error of what kept states from being published: the first of them by its device, or, where that is all
// there is, that another publisher published meanwhile.
func (r *Report) failures(all int) error {
	var taken, failed []string
	for _, d := range sortedKeys(r.Failed) {
		if errors.Is(r.Failed[d], fault.ErrConflict) {
			taken = append(taken, string(d))
		} else {
			failed = append(failed, string(d))
		}
	}
	far := fmt.Sprintf("%d of %s published", len(r.Published), Counted(all, "state"))
	switch {
	case len(failed) > 0:
		first := r.Failed[artifacts.DeviceID(failed[0])]
		err := fmt.Errorf("%s: publish %s: %w", far, some(failed), first)
		if fault.Hint(first) == "" {
			err = fault.WithHint(err, "run it again: it goes on with what is not published yet")
		}
		return err
	case len(taken) > 0 && errors.Is(r.Failed[artifacts.DeviceID(taken[0])], release.ErrProposed):
		return fmt.Errorf("%s, another state is proposed for %s: %w", far, some(taken), r.Failed[artifacts.DeviceID(taken[0])])
	case len(taken) > 0:
		return fault.WithHint(fmt.Errorf("%s, another publisher published %s meanwhile: %w", far, some(taken), r.Failed[artifacts.DeviceID(taken[0])]),
			"plan again: it shows what is there now")
	}
	return nil
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }

func compareText(a, b string) int {
	switch {
	case a < b:
		return -1
	case a > b:
		return 1
	}
	return 0
}
