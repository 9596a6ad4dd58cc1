package registry_test

import (
	"bytes"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

var races = flag.Int("registry.races", testenv.Rounds(15, 400), "rounds of publishers that race")

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

// Of two publishers of one generation at most one is told that it published, and then its state is what the device gets. However
// many there are, the device's tag names the newest of the history when all have returned.
func TestPublishersRace(t *testing.T) {
	for _, c := range []struct {
		kind      testenv.Kind
		immutable bool
		rollout   bool // and not a device's state
		n         int  // publishers
	}{
		{testenv.Distribution, false, false, 2},
		{testenv.Distribution, true, false, 2},
		{testenv.Referrers, false, false, 2},
		{testenv.Lax, false, false, 2},
		{testenv.Lax, true, false, 2},
		{testenv.Distribution, false, true, 2},
		{testenv.Lax, true, true, 2},
		{testenv.Distribution, false, false, 3},
		{testenv.Lax, true, false, 3},
		{testenv.Referrers, false, true, 4},
	} {
		name, pack := fmt.Sprintf("%d at %s", c.n, c.kind), stateOf
		if c.rollout {
			name, pack = name+", a rollout", revisionOf
		}
		if c.immutable {
			name += " with immutable tags"
		}
		t.Run(name, func(t *testing.T) {
			t.Parallel() // most of it is waiting
			server := testenv.Registry(t, c.kind)
			if c.immutable {
				server.Faults.Add(immutable(&sync.Mutex{}))
			}
			// Requests about tags take their time, each another one: so the publishers pass each other in every way.
			server.Faults.Add(testenv.Rule{Path: `/manifests/press`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
				testenv.Delay(time.Duration(rand.IntN(3000))*time.Microsecond)(w, r, next)
			}})
			open := func() *registry.Repository {
				return openName(t, clientThatWaits(t, server, busyTagWait), server.Reference("plant/state"))
			}
			var publishers []*registry.Repository
			for range c.n {
				publishers = append(publishers, open())
			}
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
						_, errs[i] = release.Publish(t.Context(), repo, made[i], release.PublishOptions{
							HistoryTag: artifacts.HistoryTag(tag, generation), Tags: []string{tag},
							Precondition: &release.Precondition{Tagged: base},
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
				if there.Digest != history.Digest {
					t.Fatalf("round %d: the tag names %s, the history %s of %v", round, there.Digest, history.Digest, errs)
				}
				winner := -1
				for i, err := range errs {
					switch {
					case err == nil && winner >= 0 && c.n == 2:
						t.Fatalf("round %d: two were told that they published", round)
					case err == nil:
						winner = i
					case !errors.Is(err, fault.ErrConflict):
						t.Fatalf("round %d: %v, want a conflict", round, err)
					}
				}
				if winner < 0 {
					none++
				} else if want := made[winner].Descriptor.Digest; c.n == 2 && there.Digest != want {
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
		_, err := release.Publish(t.Context(), repo, a, release.PublishOptions{
			HistoryTag: artifacts.HistoryTag("press-07", generation), Tags: []string{"press-07"},
			Precondition: &release.Precondition{Tagged: base},
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
	if err := at(stateOf(t, 2, "", "late"), 2, digest.FromString("older")); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("the tag has moved: %v", err)
	}
	// What somebody left above, and nobody follows, is no reason to give up, and never what the device gets.
	junk := stateOf(t, 9, "", "junk")
	if _, err := release.Publish(t.Context(), repo, junk, release.PublishOptions{Tags: []string{"other.v2"}}); err != nil {
		t.Fatal(err)
	}
	lone := stateOf(t, 1, "", "lone")
	if _, err := release.Publish(t.Context(), repo, lone, release.PublishOptions{
		HistoryTag: "other.v1", Tags: []string{"other"}, Precondition: &release.Precondition{},
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

// Who is followed at once has published all the same: what comes above names it as the one before.
func TestFollowedAtOnce(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	repo := openName(t, clientFor(t, server), server.Reference("plant/state"))
	at := func(a *artifacts.Artifact, generation uint64, base digest.Digest) error {
		_, err := release.Publish(t.Context(), repo, a, release.PublishOptions{
			HistoryTag: artifacts.HistoryTag("press-07", generation), Tags: []string{"press-07"},
			Precondition: &release.Precondition{Tagged: base},
		})
		return err
	}
	first := stateOf(t, 1, "", "first")
	second := stateOf(t, 2, first.Descriptor.Digest, "second")
	onceAt(server, http.MethodGet, `/manifests/press-07\.v1$`, func() { // the tags are set, and about to be looked at
		if err := at(second, 2, first.Descriptor.Digest); err != nil {
			t.Error(err)
		}
	}, func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) })
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
						if _, err := release.Publish(t.Context(), repo, a, release.PublishOptions{Tags: []string{tag}}); err != nil {
							t.Error(err)
						}
					}
				})
				next.ServeHTTP(w, r)
			}})
			ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
			defer cancel()
			_, err := release.Publish(ctx, repo, stateOf(t, 1, "", "ours"), release.PublishOptions{
				HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Precondition: &release.Precondition{},
			})
			if !errors.Is(err, c.is) || names("press-07") != names(c.want) {
				t.Errorf("Publish = %v, want %v; the tag names %s, want %s", err, c.is, names("press-07"), names(c.want))
			}
		})
	}
}

