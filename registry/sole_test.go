package registry_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"path"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

var races = flag.Int("registry.races", 40, "rounds of publishers that race")

// immutable refuses to move a history tag, as registries with such a rule do.
func immutable(tags *sync.Mutex) testenv.Rule {
	return testenv.Rule{Method: http.MethodPut, Path: `/manifests/[^/]+\.v\d+$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		tags.Lock()
		defer tags.Unlock()
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		look := httptest.NewRecorder()
		get := httptest.NewRequest(http.MethodGet, r.URL.Path, nil)
		get.Header.Set("Accept", ocispec.MediaTypeImageManifest)
		next.ServeHTTP(look, get)
		if look.Code == http.StatusOK && !bytes.Equal(look.Body.Bytes(), body) {
			w.WriteHeader(http.StatusPreconditionFailed)
			_, _ = io.WriteString(w, `{"errors":[{"code":"PRECONDITION","message":"configured as immutable"}]}`)
			return
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	}}
}

func stateOf(t testing.TB, generation uint64, previous digest.Digest, who string) *artifacts.Artifact {
	t.Helper()
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-07", Generation: generation, Previous: previous, Annotations: map[string]string{"who": who}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// revisionOf is a rollout of a fleet that is called as the device is.
func revisionOf(t testing.TB, revision uint64, previous digest.Digest, who string) *artifacts.Artifact {
	t.Helper()
	at := time.Unix(1700000000, 0).UTC()
	a, err := artifacts.PackRollout(artifacts.RolloutOptions{Revision: revision, Previous: previous, Rollout: &artifacts.Rollout{
		Fleet: "press-07", Phase: artifacts.RolloutRunning, Content: digest.FromString(""), By: who, Claim: "1", Began: at, Changed: at,
	}})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// Of publishers of one generation at most one is told that it published, and then its state is what the device gets.
func TestPublishersRace(t *testing.T) {
	for _, c := range []struct {
		kind      testenv.Kind
		immutable bool
		rollout   bool // and not a device's state
	}{
		{testenv.Distribution, false, false},
		{testenv.Distribution, true, false},
		{testenv.Referrers, false, false},
		{testenv.Lax, false, false},
		{testenv.Lax, true, false},
		{testenv.Distribution, false, true},
		{testenv.Lax, true, true},
	} {
		name, pack := string(c.kind), stateOf
		if c.rollout {
			name, pack = name+", a rollout", revisionOf
		}
		if c.immutable {
			name += " with immutable tags"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting for the others' tags to settle
			server := testenv.Registry(t, c.kind)
			if c.immutable {
				server.Faults.Add(immutable(&sync.Mutex{}))
			}
			// Requests about tags take their time, each another one: so the publishers pass each other in every way.
			server.Faults.Add(testenv.Rule{Path: `/manifests/press`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				testenv.Delay(time.Duration(rand.IntN(3000))*time.Microsecond)(w, r, next)
			}})
			open := func() *registry.Repository {
				return openName(t, clientFor(t, server), server.Reference("plant/state"))
			}
			publishers := []*registry.Repository{open(), open(), open()}
			looker := open()
			tag := artifacts.DeviceID("press-07").Tag()
			none := 0
			base, generation := digest.Digest(""), uint64(1)
			for round := range *races {
				var wg sync.WaitGroup
				made := make([]*artifacts.Artifact, len(publishers))
				errs := make([]error, len(publishers))
				for i, repo := range publishers {
					made[i] = pack(t, generation, base, strconv.Itoa(round)+"-"+strconv.Itoa(i))
					wg.Go(func() {
						_, errs[i] = repo.Publish(t.Context(), made[i], registry.PublishOptions{
							HistoryTag: artifacts.HistoryTag(tag, generation), Tags: []string{tag},
							Sole: &registry.Sole{Tagged: base, NextTag: artifacts.HistoryTag(tag, generation+1)},
						})
					})
				}
				wg.Wait()
				there, err := looker.Resolve(t.Context(), tag)
				if err != nil && !errors.Is(err, fault.ErrNotFound) {
					t.Fatal(err)
				}
				history, err := looker.Resolve(t.Context(), artifacts.HistoryTag(tag, generation))
				if err != nil {
					t.Fatal(err)
				}
				winner := -1
				for i, err := range errs {
					switch {
					case err == nil && winner >= 0:
						t.Fatalf("round %d: two were told that they published", round)
					case err == nil:
						winner = i
					case !errors.Is(err, fault.ErrConflict):
						t.Fatalf("round %d: %v, want a conflict", round, err)
					}
				}
				if winner < 0 {
					none++
				} else if want := made[winner].Descriptor.Digest; there.Digest != want || history.Digest != want {
					t.Fatalf("round %d: %d published %s; the tag names %s, the history %s", round, winner, want, there.Digest, history.Digest)
				}
				// The next ones follow the history, as planning does, and put the tag where it belongs.
				base, generation = there.Digest, generation+1
			}
			t.Logf("%d rounds, %d without a winner", *races, none)
			if none == *races {
				t.Error("nobody ever won")
			}
		})
	}
}

// One that comes late is told, whatever it had done when the other one came.
func TestPublisherComesLate(t *testing.T) {
	t.Run("a state", func(t *testing.T) { comesLate(t, stateOf) })
	t.Run("a rollout", func(t *testing.T) { comesLate(t, revisionOf) })
}

func comesLate(t *testing.T, stateOf func(testing.TB, uint64, digest.Digest, string) *artifacts.Artifact) {
	server := testenv.Registry(t, testenv.Distribution)
	repo := openName(t, clientFor(t, server), server.Reference("plant/state"))
	first := stateOf(t, 1, "", "first")
	at := func(a *artifacts.Artifact, generation uint64, base digest.Digest) error {
		_, err := repo.Publish(t.Context(), a, registry.PublishOptions{
			HistoryTag: artifacts.HistoryTag("press-07", generation), Tags: []string{"press-07"},
			Sole: &registry.Sole{Tagged: base, NextTag: artifacts.HistoryTag("press-07", generation+1)},
		})
		return err
	}
	names := func(tag string) digest.Digest {
		t.Helper()
		d, err := repo.Resolve(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		return d.Digest
	}
	if err := at(first, 1, ""); err != nil {
		t.Fatal(err)
	}
	if err := at(first, 1, ""); err != nil {
		t.Errorf("the same again: %v", err)
	}
	if err := at(stateOf(t, 1, "", "late"), 1, ""); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("the generation is there: %v", err)
	}
	if err := at(stateOf(t, 2, "", "late"), 2, ""); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("the tag has moved: %v", err)
	}
	// What somebody left above, and nobody follows, is no reason to give up, and never what the device gets.
	junk := stateOf(t, 9, "", "junk")
	if _, err := repo.Publish(t.Context(), junk, registry.PublishOptions{Tags: []string{"other.v2"}}); err != nil {
		t.Fatal(err)
	}
	lone := stateOf(t, 1, "", "lone")
	if _, err := repo.Publish(t.Context(), lone, registry.PublishOptions{
		HistoryTag: "other.v1", Tags: []string{"other"}, Sole: &registry.Sole{NextTag: "other.v2"},
	}); err != nil || names("other") != lone.Descriptor.Digest {
		t.Errorf("beside junk: %v, the tag names %s", err, names("other"))
	}
	// Another one sets both tags while this one is between its look and its own tag: it gives the history tag back.
	second, third := stateOf(t, 2, first.Descriptor.Digest, "second"), stateOf(t, 2, first.Descriptor.Digest, "third")
	var once sync.Once
	server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/press-07\.v2$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		once.Do(func() {
			server.Faults.Clear()
			if err := at(second, 2, first.Descriptor.Digest); err != nil {
				t.Error(err)
			}
		})
		next.ServeHTTP(w, r)
	}})
	if err := at(third, 2, first.Descriptor.Digest); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("the other one has published meanwhile: %v", err)
	}
	if want := second.Descriptor.Digest; names("press-07") != want || names("press-07.v2") != want {
		t.Errorf("the tag names %s, the history %s, want %s", names("press-07"), names("press-07.v2"), want)
	}
	// One follows while this one has set its history tag only: the tag must not go back.
	fourth, fifth := stateOf(t, 3, second.Descriptor.Digest, "fourth"), stateOf(t, 4, second.Descriptor.Digest, "fifth")
	once = sync.Once{}
	server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/press-07$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		once.Do(func() {
			server.Faults.Clear()
			if err := at(fifth, 4, second.Descriptor.Digest); err != nil {
				t.Error(err)
			}
		})
		next.ServeHTTP(w, r)
	}})
	if err := at(fourth, 3, second.Descriptor.Digest); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("a generation above is there: %v", err)
	}
	if want := fifth.Descriptor.Digest; names("press-07") != want {
		t.Errorf("the tag names %s, want the newest, %s", names("press-07"), want)
	}
}

// Of three, one has its history tag written over by one that comes late, and its moving tag by another one, after it has
// looked: only when all is quiet can it know whether it has published.
func TestThreePublishers(t *testing.T) {
	type whose struct{}
	server := testenv.Registry(t, testenv.Distribution)
	name := server.Reference("plant/state")
	made := map[string]*artifacts.Artifact{}
	for _, who := range []string{"first", "slow", "late"} {
		made[who] = stateOf(t, 1, "", who)
	}
	// slow is held before it sets the moving tag, late before it sets the history tag, first until slow stands there.
	slowAt, slowGoes, lateGoes, lateDone := make(chan struct{}), make(chan struct{}), make(chan struct{}), make(chan struct{})
	hold := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		tag := path.Base(r.URL.Path)
		is := func(who, at string) bool { return tag == at && bytes.Equal(body, made[who].Manifest) }
		switch {
		case is("first", "press-07.v1"):
			<-slowAt
		case is("slow", "press-07"):
			close(slowAt)
			<-slowGoes
		case is("late", "press-07.v1"):
			<-lateGoes
		}
		next.ServeHTTP(w, r)
		if is("slow", "press-07") {
			close(lateGoes)
			<-lateDone // what slow sees next is what late has put right
		}
	}
	server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/press-07`, Effect: hold})
	var once sync.Once
	t.Cleanup(registry.SetSettle(func(ctx context.Context) error {
		if ctx.Value(whose{}) == "first" {
			once.Do(func() { close(slowGoes); <-lateDone })
		}
		return nil
	}))
	var wg sync.WaitGroup
	var mu sync.Mutex
	errs := map[string]error{}
	looked := sync.WaitGroup{} // all have seen that the generation is free
	looked.Add(len(made))
	server.Faults.Add(testenv.Rule{Method: http.MethodHead, Path: `/manifests/press-07\.v1$`, Times: len(made), Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(w, r)
		looked.Done()
		looked.Wait()
	}})
	for who, a := range made {
		repo := openName(t, clientFor(t, server), name)
		wg.Go(func() {
			_, err := repo.Publish(context.WithValue(t.Context(), whose{}, who), a, registry.PublishOptions{
				HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Sole: &registry.Sole{NextTag: "press-07.v2"},
			})
			if who == "late" {
				close(lateDone)
			}
			mu.Lock()
			defer mu.Unlock()
			errs[who] = err
		})
	}
	wg.Wait()
	looker := openName(t, clientFor(t, server), name)
	var told []string
	for who, err := range errs {
		if err == nil {
			told = append(told, who)
		} else if !errors.Is(err, fault.ErrConflict) {
			t.Errorf("%s: %v, want a conflict", who, err)
		}
	}
	tag, err := looker.Resolve(t.Context(), "press-07")
	if err != nil {
		t.Fatal(err)
	}
	history, err := looker.Resolve(t.Context(), "press-07.v1")
	if err != nil {
		t.Fatal(err)
	}
	if len(told) > 1 || tag.Digest != history.Digest || len(told) == 1 && made[told[0]].Descriptor.Digest != tag.Digest {
		t.Errorf("%v were told that they published; the tag names %s, the history %s of %v", told, tag.Digest, history.Digest, errs)
	}
	t.Logf("told: %v", told)
}

