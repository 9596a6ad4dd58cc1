package testenv

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"encoding/json"
	"net/http"
	"strings"
	"time"

	ct "github.com/google/certificate-transparency-go"
	"github.com/google/certificate-transparency-go/tls"
)

// identityProvider is the least that Fulcio takes for an OpenID provider, with the endpoint at which jobs of GitHub Actions
// ask for a token.
type identityProvider struct {
	key    *ecdsa.PrivateKey
	issuer string
}

const (
	actionsToken = "ghs-of-this-job"
	actionsEmail = "job@acme.example" // who the job is
)

func (s *Sigstore) startProvider() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	p := &identityProvider{key: key}
	p.issuer = s.serve("identity provider", p)
	s.provider, s.Issuer = p, p.issuer
	s.ActionsURL, s.ActionsToken = p.issuer+"/actions?api-version=2.0", actionsToken
	return nil
}

func (p *identityProvider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "application/json")
	switch r.URL.Path {
	case "/.well-known/openid-configuration":
		_ = json.NewEncoder(w).Encode(map[string]any{
			"issuer": p.issuer, "jwks_uri": p.issuer + "/keys", "authorization_endpoint": p.issuer + "/auth", "token_endpoint": p.issuer + "/token",
			"id_token_signing_alg_values_supported": []string{"ES256"}, "response_types_supported": []string{"code"}, "subject_types_supported": []string{"public"},
		})
	case "/keys":
		_, _ = w.Write((&tokenServer{key: p.key}).keys())
	case "/actions":
		if r.Header.Get("Authorization") != "bearer "+actionsToken && r.Header.Get("Authorization") != "Bearer "+actionsToken || r.URL.Query().Get("audience") != "sigstore" {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		token, err := p.mint(actionsEmail, time.Now())
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		_ = json.NewEncoder(w).Encode(map[string]string{"value": token})
	default:
		http.NotFound(w, r)
	}
}

// mint signs an identity token for an e-mail address.
func (p *identityProvider) mint(email string, now time.Time) (string, error) {
	return signToken(p.key, map[string]any{
		"iss": p.issuer, "sub": email, "aud": "sigstore", "email": email, "email_verified": true,
		"iat": now.Unix(), "nbf": now.Add(-time.Minute).Unix(), "exp": now.Add(tokenLife).Unix(),
	})
}

// certLog answers like a log of RFC 6962 that takes every certificate, and keeps none.
type certLog struct {
	key serverKey
	url string
}

func (s *Sigstore) startCertLog() (*certLog, error) {
	key, err := s.newKey("certificates")
	if err != nil {
		return nil, err
	}
	l := &certLog{key: key}
	l.url = s.serve("certificate log", l) + "/log"
	return l, nil
}

func (l *certLog) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	var asked ct.AddChainRequest
	if !strings.HasSuffix(r.URL.Path, "/ct/v1/add-pre-chain") {
		http.NotFound(w, r)
		return
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&asked); err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	answer, err := l.promise(asked.Chain, time.Now())
	if err != nil {
		http.Error(w, err.Error(), http.StatusBadRequest)
		return
	}
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(answer)
}

// promise signs that the certificate that a chain begins with was seen.
func (l *certLog) promise(chain [][]byte, now time.Time) (*ct.AddChainResponse, error) {
	public, err := x509.MarshalPKIXPublicKey(l.key.Public())
	if err != nil {
		return nil, err
	}
	id := sha256.Sum256(public)
	raw := make([]ct.ASN1Cert, len(chain))
	for i, der := range chain {
		raw[i] = ct.ASN1Cert{Data: der}
	}
	at := uint64(now.UnixMilli())
	leaf, err := ct.MerkleTreeLeafFromRawChain(raw, ct.PrecertLogEntryType, at)
	if err != nil {
		return nil, err
	}
	input, err := ct.SerializeSCTSignatureInput(ct.SignedCertificateTimestamp{
		SCTVersion: ct.V1, LogID: ct.LogID{KeyID: id}, Timestamp: at,
	}, ct.LogEntry{Leaf: *leaf})
	if err != nil {
		return nil, err
	}
	signature, err := tls.CreateSignature(*l.key.PrivateKey, tls.SHA256, input)
	if err != nil {
		return nil, err
	}
	data, err := tls.Marshal(signature)
	if err != nil {
		return nil, err
	}
	return &ct.AddChainResponse{SCTVersion: ct.V1, ID: id[:], Timestamp: at, Signature: data}, nil
}
