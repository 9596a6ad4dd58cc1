package registry_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// signed puts a subject with one referrer.
func signed(t testing.TB, r *registry.Repository) (subject, signature ocispec.Descriptor) {
	t.Helper()
	subject, _ = put(t, r, "subject", nil, "press-07")
	signature, _ = put(t, r, "signature", &subject, "")
	return subject, signature
}

func TestReferrersFallBackToTheTag(t *testing.T) {
	t.Parallel()
	index := []byte(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.index.v1+json","manifests":[]}`)
	for name, effect := range map[string]testenv.Effect{
		"404":             testenv.Status(404, 0),
		"404 in words":    words(404),
		"405":             testenv.Status(405, 0),
		"400":             testenv.Status(400, 0),
		"406":             testenv.Status(406, 0),
		"a page":          answer("text/html", []byte("<html>")),
		"JSON":            answer("application/json", index),
		"no content type": answer("", index),
		"an empty list":   answer(ocispec.MediaTypeImageIndex, index), // written before the registry had the API
	} {
		t.Run(name, func(t *testing.T) {
			s := testenv.Registry(t, testenv.Distribution)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			subject, signature := signed(t, r)
			s.Faults.Add(testenv.Rule{Path: "/referrers/", Effect: effect})
			list, err := r.Referrers(t.Context(), subject)
			if err != nil || len(list) != 1 || list[0].Digest != signature.Digest {
				t.Errorf("Referrers = %v, %v, want the one under the tag", list, err)
			}
		})
	}
}

// TestReferrersOfBothLists: a registry learned the API after a signature was listed under the tag, and a newer referrer,
// an SBOM perhaps, is listed by the API alone.
func TestReferrersOfBothLists(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, newClient(t, registry.Options{RetryBudget: time.Millisecond}), s.Reference("line/state"))
	subject, signature := signed(t, r)
	sbom, _ := put(t, openName(t, clientFor(t, s), s.Reference("line/other")), "sbom", nil, "x")
	both, err := json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{sbom, signature}})
	if err != nil {
		t.Fatal(err)
	}
	one, err := json.Marshal(ocispec.Index{Manifests: []ocispec.Descriptor{sbom}})
	if err != nil {
		t.Fatal(err)
	}
	for _, byAPI := range [][]byte{one, both} {
		s.Faults.Clear()
		s.Faults.Add(testenv.Rule{Path: "/referrers/", Effect: answer(ocispec.MediaTypeImageIndex, byAPI)})
		list, err := r.Referrers(t.Context(), subject)
		if err != nil || len(list) != 2 || list[0].Digest != sbom.Digest || list[1].Digest != signature.Digest {
			t.Errorf("Referrers = %v, %v, want the SBOM and the signature, once each", list, err)
		}
	}
	s.Faults.Add(testenv.Rule{Path: "/manifests/sha256-", Effect: testenv.Status(503, 0)})
	if list, err := r.Referrers(t.Context(), subject); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Referrers without an answer about the tag = %v, %v, want fault.ErrTemporary", list, err)
	}
}

// TestReferrersUntilEnough: the API and the fallback tag are read one after the other until the entries suffice, the tag first at a registry
// without the API.
func TestReferrersUntilEnough(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind testenv.Kind
		want []string // requests of the second and third reading, the third of which nothing suffices
	}{
		"API":    {testenv.Referrers, []string{"API", "API tag"}},
		"no API": {testenv.Distribution, []string{"tag", "tag API"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, c.kind)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			subject, signature := signed(t, r)
			for round, want := range append([]string{""}, c.want...) {
				s.Faults.Forget()
				calls := 0
				err := r.EachReferrers(t.Context(), subject, func(list []ocispec.Descriptor) bool {
					calls++
					if len(list) != 1 || list[0].Digest != signature.Digest {
						t.Errorf("list = %v", list)
					}
					return round < 2
				})
				var asked []string
				for _, q := range s.Faults.Requests("", "") {
					what := "tag"
					if strings.Contains(q.Path, "/referrers/") {
						what = "API"
					}
					asked = append(asked, what)
				}
				if got := strings.Join(asked, " "); err != nil || calls != 1 || want != "" && got != want {
					t.Errorf("reading %d: %v, %d lists, asked %q, want %q", round+1, err, calls, got, want)
				}
			}
		})
	}
}

