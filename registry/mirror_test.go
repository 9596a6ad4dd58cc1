package registry_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

// site is a registry and a mirror of it, which a hosts.toml names.
type site struct {
	upstream, mirror *testenv.RegistryServer
	certs            string
	client           *registry.Client
	repo             *registry.Repository // through the mirror
	direct           *registry.Repository // at the registry
	atMirror         *registry.Repository // at the mirror
}

// newSite sets both up; lines are added to the mirror's table.
func newSite(t *testing.T, lines ...string) *site {
	t.Helper()
	s := &site{upstream: testenv.Registry(t, testenv.Distribution), mirror: testenv.Registry(t, testenv.Distribution), certs: t.TempDir()}
	writeFile(t, fmt.Sprintf("[host.%q]\n%s\n", s.mirror.URL, strings.Join(lines, "\n")), s.certs, s.upstream.Host, "hosts.toml")
	s.client = newClient(t, registry.Options{CertsDir: s.certs, RetryBudget: 50 * time.Millisecond})
	s.repo = openName(t, s.client, s.upstream.Reference("line/state"))
	plain := newClient(t, registry.Options{RetryBudget: -1})
	s.direct = openName(t, plain, s.upstream.Reference("line/state"))
	s.atMirror = openName(t, plain, s.mirror.Reference("line/state"))
	return s
}

func TestMirrorIsReadFirst(t *testing.T) {
	t.Parallel()
	s := newSite(t)
	desc, _ := put(t, s.direct, "state", nil, "press-07")
	put(t, s.atMirror, "state", nil, "press-07")
	s.upstream.Faults.Forget()
	s.mirror.Faults.Forget()
	s.upstream.Down() // a site without a way out
	if got, err := s.repo.Resolve(t.Context(), "press-07"); err != nil || got.Digest != desc.Digest {
		t.Errorf("Resolve = %v, %v", got.Digest, err)
	}
	if _, _, err := s.repo.Manifest(t.Context(), desc.Digest); err != nil {
		t.Errorf("Manifest = %v", err)
	}
	if got, err := s.repo.Blob(t.Context(), blobOf([]byte("state")), 100); err != nil || string(got) != "state" {
		t.Errorf("Blob = %q, %v", got, err)
	}
	if ok, err := s.repo.Exists(t.Context(), desc); !ok || err != nil {
		t.Errorf("Exists = %v, %v", ok, err)
	}
	for _, q := range s.mirror.Faults.Requests("", "") {
		if !strings.Contains(q.Query, "ns="+url.QueryEscape(s.upstream.Host)) {
			t.Errorf("the mirror was asked %s?%s, want ns=%s", q.Path, q.Query, s.upstream.Host)
		}
	}
	// That something is missing, only the registry itself may say.
	if _, err := s.repo.Resolve(t.Context(), "other"); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Resolve of what the mirror lacks = %v, want fault.ErrTemporary", err)
	}
	if list, err := s.repo.Referrers(t.Context(), desc); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Referrers where the mirror has none = %v, %v, want fault.ErrTemporary", list, err)
	}
	if ok, err := s.repo.Exists(t.Context(), blobOf([]byte("x"))); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Exists of what the mirror lacks = %v, %v, want fault.ErrTemporary", ok, err)
	}
	put(t, s.atMirror, "signature", &desc, "")
	if list, err := s.repo.Referrers(t.Context(), desc); err != nil || len(list) != 1 {
		t.Errorf("Referrers that the mirror has = %v, %v, want one", list, err)
	}
}

