package registry

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// mismatchEvery is the shortest time between two reports of a mirror that sends correct and wrong bytes in turn.
const mismatchEvery = time.Hour

// mismatches records whether a mirror was reported for sending wrong bytes.
type mismatches struct {
	mu       sync.Mutex
	reported bool
	at       time.Time // when
	matched  bool      // since
}

// due reports whether a mismatch is to be reported now.
func (m *mismatches) due(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.reported && (!m.matched || now.Sub(m.at) < mismatchEvery) {
		return false
	}
	m.reported, m.at, m.matched = true, now, false
	return true
}

// match records that the bytes were correct.
func (m *mismatches) match() {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.matched = true
}

// mismatched reports that a mirror sent wrong bytes.
func (p *remotePlace) mismatched(a *access, err error) {
	var now time.Time // without a clock it is reported once
	if p.c.o.Now != nil {
		now = p.c.o.Now()
	}
	if !a.mirror || !a.mismatches.due(now) {
		return
	}
	p.c.o.Logger.Warn("a mirror sent other bytes than were asked for", "mirror", a.host, "repository", p.name, "error", err)
	if p.c.o.Mismatch != nil {
		p.c.o.Mismatch(p.host+"/"+p.name, fmt.Errorf("mirror %s: %w", a.host, err))
	}
}

// outcome records the result of a blob: correct, another digest, or an error.
func (p *remotePlace) outcome(a *access, err error) {
	switch {
	case err == nil:
		a.mismatches.match()
	case errors.Is(err, fault.ErrDigestMismatch):
		p.mismatched(a, err)
	}
}
