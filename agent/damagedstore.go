package agent

import (
	"errors"
	"fmt"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
)

// floorUnknown reports whether nothing may be accepted yet: the database was damaged, and the containers, which say what was
// accepted before, were not seen since.
func (l *loop) floorUnknown() bool { return l.replaced != nil && !l.replaced.Known }

// findFloor takes over from the labels of the containers which generation was accepted at least before the database was
// damaged, and reports the damage.
func (l *loop) findFloor() {
	if !l.floorUnknown() || l.saving.err != nil && l.o.Now().Before(l.saving.at) {
		return
	}
	old, next := l.replaced, *l.replaced
	next.Known = true
	for _, c := range l.sight.seen.Containers {
		next.Floor = max(next.Floor, c.Generation)
	}
	l.replaced = &next
	x := l.newSecurityEvent(codes.DatabaseDamaged, "", next.Floor, l.lostText())
	err := l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetLost(&next), x.save(tx), l.capabilities(tx, l.o.Now()))
	})
	if err != nil {
		l.replaced = old
		l.saving.err, l.saving.at = err, l.o.Now().Add(saveRetry)
		l.log.Error("cannot save which generation was accepted before the database was damaged; nothing is accepted until it can", "err", err)
		return
	}
	l.nudge()
	l.emitSecurity(x)
}

// lostText describes the damage and what is known in spite of it.
func (l *loop) lostText() string {
	text := "the database was damaged"
	if l.replaced.File != "" {
		text += " and is kept as " + l.replaced.File
	}
	text += ": " + l.replaced.Reason
	switch {
	case !l.replaced.Known:
	case l.replaced.Floor > 0:
		text += fmt.Sprintf("; no generation below %d is accepted, which containers of this device were made for", l.replaced.Floor)
	default:
		text += "; no container has the generation that was accepted: the protection against an older one begins anew"
	}
	return text
}

// lostDoing is what the agent does about the damage, and what of the trust policy follows from it.
func (l *loop) lostDoing(t *status.Trust) string {
	text := "leaves what runs alone until a state is accepted"
	if t == nil {
		return text
	}
	if t.Repository != "" && !l.trust.current {
		text += "; accepts nothing before the trust policy is up to date, since what it had followed is lost"
	}
	if g := t.Generations; g != nil && l.replaced.Floor > g.To+1 {
		text += fmt.Sprintf("; accepts generations from %d on, since the trust policy resets them", g.To+1)
	}
	return text
}
