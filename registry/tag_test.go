package registry_test

import (
	"errors"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

func TestCompareAndMoveTag(t *testing.T) {
	s := testenv.Registry(t, testenv.Distribution)
	repo := openName(t, clientFor(t, s), s.Host+"/plant/apps/line")
	one, _ := put(t, repo, "1.4.0", nil, "1.4.0")
	two, _ := put(t, repo, "1.4.1", nil, "1.4.1")
	names := func() digest.Digest {
		d, err := repo.Resolve(t.Context(), "stable")
		if err != nil && !errors.Is(err, fault.ErrNotFound) {
			t.Fatal(err)
		}
		return d.Digest
	}
	for _, c := range []struct {
		was, to digest.Digest
		err     error
		names   digest.Digest
	}{
		{one.Digest, two.Digest, fault.ErrConflict, ""},
		{"", blobOf([]byte("nothing")).Digest, fault.ErrNotFound, ""},
		{"", one.Digest, nil, one.Digest},
		{"", one.Digest, nil, one.Digest}, // it is there already
		{"", two.Digest, fault.ErrConflict, one.Digest},
		{one.Digest, two.Digest, nil, two.Digest},
	} {
		if err := repo.CompareAndMoveTag(t.Context(), "stable", c.was, c.to); !errors.Is(err, c.err) || names() != c.names {
			t.Errorf("from %.15s to %.15s: %v, it names %.15s, want %v, %.15s", c.was, c.to, err, names(), c.err, c.names)
		}
	}
	// Somebody else moves it between our look and our look again.
	var once sync.Once
	s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/stable$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(w, r)
		once.Do(func() {
			s.Faults.Clear()
			if err := repo.Tag(t.Context(), two, "stable"); err != nil {
				t.Error(err)
			}
		})
	}})
	if err := repo.CompareAndMoveTag(t.Context(), "stable", two.Digest, one.Digest); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("moved by another one: %v", err)
	}
	s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/stable$`, Effect: testenv.Status(http.StatusPreconditionFailed, 0)})
	if err := repo.CompareAndMoveTag(t.Context(), "stable", two.Digest, one.Digest); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("a registry that keeps tags: %v", err)
	}
}

// Of two who move a channel at once at most one is told that it did, and then the channel has what that one set.
func TestCompareAndMoveTagRace(t *testing.T) {
	s := testenv.Registry(t, testenv.Referrers)
	// On a loaded machine others take longer to set a tag than they do in practice.
	open := func() *registry.Repository {
		return openName(t, clientThatWaits(t, s, time.Second), s.Host+"/plant/apps/line")
	}
	repo, movers := open(), []*registry.Repository{open(), open()}
	var versions []digest.Digest
	for _, v := range []string{"1.0.0", "1.1.0", "1.2.0"} {
		d, _ := put(t, repo, v, nil, v)
		versions = append(versions, d.Digest)
	}
	for round := range 3 {
		if err := repo.CompareAndMoveTag(t.Context(), "stable", "", versions[0]); err != nil {
			t.Fatal(err)
		}
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i, m := range movers {
			wg.Go(func() { errs[i] = m.CompareAndMoveTag(t.Context(), "stable", versions[0], versions[1+i]) })
		}
		wg.Wait()
		d, err := repo.Resolve(t.Context(), "stable")
		if err != nil {
			t.Fatal(err)
		}
		for i, err := range errs {
			if err == nil && (errs[1-i] == nil || d.Digest != versions[1+i]) {
				t.Errorf("round %d: %v, it names %s", round, errs, d.Digest)
			}
		}
		if err := repo.RemoveManifest(t.Context(), blobOf([]byte("none")).Digest, "stable"); err != nil {
			t.Fatal(err)
		}
	}
}
