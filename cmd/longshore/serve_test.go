package main

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// served is a server that runs while its test does.
type served struct {
	url    string
	stop   func() (code int, stderr string)
	stderr *shared
}

// shared is a buffer that a server writes and a test reads.
type shared struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *shared) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *shared) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// serve starts longshore serve on a free port and writes down what it says.
func (s *shell) serve(args ...string) *served {
	s.t.Helper()
	ctx, cancel := context.WithCancel(s.t.Context())
	read, write := io.Pipe()
	out := &served{stderr: &shared{}}
	ended := make(chan int, 1)
	line := append([]string{"serve", "--listen", "127.0.0.1:0"}, args...)
	go func() {
		p := newProgram(strings.NewReader(""), write, out.stderr, s.lookup)
		code := p.run(ctx, line)
		write.CloseWithError(fmt.Errorf("the server ended with %d: %s", code, out.stderr))
		ended <- code
	}()
	out.stop = sync.OnceValues(func() (int, string) {
		cancel()
		return <-ended, out.stderr.String()
	})
	s.t.Cleanup(func() { out.stop() })
	buffer := make([]byte, 64<<10)
	n, err := read.Read(buffer)
	if err != nil {
		s.t.Fatal(err)
	}
	out.url = regexp.MustCompile(`https?://127\.0\.0\.1:\d+`).FindString(string(buffer[:n]))
	fmt.Fprintf(&s.log, "$ longshore serve %s\n%s--- until it is stopped\n\n", strings.Join(args, " "), strings.ReplaceAll(string(buffer[:n]), out.url, "http://127.0.0.1:PORT"))
	return out
}

// An export is a registry: for our client, containerd, cosign, and whoever speaks the API. Nothing of it can be changed.
func TestServe(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--signature-format", "both", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	s.log.Reset()
	for _, format := range []string{"text", "json"} {
		if code, stderr := s.serve("-o", format, "stick").stop(); code != outcome.OK {
			t.Errorf("the server ends with %d: %s", code, stderr)
		}
	}
	s.mask("digest-[0-9a-f]{64}", "digest-HEX")
	s.golden(golden)

	server := s.serve("--debug", "stick")
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+server.url+"\"\n") // the centre is not there any more
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
	s.do(outcome.OK, "state", "show", states+":press-07")
	at := strings.TrimPrefix(server.url, "http://")
	s.write("root.json", `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)
	for _, name := range []string{"cosign3", "cosign2"} {
		args := []string{"verify", "--key", "release.pub", "--insecure-ignore-tlog", at + "/plant/state:press-07"}
		if name == "cosign2" {
			args = append(args, "--trusted-root", "root.json")
		}
		cmd := exec.CommandContext(t.Context(), testenv.Program(t, name), args...)
		cmd.Env = append(os.Environ(), "HOME="+s.env["HOME"])
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Errorf("%s: %v\n%s", name, err, out)
		}
	}
	daemon := testenv.Containerd(t)
	var caddy digest.Digest
	for tag := range strings.SplitSeq(string(get(t, server.url+"/v2/library/caddy/tags/list", http.StatusOK)), `"`) {
		if hex, ok := strings.CutPrefix(tag, "digest-"); ok {
			caddy = digest.NewDigestFromEncoded(digest.SHA256, hex)
		}
	}
	if out, err := daemon.Ctr(t.Context(), "images", "pull", "--hosts-dir", filepath.Join(s.env["HOME"], "certs.d"), "--platform", "linux/amd64", host+"/library/caddy@"+caddy.String()); err != nil {
		t.Errorf("containerd: %v\n%s", err, out)
	}

	var index struct {
		Manifests []struct{ Digest, ArtifactType string }
	}
	resolved := head(t, server.url+"/v2/plant/state/manifests/press-07")
	if err := json.Unmarshal(get(t, server.url+"/v2/plant/state/referrers/"+resolved, http.StatusOK), &index); err != nil || len(index.Manifests) != 1 {
		t.Errorf("referrers: %+v, %v, want the signature", index, err)
	}
	if got := string(get(t, server.url+"/v2/plant/state/referrers/"+resolved+"?artifactType=none", http.StatusOK)); strings.Contains(got, "digest") {
		t.Errorf("referrers of another type: %s", got)
	}
	if got := string(get(t, server.url+"/v2/_catalog", http.StatusOK)); !strings.Contains(got, `"library/caddy","library/nats","plant/components/line-monitor","plant/state"`) {
		t.Errorf("catalog: %s", got)
	}
	for path, status := range map[string]int{
		"":                                  http.StatusOK,
		"plant/other/tags/list":             http.StatusNotFound,
		"plant/state/manifests/press-08":    http.StatusNotFound,
		"plant/state/blobs/" + sum("none"):  http.StatusNotFound,
		"plant/state/manifests/" + sum("x"): http.StatusNotFound,
	} {
		get(t, server.url+"/v2/"+path, status)
	}
	for _, method := range []string{http.MethodPut, http.MethodPost, http.MethodPatch, http.MethodDelete} {
		if r := ask(t, method, server.url+"/v2/plant/state/manifests/press-07", ""); r.StatusCode != http.StatusMethodNotAllowed {
			t.Errorf("%s: %s", method, r.Status)
		}
	}
	code, stderr := server.stop()
	if code != outcome.OK || !strings.Contains(stderr, "path=/v2/plant/state/manifests/press-07") || strings.Contains(stderr, "level=ERROR") {
		t.Errorf("exit %d, log:\n%s", code, stderr)
	}

	server = s.serve("--host-paths", "stick")
	get(t, server.url+"/v2/"+host+"/plant/state/manifests/press-07", http.StatusOK)
	get(t, server.url+"/v2/plant/state/manifests/press-07", http.StatusNotFound)
}