func TestMirrorThatFailsIsPassedOver(t *testing.T) {
	t.Parallel()
	data := randomBytes(100_000)
	for name, effect := range map[string]testenv.Effect{
		"not found": testenv.Status(404, 0), "down": testenv.Status(503, 0), "throttled": testenv.Status(429, time.Hour),
		"forbids": testenv.Status(403, 0), "asks for a password": testenv.Status(401, 0), "resets": testenv.Reset(),
		"lies": testenv.Corrupt(), "shortens": testenv.Truncate(30), "swaps": testenv.Swap([]byte("{}")),
		"shows a page": answer("text/html", []byte("<html>")), "cuts": testenv.Cut(10), "other digest": testenv.WrongDigest(),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := newSite(t)
			desc, manifest := put(t, s.direct, string(data), nil, "press-07")
			signature, _ := put(t, s.direct, "signature", &desc, "")
			put(t, s.atMirror, string(data), nil, "press-07")
			s.mirror.Faults.Add(testenv.Rule{Method: http.MethodGet, Effect: effect})
			if _, got, err := s.repo.Manifest(t.Context(), desc.Digest); err != nil || !bytes.Equal(got, manifest) {
				t.Errorf("Manifest = %v", err)
			}
			if got, err := s.repo.Blob(t.Context(), blobOf(data), 1<<20); err != nil || !bytes.Equal(got, data) {
				t.Errorf("Blob = %d bytes, %v", len(got), err)
			}
			if list, err := s.repo.Referrers(t.Context(), desc); err != nil || len(list) != 1 || list[0].Digest != signature.Digest {
				t.Errorf("Referrers = %v, %v", list, err)
			}
			if s.mirror.Faults.Hits() == 0 {
				t.Error("the mirror was not asked")
			}
		})
	}
}

func TestMirrorCapabilitiesAndWrites(t *testing.T) {
	t.Parallel()
	s := newSite(t, `capabilities = ["pull"]`)
	desc, _ := put(t, s.repo, "state", nil, "press-07")
	put(t, s.repo, "signature", &desc, "")
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodPatch} {
		if all := s.mirror.Faults.Requests(method, ""); len(all) != 0 {
			t.Errorf("the mirror was written to: %+v", all)
		}
	}
	s.mirror.Faults.Forget()
	if _, err := s.repo.Resolve(t.Context(), "press-07"); err != nil {
		t.Errorf("Resolve = %v", err)
	}
	if _, err := s.repo.Tags(t.Context()); err != nil {
		t.Errorf("Tags = %v", err)
	}
	if all := s.mirror.Faults.Requests("", "press-07|tags/list"); len(all) != 0 {
		t.Errorf("a mirror that may only pull was asked about tags: %+v", all)
	}
}

// TestMirrorUnderAPath has Harbor's shape of a proxy project: the registry's repositories below another path.
func TestMirrorUnderAPath(t *testing.T) {
	t.Parallel()
	behind := testenv.Registry(t, testenv.Distribution)
	target, err := url.Parse(behind.URL)
	if err != nil {
		t.Fatal(err)
	}
	var header string
	proxy := &httputil.ReverseProxy{Transport: behind.Client().Transport, Rewrite: func(r *httputil.ProxyRequest) {
		header = r.In.Header.Get("X-Site")
		r.SetURL(target)
		r.Out.URL.Path = "/v2/" + strings.TrimPrefix(r.In.URL.Path, "/v2/hub-proxy/")
		if !strings.HasPrefix(r.In.URL.Path, "/v2/hub-proxy/") {
			r.Out.URL.Path = "/nowhere"
		}
	}}
	front := httptest.NewServer(proxy)
	t.Cleanup(front.Close)
	t.Cleanup(func() { proxy.Transport.(*http.Transport).CloseIdleConnections() })
	desc, _ := put(t, openName(t, newClient(t, registry.Options{}), behind.Reference("library/redis")), "layer", nil, "7")
	certs := t.TempDir()
	writeFile(t, fmt.Sprintf("[host.\"%s/v2/hub-proxy\"]\noverride_path = true\n[host.\"%s/v2/hub-proxy\".header]\nx-site = \"hall 3\"\n", front.URL, front.URL), certs, "docker.io", "hosts.toml")
	c := newClient(t, registry.Options{CertsDir: certs, RetryBudget: -1})
	r := openName(t, c, "docker.io/library/redis")
	if got, err := r.Resolve(t.Context(), "7"); err != nil || got.Digest != desc.Digest {
		t.Errorf("Resolve = %v, %v", got.Digest, err)
	}
	if got, err := r.Blob(t.Context(), blobOf([]byte("layer")), 100); err != nil || string(got) != "layer" {
		t.Errorf("Blob = %q, %v", got, err)
	}
	if header != "hall 3" {
		t.Errorf("X-Site: %q, want what hosts.toml says", header)
	}
}

