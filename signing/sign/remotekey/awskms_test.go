package remotekey_test

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/signing/sign/remotekey"
)

// keyService answers as AWS' key management does about one key, alias/release, in AWS' protocol. It is no such service: it
// shows that the address, AWS' own settings and its real client, and the forms of keys and signatures fit together.
func keyService(t *testing.T, access string) *httptest.Server {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		t.Fatal(err)
	}
	const name = "1234abcd-12ab-34cd-56ef-1234567890ab"
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer := func(status int, v any) {
			w.Header().Set("Content-Type", "application/x-amz-json-1.1")
			w.WriteHeader(status)
			_ = json.NewEncoder(w).Encode(v)
		}
		refuse := func(kind string) { answer(http.StatusBadRequest, map[string]string{"__type": kind, "message": "no"}) }
		var asked struct {
			KeyID       string `json:"KeyId"`
			Message     []byte
			MessageType string
		}
		switch err := json.NewDecoder(r.Body).Decode(&asked); {
		case !strings.Contains(r.Header.Get("Authorization"), "Credential="+access+"/") || !strings.Contains(r.Header.Get("Authorization"), "/eu-central-1/kms/"):
			refuse("UnrecognizedClientException")
			return
		case err != nil:
			refuse("SerializationException")
			return
		case asked.KeyID != "alias/release":
			refuse("NotFoundException")
			return
		}
		switch r.Header.Get("X-Amz-Target") {
		case "TrentService.DescribeKey":
			answer(http.StatusOK, map[string]any{"KeyMetadata": map[string]any{
				"KeyId": name, "KeyUsage": "SIGN_VERIFY", "KeySpec": "ECC_NIST_P256", "SigningAlgorithms": []string{"ECDSA_SHA_256"},
			}})
		case "TrentService.GetPublicKey":
			answer(http.StatusOK, map[string]any{"KeyId": name, "PublicKey": der, "SigningAlgorithms": []string{"ECDSA_SHA_256"}})
		case "TrentService.Sign":
			sig, err := ecdsa.SignASN1(rand.Reader, key, asked.Message)
			if err != nil || asked.MessageType != "DIGEST" {
				refuse("ValidationException")
				return
			}
			answer(http.StatusOK, map[string]any{"KeyId": name, "Signature": sig, "SigningAlgorithm": "ECDSA_SHA_256"})
		default:
			refuse("UnknownOperationException")
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func TestAWSAddress(t *testing.T) {
	s := keyService(t, "AKIAOFTHISTEST")
	bundle := filepath.Join(t.TempDir(), "ca.pem")
	if err := os.WriteFile(bundle, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	const secret = "secret-of-this-test"
	for name, value := range map[string]string{
		"AWS_REGION": "eu-central-1", "AWS_ACCESS_KEY_ID": "AKIAOFTHISTEST", "AWS_SECRET_ACCESS_KEY": secret, "AWS_SESSION_TOKEN": "",
		"AWS_TLS_INSECURE_SKIP_VERIFY": "", "AWS_CA_BUNDLE": bundle, "AWS_EC2_METADATA_DISABLED": "true", "AWS_MAX_ATTEMPTS": "1", "HOME": t.TempDir(), "AWS_PROFILE": "",
		"AWS_CONFIG_FILE": "/nonexistent", "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
	} {
		t.Setenv(name, value)
	}
	at := "awskms://" + s.Listener.Addr().String() + "/"
	key, err := remotekey.Open(t.Context(), at+"alias/release", remotekey.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if got := signs(t, key); got.Algorithm != "ECDSA P-256" {
		t.Errorf("signed with %s", got.Algorithm)
	}
	if _, err := remotekey.Open(t.Context(), at+"alias/other", remotekey.Options{}); err == nil || !strings.Contains(err.Error(), "NotFoundException") {
		t.Errorf("another key: %v", err)
	}
	t.Setenv("AWS_ACCESS_KEY_ID", "AKIAWRONG")
	if _, err := remotekey.Open(t.Context(), at+"alias/release", remotekey.Options{}); err == nil || !strings.Contains(err.Error(), "UnrecognizedClientException") || strings.Contains(err.Error(), secret) {
		t.Errorf("somebody else: %v", err)
	}
}
