package registry

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// lieEvery is the shortest time between two reports of a mirror that sends correct and wrong bytes in turn.
const lieEvery = time.Hour

// lies records whether a mirror was reported for sending wrong bytes.
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

// behave records that the bytes were correct.
func (l *lies) behave() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.behaved = true
}

// lied reports that a mirror sent wrong bytes.
func (p *remotePlace) lied(a *access, err error) {
	var now time.Time // without a clock it is reported once
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

// outcome records the result of a blob: correct, another digest, or an error.
func (p *remotePlace) outcome(a *access, err error) {
	switch {
	case err == nil:
		a.lies.behave()
	case errors.Is(err, fault.ErrDigestMismatch):
		p.lied(a, err)
	}
}
