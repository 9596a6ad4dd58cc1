package remotekey_test

import (
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/kms/cliplugin/handler"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/sign/remotekey"
	"github.com/longshore-dev/longshore/signing/signingtest"
	"github.com/longshore-dev/longshore/testenv"
)

// pluginKey is the file with the private key that the plugin below signs with.
const pluginKey = "LONGSHORE_TEST_PLUGIN_KEY"

// TestMain is also the program sigstore-kms-testkey: the test runs itself under that name, as sigstore's plugin protocol
// would run any other.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "sigstore-kms-testkey" {
		if err := plugin(); err != nil {
			panic(err)
		}
		return
	}
	os.Exit(m.Run())
}

func plugin() error {
	args, err := handler.GetPluginArgs(os.Args)
	if err != nil {
		return err
	}
	if args.InitOptions.KeyResourceID != "release" {
		return handler.WriteErrorResponse(os.Stdout, errors.New("no such key"))
	}
	pem, err := os.ReadFile(os.Getenv(pluginKey))
	if err != nil {
		return err
	}
	key, err := pluginECDSA(pem)
	if err != nil {
		return err
	}
	sv, err := signature.LoadECDSASignerVerifier(key, crypto.SHA256)
	if err != nil {
		return err
	}
	_, err = handler.Dispatch(os.Stdout, os.Stdin, args, plugged{sv, key})
	return err
}

// plugged is the least that the protocol asks of a key.
type plugged struct {
	*signature.ECDSASignerVerifier
	key *ecdsa.PrivateKey
}

func (plugged) CreateKey(context.Context, string) (crypto.PublicKey, error) {
	return nil, errors.ErrUnsupported
}

func (plugged) SupportedAlgorithms() []string { return []string{"ecdsa-p256-sha256"} }

func (plugged) DefaultAlgorithm() string { return "ecdsa-p256-sha256" }

func (p plugged) CryptoSigner(context.Context, func(error)) (crypto.Signer, crypto.SignerOpts, error) {
	return p.key, crypto.SHA256, nil
}

// signs makes a signature with a key and verifies it with its public half alone.
func signs(t *testing.T, key remotekey.Key) signing.Signature {
	t.Helper()
	m := signingtest.NewMemory()
	target := m.Artifact(t, "hello")
	s, err := sign.NewKeySigner(key, sign.Options{Name: "remote", Format: signing.FormatBoth})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := s.Sign(t.Context(), m, target); err != nil {
		t.Fatal(err)
	}
	public, err := signing.ParsePublicKey("remote", s.PublicPEM())
	if err != nil {
		t.Fatal(err)
	}
	good, err := signing.Verify(t.Context(), m, target, signing.Verifiers(public))
	if err != nil {
		t.Fatal(err)
	}
	return good[0]
}

