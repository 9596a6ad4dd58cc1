package conform

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

// mutant is a manager that breaks a rule: a proxy in front of a right one. All members may be zero.
type mutant struct {
	tls     func(*tls.Config)
	cert    func(*x509.Certificate)       // of the manager
	key     elliptic.Curve                // of that certificate; nil: P-256
	alone   bool                          // that certificate is of an authority that the trust bundle lacks
	as      string                        // client that speaks to the right manager; "": the one that sent the request
	request func(*http.Request) bool      // before it is passed on; false: see refuse
	answer  func(*http.Request, *fakable) // before it is passed back
}

// fakable is an answer that can be changed.
type fakable struct {
	status int
	header http.Header
	body   []byte
}

// replace changes the body.
func replace(pattern, by string) mutant {
	re := regexp.MustCompile(pattern)
	return mutant{answer: func(_ *http.Request, a *fakable) { a.body = re.ReplaceAll(a.body, []byte(by)) }}
}

// header changes a header of answers without an error.
func header(name string, change func(string) string) mutant {
	return mutant{answer: func(_ *http.Request, a *fakable) {
		if a.status < 300 {
			a.header.Set(name, change(a.header.Get(name)))
		}
	}}
}

func set(name, value string) mutant { return header(name, func(string) string { return value }) }

// code turns a status code into another one.
func code(from, to int) mutant {
	return mutant{answer: func(_ *http.Request, a *fakable) {
		if a.status == from {
			a.status = to
		}
	}}
}

// without removes a header of requests.
func without(name string) mutant {
	return mutant{request: func(r *http.Request) bool { r.Header.Del(name); return true }}
}

// permissive accepts every certificate as that of a client.
func permissive(as string) mutant {
	return mutant{as: as, tls: func(c *tls.Config) {
		c.ClientAuth, c.VerifyConnection, c.MinVersion = tls.RequestClientCert, nil, tls.VersionTLS12
	}}
}

const invalid = `{"type":"https://docs.margo.org/specification/problem-types#semantic-error","title":"Semantic error","status":422,"retryable":false}`

var (
	// lenient takes what it should reject, strict rejects what it should take.
	lenient = mutant{answer: func(_ *http.Request, a *fakable) {
		if a.status >= 400 {
			a.status, a.body = 200, nil
		}
	}}
	strict = mutant{answer: func(r *http.Request, a *fakable) {
		if a.status < 300 && (r.Method == "PUT" || r.Method == "POST") {
			a.status, a.body = 422, []byte(invalid)
			a.header.Set("Content-Type", problemMedia)
		}
	}}
	// vague rejects without saying why, wordless in another format.
	vague = mutant{answer: func(_ *http.Request, a *fakable) {
		if a.status >= 400 {
			a.body = regexp.MustCompile(`"type":"[^"]*"`).ReplaceAll(a.body, []byte(`"type":"about:blank"`))
		}
	}}
	wordless = mutant{answer: func(_ *http.Request, a *fakable) {
		if a.status >= 400 {
			a.body = []byte("no")
			a.header.Set("Content-Type", "text/plain")
		}
	}}
	retryable = replace(`"retryable":false`, `"retryable":true`)
)

// quiet is a log that is not shown: mutants fail on purpose.
var quiet = log.New(io.Discard, "", 0)

type all = map[string]mutant

