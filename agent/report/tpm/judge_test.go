package tpm

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/sha256"
	"encoding/asn1"
	"errors"
	"io/fs"
	"math/big"
	"syscall"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A test that runs as root meets no such error of the kernel.
func TestKernelErrors(t *testing.T) {
	for errno, want := range map[syscall.Errno]error{
		syscall.EACCES: fault.ErrDenied, syscall.EPERM: fault.ErrDenied, syscall.EBUSY: fault.ErrTemporary, syscall.ETIME: fault.ErrTemporary,
		syscall.ENODEV: fault.ErrNotFound, syscall.ENOENT: fault.ErrNotFound,
	} {
		err := judge("/dev/tpmrm0", &fs.PathError{Op: "open", Path: "/dev/tpmrm0", Err: errno})
		if !errors.Is(err, want) || fault.Hint(err) == "" || errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%v: %v (%s)", errno, err, fault.Hint(err))
		}
	}
}

// Numbers of a TPM become a key on the curve and a DER signature, or an error.
func FuzzNumbers(f *testing.F) {
	g := elliptic.P256().Params()
	f.Add(g.Gx.Bytes(), g.Gy.Bytes())
	f.Add([]byte{}, []byte{1})
	f.Add(make([]byte, 33), make([]byte, 32))
	digest := sha256.Sum256(nil)
	f.Fuzz(func(t *testing.T, a, b []byte) {
		if key, err := uncompressed(a, b); err == nil {
			got, err := key.Bytes()
			if err != nil || new(big.Int).SetBytes(got[1:33]).Cmp(new(big.Int).SetBytes(a)) != 0 || new(big.Int).SetBytes(got[33:]).Cmp(new(big.Int).SetBytes(b)) != 0 {
				t.Errorf("point %x, %v", got, err)
			}
			ecdsa.VerifyASN1(key, digest[:], nil)
		} else if !errors.Is(err, fault.ErrUnsupported) {
			t.Errorf("point: %v", err)
		}
		signature, err := der(a, b)
		if err != nil {
			if len(a) <= coordinateSize && len(b) <= coordinateSize || !errors.Is(err, fault.ErrUnsupported) {
				t.Errorf("signature: %v", err)
			}
			return
		}
		var back struct{ R, S *big.Int }
		if rest, err := asn1.Unmarshal(signature, &back); err != nil || len(rest) != 0 || back.R.Cmp(new(big.Int).SetBytes(a)) != 0 || back.S.Cmp(new(big.Int).SetBytes(b)) != 0 {
			t.Errorf("DER %x of %x and %x: %v", signature, a, b, err)
		}
	})
}
