// Package clock tells a device with an unreliable clock which time it may rely on.
//
// A device's own clock may be behind by decades (no battery) or ahead by a mistake. What was signed by somebody that the
// device trusts, at a time that it tells, proves that it is no earlier than that: a [Proof]. [Clock] takes the device's own
// clock, and never less than the newest proof plus what has passed since, by a timer that no setting of the clock moves.
//
// What a signer says is a proof as far as something else speaks for it: the device's own clock has come that far, or a
// [Clock.Hint] says so, or the device's clock is known to be behind and there is no hint. One wrong date in one signature must
// not move the time by years: every certificate would be over. Beyond that it makes a [Doubt].
//
// There is no proof that it is no later than some time: whoever holds a statement back makes it look old. So a clock that is
// ahead is believed, and only told of as a [Doubt] where there is a [Clock.Hint].
//
// Two times are kept apart. [Clock.Now] is for the expiry of states and for freshness. [Clock.Firm] is for the validity of
// keys, certificates and policies, and leaves out the proofs of freshness signers: their key lies in a job that runs by
// itself, and whoever steals it must not be able to end the validity of the keys that matter.
package clock

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Kind is who proves a time.
type Kind string

// Kinds of proofs.
const (
	Build     Kind = "build"     // this program was built then
	Signature Kind = "signature" // somebody whose signature was asked for, and is good, says that it was made then
	Freshness Kind = "freshness" // a freshness statement was issued then
)

const (
	// Slack is how far two clocks may be apart before one of them is called wrong.
	Slack = 5 * time.Minute
	// maxLeap bounds how far one proof may move the time: a signer whose clock is in another century proves nothing. What
	// is dated further ahead counts for nothing elsewhere, too (signing.MaxAhead).
	maxLeap = 10 * 365 * 24 * time.Hour
	// maxProofs of different signers are remembered, the newest.
	maxProofs = 16
)

// Proof says that it is not before Time.
type Proof struct {
	Kind Kind
	By   string // name of the key; "" for a build
	Time time.Time
}

// Clock is safe for concurrent use. Make it with [New].
type Clock struct {
	wall    func() time.Time
	elapsed func() time.Duration

	mu     sync.Mutex
	proofs []reading         // the newest of each signer, newest first
	claims map[string]moment // what signers say and nothing else speaks for, by signer
	hints  map[string]moment // what others say, by who says it
}

// moment is a time and when it was so.
type moment struct {
	time  time.Time
	at    time.Duration
	limit bool // it is no later, and may be earlier
}

// current is what a moment has become since.
func (c *Clock) current(m moment) time.Time { return m.time.Add(c.elapsed() - m.at) }

type reading struct {
	Proof
	at time.Duration
}

// New makes a clock of the device's own and of a timer that grows by one second a second, whatever the clock is set to.
func New(wall func() time.Time, elapsed func() time.Duration, proofs ...Proof) *Clock {
	c := &Clock{wall: wall, elapsed: elapsed, claims: map[string]moment{}, hints: map[string]moment{}}
	for _, p := range proofs {
		c.Prove(p)
	}
	return c
}

// Now is the time that states and freshness statements are held against.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, _ := c.now(true)
	return now
}

// Firm is the time that keys, certificates and policies are held against. It is never after Now.
func (c *Clock) Firm() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, _ := c.now(false)
	return now
}

// now is the device's own time, or the bound where that is later, with the proof of it.
func (c *Clock) now(freshness bool) (time.Time, *Proof) {
	now := c.wall()
	var by *Proof
	for i := range c.proofs {
		p := &c.proofs[i]
		if p.Kind == Freshness && !freshness {
			continue
		}
		if t := p.Time.Add(c.elapsed() - p.at); t.After(now) {
			now, by = t, &p.Proof
		}
	}
	return now, by
}

// Prove takes in a verified time. It reports whether the time that is kept for the next start changed.
func (c *Clock) Prove(p Proof) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, _ := c.now(false); p.Kind != Build && p.Time.Sub(now) > maxLeap {
		return false
	}
	if p.Kind != Signature {
		return c.learn(p)
	}
	if _, known := c.claims[p.By]; known || len(c.claims) < maxProofs {
		if p.Time.After(c.current(c.claims[p.By])) {
			c.claims[p.By] = moment{time: p.Time, at: c.elapsed()}
		}
	}
	backed := c.backed(p.Time)
	changed := !backed.IsZero() && c.learn(Proof{p.Kind, p.By, backed})
	return c.settle() || changed
}

// settle takes up of the signers' claims what something speaks for now.
func (c *Clock) settle() (changed bool) {
	for by, m := range c.claims {
		t := c.current(m)
		backed := c.backed(t)
		changed = !backed.IsZero() && c.learn(Proof{Signature, by, backed}) || changed
		if !backed.Before(t) {
			delete(c.claims, by)
		}
	}
	return changed
}

