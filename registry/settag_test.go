package registry_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// onceAt has f called when the first such request comes, which then is answered by effect.
func onceAt(s *testenv.RegistryServer, method, path string, f func(), effect testenv.Effect) {
	s.Faults.Add(testenv.Rule{Method: method, Path: path, Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		f()
		effect(w, r, next)
	}})
}

// A registry that refuses for a moment makes one wait long enough for another to come and go: what that one was told has
// held is not written over by the next try.
func TestTryAgainLooksFirst(t *testing.T) {
	t.Run("a channel", func(t *testing.T) {
		s := testenv.Registry(t, testenv.Distribution)
		open := func() *registry.Repository {
			return openName(t, clientThatWaits(t, s, time.Millisecond), s.Host+"/plant/apps/line")
		}
		repo, other := open(), open()
		one, _ := put(t, repo, "1.4.0", nil, "1.4.0")
		two, _ := put(t, repo, "1.4.1", nil, "1.4.1")
		onceAt(s, http.MethodPut, `/manifests/stable$`, func() {
			if err := other.CompareAndMoveTag(t.Context(), "stable", "", two.Digest); err != nil {
				t.Errorf("the other one: %v", err)
			}
		}, testenv.Status(http.StatusServiceUnavailable, 0))
		err := repo.CompareAndMoveTag(t.Context(), "stable", "", one.Digest)
		if d, _ := repo.Resolve(t.Context(), "stable"); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" || d.Digest != two.Digest {
			t.Errorf("CompareAndMoveTag = %v; it names %s, want what the other one was told", err, d.Digest)
		}
	})
	t.Run("a list of signatures", func(t *testing.T) {
		s := testenv.Registry(t, testenv.Distribution)
		open := func() *registry.Repository {
			return openName(t, clientThatWaits(t, s, time.Millisecond), s.Reference("line/state"))
		}
		repo, other := open(), open()
		subject, _ := put(t, repo, "subject", nil, "t")
		var second digest.Digest
		onceAt(s, http.MethodPut, `/manifests/sha256-`, func() {
			d, _ := put(t, other, "second", &subject, "")
			second = d.Digest
		}, testenv.Status(http.StatusTooManyRequests, 0))
		// Nobody reads the list for the one whose try waits: it is as if the process was killed after it.
		var puts [][]byte
		s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/sha256-`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			puts = append(puts, body)
			r.Body = io.NopCloser(bytes.NewReader(body))
			next.ServeHTTP(w, r)
		}})
		first, _ := put(t, repo, "first", &subject, "")
		list, err := repo.Referrers(t.Context(), subject)
		if err != nil || len(list) != 2 {
			t.Errorf("Referrers = %d, %v, want both", len(list), err)
		}
		for i, p := range puts {
			if bytes.Contains(p, []byte(first.Digest)) && !bytes.Contains(p, []byte(second)) {
				t.Errorf("list %d of %d is without the signature that the other one was told is listed", i, len(puts))
			}
		}
	})
	t.Run("a generation", func(t *testing.T) {
		s := testenv.Registry(t, testenv.Distribution)
		name := s.Reference("plant/state")
		at := func(repo *registry.Repository, a *artifacts.Artifact) error {
			_, err := release.Publish(t.Context(), repo, a, release.PublishOptions{
				HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Precondition: &release.Precondition{},
			})
			return err
		}
		slow, quick := stateOf(t, 1, "", "slow"), stateOf(t, 1, "", "quick")
		// quick has seen that the generation is free, and sets the history tag when slow is about to set the moving one.
		refused, done := make(chan struct{}), make(chan error, 1)
		var once sync.Once
		s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/press-07`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			body, err := io.ReadAll(r.Body)
			if err != nil {
				t.Error(err)
			}
			r.Body = io.NopCloser(bytes.NewReader(body))
			tag, isSlow := path.Base(r.URL.Path), bytes.Equal(body, slow.Manifest)
			switch {
			case isSlow && tag == "press-07.v1":
				go func() { done <- at(openName(t, clientThatWaits(t, s, time.Millisecond), name), quick) }()
				<-refused // quick stands before its history tag
			case !isSlow && tag == "press-07.v1":
				refused <- struct{}{}
				<-refused
			case isSlow && tag == "press-07":
				first := false
				once.Do(func() { first = true })
				if first {
					close(refused)
					if err := <-done; err != nil {
						t.Errorf("the quick one: %v", err)
					}
					testenv.Status(http.StatusServiceUnavailable, 0)(w, r, next)
					return
				}
				t.Error("the moving tag went over what quick was told has held")
			}
			next.ServeHTTP(w, r)
		}})
		repo := openName(t, clientThatWaits(t, s, time.Millisecond), name)
		if err := at(repo, slow); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("the slow one: %v, want a conflict", err)
		}
		for _, tag := range []string{"press-07", "press-07.v1"} {
			if d, err := repo.Resolve(t.Context(), tag); err != nil || d.Digest != quick.Descriptor.Digest {
				t.Errorf("%s names %s, %v, want what quick published", tag, d.Digest, err)
			}
		}
	})
}

