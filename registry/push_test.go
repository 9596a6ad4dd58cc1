package registry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// artifact makes something to publish, of the given layers.
func artifact(t testing.TB, layers ...string) *artifacts.Artifact {
	t.Helper()
	m := ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, ArtifactType: artifacts.TypeState, Config: empty()}
	m.SchemaVersion = 2
	a := &artifacts.Artifact{Blobs: []artifacts.Blob{{Descriptor: m.Config, Data: []byte("{}")}}}
	for _, l := range layers {
		d := blobOf([]byte(l))
		m.Layers = append(m.Layers, d)
		a.Blobs = append(a.Blobs, artifacts.Blob{Descriptor: d, Data: []byte(l)})
	}
	var err error
	if a.Manifest, err = json.Marshal(m); err != nil {
		t.Fatal(err)
	}
	a.Descriptor = blobOf(a.Manifest)
	a.Descriptor.MediaType, a.Descriptor.ArtifactType = m.MediaType, m.ArtifactType
	return a
}

// signer pushes a referrer, as a real one does.
type signer struct {
	t      testing.TB
	before func()
	err    error
}

func (s signer) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	if s.before != nil {
		s.before()
	}
	if s.err != nil {
		return s.err
	}
	data := []byte("signature of " + subject.Digest.String())
	layer := blobOf(data)
	if err := repo.PushBlob(ctx, layer, data); err != nil {
		return err
	}
	desc, manifest := manifestOf(s.t, layer, &subject)
	return repo.PushReferrer(ctx, desc, manifest)
}

func TestPublishOrder(t *testing.T) {
	t.Parallel()
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			a := artifact(t, "state", "deployment")
			signed := false
			got, err := release.Publish(t.Context(), r, a, release.PublishOptions{
				Signer: signer{t: t, before: func() {
					signed = true
					if tags, err := r.Tags(t.Context()); err == nil && len(tags) > 0 {
						t.Errorf("tags before the signature: %q", tags)
					}
					if _, _, err := r.Manifest(t.Context(), a.Descriptor.Digest); err != nil {
						t.Errorf("the manifest is not there when it is signed: %v", err)
					}
				}},
				HistoryTag: "press-07.v1", Tags: []string{"press-07"},
			})
			if err != nil || got.Digest != a.Descriptor.Digest || !signed {
				t.Fatalf("Publish = %v, %v", got.Digest, err)
			}
			var order []string
			for _, q := range requests(t, s, "", "", 0) {
				if q.Method == http.MethodPut || q.Method == http.MethodPost { // some take a blob with one POST
					order = append(order, step(q.Path, a))
				}
			}
			order = slices.Compact(order)
			want := []string{"blob", "manifest", "blob", "signature", "history", "moving"}
			if !cmp.Equal(order, want) && !cmp.Equal(order, append(append([]string{}, want[:4]...), "list", "history", "moving")) {
				t.Errorf("order of PUTs = %q, want %q", order, want)
			}
			for _, tag := range []string{"press-07.v1", "press-07"} {
				if d, err := r.Resolve(t.Context(), tag); err != nil || d.Digest != a.Descriptor.Digest {
					t.Errorf("Resolve(%s) = %v, %v", tag, d.Digest, err)
				}
			}
		})
	}
}

func step(path string, a *artifacts.Artifact) string {
	switch {
	case strings.Contains(path, "/blobs/"):
		return "blob"
	case strings.HasSuffix(path, "/manifests/"+a.Descriptor.Digest.String()):
		return "manifest"
	case strings.Contains(path, "/manifests/sha256:"):
		return "signature"
	case strings.Contains(path, "/manifests/sha256-"):
		return "list"
	case strings.HasSuffix(path, ".v1"):
		return "history"
	}
	return "moving"
}

