package agent

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

const (
	// DefaultTrustInterval is how often the next version of the trust policy is asked for when nothing else asks for it.
	DefaultTrustInterval = time.Hour
	trustRetry           = time.Minute // shortest pause after the repository could not be asked
)

// trusting decides when the next trust policy is asked for. It is part of the loop.
type trusting struct {
	next     time.Time
	busy     bool
	asked    bool // since the start
	current  bool // and without an error
	failures int
	problem  error
	excused  bool      // by a declared downtime
	since    time.Time // of problem
	checked  time.Time // the repository answered
	version  uint64    // of the policy that decides, as of the last look: see [loop.lookAtTrust]
}

// wants reports whether a check that begins now is to ask for the next trust policy first.
func (t *trusting) wants(l *loop, now time.Time, forced bool) bool {
	return l.o.Trust != nil && !t.busy && (forced || !t.asked || !now.Before(t.next))
}

// due is when the trust policy is asked for without a check of the state; zero: not by itself.
func (t *trusting) due(l *loop) time.Time {
	if l.o.Trust == nil || t.busy || !t.asked || l.poll.busy {
		return time.Time{}
	}
	return l.windowTimes.First(l.o.PollWindows, t.next)
}

// start begins a refresh that is due, unless a check is under way, or is due and does it itself.
func (t *trusting) start(l *loop, now time.Time) {
	if at := t.due(l); at.IsZero() || now.Before(at) {
		return
	}
	t.busy = true
	hold := l.holdTrust(now)
	l.background(func() {
		r := l.intake.Refresh(l.ctx, hold)
		l.send(func(l *loop) { l.renewed(r) })
	})
}

// renewed takes in how a refresh ended; nil: there was none.
func (l *loop) renewed(r *intake.Renewal) {
	if r == nil {
		return
	}
	now, t := l.o.Now(), &l.trust
	t.busy, t.asked = false, true
	if l.ctx.Err() != nil {
		return
	}
	l.lookAtTrust()
	for _, v := range r.Taken {
		l.log.Info("trust policy", "version", v.Version, "digest", v.Digest, "signedBy", v.SignedBy)
		l.events.Emit(status.Event{Kind: status.EventTrust, Message: fmt.Sprintf("version %d, signed by %s", v.Version, strings.Join(v.SignedBy, ", "))})
		if v.Parted != "" {
			message := fmt.Sprintf("version %d does not follow version %d as it was here (%s): there were two of it", v.Version, v.Version-1, v.Parted)
			l.log.Warn("trust policy", "message", message)
			l.events.Emit(status.Event{Kind: status.EventTrust, Message: message})
		}
	}
	code := codes.Of(r.Err)
	excused := l.excused(now, r.Err)
	if r.Err != nil && !excused && (t.problem == nil || t.excused || codes.Of(t.problem) != code || t.problem.Error() != r.Err.Error()) {
		l.log.Warn("the next trust policy is not taken over", "code", code, "err", r.Err)
		l.events.Emit(status.Event{Kind: status.EventTrust, Code: code, Message: r.Err.Error()})
		if code.Attack() {
			l.saveSecurity(l.newSecurityEvent(code, "", 0, r.Err.Error()))
		}
	}
	if t.problem == nil || codes.Of(t.problem) != code {
		t.since = now
	}
	t.problem, t.excused = r.Err, excused
	t.current = t.current || r.Err == nil
	if code != codes.TrustUnreachable && code != codes.Config {
		t.checked = now
	}
	l.scheduleTrust(now)
	l.noteHeld(now, r)
	if len(r.Taken) == 0 {
		return
	}
	if l.refused != nil && !l.poll.busy { // what was refused may pass now
		l.poll.next = now
	}
	if err := l.o.Store.Update(func(tx *store.Tx) error { return l.capabilities(tx, now) }); err != nil {
		l.log.Warn("the new trust policy is not reported yet", "err", err)
		return
	}
	l.nudge()
}