// TestMalformedReferrersHideNothing: everybody who may push can attach something whose descriptor a registry lists as it
// came. Signatures beside it stay readable, by the API and by the tag, and one that is added keeps them.
func TestMalformedReferrersHideNothing(t *testing.T) {
	t.Parallel()
	for _, bad := range []string{
		`{"digest":"sha256:1","size":5}`,
		`{"digest":7,"size":5}`,
		`{"digest":"` + someDigest + `","size":-1}`,
		`{"digest":"` + someDigest + `","size":"5"}`,
		`{"digest":"` + someDigest + `","size":5e99}`,
		`{"digest":"` + someDigest + `","size":5,"annotations":{"a":1}}`,
		`{"digest":"` + someDigest + `","size":5,"annotations":[]}`,
		`{"digest":"` + someDigest + `","size":5,"mediaType":{}}`,
		`{"digest":"md5:d41d8cd98f00b204e9800998ecf8427e","size":5}`,
		`null`, `[]`, `"sha256"`, `5`, `{}`,
	} {
		t.Run(bad, func(t *testing.T) {
			t.Parallel()
			var log bytes.Buffer
			s := testenv.Registry(t, testenv.Referrers)
			c, err := registry.New(registry.Options{
				Getenv: environment(nil), Logger: slog.New(slog.NewTextHandler(&log, &slog.HandlerOptions{Level: slog.LevelDebug})),
			})
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			r := openName(t, c, s.Reference("line/state"))
			subject, signature := signed(t, r)
			other := `{"digest":"` + someDigest + `","size":5,"unknown":{"a":1},"annotations":{"a":"\u003c<"}}`
			index := []byte(fmt.Sprintf(`{"schemaVersion":2,"mediaType":%q,"manifests":[%s,{"mediaType":%q,"digest":%q,"size":%d},%s]}`,
				ocispec.MediaTypeImageIndex, bad, signature.MediaType, signature.Digest, signature.Size, other))
			check := func(source string) {
				t.Helper()
				list, err := r.Referrers(t.Context(), subject)
				if err != nil || len(list) != 2 || list[0].Digest != signature.Digest || list[1].Digest != someDigest || list[1].Annotations["a"] != "<<" {
					t.Errorf("Referrers by the %s = %v, %v, want the signature and what stands behind it", source, list, err)
				}
			}
			s.Faults.Add(testenv.Rule{Path: "/referrers/", Effect: answer(ocispec.MediaTypeImageIndex, index)})
			check("API")
			s.Faults.Clear()
			s.Faults.Add(testenv.Rule{Path: "/referrers/", Effect: testenv.Status(404, 0)})
			s.Faults.Add(testenv.Rule{Path: "/manifests/sha256-", Effect: answer(ocispec.MediaTypeImageIndex, index)})
			check("tag")
			if n := strings.Count(log.String(), "malformed"); n != 2 {
				t.Errorf("%d messages about what was left out, want 2:\n%s", n, &log)
			}
		})
	}
}

func words(status int) testenv.Effect {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		http.Error(w, "404 page not found", status)
	}
}

func answer(contentType string, body []byte) testenv.Effect {
	return func(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
		w.Header()["Content-Type"] = []string{contentType}
		_, _ = w.Write(body)
	}
}

