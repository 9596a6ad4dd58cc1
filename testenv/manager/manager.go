// Package manager is a workload fleet manager of another vendor, small and faithful: the management API of Margo 1.0.0-rc.3,
// written from the specification alone, with nothing of ours in it. Devices are tested against it.
//
// A [Manager] is an [http.Handler]; [Manager.ServeTLS] serves it by mutual TLS. [Deviations] are the ways in which managers may
// differ because the published documents of the specification contradict each other, and [Manager.Intercept] answers in its place.
package manager

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Media types of desired state.
const (
	TypeManifest = "application/vnd.margo.manifest.v1+json"
	TypeBundle   = "application/vnd.margo.bundle.v1+tar+gzip"
)

// Deviations from what most managers do, each of which the specification's documents lead to.
type Deviations struct {
	SchemaNames    bool // the State Manifest has members called "bundle.digest" too, as its schema requires
	ManifestETag   bool // the ETag of a deployment is that of the State Manifest
	WrongSizes     bool // sizeBytes is a guess, and for deployments no whole number
	NoSizes        bool // sizeBytes is left out
	Unchanged      bool // deployments answer 304 where If-None-Match names them; else 200
	ClientsInURLs  bool // URLs of the 1.0.0 line, with /clients/{clientId}
	Compressed     bool // answers have a Content-Encoding, and so weak ETags
	StrictCapacity bool // capacities with a space are refused
	NoBundles      bool // bundles are named and not served
	SchemaEnums    bool // architectures and deployment types of reports are those of the schema, which has fewer than the text
	Annotations    bool // the metadata of deployments has annotations, which its schema requires and does not describe
}

// Deployment is an ApplicationDeployment in YAML.
type Deployment struct {
	ID   string
	YAML []byte
}

// Capabilities are what a client has reported of a device.
type Capabilities struct {
	Client string
	Body   map[string]any
}

// Status is a report of a deployment.
type Status struct {
	Client, Deployment, Device, State string
	Adopted                           uint64
	Error                             map[string]any // nil: none
	Components                        []any
}

// Manager serves the desired state of its clients and remembers what they report.
type Manager struct {
	mu        sync.Mutex
	tokens    map[string]string // client by bearer token
	known     []string          // clients that are accepted
	states    map[string]*state // by client
	devices   map[string]Capabilities
	statuses  []Status
	requests  []string
	deviates  Deviations
	intercept func(w http.ResponseWriter, r *http.Request, client string) bool
}

// state is what a client is to run.
type state struct {
	manifest []byte
	bundle   []byte
	byDigest map[string]Deployment // by "id/digest"
}

// New makes a manager that accepts these clients.
func New(clients ...string) *Manager {
	return &Manager{tokens: map[string]string{}, known: clients, states: map[string]*state{}, devices: map[string]Capabilities{}}
}

// Token makes a client known by a bearer token, in place of a certificate.
func (m *Manager) Token(token, client string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tokens[token] = client
}

// Accept replaces the clients that are accepted.
func (m *Manager) Accept(clients ...string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.known = clients
}

// Deviate changes how the manager differs, from the next Set on for what is served then.
func (m *Manager) Deviate(d Deviations) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.deviates = d
}

// Intercept lets f answer requests of clients; false: the manager does. nil: it always does.
func (m *Manager) Intercept(f func(w http.ResponseWriter, r *http.Request, client string) bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.intercept = f
}

// Set gives a client a desired state, and returns the digest of its State Manifest.
func (m *Manager) Set(client string, version uint64, deployments ...Deployment) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.pack(client, version, deployments)
	m.states[client] = s
	return digestOf(s.manifest)
}

// SetBytes is Set with a State Manifest and a bundle that somebody else has made.
func (m *Manager) SetBytes(client string, manifest, bundle []byte, deployments ...Deployment) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := &state{manifest: manifest, bundle: bundle, byDigest: map[string]Deployment{}}
	for _, d := range deployments {
		s.byDigest[d.ID+"/"+digestOf(d.YAML)] = d
	}
	m.states[client] = s
	return digestOf(manifest)
}

// Copy gives a client the very state of another one.
func (m *Manager) Copy(from, to string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.states[to] = m.states[from]
}

// Devices are the devices that were reported.
func (m *Manager) Devices() map[string]Capabilities {
	m.mu.Lock()
	defer m.mu.Unlock()
	return maps.Clone(m.devices)
}

// Statuses are the reports of deployments, in order.
func (m *Manager) Statuses() []Status {
	m.mu.Lock()
	defer m.mu.Unlock()
	return slices.Clone(m.statuses)
}

// Requests returns the requests since it was last called, "GET /api/v1/deployments 304".
func (m *Manager) Requests() []string {
	m.mu.Lock()
	defer m.mu.Unlock()
	out := m.requests
	m.requests = nil
	return out
}

func digestOf(data []byte) string {
	h := sha256.Sum256(data)
	return "sha256:" + hex.EncodeToString(h[:])
}

