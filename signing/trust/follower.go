package trust

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

const (
	// MaxPolicyFile bounds a policy file on a device, in bytes.
	MaxPolicyFile = 1 << 20
	// maxSteps bounds the versions that one refresh goes through: a device that slept through more goes on with the next.
	maxSteps = 256
)

// Kept is a version of the policy that came from the registry, as it is kept on the device.
type Kept struct {
	Version    uint64
	Digest     digest.Digest // of the artifact's manifest
	Repository string        // where it was found
	Anchor     string        // [Policy.Anchor] of the policy file that it descends from
	File       digest.Digest // of that file and its keys then
	AcceptedAt time.Time
	SignedBy   []string
	Document   []byte
	Root       []byte
	// Generations is of the version, to be acted upon when it is saved; [Keeper.Load] need not tell it.
	Generations *Reset
}

// Keeper keeps one version for good. Save has it on the disk when it returns, with what its Generations do, and never goes
// back to an older one under the same anchor.
type Keeper interface {
	Load() (*Kept, error) // nil: there is none
	Save(Kept) error
	LoadHeld() (*Held, error) // nil: there is none
	SaveHeld(Held) error      // in place of what was saved before; on the disk when it returns
}

// FollowerOptions make a [Follower]. All but Written are needed.
type FollowerOptions struct {
	File    string                                                // the policy file of the device, its root of trust
	Read    func(path string, limit int64) ([]byte, error)        // reads File and the keys that it names
	Written func(path string) time.Time                           // when a file was written; nil: unknown
	Open    func(context.Context, string) (signing.Source, error) // a repository by its name
	Keep    Keeper
	Now     func() time.Time // trusted
}

// Follower holds the policy that decides on a device: that of a file, the root of trust there, or the newest version that
// descends from it through the registry.
//
// The file wins as long as its version is the higher one, and whenever its trust section is another than the one that
// what came from the registry descends from: so a person gets a device back whose signers are lost.
//
// A file that cannot be read lets nothing pass: an edit that takes a key away must not keep the key because of a typo.
type Follower struct {
	o       FollowerOptions
	refresh chan struct{} // holds one: who refreshes, and who alone changes kept, came, held and broken
	told    atomic.Pointer[InForce]

	mu     sync.Mutex
	file   policyFile
	kept   *Kept
	came   *Policy // of kept
	held   *Held   // nil: nothing is
	broken error   // what is kept cannot be used
}

// policyFile is the policy file as it was read last.
type policyFile struct {
	sum    digest.Digest // of the file and of all that it names
	names  []string      // files that it names
	policy *Policy
	err    error
}

// InForce is what decides on a device.
type InForce struct {
	Policy   *Policy // nil: nothing passes
	Err      error   // why
	Kept     *Kept   // nil: it is the file
	FileSum  digest.Digest
	Written  time.Time // of the file
	Override bool      // the file was changed since Kept was taken over, and does not count
}