// With TLS a client that trusts the certificate reads all, with hosts.toml as docs/site.md has it.
func TestServeTLS(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	pair := httptest.NewUnstartedServer(nil)
	pair.StartTLS()
	certificate := pair.TLS.Certificates[0]
	pair.Close()
	key, err := x509.MarshalPKCS8PrivateKey(certificate.PrivateKey)
	if err != nil {
		t.Fatal(err)
	}
	s.write("tls.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate.Certificate[0]})))
	s.write("tls.key", string(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: key})))
	server := s.serve("--tls-cert", "tls.crt", "--tls-key", "tls.key", "stick")
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+server.url+"\"\nca = \""+filepath.Join(s.env["HOME"], "tls.crt")+"\"\n")
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
}

// A damaged file is never served whole, and after it was found, not at all; parts of it are for the client to judge.
func TestServeDamaged(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	var layer digest.Digest
	for d, size := range blobs(t, "stick") {
		if size > 500 && !json.Valid(mustRead(t, filepath.Join("stick", "blobs", "sha256", d.Encoded()))) {
			layer = d
		}
	}
	file := filepath.Join("stick", "blobs", "sha256", layer.Encoded())
	data := mustRead(t, file)
	server := s.serve("stick")
	url := server.url + "/v2/plant/state/blobs/" + layer.String()
	if got := get(t, url, http.StatusOK); !bytes.Equal(got, data) {
		t.Errorf("%d bytes of %d", len(got), len(data))
	}
	for from, want := range map[string]string{"bytes=100-199": string(data[100:200]), fmt.Sprintf("bytes=%d-", len(data)-7): string(data[len(data)-7:]), "bytes=0-0": string(data[:1])} {
		r := ask(t, http.MethodGet, url, from)
		if got, err := io.ReadAll(r.Body); err != nil || r.StatusCode != http.StatusPartialContent || string(got) != want {
			t.Errorf("%s: %s, %d bytes, %v", from, r.Status, len(got), err)
		}
	}
	if r := ask(t, http.MethodGet, url, fmt.Sprintf("bytes=%d-", len(data)+1)); r.StatusCode != http.StatusRequestedRangeNotSatisfiable {
		t.Errorf("from after its end: %s", r.Status)
	}
	for _, damage := range [][]byte{append([]byte("x"), data[1:]...), append(bytes.Clone(data), "more"...)} {
		s.write(file, string(damage))
		r := ask(t, http.MethodGet, url, "")
		if got, err := io.ReadAll(r.Body); err == nil {
			t.Errorf("a damaged blob of %d bytes was served whole: %s, %d bytes", len(damage), r.Status, len(got))
		}
		get(t, url, http.StatusNotFound)
	}
	if log := server.stderr.String(); !strings.Contains(log, "a damaged blob is not served any more") || !strings.Contains(log, layer.String()) {
		t.Errorf("log:\n%s", log)
	}
	s.write(file, string(data)+"x") // of another size: looked at again
	ask(t, http.MethodGet, url, "")
	s.write(file, string(data))
	get(t, url, http.StatusOK)
	// A manifest is hashed first.
	manifest := filepath.Join("stick", "blobs", "sha256", strings.TrimPrefix(head(t, server.url+"/v2/plant/state/manifests/press-07"), "sha256:"))
	s.write(manifest, strings.Replace(string(mustRead(t, manifest)), "press-07", "press-08", 1))
	get(t, server.url+"/v2/plant/state/manifests/press-07", http.StatusNotFound)
}

