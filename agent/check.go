package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// checkLimit bounds one check: all that it moves is small.
const checkLimit = 10 * time.Minute

// ask is what a check starts from: copies, so that it runs beside the loop.
type ask struct {
	accepted *store.State
	refused  *store.Refused
	loaded   digest.Digest // what is accepted and understood already; "": it must be read again
	fresh    *store.Fresh  // of accepted
	look     bool          // for a newer freshness statement about accepted
	retry    bool          // hold a refused state against the checks again
	renew    bool          // ask for the next trust policy first
	policy   string
}

// answer is how a check ended.
type answer struct {
	err        error              // a CheckError, or nil
	resolved   ocispec.Descriptor // what the tag points at; no digest: the source did not say
	generation uint64             // 0: not known
	state      *store.State       // to be accepted
	desired    *Desired           // of state
	mended     *Desired           // the accepted one, read again
	pins       map[string]digest.Digest
	known      bool // a refused state, still refused: nothing was tried
	policy     string
	renewal    *renewal // of the trust policy; nil: it was not asked for

	fresh   *store.Fresh // of state, or of the accepted one when looked
	looked  bool         // at the freshness of the accepted one
	unfresh error        // a CheckError: it is not fresh, or nobody could tell
}

// check is one look at the registry: resolve, and when the tag points at something new, checks 2 to 9.
func (a *Agent) check(ctx context.Context, q ask) (out answer) {
	ctx, cancel := context.WithTimeout(ctx, checkLimit)
	defer cancel()
	out.policy = q.policy
	if q.renew {
		a.renew(ctx, &q, &out)
	}
	var broken error
	if q.accepted != nil && q.loaded == "" { // by its digest, whatever the tag says now
		out.mended, broken = a.load(ctx, *q.accepted, false)
	}
	ref := a.o.Repository + ":" + a.o.Tag
	d, err := a.o.Source.Resolve(ctx, a.o.Repository, a.o.Tag)
	if err != nil {
		out.err = refuse(sourceCode(err, CodeStateNotFound), fmt.Errorf("resolve %s: %w", ref, err))
		return out
	}
	out.resolved = d
	switch {
	case q.accepted != nil && q.accepted.Digest == d.Digest:
		out.generation = q.accepted.Generation
		out.err = broken
		if q.look {
			out.looked = true
			out.fresh, out.unfresh = a.freshness(ctx, ocispec.Descriptor{MediaType: q.accepted.MediaType, Digest: d.Digest, Size: q.accepted.Size}, q.accepted.Generation, q.fresh, q.policy)
		}
		return out
	case q.refused != nil && q.refused.Digest == d.Digest && !q.retry:
		out.known, out.generation = true, q.refused.Generation
		return out
	}
	a.renew(ctx, &q, &out) // whoever signed it may be known only since today
	if out.err = a.examine(ctx, q, d, &out); out.err == nil {
		out.mended = nil // not wanted any more
	}
	if a.fingerprint() != q.policy {
		out.policy = "" // who knows which one answered: equal to none, so that a refusal is looked at again
	}
	return out
}

// examine is checks 2 to 9 of a state that was not seen before, in order.
func (a *Agent) examine(ctx context.Context, q ask, d ocispec.Descriptor, out *answer) error {
	c := courier{a: a, repository: a.o.Repository, sizes: map[digest.Digest]int64{}}
	if q.accepted != nil {
		maps.Copy(c.sizes, q.accepted.Sizes)
	}
	name := a.o.Repository + "@" + d.Digest.String()
	desc, data, err := c.manifest(ctx, a.o.Repository, d, false)
	switch {
	case errors.Is(err, fault.ErrTooLarge):
		return refuse(CodeStateTooLarge, err)
	case errors.Is(err, fault.ErrDigestMismatch):
		return refuse(CodeStateDigest, err)
	case err != nil && hashable(d.Digest) != nil:
		return refuse(CodeStateUnsupported, err)
	case err != nil:
		return refuse(sourceCode(err, CodeContentMissing), err)
	}
	x, err := artifacts.OpenState(data)
	switch {
	case errors.Is(err, fault.ErrUnsupported):
		return refuse(CodeStateUnsupported, fmt.Errorf("open state %s: %w", name, err))
	case err != nil:
		return refuse(CodeStateInvalid, fmt.Errorf("open state %s: %w", name, err))
	}
	v, err := a.verified(ctx, KindState, a.o.Repository, desc)
	if err != nil {
		return err
	}
	out.generation = x.Generation // only now: before, anyone could have written it
	if by := strings.Join(v.SignedBy, ", "); by != "" {
		a.prove(clock.Proof{Kind: clock.Signature, By: by, Time: v.SignedAt})
	}
	floor, err := a.floor(q.accepted)
	if err != nil {
		return refuse(CodeInternal, fmt.Errorf("state %s: %w", name, err))
	}
	if err := a.admit(q, x, d.Digest, name, floor); err != nil {
		return err
	}
	if out.fresh, err = a.freshness(ctx, desc, x.Generation, nil, q.policy); err != nil {
		return err
	}
	if err := c.keep(ctx, desc, data); err != nil {
		return refuse(CodeOf(err), err)
	}
	b := builder{a: a, c: c, x: x, state: d.Digest, pins: map[string]digest.Digest{}}
	if out.desired, err = b.build(ctx); err != nil {
		return err
	}
	out.pins = b.pins
	out.state = &store.State{
		Digest: d.Digest, Size: desc.Size, MediaType: desc.MediaType, Generation: x.Generation, Repository: a.o.Repository,
		AcceptedAt: a.o.Now(), Created: created(x), Expires: x.Expires, Repeats: x.Repeats, SignedBy: v.SignedBy, Insecure: b.insecure, Sizes: map[digest.Digest]int64{},
	}
	all := slices.Concat(signers(string(KindState), v), b.signers)
	out.state.Signers = all[:min(len(all), maxSigners)]
	for _, blob := range out.desired.Blobs {
		if n, ok := b.c.sizes[blob]; ok {
			out.state.Sizes[blob] = n
		}
	}
	if v.Insecure {
		out.state.Insecure = append([]string{"state " + a.o.Repository}, b.insecure...)
	}
	return nil
}