// NewFollower reads what is kept, and the file. What is wrong with them is told by [Follower.InForce].
func NewFollower(o FollowerOptions) *Follower {
	f := &Follower{o: o, refresh: make(chan struct{}, 1)}
	f.kept, f.broken = o.Keep.Load()
	if f.broken == nil && f.kept != nil {
		f.came, f.broken = ParseTravelling(f.kept.Document, f.kept.Root)
	}
	if f.broken == nil {
		f.held, f.broken = o.Keep.LoadHeld()
	}
	if f.broken != nil {
		f.broken = fault.WithHint(fmt.Errorf("the trust policy that is kept on the device: %w", f.broken),
			"move agent.db away: the agent then starts anew from the policy file")
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f
}

// look reads the file again, and what it names; a few small files at every check of a state are cheaper than being wrong.
// They are parsed when one of them has changed.
func (f *Follower) look() {
	defer f.publish()
	sum := sha256.New()
	read := func(path string, limit int64) ([]byte, error) {
		data, err := f.o.Read(path, limit)
		fmt.Fprintf(sum, "%s %d %v\n", path, len(data), err != nil)
		sum.Write(data)
		return data, err
	}
	total := func() digest.Digest { return digest.NewDigestFromBytes(digest.SHA256, sum.Sum(nil)) }
	for n, path := range append([]string{f.o.File}, f.file.names...) {
		limit := int64(MaxFileBytes)
		if n == 0 {
			limit = MaxPolicyFile
		}
		_, _ = read(path, limit) // the error is part of the sum
	}
	if total() == f.file.sum {
		return
	}
	sum.Reset()
	f.file = policyFile{}
	data, err := read(f.o.File, MaxPolicyFile)
	if err == nil {
		f.file.policy, err = Parse(f.o.File, data, func(path string) ([]byte, error) {
			f.file.names = append(f.file.names, path)
			return read(path, MaxFileBytes)
		})
	}
	f.file.err, f.file.sum = err, total()
}

// travels reports whether what is kept counts, beside the file.
func (f *Follower) travels() bool {
	return f.kept != nil && f.came != nil && f.file.policy != nil && f.file.policy.Anchor() != "" &&
		f.kept.Anchor == f.file.policy.Anchor() && f.kept.Version > f.file.policy.Version
}

func (f *Follower) inForce() InForce {
	s := InForce{FileSum: f.file.sum}
	switch {
	case f.broken != nil && f.file.policy != nil && f.file.policy.Anchor() != "":
		s.Err = f.broken
	case f.file.err != nil:
		s.Err = f.file.err
	case f.travels():
		s.Policy, s.Kept, s.Override = f.came, f.kept, f.kept.File != f.file.sum
	default:
		s.Policy = f.file.policy
	}
	return s
}

// decides is what is in force, with what is held back.
func (f *Follower) decides() InForce {
	s := f.inForce()
	s.Policy = f.restricted(s.Policy)
	return s
}

// publish makes what is in force what [Follower.InForce] tells.
func (f *Follower) publish() {
	s := f.decides()
	f.told.Store(&s)
}

// InForce returns what decides, as of the last look at the file. It never waits, not even for a [Keeper].
func (f *Follower) InForce() InForce {
	s := *f.told.Load()
	if f.o.Written != nil {
		s.Written = f.o.Written(f.o.File)
	}
	return s
}

// Policy is what decides now; an error says that nothing passes.
func (f *Follower) Policy() (*Policy, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	s := f.decides()
	if s.Err != nil {
		return nil, fault.WithHint(fmt.Errorf("trust policy: %w: %w", s.Err, fault.ErrRejected), "longshore-agent check-config tells what is wrong")
	}
	return s.Policy, nil
}

// Fingerprint changes whenever what decides does: the file, a key that it names, the version from the registry, and the
// moment from which a key counts or counts no more.
func (f *Follower) Fingerprint() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	s := f.inForce()
	sum := sha256.New()
	fmt.Fprintln(sum, s.FileSum, s.Err != nil)
	if s.Kept != nil {
		fmt.Fprintln(sum, s.Kept.Version, s.Kept.Digest)
	}
	if s.Policy != nil {
		if h := f.heldBy(f.file.policy.Anchor(), s.Policy.Version); h != nil {
			fmt.Fprintln(sum, "held", h.Revoked)
		}
		fmt.Fprintln(sum, s.Policy.passed(f.o.Now()))
	}
	return hex.EncodeToString(sum.Sum(nil))
}

// Refresh asks for the versions that follow the one that decides, and takes them over one by one, each on the disk before it
// counts. It returns those that it took, also with an error, which says why it went no further. No next version is none.
//
// A version that hold reports true of is held back, and returned: it does not decide, nor do those after it. Only what they revoke
// counts at once, on the disk too: a stolen key must not count for as long as nobody at the device looks, and whoever could revoke
// this way could have done so without being held back. A nil hold holds nothing back.
func (f *Follower) Refresh(ctx context.Context, hold func(before *Policy, s *Step) bool) (taken []*Step, held *Step, err error) {
	select {
	case f.refresh <- struct{}{}:
		defer func() { <-f.refresh }()
	case <-ctx.Done():
		return nil, nil, fmt.Errorf("refresh the trust policy: %w: %w", ErrUnreachable, ctx.Err())
	}
	for range maxSteps {
		p := f.base()
		if p == nil || p.Trust == nil {
			return taken, nil, nil // there is nothing to go on from; InForce tells it
		}
		s, err := f.next(ctx, p)
		if s == nil || err != nil {
			return taken, nil, err
		}
		if hold != nil && hold(p, s) {
			return taken, s, f.holdBack(ctx, p, s)
		}
		ok, err := f.take(p, s)
		if err != nil {
			return taken, nil, err
		}
		if ok {
			taken = append(taken, s)
		}
	}
	return taken, nil, nil
}

// base is the policy that the next version has to follow, without what is held back: a version that revokes one of those who signed it
// could else not be taken over any more. nil: nothing decides.
func (f *Follower) base() *Policy {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	return f.inForce().Policy
}

