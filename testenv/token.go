package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"
)

const (
	tokenPath    = "/token"
	tokenService = "longshore-test"
	tokenIssuer  = "longshore-test-issuer"
	tokenKeyID   = "testenv"
	tokenLife    = 5 * time.Minute
)

// tokenServer gives bearer tokens to one user, as the distribution specification's token protocol has it (GET with basic
// authentication, and the OAuth 2 form with POST). It grants that user every requested scope, and refuses all others.
type tokenServer struct {
	username, password string
	key                *ecdsa.PrivateKey
}

func newTokenServer(username, password string) (*tokenServer, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	return &tokenServer{username, password, key}, err
}

// keys is the public key as a JWK set, for the registry.
func (s *tokenServer) keys() []byte {
	data, _ := json.Marshal(jose.JSONWebKeySet{Keys: []jose.JSONWebKey{
		{Key: s.key.Public(), KeyID: tokenKeyID, Use: "sig", Algorithm: string(jose.ES256)}, // a key that was just made has no error
	}})
	return data
}

func (s *tokenServer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	r.Body = http.MaxBytesReader(w, r.Body, 1<<16)
	if err := r.ParseForm(); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	user, password, ok := r.BasicAuth()
	if r.Method == http.MethodPost {
		user, password, ok = r.Form.Get("username"), r.Form.Get("password"), true
		if r.Form.Get("grant_type") == "refresh_token" {
			user, password = s.username, r.Form.Get("refresh_token")
		}
	}
	w.Header().Set("Content-Type", "application/json")
	if !ok || user != s.username || password != s.password {
		w.WriteHeader(http.StatusUnauthorized)
		_, _ = w.Write([]byte(`{"errors":[{"code":"UNAUTHORIZED","message":"wrong credentials"}]}`))
		return
	}
	token, err := s.mint(user, r.Form["scope"], time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	_ = json.NewEncoder(w).Encode(map[string]any{
		"token": token, "access_token": token, "expires_in": int(tokenLife.Seconds()),
		"issued_at": time.Now().UTC().Format(time.RFC3339), "refresh_token": s.password,
	})
}

// mint signs a token for scopes like "repository:plant/state:pull,push".
func (s *tokenServer) mint(user string, scopes []string, now time.Time) (string, error) {
	type access struct {
		Type    string   `json:"type"`
		Name    string   `json:"name"`
		Actions []string `json:"actions"`
	}
	granted := []access{}
	for _, field := range scopes {
		for scope := range strings.FieldsSeq(field) {
			kind, rest, _ := strings.Cut(scope, ":")
			i := strings.LastIndex(rest, ":")
			if i < 0 {
				continue
			}
			granted = append(granted, access{kind, rest[:i], strings.Split(rest[i+1:], ",")})
		}
	}
	return signToken(s.key, map[string]any{
		"iss": tokenIssuer, "sub": user, "aud": tokenService, "jti": rand.Text(),
		"iat": now.Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(tokenLife).Unix(), "access": granted,
	})
}

// signToken makes a JSON web token.
func signToken(key *ecdsa.PrivateKey, claims map[string]any) (string, error) {
	signer, err := jose.NewSigner(
		jose.SigningKey{Algorithm: jose.ES256, Key: jose.JSONWebKey{Key: key, KeyID: tokenKeyID}}, (&jose.SignerOptions{}).WithType("JWT"),
	)
	if err != nil {
		return "", err
	}
	return jwt.Signed(signer).Claims(claims).Serialize()
}