// TestServerOfHostsFile has the registry itself at another address, under a path and a CA of its own.
func TestServerOfHostsFile(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution, testenv.WithTLS())
	certs := t.TempDir()
	ca, err := os.ReadFile(s.CAFile)
	if err != nil {
		t.Fatal(err)
	}
	writeFile(t, string(ca), certs, "registry.example.com", "ca.crt")
	writeFile(t, fmt.Sprintf("server = %q\nca = \"ca.crt\"\n", s.URL), certs, "registry.example.com", "hosts.toml")
	c := newClient(t, registry.Options{CertsDir: certs})
	r := openName(t, c, "registry.example.com/line/state")
	desc, _ := put(t, r, "state", nil, "press-07")
	if got, err := r.Resolve(t.Context(), "press-07"); err != nil || got.Digest != desc.Digest {
		t.Errorf("Resolve = %v, %v", got.Digest, err)
	}
}

// What is wrong with a hosts.toml or a certificate that it names is an error of the configuration, and never an answer of a
// registry.
func TestBadHostsFile(t *testing.T) {
	t.Parallel()
	certs := t.TempDir()
	s := testenv.Registry(t, testenv.Distribution, testenv.WithClientCert())
	for host, file := range map[string]struct{ text, says, hint string }{
		"unfinished.example.com": {"[host.\"https://mirror.example.com\"]\n  capabilities = [\"pull\",", "hosts.toml:2", "check-config"},
		"missing.example.com":    {`ca = "missing.crt"`, "missing.crt", "check-config"},
		"mirror.example.com":     {"[host.\"https://mirror.example.com\"]\nca = \"missing.crt\"\n", "missing.crt", "check-config"},
		"flat.example.com":       {fmt.Sprintf("client = [%q, %q]", s.CertFile, s.KeyFile), "client.pem", `client = [["cert.pem", "key.pem"]]`},
		"large.example.com":      {"#" + strings.Repeat("x", 2<<20), "more than", "check-config"},
	} {
		writeFile(t, file.text, certs, host, "hosts.toml")
		c := newClient(t, registry.Options{CertsDir: certs})
		_, resolve := c.Resolve(t.Context(), host+"/x", "t")
		_, endpoints := c.Endpoints(host + "/x")
		for what, err := range map[string]error{"Resolve": resolve, "Endpoints": endpoints, "CheckCerts": registry.CheckCerts(certs)} {
			if !errors.Is(err, fault.ErrConfig) || errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrTooLarge) || errors.Is(err, fault.ErrTemporary) ||
				!strings.Contains(err.Error(), file.says) || !strings.Contains(fault.Hint(err), file.hint) {
				t.Errorf("%s of %s = %v (%s), want fault.ErrConfig with %q and a hint with %q", what, host, err, fault.Hint(err), file.says, file.hint)
			}
		}
		if err := os.RemoveAll(filepath.Join(certs, host)); err != nil {
			t.Fatal(err)
		}
		if _, err := c.Resolve(t.Context(), host+"/x", "t"); errors.Is(err, fault.ErrConfig) {
			t.Errorf("Resolve after %s was repaired = %v", host, err)
		}
	}
	if err := errors.Join(registry.CheckCerts(certs), registry.CheckCerts(filepath.Join(certs, "missing"))); err != nil {
		t.Errorf("CheckCerts of nothing = %v", err)
	}
}

// Certificates in a host's folder count without a hosts.toml, named as Docker names them, as for containerd.
func TestCertificatesWithoutHostsFile(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution, testenv.WithClientCert())
	desc, _ := put(t, openName(t, clientFor(t, s), s.Reference("line/state")), "state", nil, "press-07")
	host, port, _ := strings.Cut(s.Host, ":")
	for _, folder := range []string{s.Host, host + "_" + port + "_", "_default"} {
		certs := t.TempDir()
		for name, from := range map[string]string{"ca.crt": s.CAFile, "client.cert": s.CertFile, "client.key": s.KeyFile} {
			data, err := os.ReadFile(from)
			if err != nil {
				t.Fatal(err)
			}
			writeFile(t, string(data), certs, folder, name)
		}
		got, err := openName(t, newClient(t, registry.Options{CertsDir: certs}), s.Reference("line/state")).Resolve(t.Context(), "press-07")
		if err != nil || got.Digest != desc.Digest {
			t.Errorf("%s: Resolve = %v, %v", folder, got.Digest, err)
		}
	}
}

