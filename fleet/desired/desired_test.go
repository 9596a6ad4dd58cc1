package desired_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// What a client gets are the bytes that were pushed, by the caching rules of the specification.
func TestManifestIsAsItWasPushed(t *testing.T) {
	w := newWorld(t)
	a := w.publish("press-07", 7, "web", "db")
	w.manifest("press-07", 7)
	x, err := artifacts.OpenState(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	pushed := map[digest.Digest][]byte{}
	for _, b := range a.Blobs {
		pushed[b.Descriptor.Digest] = b.Data
	}
	const immutable = "private, max-age=31536000, immutable"
	check := func(path string, d digest.Digest, media, cache string) {
		t.Helper()
		got := w.get("press-07", path)
		if got.code != 200 || !bytes.Equal(got.body, pushed[d]) {
			t.Errorf("GET %s = %d, %d bytes, want the %d that were pushed", path, got.code, len(got.body), len(pushed[d]))
		}
		etag := `"` + d.String() + `"`
		for name, want := range map[string]string{"Content-Type": media, "Cache-Control": cache, "Etag": etag, "Content-Length": fmt.Sprint(len(pushed[d]))} {
			if h := got.header.Get(name); h != want {
				t.Errorf("GET %s: %s = %q, want %q", path, name, h, want)
			}
		}
		if head := w.do("HEAD", "press-07", path); head.code != 200 || len(head.body) > 0 || head.header.Get("Etag") != etag {
			t.Errorf("HEAD %s = %d %v", path, head.code, head.header)
		}
		for _, known := range []string{etag, "W/" + etag, `"other", ` + etag, "*"} {
			same := w.get("press-07", path, "If-None-Match", known)
			if same.code != 304 || len(same.body) > 0 || same.header.Get("Etag") != etag || same.header.Get("Cache-Control") != cache || same.header.Get("Content-Type") != "" {
				t.Errorf("GET %s with If-None-Match %s = %d %v", path, known, same.code, same.header)
			}
		}
		for _, other := range []string{`"other"`, d.String(), `"sha256:` + strings.Repeat("0", 64) + `"`} {
			if got := w.get("press-07", path, "If-None-Match", other); got.code != 200 {
				t.Errorf("GET %s with If-None-Match %s = %d", path, other, got.code)
			}
		}
		if part := w.get("press-07", path, "Range", "bytes=10-"); part.code != 206 || !bytes.Equal(part.body, pushed[d][10:]) {
			t.Errorf("GET %s from byte 10 = %d, %d bytes", path, part.code, len(part.body))
		}
	}
	check("/api/v1/deployments", x.Manifest.Digest, margo.ManifestMediaType, "private")
	check("/api/v1/bundles/"+x.Bundle.Digest.String(), x.Bundle.Digest, margo.BundleMediaType, immutable)
	m := w.manifest("press-07", 7)
	for _, d := range m.Deployments {
		check(d.URL, d.Digest, "application/yaml", immutable)
	}
	w.complete("press-07", m)
}

// A poll that finds nothing new asks neither the registry nor the database.
func TestUnchangedPollAsksNobody(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web")
	first := w.get("press-07", "/api/v1/deployments")
	registry, database := w.asked(), w.db.asked.Load()
	for range 50 {
		if a := w.get("press-07", "/api/v1/deployments", "If-None-Match", first.header.Get("Etag")); a.code != 304 {
			t.Fatalf("poll = %d", a.code)
		}
	}
	if w.asked() != registry || w.db.asked.Load() != database {
		t.Errorf("50 polls asked the registry %d times and the database %d times", w.asked()-registry, w.db.asked.Load()-database)
	}
	w.later()
	w.manifest("press-07", 1)
	if n := w.asked() - registry; n != 1 {
		t.Errorf("a look that finds nothing new took %d requests, want 1", n)
	}
}

func TestAcceptOfManifest(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web")
	for accept, want := range map[string]int{
		"":                                       200,
		"application/vnd.margo.manifest.v1+json": 200,
		"Application/VND.margo.manifest.v1+JSON; q=0.1": 200,
		"*/*":           200,
		"application/*": 200,
		"text/html, application/vnd.margo.manifest.v1+json;q=0.5": 200,
		"application/json":                                   406,
		"application/vnd.margo.manifest.v2+json":             406,
		"text/*":                                             406,
		"application/vnd.margo.manifest.v1+json;q=0":         406,
		"application/vnd.margo.manifest.v1+json;q=0, */*":    406,
		"*/*;q=0, application/vnd.margo.manifest.v1+json":    200,
		"application/*;q=0.0, */*":                           406,
		"application/vnd.margo.bundle.v1+tar+gzip, text/css": 406,
	} {
		header := []string{"Accept", accept}
		if accept == "" {
			header = nil
		}
		if a := w.get("press-07", "/api/v1/deployments", header...); a.code != want {
			t.Errorf("Accept: %s = %d, want %d", accept, a.code, want)
		}
	}
	// What a bundle and a deployment are is said by the manifest: there is nothing to negotiate.
	m := w.manifest("press-07", 1)
	for _, path := range []string{m.Bundle.URL, m.Deployments[0].URL} {
		if a := w.get("press-07", path, "Accept", "text/html"); a.code != 200 {
			t.Errorf("GET %s = %d", path, a.code)
		}
	}
}

// Every answer that is an error, whole.
func TestProblemsOfDesiredState(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web")
	w.publish("press-08", 1, "web")
	other := w.manifest("press-08", 1)
	m := w.manifest("press-07", 1)
	const none = "sha256:0000000000000000000000000000000000000000000000000000000000000000"
	type seen struct {
		Name, Request string
		Status        int
		Headers       map[string]string
		Problem       json.RawMessage
	}
	var all []seen
	for _, c := range []struct {
		name, method, client, path string
		header                     []string
		before                     func()
	}{
		{name: "nobody", path: "/api/v1/deployments"},
		{name: "not acceptable", client: "press-07", path: "/api/v1/deployments", header: []string{"Accept", "text/html"}},
		{name: "unknown deployment", client: "press-07", path: "/api/v1/deployments/" + someID + "/" + none},
		{name: "unknown digest of a deployment", client: "press-07", path: "/api/v1/deployments/" + m.Deployments[0].DeploymentID + "/" + none},
		{name: "no digest", client: "press-07", path: "/api/v1/deployments/" + someID + "/latest"},
		{name: "another algorithm", client: "press-07", path: "/api/v1/bundles/md5:d41d8cd98f00b204e9800998ecf8427e"},
		{name: "unknown bundle", client: "press-07", path: "/api/v1/bundles/" + none},
		{name: "deployment of another client", client: "press-07", path: other.Deployments[0].URL},
		{name: "bundle of another client", client: "press-07", path: other.Bundle.URL},
		{name: "manifest as a bundle", client: "press-07", path: "/api/v1/bundles/" + strings.Trim(w.get("press-07", "/api/v1/deployments").header.Get("Etag"), `"`)},
		{name: "method", method: "POST", client: "press-07", path: "/api/v1/deployments"},
		{name: "method of a bundle", method: "DELETE", client: "press-07", path: m.Bundle.URL},
		{name: "registry away", client: "press-09", path: "/api/v1/deployments", before: func() { w.away(errAway) }},
		{name: "registry away, bundle", client: "press-09", path: m.Bundle.URL},
		{name: "state of another device", client: "press-10", path: "/api/v1/deployments", before: func() {
			w.away(nil)
			w.reg.Lock()
			w.reg.Named[repository+":press-10"] = w.reg.Named[repository+":press-08"]
			w.reg.Unlock()
		}},
		{name: "registry lacks a blob", client: "press-11", path: "/api/v1/deployments", before: func() {
			x, err := artifacts.OpenState(w.publish("press-11", 1, "web").Manifest)
			if err != nil {
				t.Fatal(err)
			}
			w.reg.Lock()
			delete(w.reg.Blobs, x.Bundle.Digest)
			w.reg.Unlock()
		}},
	} {
		if c.before != nil {
			c.before()
		}
		if c.method == "" {
			c.method = "GET"
		}
		a := w.do(c.method, c.client, c.path, c.header...)
		s := seen{Name: c.name, Request: c.method + " " + c.path, Status: a.code, Headers: map[string]string{}, Problem: a.body}
		for _, h := range []string{"Content-Type", "Retry-After", "Cache-Control", "Allow", "Etag"} {
			if v := a.header.Get(h); v != "" {
				s.Headers[h] = v
			}
		}
		if _, err := margo.ParseProblem("problem", a.body); err != nil {
			t.Errorf("%s: %d %s is no problem document: %v", c.name, a.code, a.body, err)
			s.Problem = nil
		}
		all = append(all, s)
	}
	got, err := json.MarshalIndent(all, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "problems.golden", append(got, '\n'))
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	file := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") != "" {
		if err := os.WriteFile(file, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), string(got)); diff != "" {
		t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// While the registry is away everything is served on, also after a restart; afterwards what is new.
func TestRegistryAway(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web", "db")
	w.manifest("press-07", 1)
	w.away(errAway)
	w.later()
	w.complete("press-07", w.manifest("press-07", 1))
	w.start()
	w.complete("press-07", w.manifest("press-07", 1)) // not a request was waited for
	w.later()
	w.complete("press-07", w.manifest("press-07", 1))
	if n := strings.Count(w.log.String(), "does not answer"); n != 2 { // once for each start
		t.Errorf("the log tells %d times that the registry is away, want 2:\n%s", n, &w.log)
	}
	w.away(nil)
	w.publish("press-07", 2, "web")
	w.later()
	w.complete("press-07", w.manifest("press-07", 2))
	if !strings.Contains(w.log.String(), "answers again") {
		t.Errorf("the log does not tell that the registry is back:\n%s", &w.log)
	}
}

// A restart serves at once what was served before, and learns in the next look what is new.
func TestRestart(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web")
	w.manifest("press-07", 1)
	w.publish("press-07", 2, "web", "db")
	w.start()
	w.manifest("press-07", 1)
	w.later()
	m := w.manifest("press-07", 2)
	w.complete("press-07", m)
}

// What the manifest before named is served for who has just read that manifest.
func TestManifestChangesBetweenRequests(t *testing.T) {
	w := newWorld(t)
	w.publish("press-07", 1, "web")
	one := w.manifest("press-07", 1)
	w.publish("press-07", 2, "web")
	w.later()
	w.manifest("press-07", 2)
	w.complete("press-07", one)
	w.publish("press-07", 3, "web")
	w.later()
	w.complete("press-07", w.manifest("press-07", 3))
	if a := w.get("press-07", one.Bundle.URL); a.code != 404 {
		t.Errorf("the bundle of two manifests ago = %d, want 404", a.code)
	}
}

// A state that cannot be served leaves the one before in place; nothing of it is half done.
func TestStateThatCannotBeServed(t *testing.T) {
	for name, breakIt := range map[string]func(w *world){
		"a blob is missing": func(w *world) {
			x, _ := artifacts.OpenState(w.publish("press-07", 2, "web", "more").Manifest)
			w.reg.Lock()
			defer w.reg.Unlock()
			delete(w.reg.Blobs, x.Bundle.Digest)
		},
		"a manifest is missing": func(w *world) {
			a := w.publish("press-07", 2, "web", "more")
			w.reg.Lock()
			defer w.reg.Unlock()
			delete(w.reg.Manifests, a.Descriptor.Digest)
		},
		"it is no state": func(w *world) {
			a, err := artifacts.PackBundleArtifact(artifacts.BundleOptions{Deployments: [][]byte{document(w.t, "press-07", "web", "1.0.0")}})
			if err != nil {
				w.t.Fatal(err)
			}
			w.reg.Push(repository, "press-07", a)
		},
		"of another device": func(w *world) {
			w.publish("press-08", 2, "web")
			w.reg.Lock()
			defer w.reg.Unlock()
			w.reg.Named[repository+":press-07"] = w.reg.Named[repository+":press-08"]
		},
		"an older generation":                    func(w *world) { w.publish("press-07", 1, "web", "more") },
		"the same generation with other content": func(w *world) { w.publish("press-07", 2, "other") },
		"the tag is gone": func(w *world) {
			w.reg.Lock()
			defer w.reg.Unlock()
			delete(w.reg.Named, repository+":press-07")
		},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			generation := uint64(1)
			if strings.Contains(name, "generation") {
				generation = 2
			}
			w.publish("press-07", generation, "web")
			w.manifest("press-07", generation)
			breakIt(w)
			w.later()
			w.complete("press-07", w.manifest("press-07", generation))
			w.later()
			w.complete("press-07", w.manifest("press-07", generation))
			w.start()
			w.complete("press-07", w.manifest("press-07", generation))
			if n := strings.Count(w.log.String(), "press-07"); n == 0 {
				t.Error("the log tells nothing")
			}
			w.publish("press-07", 5, "web", "db")
			w.later()
			w.complete("press-07", w.manifest("press-07", 5))
		})
	}
}