// TestReferrersThatCouldNotBeAskedAreNotNone: a registry that is down must not look like one without signatures.
func TestReferrersThatCouldNotBeAskedAreNotNone(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		path   string
		effect testenv.Effect
		is     error
	}{
		"API 500":             {"/referrers/", testenv.Status(500, 0), fault.ErrTemporary},
		"API 501":             {"/referrers/", testenv.Status(501, 0), fault.ErrTemporary},
		"API 503":             {"/referrers/", testenv.Status(503, 0), fault.ErrTemporary},
		"API 429":             {"/referrers/", testenv.Status(429, time.Hour), fault.ErrTemporary},
		"API 403":             {"/referrers/", testenv.Status(403, 0), fault.ErrDenied},
		"API reset":           {"/referrers/", testenv.Reset(), fault.ErrTemporary},
		"API cut":             {"/referrers/", testenv.Cut(0), fault.ErrTemporary},
		"API not JSON":        {"/referrers/", answer(ocispec.MediaTypeImageIndex, []byte("{")), fault.ErrInvalid},
		"API endless":         {"/referrers/", answer(ocispec.MediaTypeImageIndex, make([]byte, 5<<20)), fault.ErrTooLarge},
		"tag 503":             {"/manifests/sha256-", testenv.Status(503, 0), fault.ErrTemporary},
		"tag reset":           {"/manifests/sha256-", testenv.Reset(), fault.ErrTemporary},
		"tag 403":             {"/manifests/sha256-", testenv.Status(403, 0), fault.ErrDenied},
		"tag is a login page": {"/manifests/sha256-", answer("text/html", []byte("<html>")), fault.ErrTemporary},
		"everything a page":   {"", answer("text/html", []byte("<html>")), fault.ErrTemporary},
		"list of another":     {"/manifests/sha256-", testenv.Corrupt(), fault.ErrDigestMismatch},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			kind := testenv.Distribution
			if strings.HasPrefix(name, "API cut") {
				kind = testenv.Referrers
			}
			s := testenv.Registry(t, kind)
			r := openName(t, newClient(t, registry.Options{RetryBudget: time.Millisecond}), s.Reference("line/state"))
			subject, _ := signed(t, r)
			s.Faults.Add(testenv.Rule{Path: tt.path, Effect: tt.effect})
			list, err := r.Referrers(t.Context(), subject)
			if !errors.Is(err, tt.is) || errors.Is(err, fault.ErrNotFound) || list != nil {
				t.Errorf("Referrers = %v, %v, want %v", list, err, tt.is)
			}
		})
	}
}

func TestReferrersArePaged(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Referrers)
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	subject, _ := signed(t, r)
	page := func(n int) []byte {
		data, err := json.Marshal(ocispec.Index{MediaType: ocispec.MediaTypeImageIndex, Manifests: []ocispec.Descriptor{
			blobOf([]byte(fmt.Sprint(n))),
		}})
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	for i := range 3 {
		s.Faults.Add(testenv.Rule{Path: "/referrers/", Times: 1, Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			if want := i > 0; (r.URL.Query().Get("next") == fmt.Sprint(i)) != want {
				t.Errorf("page %d was asked for with %q", i, r.URL)
			}
			if i < 2 {
				w.Header().Set("Link", fmt.Sprintf(`<%s?next=%d>; rel="next"`, r.URL.Path, i+1))
			}
			answer(ocispec.MediaTypeImageIndex, page(i))(w, r, nil)
		}})
	}
	if list, err := r.Referrers(t.Context(), subject); err != nil || len(list) != 3 {
		t.Errorf("Referrers = %d, %v, want 3", len(list), err)
	}
	s.Faults.Clear()
	s.Faults.Add(testenv.Rule{Path: "/referrers/", Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
		w.Header().Set("Link", fmt.Sprintf(`<%s>; rel="next"`, r.URL.Path))
		answer(ocispec.MediaTypeImageIndex, page(0))(w, r, nil)
	}})
	if _, err := r.Referrers(t.Context(), subject); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("Referrers of a list that never ends = %v, want fault.ErrTooLarge", err)
	}
}

func TestReferrersOfACopiedImage(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Lax)
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	subject, data := put(t, r, "subject", nil, "press-07")
	// cosign's copy leaves the image itself under the tag of the list.
	tag := strings.Replace(subject.Digest.String(), ":", "-", 1)
	if err := r.PushManifest(t.Context(), subject, data, tag); err != nil {
		t.Fatal(err)
	}
	if list, err := r.Referrers(t.Context(), subject); err != nil || len(list) != 0 {
		t.Errorf("Referrers = %v, %v, want none", list, err)
	}
	signature, _ := put(t, r, "signature", &subject, "")
	if list, err := r.Referrers(t.Context(), subject); err != nil || len(list) != 1 || list[0].Digest != signature.Digest {
		t.Errorf("Referrers = %v, %v, want the signature", list, err)
	}
}