func TestEndpoints(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.DistributionHtpasswd, testenv.WithCredentials("mirror", "pw"))
	images := map[string]digest.Digest{}
	for _, path := range []string{"library/redis", "plant/web"} {
		desc, _ := put(t, openName(t, clientFor(t, s), s.Reference(path)), "image", nil, "7")
		images[path] = desc.Digest
	}
	certs := t.TempDir()
	writeFile(t, fmt.Sprintf("[host.\"https://resolver.test\"]\ncapabilities=[\"resolve\"]\n[host.%q]\n[host.\"https://harbor.test/v2/hub\"]\noverride_path=true\n", s.URL), certs, "docker.io", "hosts.toml")
	// As podman keeps it: for a part of a host, and for images as for states.
	c := newClient(t, registry.Options{CertsDir: certs, AuthFile: writeFile(t, authFile(s.Host+"/library", "mirror", "pw"), certs, "config.json"), RetryBudget: -1})
	for _, name := range []string{"docker.io/library/redis", "registry-1.docker.io/library/redis", "docker.io/plant/web"} {
		all, err := c.Endpoints(name)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, e := range all {
			got = append(got, e.Host())
		}
		want := []string{s.Host, "harbor.test", "registry-1.docker.io"}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("Endpoints(%s) (-want +got):\n%s", name, diff)
		}
		_, path, _ := strings.Cut(name, "/")
		_, data, err := all[0].Manifest(t.Context(), images[path], 1<<10)
		switch known := strings.HasPrefix(path, "library/"); {
		case known && (err != nil || len(data) == 0):
			t.Errorf("%s: Manifest = %q, %v, want it: the credentials are for this part", name, data, err)
		case !known && !errors.Is(err, fault.ErrUnauthenticated):
			t.Errorf("%s: Manifest = %v, want fault.ErrUnauthenticated: the credentials are for another part", name, err)
		}
		if _, _, err := all[0].Manifest(t.Context(), "7", 1<<10); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: Manifest of a tag = %v, want fault.ErrInvalid: it is no digest to compare with", name, err)
		}
	}
	if _, err := c.Endpoints("oci-layout:x"); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("Endpoints of a layout = %v, want fault.ErrUnsupported", err)
	}
}

func TestProxy(t *testing.T) {
	t.Parallel()
	s := testenv.Registry(t, testenv.Distribution)
	put(t, openName(t, clientFor(t, s), s.Reference("line/state")), "state", nil, "press-07")
	var asked []string
	direct := s.Client()
	t.Cleanup(direct.CloseIdleConnections)
	proxy := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked = append(asked, r.Method+" "+r.URL.Host)
		out, err := http.NewRequestWithContext(r.Context(), r.Method, s.URL+r.URL.Path, nil)
		if err != nil {
			t.Error(err)
			return
		}
		out.Header = r.Header.Clone()
		resp, err := direct.Do(out)
		if err != nil {
			t.Error(err)
			return
		}
		defer resp.Body.Close()
		for k, v := range resp.Header {
			w.Header()[k] = v
		}
		w.WriteHeader(resp.StatusCode)
		_, _ = io.Copy(w, resp.Body)
	}))
	t.Cleanup(proxy.Close)
	c := newClient(t, registry.Options{PlainHTTP: true, Getenv: environment(map[string]string{"HTTP_PROXY": proxy.URL})})
	if _, err := c.Resolve(t.Context(), "registry.example.com/line/state", "press-07"); err != nil {
		t.Errorf("Resolve = %v", err)
	}
	if want := []string{"HEAD registry.example.com"}; !cmp.Equal(asked, want) {
		t.Errorf("the proxy was asked %q, want %q", asked, want)
	}
}