// Who is followed at once has published all the same: what comes above names it as the one before.
func TestFollowedAtOnce(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	repo := openName(t, clientFor(t, server), server.Reference("plant/state"))
	at := func(a *artifacts.Artifact, generation uint64, base digest.Digest) error {
		_, err := repo.Publish(t.Context(), a, registry.PublishOptions{
			HistoryTag: artifacts.HistoryTag("press-07", generation), Tags: []string{"press-07"},
			Sole: &registry.Sole{Tagged: base, NextTag: artifacts.HistoryTag("press-07", generation+1)},
		})
		return err
	}
	first := stateOf(t, 1, "", "first")
	second := stateOf(t, 2, first.Descriptor.Digest, "second")
	followed := false
	t.Cleanup(registry.SetSettle(func(context.Context) error {
		if !followed {
			followed = true
			return at(second, 2, first.Descriptor.Digest)
		}
		return nil
	}))
	if err := at(first, 1, ""); err != nil {
		t.Errorf("it was published, and then followed: %v", err)
	}
	if d, err := repo.Resolve(t.Context(), "press-07"); err != nil || d.Digest != second.Descriptor.Digest {
		t.Errorf("the tag names %s (%v), want the newest", d.Digest, err)
	}
}

// What somebody puts above while a generation is published is followed only as far as it is a history: tags that name other
// generations, or states of another device, lead nobody in a circle and are never what the device gets.
func TestOddHistoryAbove(t *testing.T) {
	other, err := artifacts.PackState(artifacts.StateOptions{Device: "press-08", Generation: 2})
	if err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		above map[string]*artifacts.Artifact // by tag
		want  string                         // tag that the device's one ends at
		is    error
	}{
		"in a circle":             {map[string]*artifacts.Artifact{"press-07.v2": stateOf(t, 4, "", "a"), "press-07.v5": stateOf(t, 1, "", "b")}, "press-07.v1", nil},
		"of another number":       {map[string]*artifacts.Artifact{"press-07.v2": stateOf(t, 9, "", "a")}, "press-07.v1", nil},
		"of another device":       {map[string]*artifacts.Artifact{"press-07.v2": other}, "press-07.v1", nil},
		"one, and then a circle":  {map[string]*artifacts.Artifact{"press-07.v2": stateOf(t, 2, "", "a"), "press-07.v3": stateOf(t, 1, "", "b")}, "press-07.v2", fault.ErrConflict},
		"two, and then something": {map[string]*artifacts.Artifact{"press-07.v2": stateOf(t, 2, "", "a"), "press-07.v3": stateOf(t, 3, "", "b"), "press-07.v4": stateOf(t, 2, "", "c")}, "press-07.v3", fault.ErrConflict},
	} {
		t.Run(name, func(t *testing.T) {
			server := testenv.Registry(t, testenv.Referrers)
			repo := openName(t, clientFor(t, server), server.Reference("plant/state"))
			names := func(tag string) digest.Digest {
				t.Helper()
				d, err := repo.Resolve(t.Context(), tag)
				if err != nil {
					t.Fatal(err)
				}
				return d.Digest
			}
			var once sync.Once
			server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: `/manifests/press-07$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				once.Do(func() {
					server.Faults.Clear()
					for tag, a := range c.above {
						if _, err := repo.Publish(t.Context(), a, registry.PublishOptions{Tags: []string{tag}}); err != nil {
							t.Error(err)
						}
					}
				})
				next.ServeHTTP(w, r)
			}})
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
			defer cancel()
			_, err := repo.Publish(ctx, stateOf(t, 1, "", "ours"), registry.PublishOptions{
				HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Sole: &registry.Sole{NextTag: "press-07.v2"},
			})
			if !errors.Is(err, c.is) || names("press-07") != names(c.want) {
				t.Errorf("Publish = %v, want %v; the tag names %s, want %s", err, c.is, names("press-07"), names(c.want))
			}
		})
	}
}