// A registry with immutable tags refuses to set one again, whatever it names: a lost answer is no conflict.
func TestLostAnswerOfImmutableTag(t *testing.T) {
	for _, refusal := range []int{http.StatusPreconditionFailed, http.StatusForbidden, http.StatusBadRequest, http.StatusConflict} {
		for name, lose := range map[string]testenv.Effect{
			"no answer": testenv.LoseAnswer(),
			"500": func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				next.ServeHTTP(httptest.NewRecorder(), r)
				testenv.Status(http.StatusInternalServerError, 0)(w, r, next)
			},
		} {
			t.Run(name+", "+http.StatusText(refusal), func(t *testing.T) {
				s := testenv.Registry(t, testenv.Distribution)
				repo := openName(t, clientFor(t, s), s.Reference("plant/state"))
				s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `\.v1$`, Times: 1, Effect: lose})
				s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `\.v1$`, Effect: testenv.Status(refusal, 0)})
				a := stateOf(t, 1, "", "one")
				o := release.PublishOptions{HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Precondition: &release.Precondition{}}
				if _, err := release.Publish(t.Context(), repo, a, o); err != nil {
					t.Errorf("Publish = %v", err)
				}
				if d, err := repo.Resolve(t.Context(), "press-07"); err != nil || d.Digest != a.Descriptor.Digest {
					t.Errorf("the tag names %s, %v", d.Digest, err)
				}
			})
		}
	}
}

// One that is ended after the tags were set says so: whoever reads it knows that there may be something to look at.
func TestEndedBeforeTagsWereLookedAt(t *testing.T) {
	s := testenv.Registry(t, testenv.Referrers)
	repo := openName(t, clientFor(t, s), s.Reference("plant/state"))
	ctx, cancel := context.WithCancel(t.Context())
	onceAt(s, http.MethodPut, `/manifests/press-07$`, func() {}, func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(w, r)
		onceAt(s, http.MethodGet, `/manifests/press-07`, cancel, testenv.Reset())
	})
	a := stateOf(t, 1, "", "one")
	_, err := release.Publish(ctx, repo, a, release.PublishOptions{
		HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Precondition: &release.Precondition{},
	})
	if !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "publish "+repo.Name()+":press-07") || !strings.Contains(fault.Hint(err), "tags were set") {
		t.Errorf("Publish = %v, hint %q", err, fault.Hint(err))
	}
	if d, err := repo.Resolve(t.Context(), "press-07"); err != nil || d.Digest != a.Descriptor.Digest {
		t.Errorf("the tag names %s, %v", d.Digest, err)
	}
}

// That a registry is away for a moment says nothing about the rules for its tags.
func TestListOfReferrersHints(t *testing.T) {
	for status, want := range map[int]bool{http.StatusServiceUnavailable: false, http.StatusPreconditionFailed: true, http.StatusForbidden: true} {
		s := testenv.Registry(t, testenv.Distribution)
		repo := openName(t, newClient(t, registry.Options{RetryBudget: -1}), s.Reference("line/state"))
		subject, _ := put(t, repo, "subject", nil, "t")
		s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/sha256-`, Effect: testenv.Status(status, 0)})
		desc, data := manifestOf(t, blobOf([]byte("subject")), &subject)
		if err := repo.PushReferrer(t.Context(), desc, data); err == nil || strings.Contains(fault.Hint(err), "mutable") != want {
			t.Errorf("%d: %v, hint %q", status, err, fault.Hint(err))
		}
	}
}
