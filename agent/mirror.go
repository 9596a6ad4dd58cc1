package agent

import (
	"sync"

	"github.com/longshore-dev/longshore/agent/codes"
)

// maxLies bounds how many lies of mirrors wait for the loop; more are left out.
const maxLies = 16

// mirrors are the lies of mirrors that the loop has not seen yet.
type mirrors struct {
	mu   sync.Mutex
	lies []string
}

// MirrorLied records that a mirror sent bytes with another digest: a security event of [codes.MirrorDigest]. message names the
// mirror and the repository. The caller limits how often it reports one mirror. It does not wait, and may be called from any
// goroutine at any time.
func (a *Agent) MirrorLied(message string) {
	a.mirrors.mu.Lock()
	if len(a.mirrors.lies) < maxLies {
		a.mirrors.lies = append(a.mirrors.lies, message)
	}
	a.mirrors.mu.Unlock()
	select {
	case a.inbox <- func(*loop) {}: // a pass follows
	default: // one will anyway
	}
}

// reportMirrors saves and emits the lies of mirrors. All share one record, so that they cannot displace other security events.
func (l *loop) reportMirrors() {
	l.mirrors.mu.Lock()
	lies := l.mirrors.lies
	l.mirrors.lies = nil
	l.mirrors.mu.Unlock()
	for _, message := range lies {
		l.saveSecurity(l.newSecurityEvent(codes.MirrorDigest, "", 0, message))
	}
}