func TestPublishThatFailsMovesNoTag(t *testing.T) {
	t.Parallel()
	boom := errors.New("no key")
	tests := map[string]struct {
		rule   testenv.Rule
		signer release.Signer
		is     error
	}{
		"signer refuses":            {testenv.Rule{Path: "never"}, signer{err: boom}, boom},
		"blob refused":              {testenv.Rule{Method: "POST", Path: "/uploads/", Effect: testenv.Status(403, 0)}, signer{}, fault.ErrDenied},
		"manifest refused":          {testenv.Rule{Method: "PUT", Path: "/manifests/sha256:", Effect: testenv.Status(400, 0)}, signer{}, fault.ErrInvalid},
		"manifest stored otherwise": {testenv.Rule{Method: "PUT", Path: "/manifests/sha256:", Effect: otherDigest}, signer{}, fault.ErrDigestMismatch},
		"reads back another":        {testenv.Rule{Method: "GET", Path: "/manifests/sha256:", Effect: testenv.Corrupt()}, signer{}, fault.ErrDigestMismatch},
		"history tag refused":       {testenv.Rule{Method: "PUT", Path: "v1$", Effect: testenv.Status(412, 0)}, signer{}, fault.ErrConflict},
		"history cannot be asked":   {testenv.Rule{Method: "HEAD", Path: "v1$", Effect: testenv.Status(503, 0)}, signer{}, fault.ErrTemporary},
		"signature cannot be listed": {
			testenv.Rule{Method: "PUT", Path: "/manifests/sha256-", Effect: testenv.Status(403, 0)}, signer{}, fault.ErrDenied,
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, testenv.Distribution)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			before, _ := put(t, r, "before", nil, "press-07")
			s.Faults.Add(tt.rule)
			if sg, ok := tt.signer.(signer); ok {
				sg.t = t
				tt.signer = sg
			}
			_, err := release.Publish(t.Context(), r, artifact(t, "after"), release.PublishOptions{
				Signer: tt.signer, HistoryTag: "press-07.v1", Tags: []string{"press-07"},
			})
			if !errors.Is(err, tt.is) {
				t.Errorf("Publish = %v, want %v", err, tt.is)
			}
			s.Faults.Clear()
			if d, err := r.Resolve(t.Context(), "press-07"); err != nil || d.Digest != before.Digest {
				t.Errorf("press-07 = %v, %v, want what it was", d.Digest, err)
			}
			if _, err := r.Resolve(t.Context(), "press-07.v1"); !errors.Is(err, fault.ErrNotFound) {
				t.Errorf("press-07.v1: %v, want fault.ErrNotFound", err)
			}
			// The same again, with nothing in the way, goes through.
			if _, err := release.Publish(t.Context(), r, artifact(t, "after"), release.PublishOptions{
				Signer: signer{t: t}, HistoryTag: "press-07.v1", Tags: []string{"press-07"},
			}); err != nil {
				t.Errorf("Publish again = %v", err)
			}
		})
	}
}

func otherDigest(w http.ResponseWriter, _ *http.Request, _ http.Handler) {
	w.Header().Set("Docker-Content-Digest", someDigest)
	w.WriteHeader(http.StatusCreated)
}

func TestPublishHistoryIsNotOverwritten(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	o := release.PublishOptions{HistoryTag: "press-07.v1", Tags: []string{"press-07"}}
	first := artifact(t, "one")
	if _, err := release.Publish(t.Context(), r, first, o); err != nil {
		t.Fatal(err)
	}
	s.Faults.Forget()
	if _, err := release.Publish(t.Context(), r, artifact(t, "two"), o); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
		t.Errorf("Publish of the same generation = %v, want fault.ErrConflict with a hint", err)
	}
	if puts := s.Faults.Requests(http.MethodPut, ""); len(puts) != 0 {
		t.Errorf("it sent %+v before it looked", puts)
	}
	if _, err := release.Publish(t.Context(), r, first, o); err != nil {
		t.Errorf("Publish of the same content = %v", err)
	}
}

func TestPublishAgainSendsNoBlob(t *testing.T) {
	t.Parallel()
	for _, kind := range testenv.Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			big := string(randomBytes(100_000))
			o := release.PublishOptions{Tags: []string{"t"}}
			if _, err := release.Publish(t.Context(), r, artifact(t, big), o); err != nil {
				t.Fatal(err)
			}
			s.Faults.Forget()
			if _, err := release.Publish(t.Context(), r, artifact(t, big, "and one new"), o); err != nil {
				t.Fatal(err)
			}
			if _, received := s.Faults.Bytes("", "/blobs/"); received != int64(len("and one new")) {
				t.Errorf("%d bytes of blobs were sent, want those of the new one", received)
			}
		})
	}
}