// backed is how much of what a signer says something else speaks for: all of it, or up to what is hinted at; zero: nothing.
func (c *Clock) backed(t time.Time) time.Time {
	firm, _ := c.now(false)
	if t.Sub(firm) <= Slack {
		return t
	}
	behind := firm.Sub(c.wall()) > Slack // the clock is, as is proven already
	var hint time.Time                   // the earliest
	for _, h := range c.hints {
		said := c.current(h)
		if h.limit || behind && firm.Sub(said) > Slack { // whoever says that is behind, too
			continue
		}
		if hint.IsZero() || said.Before(hint) {
			hint = said
		}
	}
	switch {
	case hint.IsZero() && behind:
		return t
	case hint.Sub(firm) <= Slack:
		return time.Time{}
	case hint.Before(t):
		return hint
	}
	return t
}

// Recall takes up what [Clock.Proofs] gave before the last start. It was found good then, however far back the clock is now.
func (c *Clock) Recall(proofs ...Proof) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range proofs {
		c.learn(p)
	}
}

func (c *Clock) learn(p Proof) bool {
	if p.Time.IsZero() {
		return false
	}
	at := slices.IndexFunc(c.proofs, func(o reading) bool { return o.Kind == p.Kind && o.By == p.By })
	now := c.elapsed()
	if at >= 0 {
		old := c.proofs[at]
		if !p.Time.After(old.Time.Add(now - old.at)) {
			return false
		}
		c.proofs = slices.Delete(c.proofs, at, at+1)
	}
	p.Time = p.Time.UTC()
	c.proofs = append(c.proofs, reading{p, now})
	slices.SortStableFunc(c.proofs, func(a, b reading) int {
		return cmp.Compare(b.Time.Add(-b.at).UnixNano(), a.Time.Add(-a.at).UnixNano())
	})
	if len(c.proofs) > maxProofs {
		c.proofs = slices.Delete(c.proofs, maxProofs, len(c.proofs))
	}
	return slices.ContainsFunc(c.proofs, func(o reading) bool { return o.Proof == p })
}

// Proofs are what to keep for the next start: of each signer what it proves now.
func (c *Clock) Proofs() []Proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Proof, 0, len(c.proofs))
	for _, p := range c.proofs {
		if p.Kind == Build {
			continue // the next start knows its own
		}
		p.Time = p.Time.Add(c.elapsed() - p.at)
		out = append(out, p.Proof)
	}
	return out
}

// Forget drops the proofs of a kind by signers that keep does not know any more. It reports whether there were any.
func (c *Clock) Forget(kind Kind, keep func(by string) bool) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := len(c.proofs)
	c.proofs = slices.DeleteFunc(c.proofs, func(p reading) bool { return p.Kind == kind && !keep(p.By) })
	if kind == Signature {
		maps.DeleteFunc(c.claims, func(by string, _ moment) bool { return !keep(by) })
	}
	return len(c.proofs) < n
}

// Hint takes in a time that nobody vouches for, as a registry's Date header: by itself it moves nothing and only makes a [Doubt];
// a signer is believed up to it. A zero time takes what was said back.
func (c *Clock) Hint(from string, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.IsZero() {
		delete(c.hints, from)
		return
	}
	c.hints[from] = moment{time: t, at: c.elapsed()}
	c.settle()
}

// HintLimit is a Hint that it is no later than t.
func (c *Clock) HintLimit(from string, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hints[from] = moment{time: t, at: c.elapsed(), limit: true}
}

// Doubt says that the device's clock is wrong, or may be.
type Doubt struct {
	Clock    time.Time // what the device's clock says
	Believed time.Time // what the device goes by
	Proof    *Proof    // of a clock that is behind; nil: it is only said
	From     string    // who says so, without a proof
	Said     time.Time // what it would be
}

// Doubt reports whether the clock is wrong by more than [Slack]; nil: nothing is known against it. What is proven comes before
// what is said. Of several who say so the one whose name is first in order is told, and what one source says counts for
// nothing while another one agrees with the clock.
func (c *Clock) Doubt() *Doubt {
	c.mu.Lock()
	defer c.mu.Unlock()
	wall := c.wall()
	now, by := c.now(true)
	if by != nil && now.Sub(wall) > Slack {
		p := *by
		return &Doubt{Clock: wall, Believed: now, Proof: &p}
	}
	var out *Doubt
	for from, h := range c.hints {
		said := c.current(h)
		switch {
		case h.limit && now.Sub(said) <= Slack:
			continue
		case said.Sub(now).Abs() <= Slack:
			return nil
		}
		if out == nil || from < out.From {
			out = &Doubt{Clock: wall, Believed: now, From: from, Said: said}
		}
	}
	for by, m := range c.claims {
		if from, said := "a signature by "+by, c.current(m); said.Sub(now) > Slack && (out == nil || from < out.From) {
			out = &Doubt{Clock: wall, Believed: now, From: from, Said: said}
		}
	}
	return out
}
