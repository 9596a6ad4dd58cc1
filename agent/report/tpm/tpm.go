// Package tpm signs with an ECDSA P-256 key that never leaves the device's TPM 2.0.
//
// The key is a primary key of the owner hierarchy with a fixed template: the TPM derives it from its owner seed, so the same TPM
// gives the same key after every restart, without a file and without one of the TPM's few places for persistent keys. TPM2_Clear
// replaces the seed, and with it the key. The entry point is [Open]. TestSign holds what survives a restart.
package tpm

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"encoding/asn1"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math/big"
	"net"
	"os"
	"slices"
	"syscall"
	"time"

	"github.com/google/go-tpm/tpm2"
	"github.com/google/go-tpm/tpm2/transport"
	"github.com/google/go-tpm/tpm2/transport/linuxtpm"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// socketTime bounds one use of a TPM behind a socket. The kernel bounds each command of a device file itself.
const socketTime = 30 * time.Second

const (
	coordinateSize = 32 // bytes of a coordinate and of a scalar of P-256
	label          = "longshore device key"
)

// ErrOtherKey means that the TPM derives another key than it did when the Key was opened: it was cleared or replaced.
var ErrOtherKey = fmt.Errorf("the TPM has another key: %w", fault.ErrConflict)

// Key is a key in a TPM. It implements [crypto.Signer], and holds nothing open between two signatures. It may be used by several
// goroutines.
type Key struct {
	device string
	public *ecdsa.PublicKey
}

var _ crypto.Signer = (*Key)(nil)

// Open derives the key in the TPM at device: a character device, or the unix socket of a software TPM. Errors wrap
// fault.ErrNotFound (no TPM), fault.ErrDenied (no permission, or the owner hierarchy has a password), fault.ErrTemporary (the TPM is
// busy, locked or does not answer), fault.ErrUnsupported (no TPM 2.0, or no ECDSA P-256), and never fs.ErrNotExist.
func Open(device string) (*Key, error) {
	k := &Key{device: device}
	err := k.use(func(_ transport.TPM, made *tpm2.CreatePrimaryResponse) (err error) {
		k.public, err = publicKey(made)
		return err
	})
	if err != nil {
		return nil, err
	}
	return k, nil
}

// Public implements [crypto.Signer]: an *ecdsa.PublicKey on P-256.
func (k *Key) Public() crypto.PublicKey { return k.public }

// Sign implements [crypto.Signer]: an ECDSA signature in DER of a SHA-256 digest, with the TPM's own randomness. Errors are those of
// [Open], and ErrOtherKey.
func (k *Key) Sign(_ io.Reader, digest []byte, o crypto.SignerOpts) (signature []byte, err error) {
	if o == nil || o.HashFunc() != crypto.SHA256 || len(digest) != crypto.SHA256.Size() {
		return nil, fmt.Errorf("TPM %s: signs only SHA-256: %w", k.device, fault.ErrUnsupported)
	}
	err = k.use(func(t transport.TPM, made *tpm2.CreatePrimaryResponse) error {
		public, err := publicKey(made)
		if err != nil {
			return err
		}
		if !public.Equal(k.public) {
			return ErrOtherKey
		}
		answer, err := tpm2.Sign{
			KeyHandle:  tpm2.AuthHandle{Handle: made.ObjectHandle, Name: made.Name, Auth: tpm2.PasswordAuth(nil)},
			Digest:     tpm2.TPM2BDigest{Buffer: digest},
			InScheme:   tpm2.TPMTSigScheme{Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUSigScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSchemeHash{HashAlg: tpm2.TPMAlgSHA256})},
			Validation: tpm2.TPMTTKHashCheck{Tag: tpm2.TPMSTHashCheck, Hierarchy: tpm2.TPMRHNull},
		}.Execute(t)
		if err != nil {
			return err
		}
		parts, err := answer.Signature.Signature.ECDSA()
		if err != nil {
			return err
		}
		if signature, err = der(parts.SignatureR.Buffer, parts.SignatureS.Buffer); err != nil {
			return err
		}
		if !ecdsa.VerifyASN1(public, digest, signature) { // a fault of the hardware is told here, and not to those who verify
			return fmt.Errorf("it made a signature that does not verify: %w", fault.ErrTemporary)
		}
		return nil
	})
	return signature, err
}