func TestPublishMountsFromOtherRepositories(t *testing.T) {
	t.Parallel()
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.DistributionToken, testenv.DistributionHtpasswd, testenv.Referrers, testenv.Lax} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			c := clientFor(t, s)
			content := string(randomBytes(50_000))
			put(t, openName(t, c, s.Reference("line/bundles")), content, nil, "t")
			s.Faults.Forget()
			r := openName(t, c, s.Reference("line/state"))
			_, err := release.Publish(t.Context(), r, artifact(t, content, "only here"), release.PublishOptions{
				MountFrom: []string{"line/nowhere", "line/bundles"}, Tags: []string{"press-07"},
			})
			if err != nil {
				t.Fatalf("Publish = %v", err)
			}
			if _, received := s.Faults.Bytes("", "/blobs/"); received >= int64(len(content)) {
				t.Errorf("%d bytes of blobs were sent, want those of the new one and the empty configuration", received)
			}
			got, err := r.Blob(t.Context(), blobOf([]byte(content)), 1<<20)
			if err != nil || string(got) != content {
				t.Errorf("Blob = %d bytes, %v", len(got), err)
			}
		})
	}
}

// What a mirror has already is still to be brought to the registry.
func TestPushLooksAtTheRegistryItself(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	a := artifact(t, "one")
	for _, b := range a.Blobs {
		if err := s.atMirror.PushBlob(t.Context(), b.Descriptor, b.Data); err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := s.repo.Push(t.Context(), a, registry.PushOptions{MountFrom: []string{"line/bundles"}}); err != nil {
		t.Errorf("Push = %v", err)
	}
}

func TestMountThatIsRefusedIsSent(t *testing.T) {
	t.Parallel()
	for name, effect := range map[string]testenv.Effect{
		"forbidden": testenv.Status(403, 0), "not known": testenv.Status(404, 0), "method": testenv.Status(405, 0),
		"202, an upload instead": withoutQuery,
	} {
		t.Run(name, func(t *testing.T) {
			s := testenv.Registry(t, testenv.Distribution)
			c := clientFor(t, s)
			put(t, openName(t, c, s.Reference("line/bundles")), "shared", nil, "t")
			s.Faults.Add(testenv.Rule{Method: http.MethodPost, Times: 1, Effect: effect})
			r := openName(t, c, s.Reference("line/state"))
			if ok, err := r.Mount(t.Context(), blobOf([]byte("shared")), "line/bundles", []byte("shared")); ok || err != nil {
				t.Errorf("Mount = %v, %v, want false", ok, err)
			}
			if ok, err := r.Exists(t.Context(), blobOf([]byte("shared"))); !ok || err != nil {
				t.Errorf("Exists = %v, %v, want true", ok, err)
			}
			if s.Faults.Hits() != 1 {
				t.Errorf("the mount was asked for %d times, want once", s.Faults.Hits())
			}
		})
	}
}

// A registry that takes nothing, as distribution does in maintenance, is no fault of the command line.
func TestPushToAReadOnlyRegistry(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	r := openName(t, clientFor(t, s), s.Reference("line/state"))
	a := artifact(t, "one")
	readOnly := func(err error) {
		t.Helper()
		if !errors.Is(err, fault.ErrDenied) || !strings.Contains(fault.Hint(err), "read-only") {
			t.Errorf("Push = %v, hint %q", err, fault.Hint(err))
		}
	}
	s.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/manifests/", Times: 1, Effect: testenv.Status(405, 0)})
	_, _, err := r.Push(t.Context(), a, registry.PushOptions{})
	readOnly(err)
	s.Faults.Add(testenv.Rule{Method: http.MethodPost, Effect: testenv.Status(405, 0)})
	for _, size := range []int{10, 100 << 10} {
		data := bytes.Repeat([]byte("x"), size)
		readOnly(r.PushBlob(t.Context(), blobOf(data), data))
	}
}

func withoutQuery(w http.ResponseWriter, r *http.Request, next http.Handler) {
	r.URL.RawQuery = ""
	next.ServeHTTP(w, r)
}

func TestPushSurvivesTroubleOnTheWay(t *testing.T) {
	t.Parallel()
	tests := map[string]testenv.Rule{
		"upload cut":          {Method: "PUT", Path: "/uploads/", Times: 1, Effect: testenv.CutUpload(10)},
		"upload answer lost":  {Method: "PUT", Path: "/manifests/", Times: 1, Effect: testenv.LoseAnswer()},
		"session refused":     {Method: "POST", Path: "/uploads/", Times: 2, Effect: testenv.Status(503, 0)},
		"question reset":      {Method: "HEAD", Times: 1, Effect: testenv.Reset()},
		"manifest slowed":     {Method: "PUT", Path: "/manifests/", Times: 1, Effect: testenv.Status(429, time.Second)},
		"manifest answer 202": {Method: "PUT", Path: "/manifests/", Effect: says(202)},
		"manifest answer 204": {Method: "PUT", Path: "/manifests/", Effect: says(204)},
		"blob answer 202":     {Method: "PUT", Path: "/uploads/", Effect: says(202)},
		"blob answer 200":     {Method: "PUT", Path: "/uploads/", Effect: says(200)},
		"relative location":   {Method: "POST", Path: "/uploads/", Effect: relativeLocation},
	}
	for name, rule := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, testenv.Distribution)
			r := openName(t, newClient(t, registry.Options{RetryBudget: 10 * time.Second}), s.Reference("line/state"))
			s.Faults.Add(rule)
			a := artifact(t, string(randomBytes(100_000)))
			if _, err := release.Publish(t.Context(), r, a, release.PublishOptions{Tags: []string{"press-07"}}); err != nil {
				t.Fatalf("Publish = %v", err)
			}
			if s.Faults.Hits() == 0 {
				t.Error("nothing was in the way")
			}
			if d, err := r.Resolve(t.Context(), "press-07"); err != nil || d.Digest != a.Descriptor.Digest {
				t.Errorf("Resolve = %v, %v", d.Digest, err)
			}
		})
	}
}

