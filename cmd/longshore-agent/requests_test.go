package main

import (
	"testing"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

// A device asks for three things of a new state whose deployments are small: its tag, its manifest, and the list of what refers to it, which
// contains the signature.
func TestRequestsOfANewState(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			f := newFleet(t, kind)
			f.release("press-01", 1, "release")
			d := f.device("press-01", f.document(rules{version: 1, release: "release", roots: []string{"root-1", "root-2"}})).wake()
			d.sync()
			f.release("press-01", 2, "release")
			f.server.Faults.Forget()
			if r := d.sync(); r.Outcome != status.SyncInstalled || r.Generation != 2 {
				t.Fatalf("sync = %+v", r)
			}
			var got []string
			for _, r := range f.server.Faults.Requests("", "/plant/state/") {
				got = append(got, r.Method+" "+r.Path)
			}
			if len(got) != 3 {
				t.Errorf("%d requests, want 3: %q", len(got), got)
			}
		})
	}
}
