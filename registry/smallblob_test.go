package registry_test

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// Whatever a registry makes of the short ways to send a small blob, the blob is there in the end.
func TestSmallBlobs(t *testing.T) {
	t.Parallel()
	query := func(key string, effect testenv.Effect) testenv.Effect {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			if r.URL.Query().Get(key) == "" {
				next.ServeHTTP(w, r)
				return
			}
			effect(w, r, next)
		}
	}
	created := func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		_, _ = io.Copy(io.Discard, r.Body)
		w.Header().Set("Location", r.URL.Path)
		w.WriteHeader(http.StatusCreated)
	}
	withoutPort := func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		testenv.Rewrite(func(h http.Header, data []byte) []byte {
			if at := h.Get("Location"); strings.HasPrefix(at, "http://127.0.0.1:") {
				_, path, _ := strings.Cut(strings.TrimPrefix(at, "http://"), "/")
				h.Set("Location", "http://127.0.0.1/"+path)
			}
			return data
		})(w, r, next)
	}
	for name, rule := range map[string]testenv.Rule{
		"as they are":                     {Path: "never"},
		"says created and keeps nothing":  {Method: http.MethodPost, Path: "/uploads/", Effect: query("digest", created)},
		"knows no single POST":            {Method: http.MethodPost, Path: "/uploads/", Effect: query("digest", testenv.Status(http.StatusMethodNotAllowed, 0))},
		"knows no mount":                  {Method: http.MethodPost, Path: "/uploads/", Effect: query("mount", testenv.Status(http.StatusBadRequest, 0))},
		"mount without a place":           {Method: http.MethodPost, Path: "/uploads/", Effect: query("mount", testenv.Status(http.StatusAccepted, 0))},
		"forgets the port of a place":     {Method: http.MethodPost, Path: "/uploads/", Effect: withoutPort},
		"has lost a blob, and then takes": {Method: http.MethodPut, Path: "/manifests/sha256:", Skip: 1, Times: 1, Effect: testenv.Status(http.StatusNotFound, 0)},
	} {
		for _, kind := range testenv.Kinds() {
			t.Run(name+" "+string(kind), func(t *testing.T) {
				t.Parallel()
				s := testenv.Registry(t, kind)
				s.Faults.Add(rule)
				r := openName(t, clientFor(t, s), s.Reference("line/state"))
				for _, layers := range [][]string{{"one", "two"}, {"two", "three"}, {"two", "three"}, {strings.Repeat("large", 4000), "three"}} {
					a := artifact(t, layers...)
					if _, err := release.Publish(t.Context(), r, a, release.PublishOptions{Tags: []string{"press-07"}}); err != nil {
						t.Fatal(err)
					}
					for _, b := range a.Blobs {
						if data, err := r.Blob(t.Context(), b.Descriptor, 1<<20); err != nil || string(data) != string(b.Data) {
							t.Errorf("blob %.10q = %.10q, %v", b.Data, data, err)
						}
					}
				}
			})
		}
	}
}

