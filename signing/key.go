package signing

import (
	"bytes"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/pem"
	"errors"
	"fmt"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Types of the PEM block of a private key: cosign's, and its older versions'.
const (
	PEMSigstore = "ENCRYPTED SIGSTORE PRIVATE KEY"
	PEMCosign   = "ENCRYPTED COSIGN PRIVATE KEY"
)

const (
	// MaxKeyBytes bounds a key file. A 4096 bit RSA key, encrypted, has 5 KiB.
	MaxKeyBytes = 64 << 10

	minRSABits = 2048
)

// Key is a public key with a name. It is a [Verifier]; the zero Key verifies nothing.
type Key struct {
	Name        string
	Algorithm   string        // "ECDSA P-256", "RSA 3072", "Ed25519"
	Fingerprint digest.Digest // SHA-256 of the key's DER

	hint      string               // a bundle's reference to the key
	verifiers []signature.Verifier // the signature schemes of cosign's versions for this kind of key, the usual one first
}

// ParsePublicKey reads one PEM public key: ECDSA P-256, P-384 or P-521, Ed25519, RSA of 2048 bits or more.
func ParsePublicKey(name string, data []byte) (Key, error) {
	if len(data) > MaxKeyBytes {
		return Key{}, fmt.Errorf("public key %s: %w: more than %d bytes", name, fault.ErrTooLarge, MaxKeyBytes)
	}
	block, rest := pem.Decode(data)
	if block == nil {
		return Key{}, fmt.Errorf("public key %s: %w: no PEM block", name, fault.ErrInvalid)
	}
	switch block.Type {
	case PEMSigstore, PEMCosign:
		err := fmt.Errorf("public key %s: %w: this is a private key", name, fault.ErrInvalid)
		return Key{}, fault.WithHint(err, "give the .pub file, and keep the private key away from here")
	}
	if len(bytes.TrimSpace(rest)) != 0 {
		return Key{}, fmt.Errorf("public key %s: %w: more than one PEM block, or text after it", name, fault.ErrInvalid)
	}
	pub, err := cryptoutils.UnmarshalPEMToPublicKey(data)
	if err != nil {
		return Key{}, fmt.Errorf("public key %s: %w: %w", name, fault.ErrInvalid, err)
	}
	return NewKey(name, pub)
}

// NewKey names a public key, of the kinds that [ParsePublicKey] reads.
func NewKey(name string, pub crypto.PublicKey) (Key, error) {
	der, err := x509.MarshalPKIXPublicKey(pub)
	if err != nil {
		return Key{}, fmt.Errorf("public key %s: %w: %w", name, fault.ErrInvalid, err)
	}
	sum := sha256.Sum256(der)
	k := Key{
		Name:        name,
		Fingerprint: digest.NewDigestFromBytes(digest.SHA256, sum[:]),
		hint:        base64.StdEncoding.EncodeToString(sum[:]),
	}
	loads := [][]signature.LoadOption{{options.WithHash(crypto.SHA256)}}
	switch p := pub.(type) {
	case *ecdsa.PublicKey:
		k.Algorithm = "ECDSA " + p.Curve.Params().Name
		// Newer versions use a hash of the curve's size, older ones always SHA-256.
		switch p.Curve {
		case elliptic.P256():
		case elliptic.P384():
			loads = append(loads, []signature.LoadOption{options.WithHash(crypto.SHA384)})
		case elliptic.P521():
			loads = append(loads, []signature.LoadOption{options.WithHash(crypto.SHA512)})
		default:
			return Key{}, fmt.Errorf("public key %s: %w: curve %s", name, fault.ErrUnsupported, p.Curve.Params().Name)
		}
	case ed25519.PublicKey:
		k.Algorithm = "Ed25519"
		// cosign's keys sign the prehash by default, bundles of other tools the message.
		loads = [][]signature.LoadOption{{options.WithED25519ph()}, nil}
	case *rsa.PublicKey:
		k.Algorithm = fmt.Sprintf("RSA %d", p.N.BitLen())
		if p.N.BitLen() < minRSABits {
			return Key{}, fmt.Errorf("public key %s: %w: %s is shorter than %d bits", name, fault.ErrUnsupported, k.Algorithm, minRSABits)
		}
	default:
		return Key{}, fmt.Errorf("public key %s: %w: key type %T", name, fault.ErrUnsupported, pub)
	}
	for _, o := range loads {
		v, err := signature.LoadVerifierWithOpts(pub, o...)
		if err != nil {
			return Key{}, fmt.Errorf("public key %s: %w: %w", name, fault.ErrUnsupported, err)
		}
		k.verifiers = append(k.verifiers, v)
	}
	return k, nil
}

// Hint is a bundle's reference to the key: base64 of the SHA-256 of its DER.
func (k Key) Hint() string { return k.hint }

// VerifierName implements [Verifier].
func (k Key) VerifierName() string { return k.Name }

// hinted is a bundle's hint for display: cosign's is a key's fingerprint, others' may be any text.
func hinted(hint string) string {
	if sum, err := base64.StdEncoding.DecodeString(hint); err == nil && len(sum) == digest.SHA256.Size() {
		return digest.NewDigestFromBytes(digest.SHA256, sum).String()
	}
	return fmt.Sprintf("%.64q", hint)
}

// otherKey is ErrOtherSigner with the key that a bundle names, which is not checked.
type otherKey string

func (k otherKey) Error() string { return "by key " + string(k) + ": " + ErrOtherSigner.Error() }

func (otherKey) Unwrap() error { return ErrOtherSigner }

// Verify implements [Verifier]. A bundle may refer to its key in another way than cosign, so the hint only decides
// whether a signature that does not match is a security event.
func (k Key) Verify(_ context.Context, e *Evidence) (Verification, error) {
	if len(e.Certificates) > 0 {
		return Verification{}, fmt.Errorf("with a certificate: %w", ErrOtherSigner)
	}
	for _, v := range k.verifiers {
		if v.VerifySignature(bytes.NewReader(e.Signature), bytes.NewReader(e.Signed)) == nil {
			return Verification{Principal: k.Fingerprint.String(), Fingerprint: k.Fingerprint, Algorithm: k.Algorithm}, nil
		}
	}
	if e.Hint != "" && e.Hint != k.hint {
		return Verification{}, otherKey(hinted(e.Hint))
	}
	if e.Hint == "" {
		return Verification{}, errSpeechless
	}
	return Verification{}, errors.New("signature does not match")
}