func TestLayoutAsAPlace(t *testing.T) {
	t.Parallel()
	c := newClient(t, registry.Options{})
	dir := filepath.Join(t.TempDir(), "usb")
	r := openName(t, c, "oci-layout:"+dir)
	if _, err := r.Resolve(t.Context(), "t"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Resolve in a missing layout = %v, want fault.ErrNotFound", err)
	}
	if _, err := os.Stat(dir); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("reading made the folder: %v", err)
	}
	desc, _ := put(t, r, "one", nil, "press-07")
	put(t, r, "signature", &desc, "")
	other := newClient(t, registry.Options{}) // another process
	again := openName(t, other, "oci-layout:"+dir)
	if got, err := again.Resolve(t.Context(), "press-07"); err != nil || got.Digest != desc.Digest {
		t.Errorf("Resolve by another = %v, %v", got.Digest, err)
	}
	if list, err := again.Referrers(t.Context(), desc); err != nil || len(list) != 1 || list[0].ArtifactType == "" {
		t.Errorf("Referrers by another = %v, %v, want one with its type", list, err)
	}
	moved, _ := put(t, r, "two", nil, "press-07")
	if got, err := again.Resolve(t.Context(), "press-07"); err != nil || got.Digest != moved.Digest {
		t.Errorf("Resolve after it moved = %v, %v, want %v", got.Digest, err, moved.Digest)
	}
	if err := os.WriteFile(filepath.Join(dir, "blobs", "sha256", blobOf([]byte("two")).Digest.Encoded()), []byte("TWO"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := again.Blob(t.Context(), blobOf([]byte("two")), 100); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("Blob of a damaged file = %v, want fault.ErrDigestMismatch", err)
	}
	body, err := again.OpenBlob(t.Context(), blobOf([]byte("two")))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(body); !errors.Is(err, fault.ErrDigestMismatch) {
		t.Errorf("ReadAll of a damaged file = %v, want fault.ErrDigestMismatch", err)
	}
	body.Close()
	put(t, again, "two", nil, "press-07")
	if _, err := again.Blob(t.Context(), blobOf([]byte("two")), 100); err != nil {
		t.Errorf("Blob after it was pushed again = %v", err)
	}
}

// A push that is cancelled while it looks at a blob that is there takes nothing away: other artifacts name it too.
func TestCancelledPushKeepsWhatALayoutHas(t *testing.T) {
	t.Parallel()
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	repo, err := client.Open(t.Context(), registry.Reference{Scheme: registry.SchemeLayout, Repository: filepath.Join(t.TempDir(), "layout")})
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("a blob")
	desc := blobOf(data)
	if err := repo.PushBlob(t.Context(), desc, data); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	if err := repo.PushBlob(cancelled, desc, data); !errors.Is(err, context.Canceled) {
		t.Errorf("PushBlob, cancelled: %v", err)
	}
	if got, err := repo.Blob(t.Context(), desc, desc.Size); err != nil || string(got) != string(data) {
		t.Errorf("the blob afterwards: %q, %v", got, err)
	}
}

func TestNoLayout(t *testing.T) {
	t.Parallel()
	c := newClient(t, registry.Options{})
	for name, put := range map[string]func(dir string){
		"some folder": func(dir string) { writeFile(t, "x", dir, "letters.txt") },
		"a file":      func(dir string) { writeFile(t, "x", dir) },
		"broken index": func(dir string) {
			writeFile(t, `{"imageLayoutVersion":"1.0.0"}`, dir, "oci-layout")
			writeFile(t, "{", dir, "index.json")
		},
		"other version": func(dir string) {
			writeFile(t, `{"imageLayoutVersion":"9"}`, dir, "oci-layout")
			writeFile(t, "{}", dir, "index.json")
		},
		"not a layout file": func(dir string) { writeFile(t, `[]`, dir, "oci-layout"); writeFile(t, "{}", dir, "index.json") },
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "x")
			put(dir)
			r := openName(t, c, "oci-layout:"+dir)
			if err := r.PushBlob(t.Context(), empty(), []byte("{}")); err == nil || errors.Is(err, fault.ErrNotFound) {
				t.Errorf("PushBlob = %v, want a refusal", err)
			}
			if _, err := r.Resolve(t.Context(), "t"); err == nil {
				t.Errorf("Resolve = %v, want an error", err)
			}
		})
	}
}
