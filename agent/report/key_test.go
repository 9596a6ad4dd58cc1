package report_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/report"
	"github.com/longshore-dev/longshore/agent/report/tpm"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/token"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMakeKey(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "device.key")
	if _, err := report.LoadKey(file); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("LoadKey of nothing: %v", err)
	}
	key, made, err := report.MakeKey(file)
	if err != nil || !made {
		t.Fatalf("MakeKey = %t, %v", made, err)
	}
	info, err := os.Stat(file)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("the key's mode is %v, %v", info.Mode(), err)
	}
	public := filepath.Join(dir, "device.pub")
	if data, err := os.ReadFile(public); err != nil || string(data) != string(key.PublicPEM) || key.PublicFile != public {
		t.Errorf("public half in %s: %q, %v", key.PublicFile, data, err)
	}
	if err := os.Remove(public); err != nil {
		t.Fatal(err)
	}
	again, made, err := report.MakeKey(file)
	if err != nil || made || string(again.PublicPEM) != string(key.PublicPEM) {
		t.Errorf("MakeKey once more = %t, %v; another key: %t", made, err, string(again.PublicPEM) != string(key.PublicPEM))
	}
	if _, err := os.Stat(public); err != nil {
		t.Errorf("the public half was not written again: %v", err)
	}
	if left, err := filepath.Glob(filepath.Join(dir, ".*")); err != nil || len(left) != 0 {
		t.Errorf("left over: %q, %v", left, err)
	}
}

func TestLoadKeyRefuses(t *testing.T) {
	good := filepath.Join(t.TempDir(), "good.key")
	if _, _, err := report.MakeKey(good); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(good)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		text string
		mode fs.FileMode
		uid  int
		want string
	}{
		"others may read it":  {string(data), 0o644, 0, "chmod 600"},
		"of another user":     {string(data), 0o600, 4321, "belongs to user 4321"},
		"empty":               {"", 0o600, 0, "not one PEM block"},
		"cut":                 {string(data[:len(data)-40]), 0o600, 0, "not one PEM block"},
		"two":                 {string(data) + string(data), 0o600, 0, "not one PEM block"},
		"another kind of key": {"-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2VwBCIEIJ1hsZ3v/VpguoRK9JLsLMREScVpezJpGXA7rAMcrn9g\n-----END PRIVATE KEY-----\n", 0o600, 0, "ECDSA P-256"},
	} {
		t.Run(name, func(t *testing.T) {
			file := filepath.Join(t.TempDir(), "device.key")
			if err := os.WriteFile(file, []byte(tt.text), tt.mode); err != nil {
				t.Fatal(err)
			}
			if tt.uid != 0 {
				if err := os.Chown(file, tt.uid, -1); err != nil {
					testenv.Unavailable(t, "change the owner of a file: %v", err)
				}
			}
			_, _, err := report.MakeKey(file)
			if err == nil || !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error()+fault.Hint(err), tt.want) {
				t.Errorf("MakeKey: %v (%s)", err, fault.Hint(err))
			}
			if there, err := os.ReadFile(file); err != nil || string(there) != tt.text {
				t.Errorf("the file was changed: %v", err)
			}
		})
	}
}

// The file with the public key is what tells a cleared TPM, and it is never replaced.
func TestKeyInTPM(t *testing.T) {
	chip := testenv.StartSoftTPM(t)
	p := report.Place{File: filepath.Join(t.TempDir(), "device.key"), TPM: chip.Socket}
	if _, err := p.Load(); !errors.Is(err, fs.ErrNotExist) {
		t.Fatalf("Load before Make: %v", err)
	}
	key, made, err := p.Make()
	if err != nil || !made {
		t.Fatalf("Make = %t, %v", made, err)
	}
	public, err := os.ReadFile(key.PublicFile)
	if err != nil || string(public) != string(key.PublicPEM) {
		t.Fatalf("%s: %q, %v", key.PublicFile, public, err)
	}
	if _, err := os.Stat(p.File); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a private key in a file: %v", err)
	}
	chip.Stop(t)
	if _, err := p.Load(); !errors.Is(err, fault.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Load without a TPM: %v", err)
	}
	chip.Start(t)
	if again, made, err := p.Make(); err != nil || made || string(again.PublicPEM) != string(public) {
		t.Errorf("Make after a restart = %t, %v", made, err)
	}

	p.TPM = testenv.StartSoftTPM(t).Socket // as a cleared one: another owner seed
	_, _, err = p.Make()
	_, loaded := p.Load()
	for _, err := range []error{err, loaded} {
		if !errors.Is(err, fault.ErrConflict) || !strings.HasSuffix(err.Error(), tpm.ErrOtherKey.Error()) || !strings.Contains(err.Error(), key.PublicFile) || !strings.Contains(fault.Hint(err), "move "+key.PublicFile) {
			t.Errorf("another TPM: %v (%s)", err, fault.Hint(err))
		}
	}
	if now, err := os.ReadFile(key.PublicFile); err != nil || string(now) != string(public) {
		t.Errorf("the public key was replaced: %v", err)
	}
	if err := os.Remove(key.PublicFile); err != nil {
		t.Fatal(err)
	}
	if other, made, err := p.Make(); err != nil || !made || string(other.PublicPEM) == string(public) {
		t.Errorf("Make after a person moved the public key = %t, %v", made, err)
	}
}

