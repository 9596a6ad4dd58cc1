package tpm_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"io"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport/linuxudstpm"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/report/tpm"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The same key signs before and after a restart of the TPM; after TPM2_Clear no key signs in its place.
func TestSign(t *testing.T) {
	chip := testenv.StartSoftTPM(t)
	key, err := tpm.Open(chip.Socket)
	if err != nil {
		t.Fatal(err)
	}
	public := key.Public().(*ecdsa.PublicKey)
	digest := sha256.Sum256([]byte("report"))
	sign := func() {
		t.Helper()
		signature, err := key.Sign(rand.Reader, digest[:], crypto.SHA256)
		if err != nil || !ecdsa.VerifyASN1(public, digest[:], signature) {
			t.Errorf("Sign = %x, %v", signature, err)
		}
	}
	for range 8 { // more than a TPM holds at once: each use must unload the key
		sign()
	}
	if _, err := key.Sign(rand.Reader, digest[:31], crypto.SHA256); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("half a digest: %v", err)
	}
	if _, err := key.Sign(rand.Reader, digest[:], crypto.SHA384); !errors.Is(err, fault.ErrUnsupported) {
		t.Errorf("another hash: %v", err)
	}

	chip.Stop(t)
	if _, err := key.Sign(rand.Reader, digest[:], crypto.SHA256); !errors.Is(err, fault.ErrNotFound) || errors.Is(err, fs.ErrNotExist) {
		t.Errorf("without a TPM: %v", err)
	}
	chip.Start(t)
	sign()
	again, err := tpm.Open(chip.Socket)
	if err != nil || !public.Equal(again.Public()) {
		t.Fatalf("after a restart: %v, the same key: %t", err, err == nil && public.Equal(again.Public()))
	}

	raw, err := linuxudstpm.Open(chip.Socket)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := (tpm2.Clear{AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHLockout, Auth: tpm2.PasswordAuth(nil)}}).Execute(raw); err != nil {
		t.Fatal(err)
	}
	if err := raw.Close(); err != nil {
		t.Fatal(err)
	}
	if s, err := key.Sign(rand.Reader, digest[:], crypto.SHA256); !errors.Is(err, tpm.ErrOtherKey) || s != nil {
		t.Errorf("after TPM2_Clear: %x, %v", s, err)
	}
	if cleared, err := tpm.Open(chip.Socket); err != nil || public.Equal(cleared.Public()) {
		t.Errorf("Open after TPM2_Clear: %v", err)
	}
}

// The owner hierarchy with a password is told as what it is.
func TestOwnerPassword(t *testing.T) {
	chip := testenv.StartSoftTPM(t)
	raw, err := linuxudstpm.Open(chip.Socket)
	if err != nil {
		t.Fatal(err)
	}
	change := tpm2.HierarchyChangeAuth{
		AuthHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}, NewAuth: tpm2.TPM2BAuth{Buffer: []byte("secret")},
	}
	if _, err := change.Execute(raw); err != nil {
		t.Fatal(err)
	}
	if _, err := tpm.Open(chip.Socket); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("Open: %v (%s)", err, fault.Hint(err))
	}
}

// answers stands for a TPM that answers every command with the same bytes.
func answers(t testing.TB, answer []byte) (socket string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "tpm") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("unix", filepath.Join(dir, "s"))
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			command := make([]byte, 4096)
			for {
				if _, err := c.Read(command); err != nil {
					break
				}
				if _, err := c.Write(answer); err != nil {
					break
				}
				if len(answer) < 10 { // no TPM would do that: it hangs up
					break
				}
			}
			_ = c.Close()
		}
	}()
	t.Cleanup(func() {
		err := errors.Join(l.Close(), os.RemoveAll(dir))
		<-done
		if err != nil {
			t.Error(err)
		}
	})
	return filepath.Join(dir, "s")
}

func code(rc uint32) []byte {
	b := binary.BigEndian.AppendUint16(nil, 0x8001)
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(b, 10), rc)
}

// What a TPM answers, and what is at its path, gets the kind of error that callers act by.
func TestErrors(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		device string
		want   error
	}{
		"none":          {filepath.Join(t.TempDir(), "tpmrm0"), fault.ErrNotFound},
		"a file":        {file, fault.ErrConfig},
		"another chip":  {"/dev/null", fault.ErrTemporary},
		"lockout":       {answers(t, code(0x921)), fault.ErrTemporary},
		"busy":          {answers(t, code(0x902)), fault.ErrTemporary},
		"not started":   {answers(t, code(0x100)), fault.ErrTemporary},
		"no owner":      {answers(t, code(0x185)), fault.ErrUnsupported},
		"no P-256":      {answers(t, code(0x2e6)), fault.ErrUnsupported},
		"TPM 1.2":       {answers(t, code(0x1e)), fault.ErrUnsupported},
		"unknown":       {answers(t, code(0x101)), fault.ErrTemporary},
		"half a header": {answers(t, code(0)[:7]), fault.ErrTemporary},
		"nothing in it": {answers(t, code(0)), fault.ErrTemporary},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := tpm.Open(tt.device)
			if !errors.Is(err, tt.want) || errors.Is(err, fs.ErrNotExist) || errors.Is(err, io.ErrShortBuffer) || fault.Hint(err) == "" {
				t.Errorf("Open: %v (%s), want %v", err, fault.Hint(err), tt.want)
			}
		})
	}
}