// floor is the generation that a state has to be above of: that of the accepted one, unless the trust policy has reset it. A
// policy that came through the registry has done so when it was taken over; that of a file does now.
func (a *Agent) floor(accepted *store.State) (uint64, error) {
	if accepted == nil {
		return 0, nil
	}
	if a.o.Trust != nil {
		if s := a.o.Trust.Status(); s.Problem == "" && s.Generations != nil {
			if err := a.reset(store.Reset(*s.Generations)); err != nil {
				return 0, err
			}
		}
	}
	var floor uint64
	err := a.o.Store.View(func(tx *store.Tx) (err error) { floor, err = tx.Floor(); return err })
	return floor, err
}

// reset does what a policy says of generations, unless it has been done.
func (a *Agent) reset(r store.Reset) error {
	var done bool
	err := a.o.Store.View(func(tx *store.Tx) (err error) { done, err = tx.WasReset(r); return err })
	if done || err != nil {
		return err
	}
	return a.o.Store.Update(func(tx *store.Tx) error {
		_, err := tx.ResetGenerations(r, a.o.Now())
		return err
	})
}

// admit is checks 4 to 6. floor is [Agent.floor].
func (a *Agent) admit(q ask, x *artifacts.StateIndex, d digest.Digest, name string, floor uint64) error {
	if x.Device != a.o.Device {
		return refusef(CodeWrongDevice, "state %s: it is for device %q, this is %q: %w", name, x.Device, a.o.Device, fault.ErrUnfit)
	}
	if acc := q.accepted; acc != nil {
		switch {
		case x.Generation <= floor && floor < acc.Generation:
			return refusef(CodeRollback, "state %s: generation %d is not above %d, to which the trust policy has reset this device: %w",
				name, x.Generation, floor, fault.ErrRollback)
		case x.Generation < floor:
			return refusef(CodeRollback, "state %s: generation %d is older than %d, accepted %s: %w",
				name, x.Generation, acc.Generation, acc.AcceptedAt.UTC().Format(time.RFC3339), fault.ErrRollback)
		case x.Generation == floor && acc.Digest != d:
			return refusef(CodeGenerationConflict, "state %s: generation %d was accepted before as %s: %w",
				name, x.Generation, acc.Digest, fault.ErrRollback)
		}
	}
	if !x.Expires.IsZero() && !a.clock.Now().Before(x.Expires) {
		return refusef(CodeExpired, "state %s: generation %d expired %s: %w",
			name, x.Generation, x.Expires.UTC().Format(time.RFC3339), fault.ErrRejected)
	}
	return nil
}

