package registry_test

import (
	"errors"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// A snapshot asks for nothing twice, nor for what the list of tags does not have, and knows what was written through it.
func TestSnapshot(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			server := testenv.Registry(t, kind)
			repo := openName(t, clientFor(t, server), server.Host+"/plant/components/line")
			subject, _ := put(t, repo, "line 1.4.1", nil, "1.4.1")
			signature, _ := put(t, repo, "signature", &subject, "")
			snap, err := repo.Snapshot(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			if list, err := snap.Tags(t.Context()); err != nil || list[len(list)-1] != "sha256-"+subject.Digest.Encoded() && list[0] != "1.4.1" {
				t.Errorf("tags %v, %v", list, err)
			}
			if !snap.MayHave("1.4.1") || snap.MayHave("1.4.2") || !repo.MayHave("1.4.2") {
				t.Error("MayHave: want 1.4.1 and not 1.4.2, and anything without a list")
			}
			read := func() {
				t.Helper()
				if _, _, err := snap.Manifest(t.Context(), subject.Digest); err != nil {
					t.Error(err)
				}
				if _, err := snap.Blob(t.Context(), blobOf([]byte("line 1.4.1")), 1<<20); err != nil {
					t.Error(err)
				}
				if list, err := snap.Referrers(t.Context(), subject); err != nil || len(list) != 1 || list[0].Digest != signature.Digest {
					t.Errorf("referrers %v, %v", list, err)
				}
			}
			read()
			server.Faults.Forget()
			read()
			if _, err := snap.Resolve(t.Context(), "1.4.2"); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("a tag that was not listed: %v", err)
			}
			if asked := server.Faults.Requests("", ""); len(asked) != 0 {
				t.Errorf("asked again: %v", asked)
			}
			put(t, snap, "another signature", &subject, "")
			if list, err := snap.Referrers(t.Context(), subject); err != nil || len(list) != 2 {
				t.Errorf("after another signature: %v, %v", list, err)
			}
			put(t, snap, "line 1.4.2", nil, "1.4.2")
			if _, err := snap.Resolve(t.Context(), "1.4.2"); err != nil {
				t.Errorf("a tag that was set through it: %v", err)
			}
		})
	}
}