// mutants are, for each case, managers at which it must fail.
var mutants = map[string]all{
	"manifest.type":    {"charset": header("Content-Type", func(s string) string { return s + "; charset=utf-8" })},
	"manifest.version": {"zero": replace(`("manifestVersion":)\d+`, "${1}0"), "fraction": replace(`("manifestVersion":)\d+`, "${1}1.5"), "text": replace(`("manifestVersion":)(\d+)`, `${1}"$2"`)},
	"manifest.first":   {"two": replace(`("manifestVersion":)1}`, "${1}2}"), "an archive": replace(`"bundle":null`, `"bundle":{}`)},
	"manifest.rises":   {"stays": replace(`("manifestVersion":)\d+`, "${1}5")},
	"manifest.empty":   {"absent": replace(`"bundle":null,`, ""), "an archive": replace(`"bundle":null`, `"bundle":{}`), "null deployments": replace(`"deployments":\[\]`, `"deployments":null`)},
	"manifest.members": {
		"media type": replace(bundleMedia[len("application/"):len(bundleMedia)-len("+tar+gzip")], "vnd.acme"), "size": replace(`"sizeBytes":\d+`, `"sizeBytes":-1`),
		"no bundle": replace(`"bundle":\{[^}]*\}`, `"bundle":null`), "no digest": replace(`"deploymentId"`, `"id"`),
	},
	"manifest.urls":      {"clients": replace(`/api/v1/deployments/`, "/api/v1/clients/press-07/deployments/"), "bundles": replace(`/api/v1/bundles/`, "/bundles/")},
	"manifest.digests":   {"upper case": replace(`sha256:`, "SHA256:"), "another algorithm": replace(`("digest":")sha256`, "${1}sha512")},
	"manifest.etag":      {"weak": header("ETag", func(s string) string { return "W/" + s }), "unquoted": header("ETag", func(s string) string { return strings.Trim(s, `"`) }), "another": set("ETag", `"1"`)},
	"manifest.cache":     {"immutable": set("Cache-Control", immutable), "none": set("Cache-Control", ""), "public": set("Cache-Control", "public")},
	"manifest.unchanged": {"ignored": without("If-None-Match")},
	"manifest.changed": {"always": mutant{answer: func(r *http.Request, a *fakable) {
		if r.Header.Get("If-None-Match") != "" {
			a.status, a.body = 304, nil
		}
	}}},
	"manifest.compressed":     {"no Vary": squeeze(false, func(b []byte) []byte { return b }), "other bytes": squeeze(true, func(b []byte) []byte { return append(b, '\n') })},
	"manifest.accept":         {"ignored": without("Accept"), "strict": {request: func(r *http.Request) bool { r.Header.Set("Accept", "text/html"); return true }}, "vague": vague},
	"content.bundle":          {"cache": set("Cache-Control", "public, max-age=31536000, immutable"), "type": set("Content-Type", "application/gzip"), "bytes": onPath("/bundles/", func(b []byte) []byte { return append(b, 0) })},
	"content.deployment":      {"cache": set("Cache-Control", "private"), "type": set("Content-Type", "application/yaml; charset=utf-8"), "newlines": onPath("/deployments/", func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\n"), []byte("\r\n")) })},
	"content.unchanged":       {"ignored": without("If-None-Match")},
	"content.id":              {"another": onPath("/deployments/", func(b []byte) []byte { return append([]byte("id: x\n"), b[bytes.IndexByte(b, '\n')+1:]...) })},
	"content.archive":         {"one less": repack(func(i int, name string) (string, bool) { return name, i > 0 }), "one more": repack(func(i int, name string) (string, bool) { return name, true }), "a folder": repack(func(i int, name string) (string, bool) { return "all/" + name, i < 2 })},
	"capabilities.registered": {"always 200": code(201, 200), "always 201": code(200, 201)},
	"capabilities.removed":    {"200": code(204, 200), "vague": vague, "silent": code(404, 204)},
	"capabilities.root":       {"lenient": lenient, "strict": strict}, "capabilities.extension": {"strict": strict}, "capabilities.identity": {"lenient": lenient},
	"capabilities.hosting": {"lenient": lenient, "strict": strict}, "capabilities.collector": {"strict": strict}, "capabilities.runtimes": {"lenient": lenient, "strict": strict},
	"capabilities.types": {"lenient": lenient, "strict": strict}, "capabilities.hardware": {"lenient": lenient, "strict": strict}, "capabilities.labels": {"lenient": lenient, "strict": strict},
	"capabilities.capacity": {"strict": strict}, "capabilities.path": {"lenient": lenient, "vague": vague}, "capabilities.malformed": {"lenient": lenient, "422": code(400, 422), "vague": vague},
	"capabilities.parent": {"lenient": lenient, "vague": vague, "strict": strict}, "capabilities.scope": {"lenient": lenient, "open": permissive("press-08")},
	"status.accepted": {"strict": strict, "always 201": code(200, 201)}, "status.created": {"always 200": code(201, 200), "always 201": code(200, 201)},
	"status.path": {"lenient": lenient}, "status.version": {"lenient": lenient}, "status.state": {"lenient": lenient, "400": code(422, 400)}, "status.components": {"lenient": lenient},
	"status.gateway": {"strict": strict}, "status.codes": {"strict": strict}, "status.order": {"strict": strict}, "status.malformed": {"lenient": lenient, "wordless": wordless}, "status.scope": {"open": permissive("press-08"), "lenient": lenient},
	"identity.manager": {"two URIs": {cert: func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }}, "another": {cert: func(c *x509.Certificate) {
		c.URIs = []*url.URL{{Scheme: "spiffe", Host: domain, Path: "/margo/wfm/other"}}
	}}},
	"identity.leaf":     {"cA": {cert: func(c *x509.Certificate) { c.IsCA = true }}, "keyCertSign": {cert: func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }}, "cRLSign": {cert: func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }}},
	"identity.chain":    {"stranger": {alone: true}, "expired": {cert: func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }}},
	"identity.key":      {"P-521": {key: elliptic.P521()}},
	"identity.tls":      {"1.2": {tls: func(c *tls.Config) { c.MinVersion, c.MaxVersion = tls.VersionTLS12, tls.VersionTLS12 }}},
	"identity.none":     {"open": permissive("press-07")},
	"identity.stranger": {"open": permissive("press-07")},
	"identity.time":     {"open": permissive("press-07")},
	"identity.uris":     {"open": permissive("press-07")},
	"identity.ca":       {"open": permissive("press-07")},
	"identity.rsa":      {"open": permissive("press-07")},
	"identity.exact":    {"open": permissive("press-07")},
	"identity.p256": {"refused": {tls: func(c *tls.Config) {
		c.VerifyConnection = func(tls.ConnectionState) error { return errors.New("P-384 only") }
	}}},
	"identity.accepted":  {"open": permissive("press-07"), "wordless": wordless, "vague": vague},
	"identity.others":    {"open": permissive("press-07")},
	"identity.discovery": {"domain": replace(domain, "evil.example"), "no key": replace(`"x509-svid"`, `"jwt-svid"`), "plain HTTP": replace(`"https:`, `"http:`), "vague": {answer: func(_ *http.Request, a *fakable) { a.status = 404; a.body = []byte("no") }}},
	"api.http":           {"1.0": {request: func(*http.Request) bool { return false }}},
	"api.bundle":         {"lenient": lenient, "vague": vague, "wordless": wordless, "retryable": retryable, "type": replace("invalid-bundle", "deployment-not-found")},
	"api.deployment":     {"lenient": lenient, "vague": vague, "wordless": wordless, "title": replace(`"title":"[^"]*"`, `"x":1`), "status": replace(`"status":404`, `"status":400`)},
	"api.digest":         {"lenient": lenient},
	"api.blank":          {"lenient": lenient, "wordless": wordless, "type": replace("about:blank", problemBase+"invalid-request"), "retryable": retryable},
	"api.busy": {
		"no Retry-After": {answer: func(_ *http.Request, a *fakable) { a.header.Del("Retry-After") }}, "final": replace(`"retryable":true`, `"retryable":false`), "fixed": replace("exponential", "fixed"),
	},
}