func (l *loop) scheduleTrust(now time.Time) {
	t := &l.trust
	d := cmp.Or(l.o.TrustInterval, DefaultTrustInterval)
	if t.problem == nil {
		t.failures = 0
	} else {
		if t.excused {
			t.failures = 0
		}
		t.failures++
		d = min(d, retry.Backoff(t.failures, trustRetry, d))
	}
	t.next = now.Add(max(l.jittered(d), retry.Asked(t.problem)))
}

// forgetSigners drops what time it was by the word of those whom the policy does not know any more.
func (l *loop) forgetSigners() {
	if l.o.Trust == nil {
		return
	}
	names := l.o.Trust.Signers()
	if names == nil || !l.times.Keep(clock.Signature, names) {
		return
	}
	if err := l.o.Store.Update(l.times.Save); err != nil {
		l.times.Unsaved()
		l.log.Warn("times by a signer who is no longer trusted are not removed from the store", "err", err)
	}
}

// lookAtTrust asks which version decides, for the reports that follow.
func (l *loop) lookAtTrust() {
	if l.o.Trust != nil {
		l.trust.version = l.o.Trust.Status().Version
	}
}

// trustStatus is what everyone else sees of it; nil without a policy that can travel.
func (l *loop) trustStatus() *status.Trust {
	if l.o.Trust == nil {
		return nil
	}
	s := l.o.Trust.Status()
	l.trust.version = s.Version
	if s.Repository != "" {
		s.CheckedAt, s.NextCheck = l.trust.checked, l.trust.due(l)
	}
	return &s
}

// trustProblems adds what is wrong with the trust policy, and what runs by the word of a key that it has taken back.
func (l *loop) trustProblems(now time.Time, s *status.Status, add func(code codes.Code, message, doing, hint string, since time.Time)) {
	t := s.Trust
	if t == nil {
		return
	}
	if t.Problem != "" {
		add(codes.TrustInvalid, t.Problem, "accepts nothing new; what runs is kept", "longshore-agent check-config says what is wrong", time.Time{})
	}
	if err := l.trust.problem; err != nil && !l.trust.excused {
		add(codes.Of(err), err.Error(), fmt.Sprintf("decides by version %d; %s", t.Version, retry.Next(l.trust.next.Sub(now), err)), codes.Hint(err), l.trust.since)
	}
	if t.Expired {
		add(codes.TrustExpired, fmt.Sprintf("trust policy version %d expired %s", t.Version, t.Expires.UTC().Format(time.RFC3339)), "decides by it all the same", "", t.Expires)
	}
	if w, since := l.trustWaits(); w != nil {
		add(w.Code, w.Message, fmt.Sprintf("decides by version %d; what the new one revokes counts already", t.Version), "", since)
	}
	if t.Note != "" {
		add(codes.TrustUnused, t.Note, fmt.Sprintf("decides by version %d", t.Version), "", time.Time{})
	}
	for _, r := range l.revoked() {
		since := r.Since
		reason := ""
		if r.Reason != "" {
			reason = " (" + r.Reason + ")"
		}
		if r.Digest != "" {
			add(codes.DigestRevoked, fmt.Sprintf("%s runs and was revoked%s", r.Digest, reason), "runs it on", "", since)
			continue
		}
		names, what := l.signedWith(r.Key)
		add(codes.KeyRevoked, fmt.Sprintf("%s by key %s (%s), which was revoked%s", strings.Join(what, ", "), strings.Join(names, ", "), r.Key, reason), "runs it on", "", since)
	}
}

// revoked asks the policy about everything that the device is kept at.
func (l *loop) revoked() []store.Revocation {
	if l.o.Trust == nil || l.target == nil {
		return nil
	}
	return l.o.Trust.Revoked(evidence(l.target, l.targetResolved))
}

// signedWith returns under which names a key signed what of the running generation.
func (l *loop) signedWith(key digest.Digest) (names, what []string) {
	for _, s := range l.target.Signers {
		if s.Key != key {
			continue
		}
		if !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
		if s.What == string(intake.KindState) {
			s.What = fmt.Sprintf("generation %d", l.target.Generation)
		}
		if !slices.Contains(what, s.What) {
			what = append(what, s.What)
		}
	}
	if slices.Sort(what); len(what) > 0 {
		what[len(what)-1] += " runs, signed"
	}
	return names, what
}