// load reads an accepted state again: from the device, and unless offline what is missing there from the source.
func (a *Agent) load(ctx context.Context, s store.State, offline bool) (*Desired, error) {
	var pins map[string]digest.Digest
	err := a.o.Store.View(func(tx *store.Tx) (err error) {
		pins, err = tx.Pins(s.Digest)
		return err
	})
	if err != nil {
		return nil, refuse(CodeContentDamaged, err)
	}
	c := courier{a: a, repository: s.Repository, offline: offline, sizes: maps.Clone(s.Sizes)}
	if c.sizes == nil {
		c.sizes = map[digest.Digest]int64{}
	}
	_, data, err := c.manifest(ctx, s.Repository, ocispec.Descriptor{MediaType: s.MediaType, Digest: s.Digest, Size: s.Size}, true)
	if err != nil {
		return nil, refuse(CodeContentDamaged, fmt.Errorf("read generation %d: %w", s.Generation, err))
	}
	x, err := artifacts.OpenState(data)
	if err != nil {
		return nil, refuse(CodeContentDamaged, fmt.Errorf("read generation %d: %w", s.Generation, err))
	}
	b := builder{a: a, c: c, x: x, state: s.Digest, pins: pins, trusted: true}
	d, err := b.build(ctx)
	if err != nil {
		return nil, refuse(CodeContentDamaged, fmt.Errorf("read generation %d: %w", s.Generation, err))
	}
	return d, nil
}

func created(x *artifacts.StateIndex) time.Time {
	t, err := time.Parse(time.RFC3339, x.Annotations[ocispec.AnnotationCreated])
	if err != nil {
		return time.Time{} // for people only
	}
	return t
}

// sourceCode names why the source gave nothing. All of it may pass: none of these codes refuses a state for good.
func sourceCode(err error, missing Code) Code {
	switch {
	case errors.Is(err, fault.ErrNotFound):
		return missing
	case errors.Is(err, fault.ErrUnauthenticated):
		return CodeSourceUnauthenticated
	case errors.Is(err, fault.ErrDenied):
		return CodeSourceDenied
	}
	return CodeSourceUnreachable
}

// verdicts remembers what the verifier let pass, so that an unchanged component costs nothing when its neighbour changes.
type verdicts struct {
	mu     sync.Mutex
	policy string
	passed map[string]Verdict
}

// maxVerdicts bounds the memory; beyond it everything is asked again.
const maxVerdicts = 4096

// verified asks the verifier, once per artifact and policy, and names what it says.
func (a *Agent) verified(ctx context.Context, kind Kind, repository string, d ocispec.Descriptor) (Verdict, error) {
	key := string(kind) + " " + repository + "@" + d.Digest.String()
	policy := a.o.Fingerprint()
	a.verdicts.mu.Lock()
	if a.verdicts.policy != policy || len(a.verdicts.passed) >= maxVerdicts || a.verdicts.passed == nil {
		a.verdicts.policy, a.verdicts.passed = policy, map[string]Verdict{}
	}
	v, ok := a.verdicts.passed[key]
	a.verdicts.mu.Unlock()
	if ok && (v.Until.IsZero() || a.o.Now().Before(v.Until)) {
		return v, nil
	}
	v, err := a.o.Verifier.Verify(ctx, kind, repository, d)
	if err != nil {
		return v, refuse(verdictCode(kind, err), fmt.Errorf("verify %s %s@%s: %w", kind, repository, d.Digest, err))
	}
	same := a.o.Fingerprint() == policy
	a.verdicts.mu.Lock()
	defer a.verdicts.mu.Unlock()
	if same && a.verdicts.policy == policy {
		a.verdicts.passed[key] = v
	}
	return v, nil
}

func verdictCode(kind Kind, err error) Code {
	codes := map[Kind][3]Code{
		KindState:     {CodeSignatureMissing, CodeSignatureInvalid, CodeSignatureRejected},
		KindComponent: {CodeComponentUnsigned, CodeComponentSignature, CodeComponentRejected},
		KindImage:     {CodeImageUnsigned, CodeImageSignature, CodeImageRejected},
	}[kind]
	switch {
	case errors.Is(err, fault.ErrTemporary):
		return CodeSourceUnreachable
	case errors.Is(err, fault.ErrDigestRevoked):
		return CodeDigestRevoked
	case errors.Is(err, fault.ErrKeyRevoked):
		return CodeKeyRevoked
	case errors.Is(err, fault.ErrKeyExpired):
		return CodeKeyExpired
	case errors.Is(err, fault.ErrThreshold):
		return CodeSignatureThreshold
	case errors.Is(err, fault.ErrNoAttestation):
		return CodeAttestationMissing
	case errors.Is(err, fault.ErrBadAttestation):
		return CodeAttestationInvalid
	case errors.Is(err, fault.ErrUnsigned):
		return codes[0]
	case errors.Is(err, fault.ErrBadSignature):
		return codes[1]
	case errors.Is(err, fault.ErrRejected):
		return codes[2]
	case errors.Is(err, fault.ErrTooLarge), errors.Is(err, fault.ErrDigestMismatch): // what is there as a signature is none
		return codes[1]
	}
	return sourceCode(err, codes[0])
}
