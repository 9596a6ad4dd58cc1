// Package agent keeps one device at its desired state.
//
// It owns the loop and its saved state: resolve, fetch, verify, accept, plan, apply, report. It never dials, parses a
// signature or starts a process: [Options] takes what does, and cmd/longshore-agent makes it. What is decided is computed below it, in
// packages that take values and return values; the loop alone keeps them.
package agent
