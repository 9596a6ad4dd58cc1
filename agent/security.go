package agent

import (
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

// securityEvent is one to be kept by [securityEvent.save] in the transaction of what it is about, and emitted afterwards.
type securityEvent struct {
	store.Security
	all    []store.Security
	counts map[codes.Code]uint64
	told   bool
}

// maxUnsavedSecurity bounds how many security events wait for a store that cannot be written: the oldest make room.
const maxUnsavedSecurity = 64

// newSecurityEvent is one of now, as the device believes it to be: its own clock may have forgotten everything, and what comes first or
// last, and is kept, must not depend on that.
func (l *loop) newSecurityEvent(code codes.Code, d digest.Digest, generation uint64, message string) *securityEvent {
	return &securityEvent{Security: store.Security{Code: code, Digest: d, Generation: generation, Message: status.Cut(message, status.MaxMessage), Last: l.clock.Now().UTC()}}
}

// save keeps it; nil keeps nothing.
func (x *securityEvent) save(tx *store.Tx) (err error) {
	if x == nil {
		return nil
	}
	if err = tx.AddSecurity(x.Security); err != nil {
		return err
	}
	if x.all, err = tx.Security(); err != nil {
		return err
	}
	x.counts, err = tx.SecurityCounts()
	return err
}

func (l *loop) emitSecurity(x *securityEvent) {
	if x == nil {
		return
	}
	l.setSecurity(x.all, x.counts)
	l.announceSecurity(x)
}

// announceSecurity emits and logs one, once.
func (l *loop) announceSecurity(x *securityEvent) {
	if x.told {
		return
	}
	x.told = true
	l.events.Emit(status.Event{Kind: status.EventSecurity, Code: x.Code, Generation: x.Generation, Digest: x.Digest, Message: x.Message})
	l.log.Warn("this may be an attack", "code", x.Code, "generation", x.Generation, "digest", x.Digest, "err", x.Message)
}

// saveSecurity saves and emits a security event that goes with nothing else that is saved: at once, or as soon as the store can
// be written.
func (l *loop) saveSecurity(x *securityEvent) {
	l.saving.security = append(l.saving.security[max(0, len(l.saving.security)+1-maxUnsavedSecurity):], x)
	l.saving.securityAt = time.Time{}
	l.retrySecurity(l.o.Now())
}

// retrySecurity saves and reports the security events that are not kept yet, when that is due.
func (l *loop) retrySecurity(now time.Time) {
	if len(l.saving.security) == 0 || now.Before(l.saving.securityAt) {
		return
	}
	err := l.o.Store.Update(func(tx *store.Tx) error {
		for _, x := range l.saving.security {
			if err := x.save(tx); err != nil {
				return err
			}
		}
		return l.capabilities(tx, now)
	})
	if err != nil {
		l.saving.securityAt = now.Add(saveRetry)
		for _, x := range l.saving.security {
			if !x.told {
				l.announceSecurity(x)
				l.log.Error("a security event is not kept; saving it is tried again", "code", x.Code, "err", err)
			}
		}
		return
	}
	for _, x := range l.saving.security {
		l.emitSecurity(x)
	}
	l.saving.security, l.saving.securityAt = nil, time.Time{}
	l.nudge()
}

// setSecurity takes over the security events that are kept.
func (l *loop) setSecurity(all []store.Security, counts map[codes.Code]uint64) {
	l.security = append([]store.Security{}, all...)
	l.events.SetSecurity(counts)
}

// newAttacks are the security events of deployments whose trouble is new.
func (l *loop) newAttacks(fresh []store.Status) []*securityEvent {
	var out []*securityEvent
	for _, s := range fresh {
		x, old := plan.OverallError(s), plan.OverallError(l.told.statuses[s.DeploymentID])
		if x == nil || !codes.Code(x.Code).Attack() || old != nil && old.Code == x.Code {
			continue
		}
		var d digest.Digest
		if l.accepted != nil {
			d = l.accepted.Digest
		}
		out = append(out, l.newSecurityEvent(codes.Code(x.Code), d, s.Generation, s.Name+": "+x.Message))
	}
	return out
}

// recallSecurity brings back what earlier runs of the agent have emitted.
func (l *loop) recallSecurity(tx *store.Tx) error {
	all, err := tx.Security()
	if err != nil {
		return err
	}
	counts, err := tx.SecurityCounts()
	if err != nil {
		return err
	}
	l.setSecurity(all, counts)
	for _, s := range all {
		l.events.Recall(status.Event{
			Time: s.Last, Kind: status.EventSecurity, Code: s.Code, Generation: s.Generation, Digest: s.Digest, Message: s.Message, Count: s.Count,
		})
	}
	return nil
}
