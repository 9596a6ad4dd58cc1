package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"path"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// referring signs by what has to be there of a signature: a manifest that refers to the subject.
type referring struct{ t testing.TB }

func (s referring) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	layer := []byte("signature")
	if err := repo.PushBlob(ctx, empty(), []byte("{}")); err != nil {
		return err
	}
	if err := repo.PushBlob(ctx, blobOf(layer), layer); err != nil {
		return err
	}
	desc, data := manifestOf(s.t, blobOf(layer), &subject)
	return repo.PushReferrer(ctx, desc, data)
}

// A publisher that is gone before or after any of its requests leaves no tag on what is not signed, and the same
// publication taken up again comes to its end.
func TestPublisherKilledAtEachRequest(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		for name, c := range map[string]struct {
			last testenv.Effect
			new  bool // a generation that the plan has not seen
		}{
			"before": {testenv.Reset(), false}, "after": {testenv.LoseAnswer(), false},
			"before, new": {testenv.Reset(), true}, "after, new": {testenv.LoseAnswer(), true},
		} {
			last := c.last
			t.Run(string(kind)+", "+name, func(t *testing.T) {
				t.Parallel()
				s := testenv.Registry(t, kind)
				a := stateOf(t, 1, "", "one")
				for n, ended := 0, false; !ended; n++ {
					where := s.Reference("plant/state" + string(rune('a'+n/26)) + string(rune('a'+n%26)))
					publish := func(budget time.Duration) error {
						_, err := release.Publish(t.Context(), openName(t, newClient(t, registry.Options{RetryBudget: budget, TagWait: time.Millisecond}), where), a, release.PublishOptions{
							Signer: referring{t}, HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Precondition: &release.Precondition{New: c.new},
						})
						return err
					}
					s.Faults.Add(testenv.Rule{Skip: n, Times: 1, Effect: last})
					s.Faults.Add(testenv.Rule{Skip: n, Effect: testenv.Reset()}) // the rule before takes what it breaks
					ended = publish(-1) == nil
					s.Faults.Clear()
					looker := openName(t, clientFor(t, s), where)
					for _, tag := range []string{"press-07.v1", "press-07"} {
						d, err := looker.Resolve(t.Context(), tag)
						if errors.Is(err, fault.ErrNotFound) {
							continue
						}
						if list, refErr := looker.Referrers(t.Context(), d); err != nil || refErr != nil || len(list) == 0 {
							t.Errorf("after %d requests %s names what %d refer to: %v, %v", n, tag, len(list), err, refErr)
						}
					}
					if err := publish(time.Second); err != nil {
						t.Errorf("taken up after %d requests: %v", n, err)
					}
					if d, err := looker.Resolve(t.Context(), "press-07"); err != nil || d.Digest != a.Descriptor.Digest {
						t.Errorf("taken up after %d requests: the tag names %s, %v", n, d.Digest, err)
					}
					if n > 60 {
						t.Fatal("it never ended")
					}
					if ended && n < 10 {
						t.Errorf("only %d requests", n)
					}
				}
			})
		}
	}
}

// The manifest of a new generation comes with its history tag, after its signature. A registry that has lost a blob which the plan has
// seen, or that accepts no signature before its subject, gets everything in the other order.
func TestNewGenerationIsPutLast(t *testing.T) {
	subjects := testenv.Rule{Method: http.MethodPut, Path: "/manifests/sha256:", Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		body, err := io.ReadAll(r.Body)
		var m ocispec.Manifest
		if err == nil {
			err = json.Unmarshal(body, &m)
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		if m.Subject != nil {
			look := httptest.NewRecorder()
			head := httptest.NewRequest(http.MethodHead, path.Dir(r.URL.Path)+"/"+m.Subject.Digest.String(), nil)
			head.Header.Set("Accept", ocispec.MediaTypeImageManifest)
			if next.ServeHTTP(look, head); look.Code != http.StatusOK {
				http.Error(w, `{"errors":[{"code":"MANIFEST_INVALID"}]}`, http.StatusBadRequest)
				return
			}
		}
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	}}
	for name, c := range map[string]struct {
		lost  bool // every blob
		rules []testenv.Rule
		puts  int // of the manifest
	}{
		"first":           {puts: 2}, // the two tags
		"blobs lost":      {lost: true, puts: 5},
		"subject missing": {rules: []testenv.Rule{subjects}, puts: 3},
	} {
		t.Run(name, func(t *testing.T) {
			s := testenv.Registry(t, testenv.Distribution)
			repo := openName(t, clientThatWaits(t, s, time.Millisecond), s.Reference("plant/state"))
			a := stateOf(t, 1, "", "one")
			o := release.PublishOptions{Signer: referring{t}, HistoryTag: "press-07.v1", Tags: []string{"press-07"}, Precondition: &release.Precondition{New: true}}
			if c.lost {
				for _, b := range a.Blobs {
					o.Held = append(o.Held, b.Descriptor.Digest)
				}
			}
			for _, r := range c.rules {
				s.Faults.Add(r)
			}
			d, err := release.Publish(t.Context(), repo, a, o)
			if err != nil {
				t.Fatal(err)
			}
			puts := len(s.Faults.Requests(http.MethodPut, "/manifests/press-07")) + len(s.Faults.Requests(http.MethodPut, "/manifests/"+d.Digest.String()))
			if list, err := repo.Referrers(t.Context(), d); err != nil || len(list) != 1 || puts != c.puts {
				t.Errorf("%d PUTs of the manifest, want %d; %d signatures, %v", puts, c.puts, len(list), err)
			}
		})
	}
}