// Who may write to the registry need not be one who may publish: nothing that nobody signed gets the device's tag, or the history
// tag of what was published, and what was signed is found above it.
func TestNothingUnsignedIsMadeCurrent(t *testing.T) {
	base := stateOf(t, 1, "", "base")
	ours, other := stateOf(t, 2, base.Descriptor.Digest, "ours"), stateOf(t, 2, base.Descriptor.Digest, "other")
	next, forged := stateOf(t, 3, ours.Descriptor.Digest, "next"), stateOf(t, 3, base.Descriptor.Digest, "forged")
	above := stateOf(t, 4, ours.Descriptor.Digest, "above")
	lost := stateOf(t, 3, ours.Descriptor.Digest, "lost") // its manifest: the registry has the tag only
	const history, tag = `/manifests/press-07\.v2$`, `/manifests/press-07$`
	type tags map[string]*artifacts.Artifact
	for _, c := range []struct {
		name    string
		before  string                // the request that it is done before
		sets    tags                  // by somebody else
		signed  []*artifacts.Artifact // beside base and ours
		is      error
		want    *artifacts.Artifact // what the device's tag names
		history *artifacts.Artifact // of generation 2
	}{
		{"above, that follows it", tag, tags{"press-07.v3": next}, nil, nil, ours, ours},
		{"above, that follows what was there", tag, tags{"press-07.v3": forged}, nil, nil, ours, ours},
		{"above, signed", tag, tags{"press-07.v3": next}, []*artifacts.Artifact{next}, nil, next, ours},
		{"above, and one that is signed above it", tag, tags{"press-07.v3": next, "press-07.v4": above}, []*artifacts.Artifact{above}, nil, above, ours},
		{"above, lost", tag, tags{"press-07.v3": lost}, nil, nil, ours, ours},
		{"in place of it", tag, tags{"press-07.v2": other}, nil, fault.ErrConflict, ours, other},
		{"in place of it, signed", tag, tags{"press-07.v2": other}, []*artifacts.Artifact{other}, fault.ErrConflict, other, other},
		{"first", history, tags{"press-07": other}, nil, fault.ErrConflict, other, ours},
		{"first, signed", history, tags{"press-07": other}, []*artifacts.Artifact{other}, fault.ErrConflict, other, other},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := testenv.Registry(t, testenv.Referrers)
			repo := openName(t, clientFor(t, server), server.Reference("plant/state"))
			at := func(a *artifacts.Artifact, generation uint64, was digest.Digest) error {
				_, err := release.Publish(t.Context(), repo, a, release.PublishOptions{
					HistoryTag: artifacts.HistoryTag("press-07", generation), Tags: []string{"press-07"},
					Precondition: &release.Precondition{Tagged: was, Verify: signedBy(append(c.signed, base, ours)...)},
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
			if err := at(base, 1, ""); err != nil {
				t.Fatal(err)
			}
			onceAt(server, http.MethodPut, c.before, func() {
				for tag, a := range c.sets {
					if _, err := release.Publish(t.Context(), repo, a, release.PublishOptions{Tags: []string{tag}}); err != nil {
						t.Error(err)
					}
				}
				server.Faults.Add(testenv.Rule{Path: "/manifests/" + lost.Descriptor.Digest.String(), Effect: testenv.Status(http.StatusNotFound, 0)})
			}, func(w http.ResponseWriter, r *http.Request, next http.Handler) { next.ServeHTTP(w, r) })
			if err := at(ours, 2, base.Descriptor.Digest); !errors.Is(err, c.is) {
				t.Errorf("Publish = %v, want %v", err, c.is)
			}
			if got, want := names("press-07"), c.want.Descriptor.Digest; got != want {
				t.Errorf("the tag names %s, want %s", got, want)
			}
			if got, want := names("press-07.v2"), c.history.Descriptor.Digest; got != want {
				t.Errorf("the history names %s, want %s", got, want)
			}
		})
	}
}

// signedBy is a check of signatures that lets these pass.
func signedBy(all ...*artifacts.Artifact) func(context.Context, digest.Digest) error {
	return func(_ context.Context, d digest.Digest) error {
		for _, a := range all {
			if a.Descriptor.Digest == d {
				return nil
			}
		}
		return fmt.Errorf("verify %s: %w", d, fault.ErrUnsigned)
	}
}

// Whether somebody else's generation is signed has to be known before the tag moves to it, or stays below it.
func TestCouldNotVerifyWhatIsAbove(t *testing.T) {
	server := testenv.Registry(t, testenv.Referrers)
	repo := openName(t, clientFor(t, server), server.Reference("plant/state"))
	ours := stateOf(t, 1, "", "ours")
	if _, err := release.Publish(t.Context(), repo, stateOf(t, 2, ours.Descriptor.Digest, "next"), release.PublishOptions{Tags: []string{"press-07.v2"}}); err != nil {
		t.Fatal(err)
	}
	_, err := release.Publish(t.Context(), repo, ours, release.PublishOptions{
		HistoryTag: "press-07.v1", Tags: []string{"press-07"},
		Precondition: &release.Precondition{Verify: func(context.Context, digest.Digest) error { return fault.ErrTemporary }},
	})
	if !errors.Is(err, fault.ErrTemporary) || fault.Hint(err) == "" {
		t.Errorf("Publish = %v (hint: %s), want fault.ErrTemporary and a hint", err, fault.Hint(err))
	}
	if d, err := repo.Resolve(t.Context(), "press-07"); err != nil || d.Digest != ours.Descriptor.Digest {
		t.Errorf("the tag names %s (%v), want what was published", d.Digest, err)
	}
}

// Where a generation is lost from the history, the next one is above all that is left: one that was planned into the gap is told,
// and the tag names the newest, unless nobody signed that.
func TestPublishIntoAGap(t *testing.T) {
	one := stateOf(t, 1, "", "one")
	two := stateOf(t, 2, one.Descriptor.Digest, "two")
	lost := stateOf(t, 3, two.Descriptor.Digest, "lost")
	four := stateOf(t, 4, lost.Descriptor.Digest, "four")
	three, five := stateOf(t, 3, two.Descriptor.Digest, "three"), stateOf(t, 5, four.Descriptor.Digest, "five")
	all := []*artifacts.Artifact{one, two, four, three, five}
	for _, c := range []struct {
		name       string
		tagged     *artifacts.Artifact // until now
		publish    *artifacts.Artifact
		generation uint64
		signed     []*artifacts.Artifact
		is         error
		want       *artifacts.Artifact
	}{
		{"above it", four, five, 5, all, nil, five},
		{"into it", two, three, 3, all, fault.ErrConflict, four},
		{"into it, and nobody signed what is above", two, three, 3, []*artifacts.Artifact{one, two, three}, nil, three},
	} {
		t.Run(c.name, func(t *testing.T) {
			server := testenv.Registry(t, testenv.Referrers)
			repo := openName(t, clientFor(t, server), server.Reference("plant/state"))
			for tag, a := range map[string]*artifacts.Artifact{"press-07.v1": one, "press-07.v2": two, "press-07.v4": four, "press-07": c.tagged} {
				if _, err := release.Publish(t.Context(), repo, a, release.PublishOptions{Tags: []string{tag}}); err != nil {
					t.Fatal(err)
				}
			}
			_, err := release.Publish(t.Context(), repo, c.publish, release.PublishOptions{
				HistoryTag: artifacts.HistoryTag("press-07", c.generation), Tags: []string{"press-07"},
				Precondition: &release.Precondition{Tagged: c.tagged.Descriptor.Digest, Verify: signedBy(c.signed...)},
			})
			if !errors.Is(err, c.is) {
				t.Errorf("Publish = %v, want %v", err, c.is)
			}
			if d, err := repo.Resolve(t.Context(), "press-07"); err != nil || d.Digest != c.want.Descriptor.Digest {
				t.Errorf("the tag names %s (%v), want %s", d.Digest, err, c.want.Descriptor.Digest)
			}
		})
	}
}

// A tag is set over what another one was told has held, and the answer is lost, and so is the first look after it: whoever set it
// looks again, and gives it back.
func TestLostAnswerIsLookedInto(t *testing.T) {
	for name, path := range map[string]string{"history tag": `/manifests/press-07\.v2$`, "moving tag": `/manifests/press-07$`} {
		t.Run(name, func(t *testing.T) {
			server := testenv.Registry(t, testenv.Referrers)
			where := server.Reference("plant/state")
			ours := openName(t, newClient(t, registry.Options{RetryBudget: -1}), where)
			other := openName(t, clientFor(t, server), where)
			before := stateOf(t, 1, "", "before")
			if _, err := release.Publish(t.Context(), other, before, release.PublishOptions{Tags: []string{"press-07"}}); err != nil {
				t.Fatal(err)
			}
			was := before.Descriptor.Digest
			at := func(repo *registry.Repository, a *artifacts.Artifact) error {
				_, err := release.Publish(t.Context(), repo, a, release.PublishOptions{
					HistoryTag: "press-07.v2", Tags: []string{"press-07"}, Precondition: &release.Precondition{Tagged: was},
				})
				return err
			}
			theirs := stateOf(t, 2, was, "theirs")
			onceAt(server, http.MethodPut, path, func() {
				if err := at(other, theirs); err != nil {
					t.Errorf("the other one: %v", err)
				}
				server.Faults.Add(testenv.Rule{Method: http.MethodHead, Path: path, Times: 1, Effect: testenv.Status(http.StatusServiceUnavailable, 0)})
			}, testenv.LoseAnswer())
			if err := at(ours, stateOf(t, 2, was, "ours")); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("Publish = %v, want fault.ErrConflict", err)
			}
			for _, tag := range []string{"press-07.v2", "press-07"} {
				if d, err := other.Resolve(t.Context(), tag); err != nil || d.Digest != theirs.Descriptor.Digest {
					t.Errorf("%s names %s (%v), want what the other one was told has held", tag, d.Digest, err)
				}
			}
		})
	}
}
