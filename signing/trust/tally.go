package trust

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Count finds out how far a quorum of the policy is reached about subject, with statements of a predicate type
// (signing.PredicateSign: signatures) that are in st. The time is what signers' own times are held against.
//
// The tally's Err is nil when it is reached. Else it wraps one of fault.ErrKeyRevoked and fault.ErrKeyExpired, where those
// would have sufficed; fault.ErrBadSignature, where something is forged in a signer's name, or all that is there is by
// others; fault.ErrThreshold, where some have signed; fault.ErrUnsigned; or why something could not be read.
func (p *Policy) Count(ctx context.Context, st signing.Source, subject ocispec.Descriptor, predicateType string, q Quorum, now time.Time) *Tally {
	return p.count(ctx, st, predicateType, q, VerifyRequest{Subject: subject, Now: now})
}

// count is Count, as a question says; its Source is not read.
func (p *Policy) count(ctx context.Context, st signing.Source, predicateType string, q Quorum, about VerifyRequest) *Tally {
	t := &Tally{Type: predicateType, Threshold: q.Need()}
	for _, s := range q.Signers {
		t.Signers = append(t.Signers, SignerResult{Name: s.Name, Kind: s.Kind, About: s.about})
	}
	c := count{policy: p, quorum: q, now: about.Now}
	trustees := make([]signing.Verifier, len(q.Signers))
	for i, s := range q.Signers {
		trustees[i] = numbered{s.at(about.Now), i}
	}
	found, err := signing.Examine(ctx, st, about.Subject, signing.Query{
		PredicateType: predicateType, Verifiers: trustees, Keep: about.Keep,
		Enough: func(good []signing.Signature) bool { return !about.Thorough && len(c.match(good)) >= q.Need() },
		Counts: func(s signing.Signature) bool { return c.stateOf(s, c.place(s.By)) == StateCounted },
	})
	if err != nil {
		t.Err = err
		return t
	}
	t.Bad, t.Others = c.named(found.Bad), found.Other
	if found.Unread != nil {
		t.Unread = found.Unread.Error()
	}
	c.stand(t, found)
	if t.Counted < t.Threshold {
		t.Err = c.err(t, found)
	}
	return t
}

// numbered is a signer of a quorum by its place in it: names may be given twice to things that are the same.
type numbered struct {
	signing.Verifier
	place int
}

func (n numbered) VerifierName() string { return strconv.Itoa(n.place) }

// count counts the signers of one quorum.
type count struct {
	policy *Policy
	quorum Quorum
	now    time.Time
}

// place is which signer of the quorum is called so by [numbered]; -1: none.
func (c *count) place(by string) int {
	if at, err := strconv.Atoi(by); err == nil && at < len(c.quorum.Signers) {
		return at
	}
	return -1
}

// named gives remarks the signers' names back.
func (c *count) named(all []signing.Remark) []signing.Remark {
	for i, r := range all {
		if at := c.place(r.By); at >= 0 {
			all[i].By = c.quorum.Signers[at].Name
		}
	}
	return all
}

// stateOf is the state of one signature by itself.
func (c *count) stateOf(s signing.Signature, at int) State {
	signer := c.quorum.Signers[at]
	if c.policy.KeyRevoked(s.Fingerprint) != nil || c.policy.KeyRevoked(signer.Key.Fingerprint) != nil {
		return StateRevoked
	}
	return signer.stateAt(c.now)
}

// match finds as many pairs of a signer and a person as there can be, none of either twice: place of the signer to index
// of the signature.
func (c *count) match(good []signing.Signature) map[int]int {
	same := persons(good)
	edges := make([]map[string]int, len(c.quorum.Signers)) // by signer: person to signature
	for i, s := range good {
		at := c.place(s.By)
		if at < 0 || c.stateOf(s, at) != StateCounted {
			continue
		}
		if edges[at] == nil {
			edges[at] = map[string]int{}
		}
		if _, there := edges[at][same(s)]; !there {
			edges[at][same(s)] = i
		}
	}
	holder := map[string]int{} // person to signer
	var find func(at int, seen map[string]bool) bool
	find = func(at int, seen map[string]bool) bool {
		for _, person := range slices.Sorted(maps.Keys(edges[at])) {
			if seen[person] {
				continue
			}
			seen[person] = true
			if other, taken := holder[person]; !taken || find(other, seen) {
				holder[person] = at
				return true
			}
		}
		return false
	}
	for at := range edges {
		find(at, map[string]bool{})
	}
	out := map[int]int{}
	for person, at := range holder {
		out[at] = edges[at][person]
	}
	return out
}

// persons tells who is the same: principals that used one key are.
func persons(good []signing.Signature) func(signing.Signature) string {
	parent := map[string]string{}
	var root func(x string) string
	root = func(x string) string {
		if up, ok := parent[x]; ok && up != x {
			return root(up)
		}
		return x
	}
	for _, s := range good {
		parent[root("key "+s.Fingerprint.String())] = root("who " + s.Principal)
	}
	return func(s signing.Signature) string { return root("who " + s.Principal) }
}

