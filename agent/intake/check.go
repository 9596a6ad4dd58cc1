package intake

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// checkLimit bounds one check: all that it moves is small.
const checkLimit = 10 * time.Minute

// Query is what a check starts from: copies, so that it runs beside the loop.
type Query struct {
	Accepted   *store.State   // nil: none
	Refused    *store.Refused // nil: none
	Loaded     digest.Digest  // what is accepted and read already; "": it is read again
	Fresh      *store.Fresh   // of Accepted
	LookFresh  bool           // look for a newer freshness statement about Accepted
	Retry      bool           // hold Refused against the checks again
	Again      bool           // hold Accepted against the policy again, if that is another one now, or what counted is not kept
	Whole      bool           // what counted is known to be undamaged on the device
	RenewTrust bool           // ask for the next trust policy first
	Anew       bool           // the database took the place of a damaged one, and the next trust policy was not asked for since
	Policy     string         // [Intake.Fingerprint] when the rest was copied

	HoldTrust func(TrustVersion) bool // as in [Trust]; nil: no version waits for an approval
	// Told is called with a state that the device does not know, when it is found and when its verification begins; nil: no call.
	Told func(d digest.Digest, verifying bool)
}

func (q *Query) tell(d digest.Digest, verifying bool) {
	if q.Told != nil {
		q.Told(d, verifying)
	}
}

// Result is how a check ended.
type Result struct {
	Err        error              // a [codes.Error], or nil
	Resolved   ocispec.Descriptor // what the tag points at; no digest: the source did not say
	Generation uint64             // 0: not known
	State      *store.State       // to be accepted; nil: nothing new
	Desired    *plan.Desired      // of State
	Reloaded   *plan.Desired      // the accepted one, read again
	Pins       map[string]digest.Digest
	Known      bool     // a refused state, still refused: nothing was tried
	Policy     string   // by which it was judged; "": it changed meanwhile
	Renewal    *Renewal // of the trust policy; nil: it was not asked for

	Fresh       *store.Fresh // of State, or of the accepted one with LookedFresh
	LookedFresh bool         // at the freshness of the accepted one

	Again       *store.State // the accepted one, as the policy judges it now, with what counted; nil: nothing new
	AgainLooked bool         // at the accepted one
	NotAgain    error        // that policy does not accept it, the source could not say, or what counted cannot be kept
	Unfresh     error        // a [codes.Error]: it is not fresh, or the source could not say
}

// Check is one look at the registry: resolve, and when the tag points at something new, checks 2 to 9.
func (in *Intake) Check(ctx context.Context, q Query) (out Result) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	out.Policy = q.Policy
	if q.RenewTrust {
		in.renew(ctx, &q, &out)
	}
	var broken error
	if q.Accepted != nil && q.Loaded == "" { // by its digest, whatever the tag says now
		out.Reloaded, broken = in.Load(ctx, *q.Accepted, false)
	}
	var found Result
	err := in.o.Source.EachResolve(ctx, in.o.Repository, in.o.Tag, func(d ocispec.Descriptor) bool {
		if d.Digest != found.Resolved.Digest {
			found = in.look(ctx, &q, d, &out, broken)
		}
		return found.Err == nil && !found.Known
	})
	// A mirror may name a digest that does not exist, or a state that is rejected: the next place is asked then.
	if err == nil || found.Resolved.Digest != "" && !found.older(q) {
		return found
	}
	code := sourceCode(err, codes.StateNotFound)
	switch { // a manager that names no state that could be looked at
	case errors.Is(err, fault.ErrUnsigned):
		code = codes.SignatureMissing
	case errors.Is(err, fault.ErrTooLarge) && margo.IsManager(in.o.Repository):
		code = codes.StateTooLarge
	}
	if found.Resolved.Digest != "" {
		err = fmt.Errorf("%w; a mirror shows generation %d, older than what this device has accepted", err, found.Generation)
	}
	out.Err = codes.Wrap(code, err)
	return out
}

// older reports whether what was found is older than what the device has accepted. A mirror that shows such a state is behind,
// and the next place is asked: only the registry itself can say that the tag was moved back.
func (r *Result) older(q Query) bool {
	return r.Known && q.Refused.Code == string(codes.Rollback) || r.Err != nil && codes.Of(r.Err) == codes.Rollback
}

// look holds what one place says of the tag against what the device has. begun is the check so far; it learns of a renewal of the
// trust policy, of which a check asks for one. broken is what is wrong with the documents of the accepted state; nil: nothing.
func (in *Intake) look(ctx context.Context, q *Query, d ocispec.Descriptor, begun *Result, broken error) Result {
	out := *begun
	out.Resolved = d
	switch {
	case q.Accepted != nil && q.Accepted.Digest == d.Digest:
		out.Generation = q.Accepted.Generation
		if out.Err = broken; broken == nil && q.Again {
			out.Again, out.NotAgain = in.verifyAgain(ctx, q)
			out.AgainLooked = true
		}
		if q.LookFresh {
			out.LookedFresh = true
			out.Fresh, out.Unfresh = in.freshness(ctx, ocispec.Descriptor{MediaType: q.Accepted.MediaType, Digest: d.Digest, Size: q.Accepted.Size}, q.Accepted.Generation, q.Fresh, in.o.Fingerprint())
		}
		return out
	case q.Refused != nil && q.Refused.Digest == d.Digest && !q.Retry:
		out.Known, out.Generation = true, q.Refused.Generation
		return out
	}
	q.tell(d.Digest, false)
	in.renew(ctx, q, begun) // its signer may have been added today
	out.Renewal, out.Policy = begun.Renewal, begun.Policy
	if r := out.Renewal; q.Anew && r != nil && r.Err != nil { // a key that the lost policy had revoked may count again
		out.Err = &codes.Error{Code: codes.TrustUnreachable, Err: fmt.Errorf(
			"state %s: nothing is accepted after the database was damaged before the trust policy is up to date: %w", d.Digest, r.Err)}
		return out
	}
	if out.Err = in.examine(ctx, *q, d, &out); out.Err == nil {
		out.Reloaded = nil // not wanted any more
	}
	if in.Fingerprint() != q.Policy {
		out.Policy = "" // who knows which one answered: equal to none, so that a refusal is looked at again
	}
	return out
}

