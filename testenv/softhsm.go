package testenv

import (
	"crypto"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// SoftToken is a PKCS#11 token in software, SoftHSM's. It is real as far as programs can tell.
type SoftToken struct {
	Module string // the C library
	Label  string
	PIN    string

	dir string
}

// SoftHSM makes an empty token for one test, and points SoftHSM at it for this process and those that it starts.
func SoftHSM(t testing.TB) *SoftToken {
	t.Helper()
	if err := InstallDebian(t.Context(), os.Stderr, "softhsm2"); err != nil {
		Unavailable(t, "%v", err)
	}
	dir := t.TempDir()
	k := &SoftToken{Module: "/usr/lib/softhsm/libsofthsm2.so", Label: "longshore", PIN: "4711", dir: dir}
	tokens := filepath.Join(dir, "tokens")
	config := filepath.Join(dir, "softhsm2.conf")
	if err := os.Mkdir(tokens, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(config, []byte("directories.tokendir = "+tokens+"\nobjectstore.backend = file\nlog.level = ERROR\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SOFTHSM2_CONF", config)
	k.util(t, "--init-token", "--free", "--label", k.Label, "--pin", k.PIN, "--so-pin", "0815")
	return k
}

// Pull takes the token away.
func (k *SoftToken) Pull(t testing.TB) {
	t.Helper()
	tokens := filepath.Join(k.dir, "tokens")
	if err := errors.Join(os.Rename(tokens, tokens+".away"), os.Mkdir(tokens, 0o700)); err != nil {
		t.Fatal(err)
	}
}

// Return puts the token back.
func (k *SoftToken) Return(t testing.TB) {
	t.Helper()
	tokens := filepath.Join(k.dir, "tokens")
	if err := errors.Join(os.Remove(tokens), os.Rename(tokens+".away", tokens)); err != nil {
		t.Fatal(err)
	}
}

func (k *SoftToken) util(t testing.TB, args ...string) {
	t.Helper()
	if out, err := exec.CommandContext(t.Context(), "softhsm2-util", args...).CombinedOutput(); err != nil {
		t.Fatalf("softhsm2-util %s: %v\n%s", args[0], err, out)
	}
}

// Import puts a private key into the token, where it stays.
func (k *SoftToken) Import(t testing.TB, object string, id byte, key crypto.PrivateKey) {
	t.Helper()
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(k.dir, "import.pem")
	if err := os.WriteFile(file, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		t.Fatal(err)
	}
	defer os.Remove(file)
	k.util(t, "--import", file, "--token", k.Label, "--label", object, "--id", hex.EncodeToString([]byte{id}), "--pin", k.PIN)
}

// URI is the address of a key, without the PIN.
func (k *SoftToken) URI(object string) string {
	return "pkcs11:token=" + url.PathEscape(k.Label) + ";object=" + url.PathEscape(object) + "?module-path=" + k.Module
}
