//go:build cgo

package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/ThalesIgnite/crypto11"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// A key that is created in a token signs there, and cannot be read from it.
func TestCreate(t *testing.T) {
	soft := testenv.SoftHSM(t)
	for _, address := range []string{soft.URI("device"), strings.Replace(soft.URI("x"), "object=x", "id=%07", 1)} {
		u, err := Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		opened, err := Open(u, soft.PIN)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := opened.Key(u); !errors.Is(err, ErrNoKey) {
			t.Errorf("%s before it is created: %v", u, err)
		}
		made, err := opened.Create(u)
		if err != nil {
			t.Fatal(err)
		}
		for a, want := range map[crypto11.AttributeType]byte{crypto11.CkaSensitive: 1, crypto11.CkaExtractable: 0, crypto11.CkaNeverExtractable: 1} {
			if got, err := opened.context.GetAttribute(made.(*signer).Signer, a); err != nil || len(got.Value) != 1 || got.Value[0] != want {
				t.Errorf("attribute %x of %s = %v, %v, want %d", a, u, got, err, want)
			}
		}
		if got, err := opened.context.GetAttribute(made.(*signer).Signer, crypto11.CkaValue); err == nil {
			t.Errorf("the private key of %s can be read: %v", u, got)
		}
		if err := opened.Close(); err != nil {
			t.Fatal(err)
		}
		if opened, err = Open(u, soft.PIN); err != nil { // as in the next process
			t.Fatal(err)
		}
		found, err := opened.Key(u)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256([]byte("report"))
		signature, err := found.Sign(rand.Reader, sum[:], crypto.SHA256)
		if err != nil || !ecdsa.VerifyASN1(made.Public().(*ecdsa.PublicKey), sum[:], signature) {
			t.Errorf("%s signs %x, %v", u, signature, err)
		}
		if err := opened.Close(); err != nil {
			t.Error(err)
		}
	}
}

// A PIN file is the owner's alone, and its last line break does not count.
func TestReadPIN(t *testing.T) {
	file := filepath.Join(t.TempDir(), "pin")
	for _, source := range []string{file, "file:" + file, "file://" + file} {
		u, err := Parse("pkcs11:token=a;object=b?pin-source=" + source)
		if err != nil || u.PINFile != file {
			t.Fatalf("pin-source=%s: %q, %v", source, u.PINFile, err)
		}
	}
	u, err := Parse("pkcs11:token=a;object=b?pin-source=" + file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.ReadPIN(); !errors.Is(err, fault.ErrConfig) || errors.Is(err, os.ErrNotExist) || !strings.Contains(err.Error(), file) {
		t.Errorf("no file: %v", err)
	}
	if err := os.WriteFile(file, []byte("4711\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if pin, err := u.ReadPIN(); err != nil || pin != "4711" {
		t.Errorf("ReadPIN = %q, %v", pin, err)
	}
	for _, mode := range []os.FileMode{0o640, 0o604, 0o620} {
		if err := os.Chmod(file, mode); err != nil {
			t.Fatal(err)
		}
		if _, err := u.ReadPIN(); !errors.Is(err, fault.ErrConfig) || fault.Hint(err) != "chmod 600 "+file {
			t.Errorf("mode %04o: %v", mode, err)
		}
	}
}