// template fixes the key. Another value in any field is another key: it must never change. NoDA exempts the key from the TPM's
// lockout after wrong passwords: it has no password.
func template() tpm2.TPMTPublic {
	unique := make([]byte, coordinateSize)
	copy(unique, label)
	return tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, NoDA: true, SignEncrypt: true},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			CurveID: tpm2.TPMECCNistP256,
			Scheme:  tpm2.TPMTECCScheme{Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256})},
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{
			X: tpm2.TPM2BECCParameter{Buffer: unique}, Y: tpm2.TPM2BECCParameter{Buffer: make([]byte, coordinateSize)},
		}),
	}
}

// use derives the key, gives it to do, and unloads it: a TPM without a resource manager has room for three keys.
func (k *Key) use(do func(transport.TPM, *tpm2.CreatePrimaryResponse) error) error {
	t, err := open(k.device)
	if err != nil {
		return judge(k.device, err)
	}
	made, err := tpm2.CreatePrimary{
		PrimaryHandle: tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)},
		InPublic:      tpm2.New2B(template()),
	}.Execute(t)
	if err == nil {
		err = do(t, made)
		_, flushed := tpm2.FlushContext{FlushHandle: made.ObjectHandle}.Execute(t)
		err = errors.Join(err, flushed)
	}
	if err = errors.Join(err, t.Close()); err != nil {
		return judge(k.device, err)
	}
	return nil
}

// open opens the device file, or the socket as one connection, so that no other client's command comes between ours.
func open(device string) (transport.TPMCloser, error) {
	info, err := os.Stat(device)
	if err != nil {
		return nil, err
	}
	if info.Mode()&fs.ModeSocket == 0 {
		return linuxtpm.Open(device)
	}
	conn, err := net.DialTimeout("unix", device, socketTime)
	if err != nil {
		return nil, err
	}
	s := &socket{Conn: conn}
	s.limit = time.AfterFunc(socketTime, func() { _ = conn.Close() })
	return transport.FromReadWriteCloser(s), nil
}

type socket struct {
	net.Conn
	limit *time.Timer
}

func (s *socket) Close() error {
	if s.limit.Stop() {
		return s.Conn.Close()
	}
	return nil // the limit has closed it, and a read or a write has said so
}

func publicKey(made *tpm2.CreatePrimaryResponse) (*ecdsa.PublicKey, error) {
	public, err := made.OutPublic.Contents()
	if err != nil {
		return nil, err
	}
	point, err := public.Unique.ECC()
	if err != nil {
		return nil, err
	}
	return uncompressed(point.X.Buffer, point.Y.Buffer)
}

// uncompressed reads the two coordinates of a point. TPMs may leave leading zeros out (TPM 2.0 Library part 2, section 11.2.5.1).
func uncompressed(x, y []byte) (*ecdsa.PublicKey, error) {
	if len(x) > coordinateSize || len(y) > coordinateSize {
		return nil, fmt.Errorf("it gave a point that is too long for P-256: %w", fault.ErrUnsupported)
	}
	point := make([]byte, 1+2*coordinateSize)
	point[0] = 4 // SEC 1, section 2.3.3
	copy(point[1+coordinateSize-len(x):], x)
	copy(point[1+2*coordinateSize-len(y):], y)
	public, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), point)
	if err != nil {
		return nil, fmt.Errorf("it gave a point that is not on P-256: %w", fault.ErrUnsupported)
	}
	return public, nil
}

