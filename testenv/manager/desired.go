package manager

import (
	"compress/gzip"
	"net/http"
	"strings"
)

func (m *Manager) of(client string) *state {
	m.mu.Lock()
	defer m.mu.Unlock()
	s := m.states[client]
	if s == nil { // a client without devices, or without assignments: empty, and the first version is 1
		s = m.pack(client, 1, nil)
		m.states[client] = s
	}
	return s
}

func (m *Manager) getManifest(w http.ResponseWriter, r *http.Request, client string) {
	if !accepts(r, TypeManifest) {
		problem(w, 406, "server-cannot-generate-response", "only "+TypeManifest, nil)
		return
	}
	s := m.of(client)
	w.Header().Set("Cache-Control", "private")
	m.write(w, r, s.manifest, TypeManifest, digestOf(s.manifest), true)
}

func (m *Manager) getDeployment(w http.ResponseWriter, r *http.Request, client, id, digest string) {
	s := m.of(client)
	d, ok := s.byDigest[id+"/"+digest]
	if !ok {
		problem(w, 404, "deployment-not-found", id+" "+digest, nil)
		return
	}
	etag := digest
	m.mu.Lock()
	deviates := m.deviates
	m.mu.Unlock()
	if deviates.ManifestETag {
		etag = digestOf(s.manifest)
	}
	w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	m.write(w, r, d.YAML, "application/yaml", etag, deviates.Unchanged)
}

func (m *Manager) getBundle(w http.ResponseWriter, r *http.Request, client, digest string) {
	s := m.of(client)
	m.mu.Lock()
	none := m.deviates.NoBundles
	m.mu.Unlock()
	if len(s.bundle) == 0 || digestOf(s.bundle) != digest || none {
		problem(w, 404, "invalid-bundle", digest, nil)
		return
	}
	w.Header().Set("Cache-Control", "private, max-age=31536000, immutable")
	m.write(w, r, s.bundle, TypeBundle, digest, true)
}

// write answers with content and its ETag, or with 304 to who has it.
func (m *Manager) write(w http.ResponseWriter, r *http.Request, data []byte, media, digest string, conditional bool) {
	m.mu.Lock()
	compressed := m.deviates.Compressed && strings.Contains(r.Header.Get("Accept-Encoding"), "gzip")
	m.mu.Unlock()
	etag := `"` + digest + `"`
	if compressed {
		etag = "W/" + etag
		w.Header().Set("Vary", "Accept-Encoding")
	}
	w.Header().Set("ETag", etag)
	if conditional && strings.TrimPrefix(r.Header.Get("If-None-Match"), "W/") == strings.TrimPrefix(etag, "W/") {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	w.Header().Set("Content-Type", media)
	if !compressed {
		_, _ = w.Write(data) // the client may be gone
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	z := gzip.NewWriter(w)
	_, _ = z.Write(data)
	_ = z.Close()
}

func accepts(r *http.Request, media string) bool {
	header := r.Header.Get("Accept")
	if header == "" {
		return true
	}
	for part := range strings.SplitSeq(header, ",") {
		kind, _, _ := strings.Cut(part, ";")
		if kind = strings.TrimSpace(kind); kind == media || kind == "*/*" || kind == "application/*" {
			return true
		}
	}
	return false
}
