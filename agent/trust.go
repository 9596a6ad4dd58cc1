package agent

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/clock"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// DefaultTrustInterval is how often the next version of the trust policy is asked for when nothing else asks for it.
	DefaultTrustInterval = time.Hour
	// trustLimit bounds one refresh: a repository that answers slowly must not keep the device from its state for long.
	trustLimit = 2 * time.Minute
	trustRetry = time.Minute // shortest pause after the repository could not be asked
	// maxSigners bounds what is remembered of who signed a generation.
	maxSigners = 256
)

// Trust follows the trust policy from version to version. Its calls may come from several goroutines.
type Trust interface {
	// Refresh asks for the versions that follow the one in use and takes them over one by one, each on the disk before it
	// counts. It returns those that it took, also with an error; the error's code ([CheckError]) says why it went no further.
	// No next version is no error.
	Refresh(ctx context.Context) ([]TrustVersion, error)
	// Status tells which policy decides, as of the last look at it. It waits for nobody, and is never asked in a transaction of
	// the agent's store, which Refresh may write to.
	Status() TrustStatus
	// Signers are the names of those whose signatures the policy counts, at whatever time; nil: no policy decides.
	Signers() []string
	// Revoked tells which of these the policy revokes: keys by their fingerprint, and digests of content.
	Revoked(keys, content []digest.Digest) []Revocation
}

// TrustVersion is one version of the trust policy.
type TrustVersion struct {
	Version  uint64
	Digest   digest.Digest // of the artifact's manifest
	SignedBy []string      // names of the keys that signed it, by the version before
	// Parted is the digest of the version before as the device had it, where this one follows another of that number; "": it
	// follows what was there, or nobody can tell.
	Parted digest.Digest
}

// Revocation is a key or content that the trust policy has taken back.
type Revocation struct {
	Key    digest.Digest // fingerprint; "": Digest is revoked
	Digest digest.Digest
	Since  time.Time // zero: not told
	Reason string
}

// trusting decides when the next trust policy is asked for. It is part of the loop.
type trusting struct {
	next     time.Time
	busy     bool
	asked    bool // since the start
	failures int
	problem  error
	since    time.Time // of problem
	checked  time.Time // the repository answered
	version  uint64    // of the policy that decides, as of the last look: see [loop.lookAtTrust]
}

// renewal is how a refresh ended.
type renewal struct {
	taken []TrustVersion
	err   error
}

// renew asks for the next trust policy, once in a check. What q was made of is brought up to date.
func (a *Agent) renew(ctx context.Context, q *ask, out *answer) {
	if a.o.Trust == nil || out.renewal != nil {
		return
	}
	out.renewal = a.refresh(ctx)
	if now := a.fingerprint(); now != q.policy {
		q.policy, q.retry, out.policy = now, true, now
	}
}

func (a *Agent) refresh(ctx context.Context) *renewal {
	ctx, cancel := context.WithTimeout(ctx, trustLimit)
	defer cancel()
	taken, err := a.o.Trust.Refresh(ctx)
	return &renewal{taken, err}
}

// wants tells whether a check that begins now is to ask for the next trust policy first.
func (t *trusting) wants(l *loop, now time.Time, forced bool) bool {
	return l.o.Trust != nil && !t.busy && (forced || !t.asked || !now.Before(t.next))
}

// due is when the trust policy is asked for without a check of the state; zero: not by itself.
func (t *trusting) due(l *loop) time.Time {
	if l.o.Trust == nil || t.busy || !t.asked || l.poll.busy {
		return time.Time{}
	}
	return t.next
}

// start begins a refresh that is due, unless a check is under way, or is due and does it itself.
func (t *trusting) start(l *loop, now time.Time) {
	if at := t.due(l); at.IsZero() || now.Before(at) {
		return
	}
	t.busy = true
	l.spawn(func() {
		r := l.refresh(l.ctx)
		l.post(func(l *loop) { l.renewed(r) })
	})
}

// renewed takes in how a refresh ended; nil: there was none.
func (l *loop) renewed(r *renewal) {
	if r == nil {
		return
	}
	now, t := l.o.Now(), &l.trust
	t.busy, t.asked = false, true
	if l.ctx.Err() != nil {
		return
	}
	l.lookAtTrust()
	for _, v := range r.taken {
		l.log.Info("trust policy", "version", v.Version, "digest", v.Digest, "signedBy", v.SignedBy)
		l.events.Emit(Event{Kind: EventTrust, Message: fmt.Sprintf("version %d, signed by %s", v.Version, strings.Join(v.SignedBy, ", "))})
		if v.Parted != "" {
			message := fmt.Sprintf("version %d does not follow version %d as it was here (%s): there were two of it", v.Version, v.Version-1, v.Parted)
			l.log.Warn("trust policy", "message", message)
			l.events.Emit(Event{Kind: EventTrust, Message: message})
		}
	}
	code := CodeOf(r.err)
	if r.err != nil && (t.problem == nil || CodeOf(t.problem) != code || t.problem.Error() != r.err.Error()) {
		l.log.Warn("the next trust policy is not taken over", "code", code, "err", r.err)
		l.events.Emit(Event{Kind: EventTrust, Code: code, Message: r.err.Error()})
		if code.Attack() {
			l.sound(l.newAlarm(code, "", 0, r.err.Error()))
		}
	}
	if t.problem == nil || CodeOf(t.problem) != code {
		t.since = now
	}
	t.problem = r.err
	if code != CodeTrustUnreachable {
		t.checked = now
	}
	l.scheduleTrust(now)
	if len(r.taken) == 0 {
		return
	}
	if l.refused != nil && !l.poll.busy { // what was refused may pass now
		l.poll.next = now
	}
	if err := l.o.Store.Update(func(tx *store.Tx) error { return l.capabilities(tx, now) }); err != nil {
		l.log.Warn("the new trust policy is not reported yet", "err", err)
		return
	}
	l.pump.nudge()
}