// der writes an ECDSA signature as RFC 3279, section 2.2.3 says.
func der(r, s []byte) ([]byte, error) {
	if len(r) > coordinateSize || len(s) > coordinateSize {
		return nil, fmt.Errorf("it gave a signature that is too long for P-256: %w", fault.ErrUnsupported)
	}
	return asn1.Marshal(struct{ R, S *big.Int }{new(big.Int).SetBytes(r), new(big.Int).SetBytes(s)})
}

// again are the answers of a TPM that works, but not now (TPM 2.0 Library part 2, section 6.6.3).
var again = []tpm2.TPMRC{
	tpm2.TPMRCLockout, tpm2.TPMRCRetry, tpm2.TPMRCYielded, tpm2.TPMRCTesting, tpm2.TPMRCNVRate, tpm2.TPMRCNVUnavailable, tpm2.TPMRCMemory,
	tpm2.TPMRCObjectMemory, tpm2.TPMRCSessionMemory, tpm2.TPMRCObjectHandles, tpm2.TPMRCSessionHandles, tpm2.TPMRCInitialize,
}

// badTag is how a TPM 1.2 answers a command of TPM 2.0 (part 2, section 6.6.3: TPM_RC_BAD_TAG).
const badTag = tpm2.TPMRC(0x1e)

// judge gives an error its kind and tells what to do. What it does not know is worth another try: the TPM is hardware behind a bus.
func judge(device string, err error) error {
	is := func(codes ...tpm2.TPMRC) bool {
		return slices.ContainsFunc(codes, func(c tpm2.TPMRC) bool { return errors.Is(err, c) })
	}
	say := func(kind error, hint string) error {
		return fault.WithHint(fmt.Errorf("TPM %s: %w: %w", device, kind, err), hint)
	}
	switch {
	case errors.Is(err, ErrOtherKey):
		return fault.WithHint(fmt.Errorf("TPM %s: %w", device, err), "it was cleared or replaced while the agent ran; restart the agent, which tells what to do")
	case errors.Is(err, fault.ErrUnsupported), errors.Is(err, fault.ErrTemporary):
		return fmt.Errorf("TPM %s: %w", device, err)
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, syscall.ENODEV), errors.Is(err, syscall.ENXIO):
		// Without the cause: to the caller, fs.ErrNotExist is a key that is still to be made.
		return fault.WithHint(fmt.Errorf("TPM %s: there is none: %w", device, fault.ErrNotFound), "switch the TPM on in the firmware and load its kernel module; TPM 1.2 is not supported")
	case errors.Is(err, linuxtpm.ErrFileIsNotDevice):
		return say(fault.ErrConfig, "name the device file of a TPM, such as /dev/tpmrm0")
	case errors.Is(err, fs.ErrPermission):
		return say(fault.ErrDenied, "run the command as root, or as a member of the device file's group, often tss")
	case errors.Is(err, syscall.EBUSY):
		return say(fault.ErrTemporary, "another program has the TPM for itself; several can use /dev/tpmrm0")
	case is(tpm2.TPMRCAuthFail, tpm2.TPMRCBadAuth):
		return say(fault.ErrDenied, "the owner hierarchy has a password, which is not supported")
	case is(tpm2.TPMRCLockout):
		return say(fault.ErrTemporary, "the TPM is in lockout after wrong passwords; it ends by itself, see tpm2_dictionarylockout")
	case is(again...):
		return say(fault.ErrTemporary, "the TPM is busy; try again")
	case is(tpm2.TPMRCHierarchy):
		return say(fault.ErrUnsupported, "the owner hierarchy is disabled; enable it in the firmware")
	case is(tpm2.TPMRCCurve, tpm2.TPMRCScheme, tpm2.TPMRCAsymmetric, tpm2.TPMRCValue, tpm2.TPMRCHash):
		return say(fault.ErrUnsupported, "the TPM does not sign with ECDSA P-256 and SHA-256; keep the key in a file")
	case is(badTag):
		return say(fault.ErrUnsupported, "it is no TPM 2.0")
	}
	return say(fault.ErrTemporary, "check the kernel's messages about the TPM: dmesg")
}
