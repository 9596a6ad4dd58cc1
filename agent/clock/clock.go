// Package clock decides which time a device with an unreliable clock uses.
//
// A device's own clock may be behind by decades (no battery) or ahead by mistake. A signature of a trusted signer with a time
// proves that it is not earlier than that: a [Proof]. [Clock] returns the time of the device's own clock, but at least the newest
// proof plus the time since, measured with a timer that is independent of the clock's setting.
//
// A signer's time counts only as far as something else confirms it: the device's own clock has reached it, or a [Clock.Hint]
// says so, or the device's clock is known to be behind and there is no hint. One wrong date in one signature must not move the
// time by years: every certificate would expire. A time beyond that makes a [Doubt].
//
// Nothing proves that it is not later than some time: an attacker who withholds statements makes them look old. So a clock that
// is ahead is used, and only reported as a [Doubt] when there is a [Clock.Hint].
//
// There are two times. [Clock.Now] is for the expiry of states and for freshness. [Clock.Firm] is for the validity of keys,
// certificates and policies, and ignores the proofs of freshness signers: their key is used by an unattended job, and a thief of
// it must not be able to end the validity of the other keys.
package clock

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Kind is the source of a proof.
type Kind string

const (
	Build     Kind = "build"     // this program was built then
	Signature Kind = "signature" // the time of a verified signature that was requested
	Freshness Kind = "freshness" // a freshness statement was issued then
)

const (
	// Slack is how far two clocks may differ before one of them counts as wrong.
	Slack = 5 * time.Minute
	// maxLeap bounds how far one proof may move the time: a signer whose clock is in another century proves nothing. What
	// is dated further ahead counts for nothing elsewhere, too (signing.MaxAhead).
	maxLeap = 10 * 365 * 24 * time.Hour
	// maxProofs of different signers are remembered, the newest.
	maxProofs = 16
)

// Proof says that it is not before Time.
type Proof struct {
	Kind Kind      `json:"kind"`
	By   string    `json:"by,omitempty"` // name of the key; "" for a build
	Time time.Time `json:"time"`
}

// Clock is safe for concurrent use. Make it with [New].
type Clock struct {
	wall    func() time.Time
	elapsed func() time.Duration

	mu     sync.Mutex
	proofs []reading         // the newest of each signer, newest first
	claims map[string]moment // times of signers that nothing else confirms, by signer
	hints  map[string]moment // times of others, by source
}

// moment is a time and when it was so.
type moment struct {
	time  time.Time
	at    time.Duration
	limit bool // it is no later, and may be earlier
}

// current is a moment plus the time since.
func (c *Clock) current(m moment) time.Time { return m.time.Add(c.elapsed() - m.at) }

type reading struct {
	Proof
	at time.Duration
}

// New creates a clock from the device's own clock and a timer that is independent of its setting.
func New(wall func() time.Time, elapsed func() time.Duration, proofs ...Proof) *Clock {
	c := &Clock{wall: wall, elapsed: elapsed, claims: map[string]moment{}, hints: map[string]moment{}}
	for _, p := range proofs {
		c.Prove(p)
	}
	return c
}

// Now is the time for states and freshness statements.
func (c *Clock) Now() time.Time {
	c.mu.Lock()
	defer c.mu.Unlock()
	now, _ := c.now(true)
	return now
}

// Elapsed is the time by the timer that is independent of the clock's setting: since when says nothing.
func (c *Clock) Elapsed() time.Duration { return c.elapsed() }

// Firm is the time for keys, certificates and policies. It is never after Now.
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

// Prove adds a verified time. It reports whether the time that is saved for the next start changed.
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
	backed := c.confirmed(p.Time)
	changed := !backed.IsZero() && c.learn(Proof{p.Kind, p.By, backed})
	return c.confirmClaims() || changed
}

// confirmClaims turns the signers' claims into proofs as far as something confirms them now.
func (c *Clock) confirmClaims() (changed bool) {
	for by, m := range c.claims {
		t := c.current(m)
		backed := c.confirmed(t)
		changed = !backed.IsZero() && c.learn(Proof{Signature, by, backed}) || changed
		if !backed.Before(t) {
			delete(c.claims, by)
		}
	}
	return changed
}

// confirmed is the confirmed part of a signer's time: all of it, or up to a hint; zero: nothing.
func (c *Clock) confirmed(t time.Time) time.Time {
	firm, _ := c.now(false)
	if t.Sub(firm) <= Slack {
		return t
	}
	behind := firm.Sub(c.wall()) > Slack // the clock is behind, as is proven already
	var hint time.Time                   // the earliest
	for _, h := range c.hints {
		said := c.current(h)
		if h.limit || behind && firm.Sub(said) > Slack { // its source is behind too
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

// Recall adds what [Clock.Proofs] returned before the last start. These proofs were accepted then, whatever the clock says now.
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

// Proofs are what to save for the next start: each signer's proof as of now.
func (c *Clock) Proofs() []Proof {
	c.mu.Lock()
	defer c.mu.Unlock()
	out := make([]Proof, 0, len(c.proofs))
	for _, p := range c.proofs {
		if p.Kind == Build {
			continue // the next start has its own
		}
		p.Time = p.Time.Add(c.elapsed() - p.at)
		out = append(out, p.Proof)
	}
	return out
}

// Forget removes the proofs of a kind by signers for which keep is false. It reports whether there were any.
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

// Hint adds an unverified time, such as a registry's Date header: by itself it only makes a [Doubt]; a signer's time is accepted up to
// it. A zero time removes the hint.
func (c *Clock) Hint(from string, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if t.IsZero() {
		delete(c.hints, from)
		return
	}
	c.hints[from] = moment{time: t, at: c.elapsed()}
	c.confirmClaims()
}

// HintLimit is a Hint that it is not later than t.
func (c *Clock) HintLimit(from string, t time.Time) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.hints[from] = moment{time: t, at: c.elapsed(), limit: true}
}

// Doubt says that the device's clock is wrong, or may be wrong.
type Doubt struct {
	Clock    time.Time // what the device's clock says
	Believed time.Time // the time that the device uses
	Proof    *Proof    // of a clock that is behind; nil: there is only a hint
	From     string    // source of the hint, without a proof
	Said     time.Time // the time of the hint
}

// Doubt returns a doubt when the clock is wrong by more than [Slack], else nil. A proof comes before hints. Of several hints the one
// with the first source in order is returned; a hint does not count while another one agrees with the clock.
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
