// Package remotekeytest has key services for tests.
package remotekeytest

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/sigstore/sigstore/pkg/cryptoutils"
)

// Vault answers as the transit engine of HashiCorp Vault does about its keys. It is no Vault: it shows that the address, Vault's own
// settings and the forms of keys and signatures fit together, and signs for tests that unlock a key file hundreds of times otherwise.
type Vault struct {
	*httptest.Server
	token string
	mu    sync.Mutex
	keys  map[string]*ecdsa.PrivateKey
}

// Transit starts a vault with the key "release".
func Transit(t testing.TB, token string) *Vault {
	t.Helper()
	v := &Vault{token: token, keys: map[string]*ecdsa.PrivateKey{}}
	v.Add(t, "release")
	v.Server = httptest.NewServer(http.HandlerFunc(v.serve))
	t.Cleanup(v.Close)
	return v
}

// Add makes a key and returns its public part as PEM.
func (v *Vault) Add(t testing.TB, name string) (public []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err == nil {
		public, err = cryptoutils.MarshalPublicKeyToPEM(key.Public())
	}
	if err != nil {
		t.Fatal(err)
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.keys[name] = key
	return public
}

func (v *Vault) serve(w http.ResponseWriter, r *http.Request) {
	if r.Header.Get("X-Vault-Token") != v.token {
		w.WriteHeader(http.StatusForbidden)
		_, _ = io.WriteString(w, `{"errors":["permission denied"]}`)
		return
	}
	verb, name, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v1/transit/"), "/")
	name, _, _ = strings.Cut(name, "/") // the hash's name follows
	v.mu.Lock()
	key := v.keys[name]
	v.mu.Unlock()
	var data any
	var err error
	switch {
	case key != nil && verb == "keys":
		var public []byte
		public, err = cryptoutils.MarshalPublicKeyToPEM(key.Public())
		data = map[string]any{"type": "ecdsa-p256", "latest_version": 1, "keys": map[string]any{"1": map[string]string{"public_key": string(public)}}}
	case key != nil && verb == "sign":
		data, err = signature(key, r.Body)
	default:
		w.WriteHeader(http.StatusNotFound)
		_, _ = io.WriteString(w, `{"errors":[]}`)
		return
	}
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(map[string]any{"data": data})
}

// signature answers a request to sign a hash.
func signature(key *ecdsa.PrivateKey, request io.Reader) (map[string]string, error) {
	var asked struct {
		Input     []byte `json:"input"`
		Prehashed bool   `json:"prehashed"`
	}
	if err := json.NewDecoder(request).Decode(&asked); err != nil {
		return nil, err
	}
	if !asked.Prehashed {
		return nil, errors.New("not prehashed")
	}
	sig, err := ecdsa.SignASN1(rand.Reader, key, asked.Input)
	return map[string]string{"signature": "vault:v1:" + base64.StdEncoding.EncodeToString(sig)}, err
}
