package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"log/slog"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/signing/sign/remotekey"
	"github.com/longshore-dev/longshore/signing/sign/remotekey/remotekeytest"
	"github.com/longshore-dev/longshore/testenv"
)

// authorityAt makes an authority with a key that is elsewhere, issues with it, and enrolls with it: its own certificate has to lead to the
// same bundle.
func authorityAt(t *testing.T, key, passwordFile string) (dir string) {
	t.Helper()
	dir = t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	with := []string{"--dir", at("ca"), "--key", key}
	if passwordFile != "" {
		with = append(with, "--key-password-file", passwordFile)
	}
	for _, want := range []int{0, 6} { // a second one must not replace the first
		if code, out, errs := command(t, append([]string{"ca", "init", "--trust-domain", "plant.acme.example"}, with...)...); code != want || strings.Contains(out, "ca.key") {
			t.Fatalf("ca init = %d, want %d\n%s%s", code, want, out, errs)
		}
	}
	for _, args := range [][]string{{"ca", "init", "--trust-domain", "x.example", "--dir", at("ca")}, {"ca", "issue", "--manager", "main", "--dir", at("ca"), at("x")}} {
		if code, _, errs := command(t, args...); code == 0 {
			t.Errorf("%v without the address of the key = %d\n%s", args, code, errs)
		}
	}
	if code, out, errs := command(t, append(append([]string{"ca", "issue", "--manager", "main", "--client", "press-07"}, with...), at("press-07"))...); code != 0 {
		t.Fatalf("ca issue = %d\n%s%s", code, out, errs)
	}
	if _, err := os.Lstat(at("ca/ca.key")); err == nil {
		t.Error("there is a ca.key")
	}
	f := files.Files{Cert: at("press-07.crt"), Key: at("press-07.key"), Bundle: at("ca/bundle.json")}
	device := files.New(f, time.Now, slog.New(slog.DiscardHandler))
	if _, err := device.Credentials(); err != nil {
		t.Errorf("what it issued: %v", err)
	}
	settings := "url: https://fleet.acme.example:8443\nauthority:\n  dir: ca\n  key: \"" + key + "\"\n"
	if passwordFile != "" {
		settings += "  keyPasswordFile: " + passwordFile + "\n"
	}
	identitytest.Write(t, at("enroll.yaml"), []byte(settings+"source: {registry: oci://harbor.acme.example/plant/state}\n"))
	identitytest.Write(t, at("clients.yaml"), []byte("accept: [press-07]\n"))
	_, log, _ := serve(t, "--database", at("fleet.db"), "--mtls-listen", "127.0.0.1:0", "--enroll", at("enroll.yaml"), "--clients", at("clients.yaml"))
	url := log.says(t, mutualAt)
	tr := &http.Transport{TLSClientConfig: identity.ClientConfig(device, time.Now)}
	t.Cleanup(tr.CloseIdleConnections)
	if code, body := do(t, &http.Client{Transport: tr, Timeout: time.Minute}, "PUT", url+"/api/v1/capabilities/press-07", "", gateway); code != 201 {
		t.Errorf("PUT by mutual TLS = %d %s", code, body)
	}
	return dir
}

// The authority's key in a real PKCS#11 token.
func TestAuthorityInToken(t *testing.T) {
	if !remotekey.HasPKCS11 {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	token := testenv.SoftHSM(t)
	p384, err := ecdsa.GenerateKey(elliptic.P384(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	r3072, err := rsa.GenerateKey(rand.Reader, 3072)
	if err != nil {
		t.Fatal(err)
	}
	token.Import(t, "other", 1, identitytest.NewKey(t))
	token.Import(t, "ca", 2, p384)
	token.Import(t, "rsa", 3, r3072)
	pin := filepath.Join(t.TempDir(), "pin")
	identitytest.Write(t, pin, []byte(token.PIN+"\n"))
	wrong := filepath.Join(t.TempDir(), "wrong") // first: later the process is logged in
	identitytest.Write(t, wrong, []byte("9137\n"))
	if code, _, errs := command(t, "ca", "init", "--trust-domain", "x.example", "--dir", t.TempDir(), "--key", token.URI("ca"), "--key-password-file", wrong); code != 3 ||
		!strings.Contains(errs, "check the PIN") || strings.Contains(errs, "9137") {
		t.Errorf("a wrong PIN = %d\n%s", code, errs)
	}
	dir := authorityAt(t, token.URI("ca"), pin)
	authorityAt(t, token.URI("rsa")+"&pin-value="+token.PIN, "")
	issue := func(key, pinFile string) (int, string) {
		code, _, errs := command(t, "ca", "issue", "--manager", "main", "--dir", filepath.Join(dir, "ca"), "--key", key, "--key-password-file", pinFile, filepath.Join(dir, "x"))
		return code, errs
	}
	if code, errs := issue(token.URI("other"), pin); code == 0 || !strings.Contains(errs, "is not that of the certificate") {
		t.Errorf("another key = %d\n%s", code, errs)
	}
	if code, errs := issue("ca.key", pin); code != 2 || !strings.Contains(errs, "is no address") {
		t.Errorf("a file = %d\n%s", code, errs)
	}
}

// The authority's key in a key service: one that is away is a problem that passes, and a new login needs no restart.
func TestAuthorityInKeyService(t *testing.T) {
	const secret = "hvs.of-this-test"
	vault := remotekeytest.Transit(t, secret)
	t.Setenv("VAULT_ADDR", vault.URL)
	t.Setenv("VAULT_TOKEN", secret)
	t.Setenv("VAULT_MAX_RETRIES", "0")
	t.Setenv("HOME", t.TempDir())
	dir := authorityAt(t, "hashivault://release", "")
	vault.Close()
	code, _, errs := command(t, "ca", "issue", "--manager", "main", "--dir", filepath.Join(dir, "ca"), "--key", "hashivault://release", filepath.Join(dir, "x"))
	if code != 75 || strings.Contains(errs, secret) {
		t.Errorf("ca issue without the service = %d\n%s", code, errs)
	}
}
