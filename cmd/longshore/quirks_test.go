package main

import (
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/remote"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// immutableTags refuses to set a tag that is there to something else, or again, as registries with immutable tags do.
func immutableTags() testenv.Effect {
	return func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		probe := r.Clone(r.Context())
		probe.Method, probe.Body, probe.ContentLength = http.MethodHead, http.NoBody, 0
		probe.Header.Set("Accept", "*/*")
		seen := &statusWriter{header: http.Header{}}
		next.ServeHTTP(seen, probe)
		if seen.status == http.StatusOK {
			testenv.Status(http.StatusPreconditionFailed, 0)(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}
}

type statusWriter struct {
	header http.Header
	status int
}

func (w *statusWriter) Header() http.Header         { return w.header }
func (w *statusWriter) Write(p []byte) (int, error) { return len(p), nil }
func (w *statusWriter) WriteHeader(status int)      { w.status = status }

// A mirror works at registries with peculiarities: no referrers API, no manifest before what it names, no tag
// twice. A list of Docker images
// stays as it is: its media types and digests.
func TestMirrorQuirks(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			list, digests := dockerList(t)
			pushIndex(t, s.server, "library/caddy:2.10", list)
			s.stock()
			there := s.site(kind)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			tag := `/manifests/[a-z0-9][^:]*$`
			there.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: tag, Effect: immutableTags()})
			if r := s.mirrored(); strings.Join(r.Devices, " ") != "press-07" {
				t.Errorf("mirrored %+v", r.Mirrored)
			}
			for range 2 {
				if r := s.mirrored(); r.Sent+r.Manifests+r.Tags != 0 {
					t.Errorf("again: %+v, want nothing", r.Mirrored)
				}
			}
			there.Faults.Clear()
			client := there.Client()
			defer client.CloseIdleConnections()
			for digest, want := range digests {
				at, err := name.NewDigest(there.Reference("library/caddy") + "@" + digest.String())
				if err != nil {
					t.Fatal(err)
				}
				got, err := remote.Get(at, remote.WithContext(t.Context()), remote.WithTransport(client.Transport))
				if err != nil {
					t.Fatal(err)
				}
				if got.MediaType != want || got.Digest != digest {
					t.Errorf("%s is there as %s %s, want %s", digest, got.Digest, got.MediaType, want)
				}
			}
			// Blobs and manifests came before what names them, tags of devices last.
			puts := there.Faults.Requests(http.MethodPut, "/manifests/")
			device := regexp.MustCompile(`/plant/state/manifests/press-07$`)
			for i, r := range puts {
				if device.MatchString(r.Path) && i != len(puts)-1 {
					t.Errorf("the tag of the device was request %d of %d", i+1, len(puts))
				}
			}
		})
	}
}

// dockerList is a Docker manifest list of two Docker images, and the media type of each manifest by its digest.
func dockerList(t *testing.T) (v1.ImageIndex, map[v1.Hash]types.MediaType) {
	t.Helper()
	list := mutate.IndexMediaType(empty.Index, types.DockerManifestList)
	digests := map[v1.Hash]types.MediaType{}
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		image, err := testenv.BuildImage(platform, v1.Config{}, []testenv.File{{Path: "app", Data: []byte("docker on " + platform)}})
		if err != nil {
			t.Fatal(err)
		}
		image = mutate.ConfigMediaType(mutate.MediaType(image, types.DockerManifestSchema2), types.DockerConfigJSON)
		config, err := image.ConfigFile()
		if err != nil {
			t.Fatal(err)
		}
		list = mutate.AppendManifests(list, mutate.IndexAddendum{Add: image, Descriptor: v1.Descriptor{Platform: config.Platform()}})
		digest, err := image.Digest()
		if err != nil {
			t.Fatal(err)
		}
		digests[digest] = types.DockerManifestSchema2
	}
	digest, err := list.Digest()
	if err != nil {
		t.Fatal(err)
	}
	digests[digest] = types.DockerManifestList
	return list, digests
}

func pushIndex(t *testing.T, s *testenv.RegistryServer, tag string, index v1.ImageIndex) {
	t.Helper()
	at, err := name.NewTag(s.Reference(tag))
	if err != nil {
		t.Fatal(err)
	}
	client := s.Client()
	defer client.CloseIdleConnections()
	if err := remote.WriteIndex(at, index, remote.WithContext(t.Context()), remote.WithTransport(client.Transport)); err != nil {
		t.Fatal(err)
	}
}

// A site's registry that refuses artifacts of a type is named with what it said. No tag of a device moves, and what arrived is used when the
// registry takes them.
func TestMirrorToARegistryThatRefusesATypeOfArtifact(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", releaseKeyPublic, states, "stick")
	for _, to := range [][]string{{"mirror", releaseKeyPublic, states, siteHost}, {"import", releaseKeyPublic, "stick", siteHost}} {
		there.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/plant/components/.*/manifests/", Effect: func(w http.ResponseWriter, r *http.Request, _ http.Handler) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(http.StatusBadRequest)
			fmt.Fprint(w, `{"errors":[{"code":"MANIFEST_INVALID","message":"artifact type application/vnd.acme is not allowed in this project"}]}`)
		}})
		s.refuses(outcome.Misused, []string{"plant/components/line-monitor", "is not allowed in this project"}, to...)
		if n := len(there.Faults.Requests(http.MethodPut, "/plant/state/manifests/press-07")); n > 0 {
			t.Errorf("%s set the device's tag", to[0])
		}
		there.Faults.Clear()
	}
	had := map[string]bool{} // blobs, by the query that ends their upload
	for _, r := range there.Faults.Requests(http.MethodPut, "/library/caddy/blobs/") {
		had[blobOf(r)] = had[blobOf(r)] || r.Status == http.StatusCreated
	}
	there.Faults.Forget()
	s.do(outcome.OK, "mirror", releaseKeyPublic, states, siteHost)
	for _, r := range there.Faults.Requests(http.MethodPut, "/library/caddy/blobs/") {
		if had[blobOf(r)] {
			t.Errorf("blob %s was sent again", blobOf(r))
		}
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", "--no-recurse", siteHost+"/plant/state:press-07")
}

// A site's registry that takes no manifest of this size: the manifest is named, and no tag of a device moves.
func TestMirrorToARegistryThatTakesNoLargeManifest(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	there := s.site(testenv.Distribution)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	d, err := opened(t, s.server.Reference("library/caddy")).Resolve(t.Context(), "2.10")
	if err != nil {
		t.Fatal(err)
	}
	there.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: "/library/caddy/manifests/" + d.Digest.String(), Effect: testenv.Status(http.StatusRequestEntityTooLarge, 0)})
	s.refuses(outcome.Misused, []string{"library/caddy", d.Digest.String(), "413"}, "mirror", releaseKeyPublic, states, siteHost)
	if n := len(there.Faults.Requests(http.MethodPut, "/plant/state/manifests/press-07")); n > 0 {
		t.Errorf("the device's tag was set")
	}
}

// blobOf is the digest that a request which ends an upload names.
func blobOf(r testenv.Request) string {
	q, _ := url.ParseQuery(r.Query)
	return q.Get("digest")
}