// TestReferrersAreUnfiltered: cosign 2.6 and ggcr's registry list signatures under a wrong artifact type.
func TestReferrersAreUnfiltered(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	subject, signature := signed(t, r)
	tag := strings.Replace(subject.Digest.String(), ":", "-", 1)
	_, data, err := clientFor(t, s).Manifest(t.Context(), s.Reference("line/state"), resolve(t, r, tag))
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(data), "application/vnd.example.thing") || !strings.Contains(string(data), "org.example.layer") {
		t.Errorf("our list lacks artifact type or annotations: %s", data)
	}
	wrong := []byte(strings.ReplaceAll(string(data), "application/vnd.example.thing", "application/vnd.oci.empty.v1+json"))
	desc := blobOf(wrong)
	desc.MediaType = ocispec.MediaTypeImageIndex
	if err := r.PushManifest(t.Context(), desc, wrong, tag); err != nil {
		t.Fatal(err)
	}
	if list, err := r.Referrers(t.Context(), subject); err != nil || len(list) != 1 || list[0].Digest != signature.Digest {
		t.Errorf("Referrers = %v, %v, want the signature all the same", list, err)
	}
}

func resolve(t testing.TB, r *registry.Repository, tag string) digest.Digest {
	t.Helper()
	d, err := r.Resolve(t.Context(), tag)
	if err != nil {
		t.Fatalf("Resolve(%s) = %v", tag, err)
	}
	return d.Digest
}

// TestConcurrentSignersLoseNothing has eight clients, as if of eight machines, write referrers of one subject at once.
func TestConcurrentSignersLoseNothing(t *testing.T) {
	t.Parallel()
	const signers = 8
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			name := s.Reference("line/state")
			subject, _ := put(t, openName(t, clientFor(t, s), name), "subject", nil, "t")
			var group errgroup.Group
			for i := range signers {
				r := openName(t, clientThatWaits(t, s, busyTagWait), name)
				data := []byte(fmt.Sprintf("signature %d", i))
				layer := blobOf(data)
				desc, manifest := manifestOf(t, layer, &subject)
				group.Go(func() error {
					if err := r.PushBlob(t.Context(), empty(), []byte("{}")); err != nil {
						return err
					}
					if err := r.PushBlob(t.Context(), layer, data); err != nil {
						return err
					}
					return r.PushReferrer(t.Context(), desc, manifest)
				})
			}
			if err := group.Wait(); err != nil {
				t.Fatalf("PushReferrer = %v", err)
			}
			list, err := openName(t, clientFor(t, s), name).Referrers(t.Context(), subject)
			if err != nil || len(list) != signers {
				t.Errorf("Referrers = %d, %v, want %d", len(list), err, signers)
			}
		})
	}
}

// TestPushReferrerStaysUntilItIsListed: some registries list a moment later, and another writer may undo a fallback list.
func TestPushReferrerStaysUntilItIsListed(t *testing.T) {
	t.Parallel()
	t.Run("API that lags", func(t *testing.T) {
		s := testenv.Registry(t, testenv.Referrers)
		r := openName(t, clientFor(t, s), s.Reference("line/state"))
		subject, _ := put(t, r, "subject", nil, "t")
		s.Faults.Add(testenv.Rule{
			Path: "/referrers/", Times: 2,
			Effect: answer(ocispec.MediaTypeImageIndex, []byte(`{"schemaVersion":2,"manifests":[]}`)),
		})
		put(t, r, "signature", &subject, "")
		if s.Faults.Hits() != 2 {
			t.Errorf("it looked %d times at the lagging list, want 2", s.Faults.Hits())
		}
	})
	t.Run("list undone by another", func(t *testing.T) {
		s := testenv.Registry(t, testenv.Distribution)
		r := openName(t, clientFor(t, s), s.Reference("line/state"))
		subject, _ := put(t, r, "subject", nil, "t")
		lost := 0
		s.Faults.Add(testenv.Rule{
			Method: http.MethodPut, Path: "/manifests/sha256-", Times: 2,
			Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
				lost++ // taken, and overwritten before anybody read it
				_, _ = io.Copy(io.Discard, r.Body)
				w.WriteHeader(http.StatusCreated)
			},
		})
		signature, _ := put(t, r, "signature", &subject, "")
		list, err := r.Referrers(t.Context(), subject)
		if err != nil || lost != 2 || len(list) != 1 || list[0].Digest != signature.Digest {
			t.Errorf("Referrers = %v, %v after %d lost lists, want the signature after 2", list, err, lost)
		}
	})
	t.Run("never listed", func(t *testing.T) {
		s := testenv.Registry(t, testenv.Distribution)
		r := openName(t, clientFor(t, s), s.Reference("line/state"))
		subject, _ := put(t, r, "subject", nil, "t")
		s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/manifests/sha256-", Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			_, _ = io.Copy(io.Discard, r.Body)
			w.WriteHeader(http.StatusCreated)
		}})
		layer := []byte("signature")
		if err := r.PushBlob(t.Context(), blobOf(layer), layer); err != nil {
			t.Fatal(err)
		}
		desc, data := manifestOf(t, blobOf(layer), &subject)
		if err := r.PushReferrer(t.Context(), desc, data); !errors.Is(err, fault.ErrTemporary) {
			t.Errorf("PushReferrer = %v, want fault.ErrTemporary", err)
		}
	})
}

