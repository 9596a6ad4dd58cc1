package trust

import (
	"context"
	"slices"
)

// Held are the revocations of versions that are held back on the device, see [Follower.Refresh].
type Held struct {
	Anchor  string // [Policy.Anchor] of the policy file that the versions descend from
	Version uint64 // the newest of them: once it decides, this is over
	Revoked []Revocation
}

// holdBack has what a version revokes count from now on, and what those after it revoke, although none of them decides. They are proven
// like versions that are taken over.
//
// What is held back adds up until it is taken over: a place that hides a newer version again does not give back what that one revoked.
func (f *Follower) holdBack(ctx context.Context, from *Policy, s *Step) error {
	k := f.descendant(from, s)
	if k == nil {
		return nil
	}
	h := Held{Anchor: k.Anchor}
	if old := f.heldBy(k.Anchor, from.Version); old != nil {
		h.Version, h.Revoked = old.Version, slices.Clone(old.Revoked)
	}
	saved := len(h.Revoked)
	var err error
	for range maxSteps {
		h.Version = max(h.Version, s.Policy.Version)
		for _, v := range s.Policy.Revoked {
			if !revokes(from.Revoked, v) && !revokes(h.Revoked, v) {
				h.Revoked = append(h.Revoked, v)
			}
		}
		if s.Policy.Trust == nil {
			break
		}
		var next *Step
		if next, err = f.nextAt(ctx, s.Policy, s.Policy.Trust.Repository); next == nil {
			break
		}
		s = next
	}
	if len(h.Revoked) == saved {
		return err
	}
	if err := f.o.Keep.SaveHeld(h); err != nil {
		return err
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	f.held = &h
	f.publish()
	return err
}

func revokes(all []Revocation, v Revocation) bool {
	return slices.ContainsFunc(all, func(o Revocation) bool { return o.Key == v.Key && o.Digest == v.Digest })
}

// heldBy is what counts beside a version; nil: nothing.
func (f *Follower) heldBy(anchor string, version uint64) *Held {
	if h := f.held; h != nil && anchor != "" && h.Anchor == anchor && h.Version > version {
		return h
	}
	return nil
}

// restricted is a policy with the revocations that are held back.
func (f *Follower) restricted(p *Policy) *Policy {
	if p == nil || f.file.policy == nil {
		return p
	}
	h := f.heldBy(f.file.policy.Anchor(), p.Version)
	if h == nil {
		return p
	}
	out := *p
	out.Revoked = slices.Concat(p.Revoked, slices.DeleteFunc(slices.Clone(h.Revoked), func(v Revocation) bool { return revokes(p.Revoked, v) }))
	return &out
}