// stand tells of each signer how it stands.
func (c *count) stand(t *Tally, found *signing.Found) {
	counted := c.match(found.Good)
	t.Counted = len(counted)
	for i := range t.Signers {
		s, signer := &t.Signers[i], c.quorum.Signers[i]
		winner, counts := counted[i]
		alone := State("")
		for n, g := range found.Good {
			if c.place(g.By) != i {
				continue
			}
			g.By = signer.Name
			if counts && n == winner {
				s.Signatures = slices.Insert(s.Signatures, 0, g)
			} else {
				s.Signatures = append(s.Signatures, g)
			}
			if state := c.stateOf(g, i); alone == "" || state == StateCounted {
				alone = state
			}
		}
		forged := slices.IndexFunc(t.Bad, func(r signing.Remark) bool { return r.By == signer.Name })
		switch {
		case counts:
			s.State = StateCounted
		case alone == StateCounted:
			s.State, s.Reason = StateRepeated, "it is the same as another signer that counts"
		case alone != "":
			s.State, s.Reason = alone, c.reason(alone, signer, s.Signatures)
		case forged >= 0:
			s.State, s.Reason = StateBad, t.Bad[forged].String()
		case found.Unread != nil:
			s.State = StateUnread
		default:
			s.State = StateAbsent
		}
	}
}

// reason says why a signature does not count.
func (c *count) reason(state State, s *Signer, all []signing.Signature) string {
	switch state {
	case StateNotYetValid:
		return "trusted from " + s.NotBefore.Format(time.RFC3339)
	case StateExpired:
		return "trusted until " + s.NotAfter.Format(time.RFC3339)
	case StateRevoked:
		v := c.policy.KeyRevoked(s.Key.Fingerprint)
		for _, g := range all {
			if v == nil {
				v = c.policy.KeyRevoked(g.Fingerprint)
			}
		}
		return v.String()
	}
	return ""
}

// String says since when and why.
func (r *Revocation) String() string {
	text := "revoked"
	if !r.Since.IsZero() {
		text += " since " + r.Since.Format(time.RFC3339)
	}
	if r.Reason != "" {
		text += ": " + r.Reason
	}
	return text
}

// err says why the quorum is not reached.
func (c *count) err(t *Tally, found *signing.Found) error {
	by := map[State][]string{}
	for _, s := range t.Signers {
		word := s.Name
		if s.Reason != "" && s.State != StateRepeated {
			word += " (" + s.Reason + ")"
		}
		by[s.State] = append(by[s.State], word)
	}
	late := slices.Concat(by[StateExpired], by[StateNotYetValid])
	need := ""
	if t.Threshold > 1 {
		need = fmt.Sprintf("%d of %d signers: ", t.Counted, t.Threshold)
	}
	switch {
	case found.Unread != nil:
		return found.Err()
	case len(late) > 0 && t.Counted+len(late) >= t.Threshold:
		return fmt.Errorf("%s%w: %s", need, fault.ErrKeyExpired, strings.Join(late, ", "))
	case len(by[StateRevoked]) > 0 && t.Counted+len(late)+len(by[StateRevoked]) >= t.Threshold:
		return fmt.Errorf("%s%w: %s", need, fault.ErrKeyRevoked, strings.Join(by[StateRevoked], ", "))
	case len(by[StateBad]) > 0:
		return fmt.Errorf("%s%w: %s", need, fault.ErrBadSignature, strings.Join(by[StateBad], ", "))
	case len(found.Good) > 0:
		return fmt.Errorf("%w: %d of %d%s", fault.ErrThreshold, t.Counted, t.Threshold, c.lacking(t, by))
	default:
		return c.none(found)
	}
}

// lacking says who is there and who is not.
func (c *count) lacking(t *Tally, by map[State][]string) string {
	text := ""
	for _, part := range []struct {
		word string
		all  []string
	}{
		{"signed by ", t.Names()},
		{"the same as another: ", by[StateRepeated]},
		{"expired: ", slices.Concat(by[StateExpired], by[StateNotYetValid])},
		{"revoked: ", by[StateRevoked]},
		{"missing: ", by[StateAbsent]},
	} {
		if len(part.all) > 0 {
			text += "; " + part.word + strings.Join(part.all, ", ")
		}
	}
	return text
}

// none says why there is nothing at all by any signer, with their names.
func (c *count) none(found *signing.Found) error {
	err := found.Err()
	if errors.Is(err, fault.ErrBadSignature) {
		by := strings.Join(names(c.quorum.Signers), ", ")
		for _, r := range found.Other { // one that was revoked and replaced is no signer any more
			if v := c.policy.KeyRevoked(r.Key); v != nil {
				return fmt.Errorf("%w: not signed by %s, but, as it says, by key %s (%s)", fault.ErrKeyRevoked, by, r.Key, v)
			}
		}
		return fmt.Errorf("%w: not signed by %s: %s", fault.ErrBadSignature, by, signing.Reasons(slices.Concat(found.Bad, found.Other)))
	}
	return err
}
