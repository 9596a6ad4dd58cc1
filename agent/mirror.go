package agent

// maxMismatches bounds how many mismatches of mirrors wait for the loop; more are left out.
const maxMismatches = 16

// MirrorMismatch records that a mirror sent bytes with another digest: a security event of [codes.MirrorDigest]. message names the
// mirror and the repository. The caller limits how often it reports one mirror. It does not wait, and may be called from any
// goroutine at any time.
func (a *Agent) MirrorMismatch(message string) {
	select {
	case a.mismatches <- message:
	default:
	}
}