// onPath changes the bodies of paths.
func onPath(part string, change func([]byte) []byte) mutant {
	return mutant{answer: func(r *http.Request, a *fakable) {
		if a.status == 200 && strings.Contains(r.URL.Path, part) {
			a.body = change(a.body)
		}
	}}
}

// squeeze compresses answers.
func squeeze(vary bool, change func([]byte) []byte) mutant {
	return mutant{answer: func(r *http.Request, a *fakable) {
		if a.status != 200 || !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
			return
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		_, _ = z.Write(change(a.body))
		_ = z.Close()
		a.body = b.Bytes()
		a.header.Set("Content-Encoding", "gzip")
		if vary {
			a.header.Set("Vary", "Accept-Encoding")
		}
	}}
}

// repack makes another bundle: keep renames its files, or leaves them out; a third file is added.
func repack(keep func(i int, name string) (string, bool)) mutant {
	return onPath("/bundles/", func(data []byte) []byte {
		in, err := gzip.NewReader(bytes.NewReader(data))
		if err != nil {
			return nil
		}
		var b bytes.Buffer
		z := gzip.NewWriter(&b)
		files, out := tar.NewReader(in), tar.NewWriter(z)
		add := func(i int, name string, body []byte) {
			if name, ok := keep(i, name); ok {
				_ = out.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(body))})
				_, _ = out.Write(body)
			}
		}
		n := 0
		for h, err := files.Next(); err == nil; h, err = files.Next() {
			body, _ := io.ReadAll(files)
			add(n, h.Name, body)
			n++
		}
		add(n, "extra.yaml", []byte("id: x\n"))
		_ = out.Close()
		_ = z.Close()
		return b.Bytes()
	})
}