// examine is checks 2 to 9 of a state that was not seen before, in order.
func (in *Intake) examine(ctx context.Context, q Query, d ocispec.Descriptor, out *Result) error {
	policy := in.o.Fingerprint()
	c := fetcher{in: in, repository: in.o.Repository}
	name := in.o.Repository + "@" + d.Digest.String()
	desc, data, err := c.manifest(ctx, in.o.Repository, d, false)
	switch {
	case errors.Is(err, fault.ErrTooLarge):
		return codes.Wrap(codes.StateTooLarge, err)
	case errors.Is(err, fault.ErrDigestMismatch):
		return codes.Wrap(codes.StateDigest, err)
	case err != nil && hashable(d.Digest) != nil:
		return codes.Wrap(codes.StateUnsupported, err)
	case err != nil:
		return codes.Wrap(sourceCode(err, codes.ContentMissing), err)
	}
	x, err := in.open(desc.MediaType, data)
	switch {
	case errors.Is(err, fault.ErrUnsupported):
		return codes.Wrap(codes.StateUnsupported, fmt.Errorf("open state %s: %w", name, err))
	case err != nil:
		return codes.Wrap(codes.StateInvalid, fmt.Errorf("open state %s: %w", name, err))
	}
	q.tell(d.Digest, true)
	v, err := in.verify(ctx, KindState, in.o.Repository, desc)
	if err != nil {
		return err
	}
	if err := x.ReadWindows(); err != nil {
		return codes.Wrap(codes.StateInvalid, fmt.Errorf("open state %s: %w", name, err))
	}
	out.Generation = x.Generation // only now: before, anyone could have written it
	if by := strings.Join(v.SignedBy, ", "); by != "" {
		in.times.prove(clock.Proof{Kind: clock.Signature, By: by, Time: v.SignedAt})
	}
	floor, err := in.floor()
	if err != nil {
		return codes.Wrap(codes.Internal, fmt.Errorf("state %s: %w", name, err))
	}
	if err := in.admit(q, x, d.Digest, name, floor); err != nil {
		return err
	}
	if out.Fresh, err = in.freshness(ctx, desc, x.Generation, nil, policy); err != nil {
		return err
	}
	if err := c.keep(ctx, desc, data); err != nil {
		return codes.Wrap(codes.Of(err), err)
	}
	b := builder{in: in, c: c, x: x, state: d.Digest, pins: map[string]digest.Digest{}}
	if err := b.passed(ctx, Part{KindState, in.o.Repository, desc}, v); err != nil {
		return err
	}
	if out.Desired, err = b.build(ctx); err != nil {
		return err
	}
	out.Pins = b.pins
	s := store.State{
		Digest: d.Digest, Size: desc.Size, MediaType: desc.MediaType, Generation: x.Generation, Repository: in.o.Repository,
		AcceptedAt: in.o.Now(), Created: created(x), Expires: x.Expires, Windows: x.Windows.JSON(), Repeats: x.Repeats, SignedBy: v.SignedBy,
	}
	if err := b.judged(ctx, &s, policy); err != nil {
		return err
	}
	if err := in.sync(ctx); err != nil {
		return err
	}
	out.State = &s
	return nil
}

// open reads what a state's digest names, but for windows: its artifact's manifest, or a State Manifest that a manager serves.
func (in *Intake) open(mediaType string, data []byte) (*artifacts.StateIndex, error) {
	if mediaType == artifacts.TypeState {
		return artifacts.OpenStateManifest(in.o.Device, data)
	}
	return artifacts.ScanState(data)
}

func created(x *artifacts.StateIndex) time.Time {
	t, err := time.Parse(time.RFC3339, x.Annotations[ocispec.AnnotationCreated])
	if err != nil {
		return time.Time{} // for people only
	}
	return t
}

// sourceCode names why the source gave nothing. All of it may pass: none of these codes refuses a state for good.
func sourceCode(err error, missing codes.Code) codes.Code {
	switch {
	case errors.Is(err, fault.ErrConfig):
		return codes.Config
	case errors.Is(err, fault.ErrNotFound):
		return missing
	case errors.Is(err, fault.ErrUnauthenticated):
		return codes.SourceUnauthenticated
	case errors.Is(err, fault.ErrDenied):
		return codes.SourceDenied
	}
	return codes.SourceUnreachable
}
