package fleet

import (
	"cmp"
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
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/registry/release"
)

// Publisher puts states into registries, in the safe order: blobs, signature, history tag, moving tag.
type Publisher interface {
	// Publish may be repeated. It is an error that wraps fault.ErrConflict if another publisher published meanwhile: of two
	// at once at most one gets nil. It is a *Proposed if others have to sign the state first.
	Publish(ctx context.Context, repository string, a *artifacts.Artifact, p Publication) error
}

// Proposed is the result of [Publisher.Publish] for a state without a tag for devices: others have to sign it.
type Proposed struct {
	Waiting string // who has to, for people
}

func (p *Proposed) Error() string { return "waits for " + p.Waiting }

// Publication is the destination of a state.
type Publication struct {
	Tag        string // moving
	HistoryTag string
	Held       []digest.Digest // blobs that what it follows has, in the same repository
	release.Precondition
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
	Proposed  []*DevicePlan                 // they wait for signatures
	Waiting   map[artifacts.DeviceID]string // who has to sign the proposed ones
	Failed    map[artifacts.DeviceID]error
	Bytes     int64 // of manifests and blobs of the published and proposed states
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
	r := &Report{Failed: map[artifacts.DeviceID]error{}, Waiting: map[artifacts.DeviceID]string{}}
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
			var proposed *Proposed
			switch {
			case err == nil || errors.As(err, &proposed):
				if proposed != nil {
					r.Proposed, r.Waiting[d.Device] = append(r.Proposed, d), proposed.Waiting
				} else {
					r.Published = append(r.Published, d)
				}
				r.Bytes += size
				if progress != nil {
					progress(Progress{Done: len(r.Published) + len(r.Proposed), All: len(todo), Bytes: r.Bytes, Device: d.Device})
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
	for _, all := range [][]*DevicePlan{r.Published, r.Proposed} {
		slices.SortFunc(all, func(a, b *DevicePlan) int { return cmp.Compare(a.Device, b.Device) })
	}
	if err := ctx.Err(); err != nil {
		return r, fmt.Errorf("%s: %w", r.far(len(todo)), err)
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
		if a, err = artifacts.PackState(stateOptions(p.o, p.compressors, d.assignment, d.Generation, d.Previous, documents)); err != nil {
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
		Tag: tag, HistoryTag: artifacts.HistoryTag(tag, d.Generation), Held: d.held,
		Precondition: release.Precondition{Tagged: d.Tagged, New: d.fresh, Verify: VerifyAt(d.Repository, o.Verify)},
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
	var taken, proposed, failed []string
	for _, d := range sortedKeys(r.Failed) {
		switch err := r.Failed[d]; {
		case errors.Is(err, release.ErrProposed):
			proposed = append(proposed, string(d))
		case errors.Is(err, fault.ErrConflict):
			taken = append(taken, string(d))
		default:
			failed = append(failed, string(d))
		}
	}
	far := r.far(all)
	if len(failed) > 0 {
		first := r.Failed[artifacts.DeviceID(failed[0])]
		err := fmt.Errorf("%s: publish %s: %w", far, some(failed), first)
		if fault.Hint(first) == "" {
			err = fault.WithHint(err, "run it again: it goes on with what is not published yet")
		}
		return err
	}
	var conflicts []error
	if len(taken) > 0 {
		conflicts = append(conflicts, fault.WithHint(fmt.Errorf("%s, another publisher published %s meanwhile: %w", far, some(taken), r.Failed[artifacts.DeviceID(taken[0])]),
			"plan again: it shows what is there now"))
	}
	if len(proposed) > 0 {
		conflicts = append(conflicts, fmt.Errorf("%s; another state of %s waits for signatures: %w", far, some(proposed), r.Failed[artifacts.DeviceID(proposed[0])]))
	}
	if len(conflicts) == 1 {
		return conflicts[0]
	}
	return errors.Join(conflicts...)
}

// far is how many of all states are published and proposed.
func (r *Report) far(all int) string {
	out := fmt.Sprintf("%d of %s published", len(r.Published), printable.Counted(all, "state"))
	if n := len(r.Proposed); n > 0 {
		out += fmt.Sprintf(" and %d proposed", n)
	}
	return out
}

func sortedKeys[K ~string, V any](m map[K]V) []K { return slices.Sorted(maps.Keys(m)) }