// What the disk has lost is read from the registry again.
func TestDiskLost(t *testing.T) {
	w := newWorld(t)
	a := w.publish("press-07", 1, "web")
	m := w.manifest("press-07", 1)
	delete(w.disk.data, m.Bundle.Digest)
	got := w.get("press-07", m.Bundle.URL)
	if got.code != http.StatusServiceUnavailable || got.header.Get("Retry-After") == "" {
		t.Errorf("GET bundle = %d %v", got.code, got.header)
	}
	w.later()
	w.complete("press-07", w.manifest("press-07", 1))
	clear(w.disk.data)
	w.start()
	w.complete("press-07", w.manifest("press-07", 1))
	if _, there := w.disk.data[a.Descriptor.Digest]; !there {
		t.Error("the state is not on disk again")
	}
}

// Paths of whatever form are answered, and never with what is not the client's.
func FuzzPath(f *testing.F) {
	for _, s := range []string{"deployments", "deployments/" + someID + "/sha256:x", "bundles/../bundles/x", "bundles/sha256:%00", "deployments//", "bundles/%2e%2e/", "deployments/a/b/c"} {
		f.Add(s)
	}
	w := newWorld(f)
	w.publish("press-07", 1, "web")
	f.Fuzz(func(t *testing.T, path string) { fuzzPath(t, w, path) })
}