// pack makes a State Manifest and its bundle: the same deployments give the same bytes.
func (m *Manager) pack(client string, version uint64, deployments []Deployment) *state {
	s := &state{byDigest: map[string]Deployment{}}
	prefix := "/api/v1"
	if m.deviates.ClientsInURLs {
		prefix += "/clients/" + client
	}
	size := func(n int) any { return n }
	if m.deviates.WrongSizes {
		size = func(n int) any { return float64(n) * 1.5 }
	}
	refs := []any{}
	var files []Deployment
	for i, d := range deployments {
		if m.deviates.Annotations {
			d.YAML = annotated(d)
		}
		digest := digestOf(d.YAML)
		s.byDigest[d.ID+"/"+digest] = d
		ref := map[string]any{"deploymentId": d.ID, "digest": digest, "url": prefix + "/deployments/" + d.ID + "/" + digest}
		if !m.deviates.NoSizes {
			ref["sizeBytes"] = size(len(d.YAML))
		}
		refs = append(refs, ref)
		files = append(files, Deployment{fmt.Sprintf("file-%d", i), d.YAML}) // names are not specified
	}
	document := map[string]any{"manifestVersion": version, "bundle": nil, "deployments": refs}
	if len(files) > 0 {
		s.bundle = archive(files)
		digest := digestOf(s.bundle)
		bundle := map[string]any{"mediaType": TypeBundle, "digest": digest, "url": prefix + "/bundles/" + digest}
		if !m.deviates.NoSizes {
			bundle["sizeBytes"] = size(1)
		}
		document["bundle"] = bundle
		if m.deviates.SchemaNames {
			for k, v := range bundle {
				document["bundle."+k] = v
			}
		}
	}
	s.manifest, _ = json.Marshal(document) // plain values
	return s
}

// annotated adds annotations to a document in block style: the id, which earlier versions had there, and one of a vendor.
func annotated(d Deployment) []byte {
	const metadata = "\nmetadata:\n"
	return bytes.Replace(d.YAML, []byte(metadata), []byte(metadata+"  annotations: {id: "+d.ID+", acme.example/line: a}\n"), 1)
}

func archive(files []Deployment) []byte {
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	t := tar.NewWriter(z)
	for _, f := range files { // memory does not fail
		_ = t.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.ID, Mode: 0o644, Size: int64(len(f.YAML))})
		_, _ = t.Write(f.YAML)
	}
	_, _ = t.Close(), z.Close()
	return b.Bytes()
}

// uuidPath and devicePath are the parts of URLs that the specification describes.
var (
	uuidPath   = regexp.MustCompile(`^[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}$`)
	devicePath = regexp.MustCompile(`^[A-Za-z0-9._~-]+(/[A-Za-z0-9._~-]+)*$`)
)

// ServeHTTP implements [http.Handler].
func (m *Manager) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	rec := &recorder{ResponseWriter: w, status: http.StatusOK}
	defer func() {
		m.mu.Lock()
		defer m.mu.Unlock()
		m.requests = append(m.requests, fmt.Sprintf("%s %s %d", r.Method, r.URL.Path, rec.status))
	}()
	client, ok := m.client(r)
	m.mu.Lock()
	intercept := m.intercept
	m.mu.Unlock()
	switch {
	case intercept != nil && intercept(rec, r, client):
	case !ok:
		problem(rec, 403, "not-authorized", "no accepted client", nil)
	default:
		m.route(rec, r, client)
	}
}

func (m *Manager) route(w http.ResponseWriter, r *http.Request, client string) {
	path, ok := strings.CutPrefix(r.URL.Path, "/api/v1/")
	parts := strings.Split(path, "/")
	switch {
	case !ok:
		problem(w, 404, "", "no such path", nil)
	case r.Method == http.MethodGet && path == "deployments":
		m.getManifest(w, r, client)
	case r.Method == http.MethodGet && len(parts) == 3 && parts[0] == "deployments":
		m.getDeployment(w, r, client, parts[1], parts[2])
	case r.Method == http.MethodGet && len(parts) == 2 && parts[0] == "bundles":
		m.getBundle(w, r, client, parts[1])
	case r.Method == http.MethodPost && len(parts) == 3 && parts[0] == "deployments" && parts[2] == "status" && uuidPath.MatchString(parts[1]):
		m.postStatus(w, r, client, parts[1])
	case (r.Method == http.MethodPut || r.Method == http.MethodDelete) && parts[0] == "capabilities" && devicePath.MatchString(strings.TrimPrefix(path, "capabilities/")):
		m.capabilities(w, r, client, strings.TrimPrefix(path, "capabilities/"))
	default:
		problem(w, 404, "", "no such path", nil)
	}
}

// client is who asks: by certificate, else by token.
func (m *Manager) client(r *http.Request) (string, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	id := ""
	if r.TLS != nil && len(r.TLS.PeerCertificates) > 0 {
		uris := r.TLS.PeerCertificates[0].URIs
		if len(uris) == 1 {
			_, id, _ = strings.Cut(uris[0].Path, "/client/")
		}
	} else if token, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer "); ok {
		id = m.tokens[token]
	}
	return id, id != "" && slices.Contains(m.known, id)
}

type recorder struct {
	http.ResponseWriter
	status int
}

func (r *recorder) WriteHeader(status int) {
	r.status = status
	r.ResponseWriter.WriteHeader(status)
}

// problem answers with RFC 9457. kind is a type that Margo registers; "": about:blank.
func problem(w http.ResponseWriter, status int, kind, detail string, fields []any) {
	p := map[string]any{"type": "about:blank", "title": http.StatusText(status), "status": status, "detail": detail, "retryable": false, "backoffStrategy": "none"}
	if kind != "" {
		p["type"] = "https://docs.margo.org/specification/problem-types#" + kind
	}
	if fields != nil {
		p["errors"] = fields
	}
	data, _ := json.Marshal(p) // plain values
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = w.Write(data) // the client may be gone
}