func (l *loop) scheduleTrust(now time.Time) {
	t := &l.trust
	d := cmp.Or(l.o.TrustInterval, DefaultTrustInterval)
	if t.problem == nil {
		t.failures = 0
	} else {
		t.failures++
		d = min(d, backoff(t.failures, trustRetry, d))
		if after, ok := fault.RetryAfter(t.problem); ok {
			d = max(d, min(after, time.Hour))
		}
	}
	t.next = now.Add(time.Duration(float64(d) * (1 - pollJitter/2 + pollJitter*l.o.Random())))
}

// forgetSigners drops what time it was by the word of those whom the policy does not know any more.
func (l *loop) forgetSigners() {
	if l.o.Trust == nil {
		return
	}
	names := l.o.Trust.Signers()
	if names == nil || !l.clock.Forget(clock.Signature, among(names)) {
		return
	}
	l.proven.Store(true)
	if err := l.o.Store.Update(l.keepTimes); err != nil {
		l.proven.Store(true)
		l.log.Warn("times that a signer told who does not count any more are not forgotten for good", "err", err)
	}
}

// among tells whether all of several names, with ", " between them, are among some.
func among(names []string) func(by string) bool {
	return func(by string) bool {
		for name := range strings.SplitSeq(by, ", ") {
			if !slices.Contains(names, name) {
				return false
			}
		}
		return true
	}
}

// lookAtTrust asks which version decides, for the reports that follow.
func (l *loop) lookAtTrust() {
	if l.o.Trust != nil {
		l.trust.version = l.o.Trust.Status().Version
	}
}

// trustStatus is what everyone else sees of it; nil without a policy that can travel.
func (l *loop) trustStatus() *TrustStatus {
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

// trustProblems tells what is wrong with the trust policy, and what runs by the word of a key that it has taken back.
func (l *loop) trustProblems(now time.Time, s *Status, add func(code Code, message, doing, hint string, since time.Time)) {
	t := s.Trust
	if t == nil {
		return
	}
	if t.Problem != "" {
		add(CodeTrustInvalid, t.Problem, "accepts nothing new; what runs is kept", "longshore-agent check-config tells what is wrong", time.Time{})
	}
	if err := l.trust.problem; err != nil {
		add(CodeOf(err), err.Error(), fmt.Sprintf("decides by version %d; next try %s", t.Version, until(l.trust.next.Sub(now))), hintOf(err), l.trust.since)
	}
	if t.Expired {
		add(CodeTrustExpired, fmt.Sprintf("trust policy version %d expired %s", t.Version, t.Expires.UTC().Format(time.RFC3339)), "decides by it all the same", "", t.Expires)
	}
	if t.Note != "" {
		add(CodeTrustUnused, t.Note, fmt.Sprintf("decides by version %d", t.Version), "", time.Time{})
	}
	for _, r := range l.revoked() {
		since := r.Since
		reason := ""
		if r.Reason != "" {
			reason = " (" + r.Reason + ")"
		}
		if r.Digest != "" {
			add(CodeDigestRevoked, fmt.Sprintf("%s runs and was revoked%s", r.Digest, reason), "runs it on", "", since)
			continue
		}
		names, what := l.signedWith(r.Key)
		add(CodeKeyRevoked, fmt.Sprintf("%s by key %s (%s), which was revoked%s", strings.Join(what, ", "), strings.Join(names, ", "), r.Key, reason), "runs it on", "", since)
	}
}

// revoked asks the policy about everything that the device is kept at.
func (l *loop) revoked() []Revocation {
	if l.o.Trust == nil || l.running == nil {
		return nil
	}
	var keys []digest.Digest
	for _, s := range l.running.Signers {
		if !slices.Contains(keys, s.Key) {
			keys = append(keys, s.Key)
		}
	}
	content := []digest.Digest{l.running.Digest}
	if l.target != nil {
		content = append(content, l.target.Blobs...)
		for _, img := range l.target.images() {
			content = append(content, img.Digest)
		}
	}
	return l.o.Trust.Revoked(keys, content)
}

// signedWith tells under which names a key signed what of the running generation.
func (l *loop) signedWith(key digest.Digest) (names, what []string) {
	for _, s := range l.running.Signers {
		if s.Key != key {
			continue
		}
		if !slices.Contains(names, s.Name) {
			names = append(names, s.Name)
		}
		if s.What == string(KindState) {
			s.What = fmt.Sprintf("generation %d", l.running.Generation)
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

// signers lists who signed something, for the record.
func signers(what string, v Verdict) []store.Signer {
	var out []store.Signer
	for name, key := range v.Keys {
		out = append(out, store.Signer{What: what, Name: name, Key: key})
	}
	slices.SortFunc(out, func(a, b store.Signer) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.Key, b.Key)) })
	return out
}