// Whoever answers an upload with another Location must not get what was meant for the registry: no credentials in the clear
// on the registry's own port, no content on another host.
func TestUploadStaysWhereItBegan(t *testing.T) {
	t.Parallel()
	location := func(change func(at *url.URL)) testenv.Effect {
		return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
			seen := httptest.NewRecorder()
			next.ServeHTTP(seen, r)
			at, err := url.Parse(seen.Header().Get("Location"))
			if err == nil && seen.Code == http.StatusAccepted {
				at = (&url.URL{Scheme: "https", Host: r.Host}).ResolveReference(at)
				change(at)
				seen.Header().Set("Location", at.String())
			}
			maps.Copy(w.Header(), seen.Header())
			w.WriteHeader(seen.Code)
			_, _ = w.Write(seen.Body.Bytes())
		}
	}
	other := testenv.Registry(t, testenv.Distribution)
	for name, change := range map[string]func(at *url.URL){
		"without TLS":     func(at *url.URL) { at.Scheme = "http" },
		"at another host": func(at *url.URL) { at.Scheme, at.Host = "http", other.Host },
	} {
		for _, kind := range []testenv.Kind{testenv.DistributionHtpasswd, testenv.DistributionToken} {
			for _, size := range []int{10, 100 << 10} {
				t.Run(fmt.Sprintf("%s %s %d bytes", name, kind, size), func(t *testing.T) {
					s := testenv.Registry(t, kind, testenv.WithPlainToo())
					s.Faults.Add(testenv.Rule{Method: http.MethodPost, Path: "/uploads/", Effect: location(change)})
					r := openName(t, clientFor(t, s), s.Reference("line/state"))
					data := []byte(strings.Repeat("x", size))
					if err := r.PushBlob(t.Context(), blobOf(data), data); err == nil {
						t.Error("PushBlob = nil, want an error")
					}
					for _, asked := range s.Faults.Requests("", "") {
						if asked.Plain {
							t.Errorf("%s %s came without TLS, with Authorization %q", asked.Method, asked.Path, asked.Header.Get("Authorization"))
						}
					}
				})
			}
		}
	}
	if asked := other.Faults.Requests("", ""); len(asked) > 0 {
		t.Errorf("another host was asked: %+v", asked)
	}
}

// What a manifest in the repository names is not looked for, and sent after all when the registry has lost it.
func TestHeldBlobs(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	first := artifact(t, "kept", "old")
	if _, err := release.Publish(t.Context(), r, first, release.PublishOptions{Tags: []string{"press-07"}}); err != nil {
		t.Fatal(err)
	}
	kept := first.Blobs[1].Descriptor.Digest
	options := release.PublishOptions{Tags: []string{"press-07"}, Held: []digest.Digest{kept}}
	s.Faults.Forget()
	if _, err := release.Publish(t.Context(), r, artifact(t, "kept", "new"), options); err != nil {
		t.Fatal(err)
	}
	if n := len(s.Faults.Requests("", "/blobs/")); n != 2 {
		t.Errorf("%d requests about blobs, want 2, for the new one", n)
	}
	// Elsewhere it never was.
	other := openName(t, clientFor(t, s), s.Reference("line/other"))
	if _, err := release.Publish(t.Context(), other, artifact(t, "kept", "new"), options); err != nil {
		t.Errorf("a blob that was not there after all: %v", err)
	}
}

// freshSigner counts what it is told.
type freshSigner struct {
	signer
	fresh, looks *int
}

func (f freshSigner) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	*f.looks++
	return f.signer.Sign(ctx, repo, subject)
}

func (f freshSigner) SignFresh(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	*f.fresh++
	return f.signer.Sign(ctx, repo, subject)
}

// Only what was not there is called fresh, also by a client that does not know the registry yet: what a killed publisher
// has signed may be there.
func TestFreshIsWhatWasNotThere(t *testing.T) {
	t.Parallel()
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			var fresh, looks int
			publish := func(r *registry.Repository, a *artifacts.Artifact) {
				t.Helper()
				if _, err := release.Publish(t.Context(), r, a, release.PublishOptions{Signer: freshSigner{signer{t: t}, &fresh, &looks}, Tags: []string{"press-07"}}); err != nil {
					t.Fatal(err)
				}
			}
			first := openName(t, clientFor(t, s), s.Reference("line/state"))
			publish(first, artifact(t, "one"))
			publish(first, artifact(t, "two"))
			if fresh != 2 || looks != 0 {
				t.Errorf("%d fresh, %d not, of two that were not there", fresh, looks)
			}
			publish(first, artifact(t, "two"))
			next := openName(t, clientFor(t, s), s.Reference("line/state"))
			publish(next, artifact(t, "one"))
			publish(next, artifact(t, "two"))
			if fresh != 2 || looks != 3 {
				t.Errorf("%d fresh, %d not, of five of which three were there", fresh, looks)
			}
		})
	}
}
