package main

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
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
// twice. The media types of Docker's images stay.
func TestMirrorQuirks(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers, testenv.Lax} {
		t.Run(fmt.Sprint(kind), func(t *testing.T) {
			s := newShell(t, testenv.Distribution)
			image, err := testenv.BuildImage("linux/amd64", v1.Config{}, []testenv.File{{Path: "app", Data: []byte("docker")}})
			if err != nil {
				t.Fatal(err)
			}
			image = mutate.ConfigMediaType(mutate.MediaType(image, types.DockerManifestSchema2), types.DockerConfigJSON)
			if _, err := s.server.Push(t.Context(), "library/caddy:2.10", image); err != nil {
				t.Fatal(err)
			}
			s.stock()
			there := s.site(kind)
			s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			digest := strings.TrimSpace(s.do(outcome.OK, "inspect", "-q", host+"/library/caddy:2.10"))
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
			resp, err := http.NewRequestWithContext(t.Context(), http.MethodGet, there.URL+"/v2/library/caddy/manifests/"+digest, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp.Header.Set("Accept", string(types.DockerManifestSchema2)+", "+string(types.OCIImageIndex)+", "+string(types.OCIManifestSchema1)+", "+string(types.DockerManifestList))
			client := there.Client()
			defer client.CloseIdleConnections()
			got, err := client.Do(resp)
			if err != nil {
				t.Fatal(err)
			}
			defer got.Body.Close()
			if media := got.Header.Get("Content-Type"); got.StatusCode != http.StatusOK || media != string(types.DockerManifestSchema2) {
				t.Errorf("the image is there as %d %s", got.StatusCode, media)
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
