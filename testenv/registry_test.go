package testenv

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-containerregistry/pkg/authn"
	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/random"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

// client is a client of s whose connections end with the test.
func client(t *testing.T, s *RegistryServer) *http.Client {
	t.Helper()
	c := s.Client()
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// pushRandom pushes an image of one layer of random bytes.
func pushRandom(t *testing.T, s *RegistryServer, ref string, size int64) v1.Image {
	t.Helper()
	img, err := random.Image(size, 1)
	if err != nil {
		t.Fatal(err)
	}
	r, err := name.ParseReference(s.Reference(ref))
	if err != nil {
		t.Fatal(err)
	}
	if err := remote.Write(r, img, remoteOptions(t, s)...); err != nil {
		t.Fatalf("push to %s: %v", s.Kind, err)
	}
	return img
}

func remoteOptions(t *testing.T, s *RegistryServer) []remote.Option {
	t.Helper()
	return []remote.Option{
		remote.WithContext(t.Context()), remote.WithTransport(client(t, s).Transport),
		remote.WithAuth(&authn.Basic{Username: s.Username, Password: s.Password}),
	}
}

func get(t *testing.T, c *http.Client, url string, header ...string) (*http.Response, []byte, error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := c.Do(req)
	if err != nil {
		return nil, nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	return resp, body, err
}

func TestEveryKindTakesAndGivesAnImage(t *testing.T) {
	for _, kind := range Kinds() {
		t.Run(string(kind), func(t *testing.T) {
			s := Registry(t, kind)
			img := pushRandom(t, s, "plant/app:1", 1000)
			want, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			r, err := name.ParseReference(s.Reference("plant/app:1"))
			if err != nil {
				t.Fatal(err)
			}
			got, err := remote.Head(r, remoteOptions(t, s)...)
			if err != nil || got.Digest != want {
				t.Fatalf("HEAD = %v, %v, want %v", got, err, want)
			}
			if s.Username == "" {
				return
			}
			anonymous := []remote.Option{remote.WithContext(t.Context()), remote.WithTransport(client(t, s).Transport)}
			if _, err := remote.Head(r, anonymous...); err == nil {
				t.Error("HEAD without credentials: no error")
			}
			wrong := remote.WithAuth(&authn.Basic{Username: s.Username, Password: "wrong"})
			if _, err := remote.Head(r, append(anonymous, wrong)...); err == nil {
				t.Error("HEAD with a wrong password: no error")
			}
		})
	}
}

// The kinds differ, which is why there are several: see what each does with referrers, ranges and wrong digests.
func TestQuirks(t *testing.T) {
	tests := []struct {
		kind      Kind
		referrers int // status of the referrers API
		listed    int // descriptors in its answer
		subject   bool
		openRange int // status of a GET with an open range
		wrong     int // status of a manifest's PUT under a digest that is not its own
	}{
		{Distribution, 404, 0, false, 206, 400},
		{Referrers, 200, 1, true, 206, 400},
		{Lax, 404, 0, false, 416, 201},
	}
	for _, tt := range tests {
		t.Run(string(tt.kind), func(t *testing.T) {
			s := Registry(t, tt.kind)
			c := client(t, s)
			img := pushRandom(t, s, "plant/app:1", 1000)
			digest, err := img.Digest()
			if err != nil {
				t.Fatal(err)
			}
			layers, err := img.Layers()
			if err != nil {
				t.Fatal(err)
			}
			blob, err := layers[0].Digest()
			if err != nil {
				t.Fatal(err)
			}
			size, err := img.Size()
			if err != nil {
				t.Fatal(err)
			}
			config := digestOf([]byte("{}"))
			if status := upload(t, c, s, []byte("{}"), config); status != 201 {
				t.Fatalf("upload = %d, want 201", status)
			}
			manifest := fmt.Sprintf(`{"schemaVersion":2,"mediaType":"application/vnd.oci.image.manifest.v1+json",`+
				`"artifactType":"application/vnd.example","config":{"mediaType":"application/vnd.oci.empty.v1+json","digest":%q,"size":2},`+
				`"layers":[{"mediaType":"application/vnd.oci.empty.v1+json","digest":%[1]q,"size":2}],`+
				`"subject":{"mediaType":"application/vnd.docker.distribution.manifest.v2+json","digest":%q,"size":%d}}`, config, digest, size)
			resp := put(t, c, s.URL+"/v2/plant/app/manifests/"+digestOf([]byte(manifest)), "application/vnd.oci.image.manifest.v1+json", []byte(manifest))
			if resp.StatusCode != 201 {
				t.Fatalf("PUT of a referrer = %s", resp.Status)
			}
			if got := resp.Header.Get("OCI-Subject") != ""; got != tt.subject {
				t.Errorf("OCI-Subject is sent: %v, want %v", got, tt.subject)
			}
			resp, body, err := get(t, c, s.URL+"/v2/plant/app/referrers/"+digest.String()+"?artifactType=application/vnd.example")
			if err != nil || resp.StatusCode != tt.referrers {
				t.Errorf("referrers = %v, %v, want %d", resp, err, tt.referrers)
			}
			if n := bytes.Count(body, []byte(`"application/vnd.example"`)); tt.referrers == 200 && n != tt.listed {
				t.Errorf("referrers list %d of our type, want %d: %s", n, tt.listed, body)
			}
			resp, _, err = get(t, c, s.URL+"/v2/plant/app/blobs/"+blob.String(), "Range", "bytes=4-")
			if err != nil || resp.StatusCode != tt.openRange {
				t.Errorf("open range = %v, %v, want %d", resp, err, tt.openRange)
			}
			if status := upload(t, c, s, []byte("something"), digestOf([]byte("other"))); status != 400 {
				t.Errorf("blob under a wrong digest = %d, want 400", status)
			}
			resp = put(t, c, s.URL+"/v2/plant/app/manifests/"+digestOf([]byte("other")), "application/vnd.oci.image.manifest.v1+json", []byte(manifest))
			if resp.StatusCode != tt.wrong {
				t.Errorf("manifest under a wrong digest = %d, want %d", resp.StatusCode, tt.wrong)
			}
		})
	}
}

func digestOf(b []byte) string {
	sum := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(sum[:])
}

func put(t *testing.T, c *http.Client, url, contentType string, body []byte) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPut, url, bytes.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, resp.Body)
	return resp
}

