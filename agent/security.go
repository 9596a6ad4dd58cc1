package agent

import (
	"errors"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/store"
)

// Attack tells whether a code means what somebody between the publisher and this device does, and what a careful publisher
// never does. Such problems also make an event of kind [EventSecurity], which outlives the agent.
func (c Code) Attack() bool {
	switch c {
	case CodeStateDigest, CodeSignatureMissing, CodeSignatureInvalid, CodeWrongDevice, CodeRollback, CodeGenerationConflict, CodeStateMixed,
		CodeContentDigest, CodeComponentDigest, CodeComponentSignature, CodeImageDigest, CodeImageSignature,
		CodeKeyRevoked, CodeDigestRevoked, CodeSignatureThreshold, CodeAttestationInvalid, CodeTrustInvalid, CodeTrustRollback, CodeTrustUnusable:
		return true
	}
	return false
}

// SecurityEvent is something that an attack looks like; the same once more is counted.
type SecurityEvent struct {
	Code       Code          `json:"code"`
	Digest     digest.Digest `json:"digest,omitempty"`     // of the state
	Generation uint64        `json:"generation,omitempty"` // 0: not known
	Message    string        `json:"message"`              // of the last time
	First      time.Time     `json:"first"`
	Last       time.Time     `json:"last"`
	Count      uint64        `json:"count"`
}

// alarm is a security event to be kept by [loop.alarmed] in the transaction of what it is about, and told afterwards.
type alarm struct {
	store.Security
	all    []store.Security
	counts map[string]uint64
}

// newAlarm is one of now, as the device believes it to be: its own clock may have forgotten everything, and what comes first or
// last, and is kept, must not depend on that.
func (l *loop) newAlarm(code Code, d digest.Digest, generation uint64, message string) *alarm {
	if len(message) > maxEventMessage {
		message = strings.ToValidUTF8(message[:maxEventMessage], "") + "…"
	}
	return &alarm{Security: store.Security{Code: string(code), Digest: d, Generation: generation, Message: message, Last: l.clock.Now().UTC()}}
}

// save keeps it; nil keeps nothing.
func (x *alarm) save(tx *store.Tx) (err error) {
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

// alarmed tells of what was kept.
func (l *loop) alarmed(x *alarm) {
	if x == nil {
		return
	}
	l.heard(x.all, x.counts)
	l.events.Emit(Event{Kind: EventSecurity, Code: Code(x.Code), Generation: x.Generation, Digest: x.Digest, Message: x.Message})
	l.log.Warn("this may be an attack", "code", x.Code, "generation", x.Generation, "digest", x.Digest, "err", x.Message)
}

// sound keeps and tells a security event that goes with nothing else that is saved.
func (l *loop) sound(x *alarm) {
	err := l.o.Store.Update(func(tx *store.Tx) error { return errors.Join(x.save(tx), l.capabilities(tx, l.o.Now())) })
	if err != nil {
		l.log.Error("a security event is not kept", "code", x.Code, "err", err)
		l.events.Emit(Event{Kind: EventSecurity, Code: Code(x.Code), Generation: x.Generation, Digest: x.Digest, Message: x.Message})
		return
	}
	l.pump.nudge()
	l.alarmed(x)
}

// heard takes over the security events that are kept.
func (l *loop) heard(all []store.Security, counts map[string]uint64) {
	l.security = make([]SecurityEvent, len(all))
	for i, s := range all {
		l.security[i] = securityEvent(s)
	}
	l.events.counted(counts)
}

func securityEvent(s store.Security) SecurityEvent {
	return SecurityEvent{Code(s.Code), s.Digest, s.Generation, s.Message, s.First, s.Last, s.Count}
}

// alarms are the security events of deployments whose trouble is new.
func (l *loop) alarms(fresh []store.Status) []*alarm {
	var out []*alarm
	for _, s := range fresh {
		x, old := overallError(s), overallError(l.before[s.DeploymentID])
		if x == nil || !Code(x.Code).Attack() || old != nil && old.Code == x.Code {
			continue
		}
		var d digest.Digest
		if l.accepted != nil {
			d = l.accepted.Digest
		}
		out = append(out, l.newAlarm(Code(x.Code), d, s.Generation, s.Name+": "+x.Message))
	}
	return out
}

// recallSecurity brings back what earlier runs of the agent told.
func (l *loop) recallSecurity(tx *store.Tx) error {
	all, err := tx.Security()
	if err != nil {
		return err
	}
	counts, err := tx.SecurityCounts()
	if err != nil {
		return err
	}
	l.heard(all, counts)
	for _, s := range all {
		l.events.recall(Event{
			Time: s.Last, Kind: EventSecurity, Code: Code(s.Code), Generation: s.Generation, Digest: s.Digest, Message: s.Message, Count: s.Count,
		})
	}
	return nil
}
