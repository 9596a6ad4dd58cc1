package remotekey_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/sha256"
	"errors"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/sign/remotekey"
	"github.com/longshore-dev/longshore/signing/sign/remotekey/remotekeytest"
	"github.com/longshore-dev/longshore/testenv"
)

func TestVaultAddress(t *testing.T) {
	const secret = "hvs.of-this-test"
	s := remotekeytest.Transit(t, secret)
	t.Setenv("VAULT_ADDR", s.URL)
	t.Setenv("VAULT_TOKEN", secret)
	t.Setenv("HOME", t.TempDir())
	key, err := remotekey.Open(t.Context(), "hashivault://release", remotekey.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if got := signs(t, key); got.Algorithm != "ECDSA P-256" {
		t.Errorf("signed with %s", got.Algorithm)
	}
	t.Setenv("VAULT_TOKEN", "wrong")
	if _, err := remotekey.Open(t.Context(), "hashivault://release", remotekey.Options{}); !errors.Is(err, fault.ErrDenied) || fault.Retryable(err) ||
		!strings.Contains(err.Error(), "permission denied") || strings.Contains(err.Error(), secret) {
		t.Errorf("with a wrong token: %v, want %v", err, fault.ErrDenied)
	}
	t.Setenv("VAULT_MAX_RETRIES", "0")
	s.Config.Handler = http.NotFoundHandler()
	if _, err := key.SignMessage(strings.NewReader("hello")); err == nil || fault.Retryable(err) {
		t.Errorf("signed with what is gone: %v", err)
	}
	s.Close()
	if _, err := remotekey.Open(t.Context(), "hashivault://release", remotekey.Options{}); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("without a server: %v, want %v", err, fault.ErrTemporary)
	}
}

// A signer goes on after its service was away.
func TestSigner(t *testing.T) {
	const secret = "hvs.of-this-test"
	s := remotekeytest.Transit(t, secret)
	t.Setenv("VAULT_ADDR", s.URL)
	t.Setenv("VAULT_TOKEN", secret)
	t.Setenv("VAULT_MAX_RETRIES", "0")
	t.Setenv("HOME", t.TempDir())
	signer, err := remotekey.NewSigner(t.Context(), "hashivault://release", remotekey.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer signer.Close()
	message := []byte("certificate")
	good := func() error {
		signature, err := signer.SignMessage(nil, message, crypto.SHA256)
		if sum := sha256.Sum256(message); err == nil && !ecdsa.VerifyASN1(signer.Public().(*ecdsa.PublicKey), sum[:], signature) {
			err = errors.New("a wrong signature")
		}
		return err
	}
	if err := good(); err != nil {
		t.Fatal(err)
	}
	there := s.Config.Handler
	s.Config.Handler = http.NotFoundHandler()
	for range 2 {
		if err := good(); err == nil {
			t.Error("signed with what is gone")
		}
	}
	s.Config.Handler = there
	if err := good(); err != nil {
		t.Errorf("with the service again: %v", err)
	}
	s.Config.Handler = remotekeytest.Transit(t, secret).Config.Handler // another key under the same name
	if err := signer.Close(); err != nil {
		t.Fatal(err)
	}
	if err := good(); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("with another key: %v", err)
	}
}

// A service that takes the question and does not answer is an error after a limited time, although Vault's client knows no other limit than
// its own, and is good again once it answers.
func TestSilentService(t *testing.T) {
	const secret = "hvs.of-this-test"
	s := remotekeytest.Transit(t, secret)
	there, silent, release := s.Config.Handler, atomic.Bool{}, make(chan struct{})
	s.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if silent.Load() {
			<-release
		}
		there.ServeHTTP(w, r)
	})
	t.Setenv("VAULT_ADDR", s.URL)
	t.Setenv("VAULT_TOKEN", secret)
	t.Setenv("VAULT_MAX_RETRIES", "0")
	t.Setenv("HOME", t.TempDir())
	o := remotekey.Options{Wait: 2 * time.Second}
	var signer *remotekey.Signer
	testenv.Eventually(t, time.Minute, "it opens", func() (err error) { // a busy machine may not answer within the wait
		signer, err = remotekey.NewSigner(t.Context(), "hashivault://release", o)
		return err
	})
	sign := func() error {
		_, err := signer.SignMessage(nil, []byte("certificate"), crypto.SHA256)
		return err
	}
	quiet := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fault.ErrTemporary) || !strings.Contains(err.Error(), "the key service does not answer") || !strings.Contains(fault.Hint(err), "can be reached") {
			t.Errorf("%s: %v (%s)", what, err, fault.Hint(err))
		}
	}
	silent.Store(true)
	quiet("a signature", sign())
	quiet("the next one", sign())
	_, err := remotekey.NewSigner(t.Context(), "hashivault://release", o)
	quiet("opening it", err)
	silent.Store(false)
	close(release)
	testenv.Eventually(t, time.Minute, "it signs again", sign)
}
