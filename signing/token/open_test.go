//go:build cgo

package token

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"os"
	"os/exec"
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

// hostile builds a module that does what SoftHSM never does.
func hostile(t *testing.T, soft *testenv.SoftToken) URI {
	t.Helper()
	headers, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "github.com/miekg/pkcs11").Output()
	if err != nil {
		t.Fatal(err)
	}
	module := filepath.Join(t.TempDir(), "module.so")
	if out, err := exec.CommandContext(t.Context(), "gcc", "-shared", "-fPIC", "-I", strings.TrimSpace(string(headers)), "-o", module, "testdata/module.c", "-ldl").CombinedOutput(); err != nil {
		t.Fatalf("gcc: %v\n%s", err, out)
	}
	u, err := Parse(strings.Replace(soft.URI("device"), soft.Module, module, 1))
	if err != nil {
		t.Fatal(err)
	}
	return u
}

// A token that allows one session, or is locked, is an error by name, and is good again once it is corrected.
func TestHostileToken(t *testing.T) {
	soft := testenv.SoftHSM(t)
	u := hostile(t, soft)
	for _, state := range []struct {
		is   string
		want error
		hint string
	}{{"narrow", fault.ErrUnsupported, "two sessions"}, {"narrow", fault.ErrUnsupported, "two sessions"}, {"", nil, ""}, {"locked", fault.ErrUnauthenticated, "SO PIN"}, {"locked", fault.ErrUnauthenticated, "SO PIN"}, {"", nil, ""}} {
		t.Setenv("LONGSHORE_TOKEN", state.is)
		opened, err := Open(u, soft.PIN)
		if !errors.Is(err, state.want) || !strings.Contains(fault.Hint(err), state.hint) {
			t.Errorf("Open of a token that is %q: %v (%s)", state.is, err, fault.Hint(err))
		}
		if err == nil {
			if err := opened.Close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// A token that is not there may come back. Of several keys with one name none is taken.
func TestWhichKey(t *testing.T) {
	soft := testenv.SoftHSM(t)
	address := soft.URI("device")
	parse := func(address string) URI {
		t.Helper()
		u, err := Parse(address)
		if err != nil {
			t.Fatal(err)
		}
		return u
	}
	if _, err := Open(parse(strings.Replace(address, "token=longshore", "token=away", 1)), soft.PIN); !errors.Is(err, fault.ErrTemporary) || fault.Hint(err) != "check that the token is there" {
		t.Errorf("Open of a token that is away: %v (%s)", err, fault.Hint(err))
	}
	u := parse(address)
	opened, err := Open(u, soft.PIN)
	if err != nil {
		t.Fatal(err)
	}
	defer opened.Close()
	first, err := opened.Create(u)
	if err != nil {
		t.Fatal(err)
	}
	second, err := opened.Create(parse(strings.Replace(address, "object=device", "object=device;id=%09", 1)))
	if err != nil || first.Public().(*ecdsa.PublicKey).Equal(second.Public()) {
		t.Fatalf("Create returns the key that was there, %v", err)
	}
	if _, err := opened.Key(u); !errors.Is(err, fault.ErrConflict) || fault.Hint(err) != "name the key by id=" {
		t.Errorf("Key of two: %v (%s)", err, fault.Hint(err))
	}
	if key, err := opened.Key(parse(strings.Replace(address, "object=device", "id=%09", 1))); err != nil || !second.Public().(*ecdsa.PublicKey).Equal(key.Public()) {
		t.Errorf("Key by its id: %v", err)
	}
}

// A PIN is in no error, however wrong the address is. A library has an absolute path.
func TestParseRefuses(t *testing.T) {
	for _, address := range []string{
		"pkcs11:token=a;pin-value=4711", "pkcs11:token=a;PIN-value=4711", "pkcs11:pin-value:4711", "pkcs11:token=a;object=b?pin-value:4711", "pkcs11:token=a;object=b?pin-value:4711=1",
		"pkcs11:token=a;object=b?pin-value=47%11%zz", "pkcs11:token=a?pin-value=4711", "pkcs11:token=a;object=b?module-path=module.so&pin-value=4711",
	} {
		if _, err := Parse(address); !errors.Is(err, fault.ErrInvalid) || strings.Contains(err.Error(), "47") {
			t.Errorf("Parse(%s) = %v", address, err)
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
	if err := os.WriteFile(file, []byte("\n"), 0o600); err != nil { // it is being written
		t.Fatal(err)
	}
	if pin, err := u.ReadPIN(); !errors.Is(err, fault.ErrConfig) || !strings.Contains(err.Error(), "is empty") {
		t.Errorf("ReadPIN of an empty file = %q, %v", pin, err)
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
	if err := errors.Join(os.Chmod(file, 0o600), os.Chown(file, 4321, -1)); err != nil {
		testenv.Unavailable(t, "change the owner of a file: %v", err)
	}
	if _, err := u.ReadPIN(); !errors.Is(err, fault.ErrConfig) || !strings.Contains(err.Error(), "belongs to user 4321") {
		t.Errorf("a file of another user: %v", err)
	}
}