// next looks for what follows p; nil: nothing does. Where p came from one repository and says that the next version is in
// another, the first one is asked too until the other one has shown that it holds p: after a typing error there, or before
// the device may read it, the next version can still be published where this one was.
func (f *Follower) next(ctx context.Context, p *Policy) (*Step, error) {
	s, err := f.nextAt(ctx, p, p.Trust.Repository)
	from := f.cameFrom(p)
	if s != nil || from == nil || from.Repository == p.Trust.Repository {
		return s, err
	}
	if err == nil {
		if err = f.holds(ctx, p.Trust.Repository, from); err == nil {
			return nil, nil
		}
	}
	if s, _ := f.nextAt(ctx, p, from.Repository); s != nil { // what is wrong there is not what has to be put right
		return s, nil
	}
	return nil, err
}

// cameFrom is how p came to the device; nil: it is the file.
func (f *Follower) cameFrom(p *Policy) *Kept {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.travels() && f.came == p {
		return f.kept
	}
	return nil
}

// holds reports whether a repository has the version k, as its publisher checks. An error wraps ErrMissing or ErrUnreachable.
func (f *Follower) holds(ctx context.Context, repository string, k *Kept) error {
	what := fmt.Sprintf("the trust policy after version %d comes from %s", k.Version, repository)
	src, err := f.o.Open(ctx, repository)
	if err != nil {
		return unread(what, err)
	}
	switch d, err := src.Resolve(ctx, artifacts.TrustTag(k.Version)); {
	case errors.Is(err, fault.ErrNotFound):
		err = fmt.Errorf("%s, which does not have version %d; %s is asked too: %w: %w", what, k.Version, k.Repository, ErrMissing, err)
		return fault.WithHint(err, "is trust.repository right? Publish the next version in "+k.Repository+", where version "+fmt.Sprint(k.Version)+" came from")
	case err != nil:
		return fmt.Errorf("%s: %w: %w", what, ErrUnreachable, err)
	case d.Digest != k.Digest:
		err = fmt.Errorf("%s, which has another version %d (%s); %s is asked too: %w: %w", what, k.Version, d.Digest, k.Repository, ErrMissing, fault.ErrConflict)
		return fault.WithHint(err, "is trust.repository right? Publish the next version in "+k.Repository+", where version "+fmt.Sprint(k.Version)+" came from")
	}
	return nil
}

// nextAt looks for what follows p in one repository; nil: nothing does. A mirror that shows something else than the next
// version is passed over.
func (f *Follower) nextAt(ctx context.Context, p *Policy, repository string) (*Step, error) {
	what := fmt.Sprintf("trust policy %d (%s)", p.Version+1, repository)
	src, err := f.o.Open(ctx, repository)
	if err != nil {
		return nil, unread(what, err)
	}
	var s *Step
	var refused error
	err = signing.EachResolve(ctx, src, artifacts.TrustTag(p.Version+1), func(d ocispec.Descriptor) bool {
		s, refused = p.Follow(ctx, f.o.Now(), src, d.Digest)
		return s != nil
	})
	switch {
	case s != nil:
		s.Repository = repository
		return s, nil
	case errors.Is(err, fault.ErrNotFound):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("%s: %w: %w", what, ErrUnreachable, err)
	}
	return nil, refused
}

// take makes a step the policy that decides, unless the file was changed meanwhile so that it does not descend from it: the
// next round sees that. The caller holds refresh.
func (f *Follower) take(from *Policy, s *Step) (bool, error) {
	k := f.descendant(from, s)
	if k == nil {
		return false, nil
	}
	// Without the mutex: saving waits for the disk, and maybe for a caller of the follower.
	if err := f.o.Keep.Save(*k); err != nil {
		return false, fmt.Errorf("keep trust policy %d: %w", k.Version, err)
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	if old := f.kept; f.travels() && s.Index.Previous != "" && s.Index.Previous != old.Digest {
		s.Parted = old.Digest
	}
	f.kept, f.came, f.broken = k, s.Policy, nil
	f.publish()
	return true, nil
}

// descendant is what to keep of a step; nil: it does not descend from the file as it is now.
func (f *Follower) descendant(from *Policy, s *Step) *Kept {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.look()
	if now := f.inForce(); now.Policy == nil || now.Policy.Version != from.Version || now.Policy.Anchor() != from.Anchor() {
		return nil
	}
	return &Kept{
		Version: s.Policy.Version, Digest: s.Descriptor.Digest, Repository: s.Repository, Anchor: f.file.policy.Anchor(), File: f.file.sum,
		AcceptedAt: f.o.Now(), SignedBy: s.Old.Names(), Document: s.Document, Root: s.Root,
		Generations: s.Policy.Generations,
	}
}
