// Package agent keeps one device at its desired state.
//
// It owns the loop and its saved state: resolve, fetch, verify, accept, plan, apply, report. It never dials, parses a
// signature or starts a process: see [Source], [Verifier], [Runtime], [Reporter] and [Content]; cmd/longshore-agent wires
// the real ones.
package agent