// What cannot be served is told before anybody asks.
func TestServeRefuses(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	s.write("empty/x", "")
	s.refuses(outcome.NotFound, []string{"gone", "no such file"}, "serve", "gone")
	s.refuses(outcome.NotFound, []string{"empty", "it is no export"}, "serve", "empty")
	s.refuses(outcome.Misused, []string{"without TLS", "hint: give --tls-cert"}, "serve", "--listen", ":0", "stick")
	s.refuses(outcome.Misused, []string{"needs --tls-key"}, "serve", "--tls-cert", "x", "stick")
	s.refuses(outcome.Misused, []string{"load certificate"}, "serve", "--tls-cert", "release.pub", "--tls-key", "release.key", "stick")
	server := s.serve("stick")
	s.refuses(outcome.Other, []string{"listen on", "hint: another program has this port"}, "serve", "--listen", strings.TrimPrefix(server.url, "http://"), "stick")
	index := string(mustRead(t, "stick/index.json"))
	s.write("stick/index.json", strings.Replace(index, host+"/library/nats:", "other.example/library/caddy:", 1))
	s.refuses(outcome.Refused, []string{"have the same path", "hint: serve them with --host-paths"}, "serve", "--listen", "127.0.0.1:0", "stick")
}

// A link on a stick is no way to the files of the machine that serves it, and a pipe does not stop a request.
func TestServeFollowsNoLinks(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.do(outcome.OK, "export", "-q", releaseKeyPublic, states, "stick")
	s.write("secret", "password of this machine")
	if err := os.Symlink("../../../secret", "stick/blobs/sha256/"+strings.TrimPrefix(sum("link"), "sha256:")); err != nil {
		t.Fatal(err)
	}
	server := s.serve("stick")
	if err := syscall.Mkfifo("stick/blobs/sha256/"+strings.TrimPrefix(sum("pipe"), "sha256:"), 0o600); err != nil { // before that it is refused
		t.Fatal(err)
	}
	for _, what := range []string{"link", "pipe"} {
		for _, part := range []string{"", "bytes=0-10"} {
			resp := ask(t, http.MethodGet, server.url+"/v2/plant/state/blobs/"+sum(what), part)
			if data, _ := io.ReadAll(resp.Body); resp.StatusCode != http.StatusNotFound || bytes.Contains(data, []byte("pass")) { // what came counts, not how it ended
				t.Errorf("%s %s: %s %q", what, part, resp.Status, data)
			}
		}
	}
}

// sum is a digest of some text.
func sum(text string) string { return digest.FromString(text).String() }

func ask(t *testing.T, method, url, part string) *http.Response {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	if part != "" {
		r.Header.Set("Range", part)
	}
	response, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { response.Body.Close() })
	return response
}

// get reads an answer of a status.
func get(t *testing.T, url string, status int) []byte {
	t.Helper()
	r := ask(t, http.MethodGet, url, "")
	data, err := io.ReadAll(r.Body)
	if err != nil || r.StatusCode != status {
		t.Errorf("GET %s: %s, %v, want %d\n%s", url, r.Status, err, status, data)
	}
	return data
}

// head is the digest of a manifest.
func head(t *testing.T, url string) string {
	t.Helper()
	return ask(t, http.MethodHead, url, "").Header.Get("Docker-Content-Digest")
}
