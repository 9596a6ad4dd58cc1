package status

import (
	"bytes"
	"encoding/json"
	"net/http"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Paths of the documents by which clients find the trust bundle.
const (
	PathDiscovery = "/.well-known/margo"
	PathBundle    = "/.well-known/spiffe/bundle.json"
)

// Trust is the trust domain of mutual TLS.
type Trust struct {
	Domain string
	Bundle []byte // in SPIFFE's format
}

// Discovery serves the discovery document and the trust bundle. trust returns their content; nil: there is no mutual TLS.
// uri is the absolute https URL at which clients find the bundle; "": there is no discovery document.
func Discovery(trust func() (Trust, error), uri string) http.Handler {
	serve := func(missing, title string, body func(Trust) []byte) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			p := newProblem(margo.ProblemBase+missing, title, http.StatusNotFound, "there is none here")
			var b []byte
			if trust != nil {
				if t, err := trust(); err == nil {
					b = body(t)
				}
			}
			if b == nil {
				p.write(w, r)
				return
			}
			h := w.Header()
			h.Set("Content-Type", "application/json")
			h.Set("X-Content-Type-Options", "nosniff")
			h.Set("ETag", `"`+digest.FromBytes(b).String()+`"`)
			h.Set("Cache-Control", "no-cache")
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b))
		}
	}
	mux := http.NewServeMux()
	mux.Handle("GET "+PathDiscovery, serve("discovery-document-not-found", "Discovery document not found", func(t Trust) []byte {
		if uri == "" {
			return nil
		}
		b, err := json.Marshal(struct {
			TrustDomain    string `json:"trustDomain"`
			TrustBundleURI string `json:"trustBundleUri"`
		}{t.Domain, uri})
		if err != nil {
			return nil
		}
		return b
	}))
	mux.Handle("GET "+PathBundle, serve("spiffe-bundle-not-found", "SPIFFE bundle not found", func(t Trust) []byte { return t.Bundle }))
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Allow", "GET, HEAD")
		Refuse(w, r, http.StatusMethodNotAllowed, "only GET, HEAD here")
	})
	return mux
}
