package sign

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"

	"github.com/secure-systems-lab/go-securesystemslib/encrypted"
	"github.com/sigstore/sigstore/pkg/cryptoutils"
	"github.com/sigstore/sigstore/pkg/signature"
	"github.com/sigstore/sigstore/pkg/signature/options"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// GenerateKey makes an ECDSA P-256 key pair in cosign's files: the private key encrypted with password (scrypt and
// secretbox, PEM "ENCRYPTED SIGSTORE PRIVATE KEY"), the public key as plain PEM. An empty password encrypts with the
// empty password, as cosign does: keep the file as safe as an open key.
func GenerateKey(password []byte) (private, public []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	ciphertext, err := encrypted.Encrypt(der, password)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: encrypt: %w", err)
	}
	public, err = cryptoutils.MarshalPublicKeyToPEM(key.Public())
	if err != nil {
		return nil, nil, fmt.Errorf("generate key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: signing.PEMSigstore, Bytes: ciphertext}), public, nil
}

// PrivateKey is a key that signs: of a file ([Unlock]), or one that a token or a service keeps (sign/remotekey).
type PrivateKey = signature.Signer

// CheckKeyFile says what is wrong with the file of a private key, before anything asks for its password.
func CheckKeyFile(private []byte) error {
	_, err := encryptedPart(private)
	return err
}

// Unlock opens a private key in cosign's format ("ENCRYPTED SIGSTORE PRIVATE KEY", or COSIGN): a tenth of a second of
// scrypt. A wrong password is fault.ErrUnauthenticated.
func Unlock(private, password []byte) (PrivateKey, error) {
	ciphertext, err := encryptedPart(private)
	if err != nil {
		return nil, err
	}
	der, err := encrypted.Decrypt(ciphertext, password)
	if err != nil {
		cause := err.Error()
		if cause == "encrypted: decryption failed" { // the library has no error of its own for it
			cause = "the password is wrong"
		}
		return nil, fault.WithHint(fmt.Errorf("unlock private key: %s: %w", cause, fault.ErrUnauthenticated),
			"check the password of the key: LONGSHORE_KEY_PASSWORD, --key-password-file, or what you type")
	}
	key, err := x509.ParsePKCS8PrivateKey(der)
	if err != nil {
		return nil, fmt.Errorf("private key: %w: %w", fault.ErrInvalid, err)
	}
	// cosign's Ed25519 keys sign the prehash.
	sv, err := signature.LoadDefaultSignerVerifier(key, options.WithED25519ph())
	if err != nil {
		return nil, fmt.Errorf("private key: %w: %w", fault.ErrUnsupported, err)
	}
	return sv, nil
}

// encryptedPart says what is wrong with a key file before the password is blamed.
func encryptedPart(private []byte) ([]byte, error) {
	if len(private) > signing.MaxKeyBytes {
		return nil, fmt.Errorf("private key: %w: more than %d bytes", fault.ErrTooLarge, signing.MaxKeyBytes)
	}
	block, _ := pem.Decode(private)
	if block == nil {
		return nil, fmt.Errorf("private key: %w: no PEM block", fault.ErrInvalid)
	}
	switch block.Type {
	case signing.PEMSigstore, signing.PEMCosign:
	case "PUBLIC KEY":
		err := fmt.Errorf("private key: %w: this is a public key", fault.ErrInvalid)
		return nil, fault.WithHint(err, "sign with the private one: the .key file that longshore key generate made beside it")
	default:
		err := fmt.Errorf("private key: %w: PEM block %q", fault.ErrUnsupported, block.Type)
		return nil, fault.WithHint(err, "make a key with: longshore key generate, or bring yours with: cosign import-key-pair")
	}
	if !json.Valid(block.Bytes) {
		return nil, fmt.Errorf("private key: %w: the encrypted part is damaged", fault.ErrInvalid)
	}
	return block.Bytes, nil
}
