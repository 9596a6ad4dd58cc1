// Package remotekeytest has key services for tests.
package remotekeytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

// Transit answers as the transit engine of Vault does about one key. It is no Vault: it shows that the address, Vault's own
// settings and the forms of keys and signatures fit together.
func Transit(t testing.TB, token string) *httptest.Server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	public := string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}))
	answer := func(w http.ResponseWriter, data any) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch {
		case r.Header.Get("X-Vault-Token") != token:
			w.WriteHeader(http.StatusForbidden)
			_, _ = io.WriteString(w, `{"errors":["permission denied"]}`)
		case r.URL.Path == "/v1/transit/keys/release":
			answer(w, map[string]any{"type": "ecdsa-p256", "latest_version": 1, "keys": map[string]any{"1": map[string]string{"public_key": public}}})
		case strings.HasPrefix(r.URL.Path, "/v1/transit/sign/release"):
			var asked struct {
				Input     string `json:"input"`
				Prehashed bool   `json:"prehashed"`
			}
			if err := json.NewDecoder(r.Body).Decode(&asked); err != nil || !asked.Prehashed {
				http.Error(w, "not prehashed", http.StatusBadRequest)
				return
			}
			hash, err := base64.StdEncoding.DecodeString(asked.Input)
			if err != nil {
				http.Error(w, err.Error(), http.StatusBadRequest)
				return
			}
			sig, err := ecdsa.SignASN1(rand.Reader, key, hash)
			if err != nil {
				http.Error(w, err.Error(), http.StatusInternalServerError)
				return
			}
			answer(w, map[string]string{"signature": "vault:v1:" + base64.StdEncoding.EncodeToString(sig)})
		default:
			w.WriteHeader(http.StatusNotFound)
			_, _ = io.WriteString(w, `{"errors":[]}`)
		}
	}))
	t.Cleanup(s.Close)
	return s
}