// says does what was asked and tells it with another status.
func says(status int) testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		next.ServeHTTP(&statusChanger{w, status}, r)
	}
}

type statusChanger struct {
	http.ResponseWriter
	status int
}

func (s *statusChanger) WriteHeader(int) { s.ResponseWriter.WriteHeader(s.status) }

func relativeLocation(w http.ResponseWriter, r *http.Request, next http.Handler) {
	next.ServeHTTP(&locationShortener{w}, r)
}

type locationShortener struct{ http.ResponseWriter }

func (l *locationShortener) WriteHeader(status int) {
	if _, path, ok := strings.Cut(l.Header().Get("Location"), "/v2/"); ok {
		l.Header().Set("Location", "/v2/"+path)
	}
	l.ResponseWriter.WriteHeader(status)
}

func TestPublishRefusesBadArtifacts(t *testing.T) {
	t.Parallel()
	r := openName(t, newClient(t, registry.Options{}), "oci-layout:"+t.TempDir())
	swapped := artifact(t, "x")
	swapped.Blobs[1].Data = []byte("y")
	large := artifact(t, "x")
	large.Manifest = append(large.Manifest, make([]byte, 2<<20)...)
	large.Descriptor = blobOf(large.Manifest)
	wrong := artifact(t, "x")
	wrong.Manifest = []byte("{}")
	lacking := artifact(t, "x")
	lacking.Blobs = lacking.Blobs[:1]
	for name, tt := range map[string]struct {
		a  *artifacts.Artifact
		o  release.PublishOptions
		is error
	}{
		"blob is another":     {swapped, release.PublishOptions{}, fault.ErrDigestMismatch},
		"manifest is another": {wrong, release.PublishOptions{}, fault.ErrDigestMismatch},
		"manifest too large":  {large, release.PublishOptions{}, fault.ErrTooLarge},
		"blob left out":       {lacking, release.PublishOptions{}, fault.ErrInvalid},
		"bad tag":             {artifact(t, "x"), release.PublishOptions{Tags: []string{"a/b"}}, fault.ErrInvalid},
		"bad history tag":     {artifact(t, "x"), release.PublishOptions{HistoryTag: "-"}, fault.ErrInvalid},
	} {
		if _, err := release.Publish(t.Context(), r, tt.a, tt.o); !errors.Is(err, tt.is) {
			t.Errorf("%s: Publish = %v, want %v", name, err, tt.is)
		}
	}
}

func TestManyTags(t *testing.T) {
	t.Parallel()
	const n = 1105 // more than a page
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			s := testenv.Registry(t, kind)
			r := openName(t, clientFor(t, s), s.Reference("line/state"))
			desc, data := put(t, r, "state", nil, "")
			for i := range n {
				if err := r.PushManifest(t.Context(), desc, data, fmt.Sprintf("press-%04d", i)); err != nil {
					t.Fatal(err)
				}
			}
			tags, err := r.Tags(t.Context())
			if err != nil || len(tags) != n || !slices.IsSorted(tags) {
				t.Errorf("Tags = %d, %v, want %d sorted", len(tags), err, n)
			}
		})
	}
}