// Keys in a real token, by label and by id, of each kind that cosign takes.
func TestPKCS11(t *testing.T) {
	if !remotekey.HasPKCS11 {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	token := testenv.SoftHSM(t)
	p256, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r3072, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		t.Fatal(err)
	}
	token.Import(t, "release", 1, p256)
	token.Import(t, "release 384", 2, p384)
	token.Import(t, "release rsa", 3, r3072)
	pin := func(string) ([]byte, error) { return []byte(token.PIN), nil }
	never := func(string) ([]byte, error) {
		t.Error("asked for a PIN that the URI has")
		return nil, fault.ErrUnauthenticated
	}
	for name, c := range map[string]struct {
		ref  string
		o    remotekey.Options
		want string
	}{
		"label":             {token.URI("release"), remotekey.Options{PIN: pin}, "ECDSA P-256"},
		"label with spaces": {token.URI("release 384"), remotekey.Options{PIN: pin}, "ECDSA P-384"},
		"rsa":               {token.URI("release rsa"), remotekey.Options{PIN: pin}, "RSA 3072"},
		"id, PIN and type":  {"pkcs11:token=longshore;id=%01;type=private?pin-value=4711&module-path=" + token.Module, remotekey.Options{PIN: never}, "ECDSA P-256"},
		"module given":      {"pkcs11:token=longshore;object=release", remotekey.Options{PIN: pin, PKCS11Module: token.Module}, "ECDSA P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := remotekey.Open(t.Context(), c.ref, c.o)
			if err != nil {
				t.Fatal(err)
			}
			defer key.Close()
			if got := signs(t, key); got.Algorithm != c.want {
				t.Errorf("signed with %s, want %s", got.Algorithm, c.want)
			}
		})
	}
	for name, c := range map[string]struct {
		ref  string
		pin  string
		want error
	}{
		"wrong PIN":       {token.URI("release"), "0000", fault.ErrUnauthenticated},
		"no such key":     {token.URI("nobody"), token.PIN, fault.ErrNotFound},
		"no such token":   {strings.Replace(token.URI("release"), "longshore", "lost", 1), token.PIN, fault.ErrTemporary},
		"no such module":  {"pkcs11:token=longshore;object=release?module-path=/nowhere.so", token.PIN, fault.ErrNotFound},
		"no module named": {"pkcs11:token=longshore;object=release", token.PIN, fault.ErrInvalid},
	} {
		t.Run(name, func(t *testing.T) {
			key, err := remotekey.Open(t.Context(), c.ref, remotekey.Options{PIN: func(string) ([]byte, error) { return []byte(c.pin), nil }})
			if !errors.Is(err, c.want) {
				t.Errorf("Open = %v, %v, want %v", key, err, c.want)
			}
		})
	}
}

