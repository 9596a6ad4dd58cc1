package registry

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// lieEvery is how often a mirror that sends right and wrong bytes in turn is told of.
const lieEvery = time.Hour

// lies remembers whether it was reported that a mirror sent other bytes than were asked for.
type lies struct {
	mu      sync.Mutex
	told    bool
	at      time.Time // when
	behaved bool      // since
}

// tell reports whether a lie is to be told.
func (l *lies) tell(now time.Time) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.told && (!l.behaved || now.Sub(l.at) < lieEvery) {
		return false
	}
	l.told, l.at, l.behaved = true, now, false
	return true
}

// behave notes that the bytes were right.
func (l *lies) behave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behaved = true
}

// lied tells that a mirror sent other bytes than were asked for.
func (p *remotePlace) lied(a *access, err error) {
	var now time.Time // without a clock it is told once
	if p.c.o.Now != nil {
		now = p.c.o.Now()
	}
	if !a.mirror || !a.lies.tell(now) {
		return
	}
	p.c.o.Logger.Warn("a mirror sent other bytes than were asked for", "mirror", a.host, "repository", p.name, "error", err)
	if p.c.o.Lied != nil {
		p.c.o.Lied(p.host+"/"+p.name, fmt.Errorf("mirror %s: %w", a.host, err))
	}
}

// outcome takes in how a blob came: with its digest, with another, or not.
func (p *remotePlace) outcome(a *access, err error) {
	switch {
	case err == nil:
		a.lies.behave()
	case errors.Is(err, fault.ErrDigestMismatch):
		p.lied(a, err)
	}
}
