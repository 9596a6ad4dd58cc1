package agent

import (
	"sync"

	"github.com/longshore-dev/longshore/agent/codes"
)

// maxMismatches bounds how many mismatches of mirrors wait for the loop; more are left out.
const maxMismatches = 16

// mirrors are the wrong bytes of mirrors that the loop has not seen yet.
type mirrors struct {
	mu         sync.Mutex
	mismatches []string
}

// MirrorMismatch records that a mirror sent bytes with another digest: a security event of [codes.MirrorDigest]. message names the
// mirror and the repository. The caller limits how often it reports one mirror. It does not wait, and may be called from any
// goroutine at any time.
func (a *Agent) MirrorMismatch(message string) {
	a.mirrors.mu.Lock()
	if len(a.mirrors.mismatches) < maxMismatches {
		a.mirrors.mismatches = append(a.mirrors.mismatches, message)
	}
	a.mirrors.mu.Unlock()
	select {
	case a.inbox <- func(*loop) {}: // a pass follows
	default: // one will anyway
	}
}

// reportMirrors saves and emits what mirrors sent wrongly. All share one record, so that they cannot displace other security events.
func (l *loop) reportMirrors() {
	l.mirrors.mu.Lock()
	mismatches := l.mirrors.mismatches
	l.mirrors.mismatches = nil
	l.mirrors.mu.Unlock()
	for _, message := range mismatches {
		l.saveSecurity(l.newSecurityEvent(codes.MirrorDigest, "", 0, message))
	}
}