func FuzzReferrers(f *testing.F) {
	s, err := testenv.StartRegistry(f.TempDir(), testenv.Referrers)
	if err != nil {
		f.Fatal(err)
	}
	f.Cleanup(func() { _ = s.Close() })
	c := newClient(f, registry.Options{RetryBudget: -1})
	r := openName(f, c, s.Reference("line/state"))
	subject := blobOf([]byte("subject"))
	for _, seed := range []string{
		`{"manifests":[{"digest":"` + someDigest + `","size":5,"mediaType":"application/vnd.oci.image.manifest.v1+json"}]}`,
		`{"manifests":[{"digest":"sha256:1"},5,null,{"digest":"` + someDigest + `","size":-1}]}`,
		`{"manifests":{}}`, `[]`, `null`, ``,
	} {
		f.Add([]byte(seed), true)
		f.Add([]byte(seed), false)
	}
	f.Fuzz(func(t *testing.T, body []byte, api bool) {
		s.Faults.Clear()
		s.Faults.Forget()
		if !api {
			s.Faults.Add(testenv.Rule{Path: "/referrers/", Effect: testenv.Status(404, 0)})
		}
		s.Faults.Add(testenv.Rule{Effect: answer(ocispec.MediaTypeImageIndex, body)})
		list, err := r.Referrers(t.Context(), subject)
		if err != nil {
			var e *registry.Error
			if !errors.As(err, &e) || len(err.Error()) > 2000 {
				t.Errorf("Referrers of %q = %v", body, err)
			}
		}
		for _, d := range list {
			if d.Digest.Validate() != nil || d.Size < 0 {
				t.Errorf("Referrers of %q gives %+v, which cannot be fetched", body, d)
			}
		}
	})
}

// The list under the tag has its manifests in it as long as it is small, so that they need no request; [registry.Repository.Referrers] is without.
func TestListUnderTheTagHasItsManifests(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientThatWaits(t, s, time.Millisecond), s.Reference("line/state"))
	subject, _ := put(t, r, "subject", nil, "press-07")
	for n := range 40 { // all of them would need more than 32 KiB
		_, manifest := put(t, r, fmt.Sprint("signature ", n), &subject, "")
		if n > 0 && n < 39 {
			continue
		}
		size := 0
		if err := r.EachReferrers(t.Context(), subject, func(list []ocispec.Descriptor) bool {
			for _, d := range list {
				size += len(d.Data)
			}
			return true
		}); err != nil {
			t.Fatal(err)
		}
		if n == 0 && size != len(manifest) || size > 32<<10 {
			t.Errorf("%d bytes of manifests in the list of %d referrers", size, n+1)
		}
	}
	if list, err := r.Referrers(t.Context(), subject); err != nil || len(list) != 40 || list[0].Data != nil {
		t.Errorf("Referrers = %d, with the manifests, or %v", len(list), err)
	}
}