// A token is not locked by a PIN that is wrong: it is tried once, however often something is to be signed, and the right one after it.
func TestSignerTriesAPINOnce(t *testing.T) {
	if !remotekey.HasPKCS11 {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	token := testenv.SoftHSM(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	token.Import(t, "ca", 1, key)
	pin := token.PIN
	signer, err := remotekey.NewSigner(t.Context(), token.URI("ca"), remotekey.Options{PIN: func(string) ([]byte, error) { return []byte(pin), nil }})
	if err != nil {
		t.Fatal(err)
	}
	defer signer.Close()
	for i, tt := range []struct {
		pin   string
		tried bool
		in    bool
	}{{token.PIN, true, true}, {"0000", true, false}, {"0000", false, false}, {"0000", false, false}, {"1111", true, false}, {"1111", false, false}, {token.PIN, true, true}} {
		pin = tt.pin
		if err := signer.Close(); err != nil { // as when the token was away
			t.Fatal(err)
		}
		_, err := signer.SignMessage(nil, []byte("certificate"), crypto.SHA256)
		if tt.in != (err == nil) || !tt.in && (!errors.Is(err, fault.ErrUnauthenticated) || strings.Contains(err.Error(), "not tried again") == tt.tried) {
			t.Errorf("%d, PIN %s: %v", i, tt.pin, err)
		}
	}
}

// A token that does not answer, at a signature or when it is opened, is an error after a limited time, and is good again once it answers.
func TestSilentToken(t *testing.T) {
	if !remotekey.HasPKCS11 {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	soft := testenv.SoftHSM(t)
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	soft.Import(t, "ca", 1, key)
	headers, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/miekg/pkcs11").Output()
	if err != nil {
		t.Fatal(err)
	}
	module, silent := filepath.Join(t.TempDir(), "module.so"), filepath.Join(t.TempDir(), "silent")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-I", strings.TrimSpace(string(headers)), "-o", module, "../../token/testdata/module.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	t.Setenv("LONGSHORE_TOKEN_SILENT", silent)
	address := strings.Replace(soft.URI("ca"), soft.Module, module, 1)
	o := remotekey.Options{PIN: func(string) ([]byte, error) { return []byte(soft.PIN), nil }, Wait: 2 * time.Second}
	var signer *remotekey.Signer
	testenv.Eventually(t, time.Minute, "it opens", func() (err error) { // a busy machine may not answer within the wait
		signer, err = remotekey.NewSigner(t.Context(), address, o)
		return err
	})
	sign := func() error {
		_, err := signer.SignMessage(nil, []byte("certificate"), crypto.SHA256)
		return err
	}
	again := func() {
		t.Helper()
		if err := os.Remove(silent); err != nil {
			t.Fatal(err)
		}
		testenv.Eventually(t, time.Minute, "it signs again", sign)
	}
	quiet := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fault.ErrTemporary) || strings.Count(fmt.Sprint(err), "the token does not answer") != 1 || fault.Hint(err) == "" {
			t.Errorf("%s: %v (%s)", what, err, fault.Hint(err))
		}
	}
	for range 2 {
		if err := os.WriteFile(silent, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		for range 3 {
			quiet("a signature", sign())
		}
		again()
	}
	if err := errors.Join(signer.Close(), os.WriteFile(silent, nil, 0o600)); err != nil {
		t.Fatal(err)
	}
	_, err = remotekey.NewSigner(t.Context(), address, o)
	quiet("opening it", err)
	again()
	if err := errors.Join(signer.Close(), signer.Close()); err != nil {
		t.Error(err)
	}
}

// What a build without cgo says of PKCS#11, and what every build says of a wrong URI.
func TestPKCS11URI(t *testing.T) {
	for name, ref := range map[string]string{
		"no key":          "pkcs11:token=longshore?pin-value=secret",
		"no token":        "pkcs11:object=release?pin-value=secret",
		"twice":           "pkcs11:token=a;token=b;object=release?pin-value=secret",
		"two tokens":      "pkcs11:token=a;serial=b;object=release?pin-value=secret",
		"unknown":         "pkcs11:token=a;object=release;vendor=x?pin-value=secret",
		"no number":       "pkcs11:slot-id=x;object=release?pin-value=secret",
		"public":          "pkcs11:token=a;object=release;type=public?pin-value=secret",
		"without a value": "pkcs11:token;object=release?pin-value=secret",
		"escaped wrongly": "pkcs11:token=%zz;object=release?pin-value=secret",
		"unknown query":   "pkcs11:token=a;object=release?pin-value=secret&max=1",
	} {
		_, err := remotekey.Open(t.Context(), ref, remotekey.Options{})
		if !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "secret") {
			t.Errorf("%s: %v, want %v without the PIN", name, err, fault.ErrInvalid)
		}
	}
	if !remotekey.HasPKCS11 {
		_, err := remotekey.Open(t.Context(), "pkcs11:token=a;object=release", remotekey.Options{})
		if !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(fault.Hint(err), "CGO_ENABLED=1") {
			t.Errorf("without cgo: %v, want %v with a hint", err, fault.ErrUnsupported)
		}
	}
}

// A key behind a program of somebody else, by sigstore's protocol.
func TestPlugin(t *testing.T) {
	dir := t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "sigstore-kms-testkey")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
	t.Setenv(pluginKey, writePluginKey(t, dir))
	key, err := remotekey.Open(t.Context(), "testkey://release", remotekey.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer key.Close()
	if got := signs(t, key); got.Algorithm != "ECDSA P-256" {
		t.Errorf("signed with %s", got.Algorithm)
	}
	if _, err := remotekey.Open(t.Context(), "testkey://other", remotekey.Options{}); err == nil || !strings.Contains(err.Error(), "no such key") {
		t.Errorf("another key: %v", err)
	}
	if _, err := remotekey.Open(t.Context(), "nothere://release", remotekey.Options{}); !errors.Is(err, fault.ErrUnsupported) || !strings.Contains(err.Error(), "sigstore-kms-nothere") {
		t.Errorf("no program: %v, want %v", err, fault.ErrUnsupported)
	}
}

func TestIs(t *testing.T) {
	for ref, want := range map[string]bool{
		"pkcs11:token=a;object=b": true, "awskms:///alias/x": true, "hashivault://release": true, "my-hsm://1": true,
		"release.key": false, "./keys/release.key": false, "C:\\keys": false, "a/b://c": false, "": false,
	} {
		if got := remotekey.Is(ref); got != want {
			t.Errorf("Is(%q) = %v", ref, got)
		}
	}
}