// The key is created in the token, once; the file with the public key tells another token, and a PIN that is wrong is tried once.
func TestKeyInToken(t *testing.T) {
	if !token.Built {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	soft := testenv.SoftHSM(t)
	dir := t.TempDir()
	pin := filepath.Join(dir, "token.pin")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(pin, []byte(text+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(soft.PIN)
	p := report.Place{File: filepath.Join(dir, "device.key"), Token: soft.URI("device") + "&pin-source=" + pin}
	if at := p.String(); strings.Contains(at, "pin") || !strings.Contains(at, "object=device") {
		t.Errorf("place %s", at)
	}
	if _, err := p.Load(); !errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), fs.ErrNotExist.Error()) {
		t.Fatalf("Load before Make: %v", err)
	}
	key, made, err := p.Make()
	if err != nil || !made {
		t.Fatalf("Make = %t, %v", made, err)
	}
	public, err := os.ReadFile(key.PublicFile)
	if err != nil || string(public) != string(key.PublicPEM) {
		t.Fatalf("%s: %q, %v", key.PublicFile, public, err)
	}
	if _, err := os.Stat(p.File); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a private key in a file: %v", err)
	}
	if again, made, err := p.Make(); err != nil || made || string(again.PublicPEM) != string(public) {
		t.Errorf("Make once more = %t, %v", made, err)
	}
	write("0000")
	sum := sha256.Sum256(nil)
	for i, want := range []string{"check the PIN", "correct the PIN", "correct the PIN"} {
		if _, err := key.Sign(nil, sum[:], crypto.SHA256); !errors.Is(err, fault.ErrUnauthenticated) || !strings.Contains(fault.Hint(err), want) {
			t.Errorf("%d, sign with a wrong PIN: %v (%s)", i, err, fault.Hint(err))
		}
	}
	write(soft.PIN)
	if signature, err := key.Sign(nil, sum[:], crypto.SHA256); err != nil || !ecdsa.VerifyASN1(key.Public().(*ecdsa.PublicKey), sum[:], signature) {
		t.Errorf("sign with the right PIN: %x, %v", signature, err)
	}
	soft.Pull(t)
	if _, err := key.Sign(nil, sum[:], crypto.SHA256); !errors.Is(err, fault.ErrTemporary) || fault.Hint(err) != "check that the token is there" {
		t.Errorf("sign while the token is away: %v (%s)", err, fault.Hint(err))
	}
	soft.Return(t)
	if _, err := key.Sign(nil, sum[:], crypto.SHA256); err != nil {
		t.Errorf("sign after the token is back: %v", err)
	}
	for name, address := range map[string]string{
		"no PIN": soft.URI("device"), "a PIN that others may read": soft.URI("device") + "&pin-value=" + soft.PIN,
		"no module": "pkcs11:token=longshore;object=device?module-path=/nowhere.so&pin-source=" + pin, "no PIN file": soft.URI("device") + "&pin-source=/nowhere",
		"another object": soft.URI("other") + "&pin-source=" + pin, "a key in a file": "",
	} {
		_, made, err := report.Place{File: p.File, Token: address}.Make()
		if err == nil || made || errors.Is(err, fs.ErrNotExist) || strings.Contains(err.Error(), soft.PIN) || name != "no module" && name != "no PIN file" && fault.Hint(err) == "" {
			t.Errorf("%s: %t, %v (%s)", name, made, err, fault.Hint(err))
		}
	}
	other, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	soft.Import(t, "other", 9, other)
	if _, err := (report.Place{File: p.File, Token: soft.URI("other") + "&pin-source=" + pin}).Load(); !errors.Is(err, fault.ErrConflict) || !strings.Contains(fault.Hint(err), "move "+key.PublicFile) {
		t.Errorf("another key: %v (%s)", err, fault.Hint(err))
	}
	if now, err := os.ReadFile(key.PublicFile); err != nil || string(now) != string(public) {
		t.Errorf("the public key was replaced: %v", err)
	}
}

// A new device has its key in the TPM, if there is one and no key in a file.
func TestChoose(t *testing.T) {
	file := filepath.Join(t.TempDir(), "device.key")
	chip := testenv.StartSoftTPM(t)
	choose := func(what, device, want string) {
		t.Helper()
		if p, err := report.Choose(file, device); err != nil || p.TPM != want || p.File != file {
			t.Errorf("Choose with %s = %+v, %v, want TPM %q", what, p, err, want)
		}
	}
	choose("no TPM", filepath.Join(t.TempDir(), "tpm"), "")
	choose("a TPM", chip.Socket, chip.Socket)
	if _, _, err := report.MakeKey(file); err != nil {
		t.Fatal(err)
	}
	choose("a key in a file", chip.Socket, "")
}