// upload sends a blob in two requests and returns the last status.
func upload(t *testing.T, c *http.Client, s *RegistryServer, data []byte, digest string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+"/v2/plant/app/blobs/uploads/", nil)
	if err != nil {
		t.Fatal(err)
	}
	resp, err := c.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	resp.Body.Close()
	location, err := resp.Location()
	if err != nil {
		t.Fatal(err)
	}
	q := location.Query()
	q.Set("digest", digest)
	location.RawQuery = q.Encode()
	return put(t, c, location.String(), "application/octet-stream", data).StatusCode
}

func TestDownAndUp(t *testing.T) {
	s := Registry(t, Distribution)
	img := pushRandom(t, s, "plant/app:1", 1000)
	c := client(t, s)
	s.Down()
	if _, _, err := get(t, c, s.URL+"/v2/"); err == nil {
		t.Error("GET while down: no error")
	}
	if err := s.Up(); err != nil {
		t.Fatal(err)
	}
	want, err := img.RawManifest()
	if err != nil {
		t.Fatal(err)
	}
	resp, got, err := get(t, c, s.URL+"/v2/plant/app/manifests/1", "Accept", "*/*")
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("GET after Up = %v, %q, %v; want what was pushed", resp, got, err)
	}
}

func TestStorageOutlivesTheServer(t *testing.T) {
	dir := t.TempDir()
	first := Registry(t, Distribution, WithStorage(dir))
	pushRandom(t, first, "plant/app:1", 1000)
	if err := first.Close(); err != nil {
		t.Fatal(err)
	}
	second := Registry(t, Distribution, WithStorage(dir), WithAddress(first.Host))
	if second.Host != first.Host {
		t.Errorf("Host = %s, want %s", second.Host, first.Host)
	}
	if resp, _, err := get(t, client(t, second), second.URL+"/v2/plant/app/tags/list"); err != nil || resp.StatusCode != 200 {
		t.Errorf("tags = %v, %v", resp, err)
	}
}

func TestClientCertificate(t *testing.T) {
	s := Registry(t, Referrers, WithClientCert())
	if !strings.HasPrefix(s.URL, "https://") {
		t.Errorf("URL = %s, want https", s.URL)
	}
	if resp, _, err := get(t, client(t, s), s.URL+"/v2/"); err != nil || resp.StatusCode != 200 {
		t.Errorf("with a certificate: %v, %v", resp, err)
	}
	s.CertFile = ""
	if _, _, err := get(t, client(t, s), s.URL+"/v2/"); err == nil {
		t.Error("without a certificate: no error")
	}
}