// mutate starts a mutant and returns its address.
func (m *manager) mutate(t *testing.T, x mutant) string {
	t.Helper()
	authority := m.Authority
	if x.alone {
		authority = identitytest.New(t)
	}
	curve := x.key
	if curve == nil {
		curve = elliptic.P256()
	}
	key, err := ecdsa.GenerateKey(curve, rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	own := authority.IssueKey(t, key, managerID, x.cert)
	presented, err := tls.X509KeyPair(own.Cert, own.Key)
	if err != nil {
		t.Fatal(err)
	}
	right := m.Issue(t, managerID, nil)
	svid, err := identity.ParseSVID("cert", right.Cert, "key", right.Key)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := identity.ParseBundle("bundle", m.PEM(), domain)
	if err != nil {
		t.Fatal(err)
	}
	config := identity.ServerConfig(&identity.Credentials{SVID: svid, Bundle: bundle}, time.Now)
	config.GetCertificate = func(*tls.ClientHelloInfo) (*tls.Certificate, error) { return &presented, nil }
	if x.tls != nil {
		x.tls(config)
	}
	p := &proxy{mutant: x, manager: m, t: t, peers: map[string]*http.Transport{}}
	srv := httptest.NewUnstartedServer(p)
	srv.TLS = config
	srv.Config.ErrorLog = quiet
	srv.StartTLS()
	p.base = srv.URL
	t.Cleanup(func() {
		srv.Close()
		for _, tr := range p.peers {
			tr.CloseIdleConnections()
		}
	})
	return srv.URL
}

// proxy passes requests on to the right manager, as the client that sent them.
type proxy struct {
	mutant
	manager *manager
	t       *testing.T
	base    string

	mu    sync.Mutex
	peers map[string]*http.Transport
}

func (p *proxy) transport(id string) *http.Transport {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.peers[id] == nil {
		p.peers[id] = &http.Transport{DisableCompression: true, TLSClientConfig: &tls.Config{
			InsecureSkipVerify: true, Certificates: []tls.Certificate{p.manager.pair(p.t, id, nil)},
		}}
	}
	return p.peers[id]
}

func (p *proxy) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	id := clientID(p.as)
	if p.as == "" {
		id = r.TLS.PeerCertificates[0].URIs[0].String()
	}
	if p.request != nil && !p.request(r) {
		answerOld(w)
		return
	}
	real, err := url.Parse(p.manager.target.BaseURL)
	if err != nil {
		p.t.Error(err)
	}
	got := httptest.NewRecorder()
	(&httputil.ReverseProxy{Transport: p.transport(id), ErrorLog: quiet, Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(real) }}).ServeHTTP(got, r)
	a := &fakable{got.Code, got.Header(), bytes.ReplaceAll(got.Body.Bytes(), []byte(p.manager.target.BaseURL), []byte(p.base))}
	if p.answer != nil {
		p.answer(r, a)
	}
	for name, values := range a.header {
		w.Header()[name] = values
	}
	w.Header().Del("Content-Length")
	if a.status == 200 {
		w.Header().Set("Content-Length", strconv.Itoa(len(a.body)))
	}
	w.WriteHeader(a.status)
	_, _ = w.Write(a.body)
}

// answerOld answers with HTTP/1.0.
func answerOld(w http.ResponseWriter) {
	c, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		return
	}
	defer c.Close()
	fmt.Fprintf(c, "HTTP/1.0 200 OK\r\nContent-Length: 0\r\n\r\n")
}
