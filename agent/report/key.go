package report

import (
	"bytes"
	"cmp"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/longshore-dev/longshore/agent/report/tpm"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/signing/token"
)

const (
	pemPrivate = "PRIVATE KEY"
	pemPublic  = "PUBLIC KEY"
	maxKeyFile = 64 << 10
)

// Place says where the device's own key is.
type Place struct {
	File string // PEM, PKCS #8; the public half is beside it, with ".pub" for ".key"
	// Where the key is instead, of which one at most is set; only the public half of File is there then.
	TPM   string // device file or socket of a TPM 2.0
	Token string // address of a key in a PKCS#11 token (RFC 7512), with the file of its PIN
}

// String says where it is, for people.
func (p Place) String() string {
	if p.Token != "" {
		at, err := token.Parse(p.Token)
		if err != nil {
			return token.Scheme
		}
		return at.String()
	}
	return cmp.Or(p.TPM, p.File)
}

// Choose is the place of the key of a new device: the TPM, unless there is a key in the file already, or there is no TPM that can have
// it. A TPM that does not answer is an error: the key stays where it is for the life of the device.
func Choose(file, device string) (Place, error) {
	if exists(file) {
		return Place{File: file}, nil
	}
	_, err := tpm.Open(device)
	switch {
	case err == nil:
		return Place{File: file, TPM: device}, nil
	case errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrUnsupported):
		return Place{File: file}, nil
	}
	return Place{}, fault.WithHint(fmt.Errorf("device key: %w", err), "repair the TPM, or have the key in a file: --report-key file")
}

// Load is [LoadKey], or opens the key in the TPM or the token, whose public half must be the one in the file: a TPM that was cleared
// has another key, and the device then waits for a person rather than taking a new identity. Without that file the error wraps
// fs.ErrNotExist.
func (p Place) Load() (*Key, error) {
	if p.TPM+p.Token == "" {
		return LoadKey(p.File)
	}
	key, made, err := p.open(false)
	if err == nil && made {
		err = fmt.Errorf("%s: %w", key.PublicFile, fs.ErrNotExist)
	}
	if err != nil {
		return nil, err
	}
	return key, nil
}

// Make is [MakeKey], or opens the key in the TPM or the token, and creates it in the token where that has none; made: its public half
// was in no file, and now is.
func (p Place) Make() (key *Key, made bool, err error) {
	if p.TPM+p.Token == "" {
		return MakeKey(p.File)
	}
	if key, made, err = p.open(true); err != nil || !made {
		return key, false, err
	}
	err = files.Place(key.PublicFile, key.PublicPEM, 0o644, os.Link) // a public key that is there by now stays: it is read again
	if errors.Is(err, fs.ErrExist) {
		key, _, err = p.open(false)
		return key, false, err
	}
	if err != nil {
		return nil, false, fmt.Errorf("write %s: %w", key.PublicFile, err)
	}
	return key, true, nil
}

// open opens the key in the TPM or the token; unknown: no file has its public half. Only a key that is unknown is created.
func (p Place) open(create bool) (key *Key, unknown bool, err error) {
	file := publicFile(p.File)
	known, err := bounded.File(os.Open, file, maxKeyFile)
	unknown = errors.Is(err, fs.ErrNotExist)
	if err != nil && !unknown {
		return nil, false, err
	}
	var private crypto.Signer
	if p.TPM != "" {
		private, err = tpm.Open(p.TPM)
	} else {
		private, err = openToken(p.Token, create && unknown)
	}
	if errors.Is(err, token.ErrNoKey) {
		if unknown {
			return nil, false, unmade{fmt.Errorf("device key: %w", err)}
		}
		err = fault.WithHint(fmt.Errorf("%w, and %s has its public half", err, file), "check that this is the right token; for a new key move "+file+" away: it is another identity")
	}
	if err != nil {
		return nil, false, fmt.Errorf("device key: %w", err)
	}
	if key, err = newKey(p.File, private); err != nil {
		return nil, false, err
	}
	switch {
	case unknown || bytes.Equal(known, key.PublicPEM):
		return key, unknown, nil
	case p.Token != "":
		return nil, false, fault.WithHint(fmt.Errorf("device key in %s: the token has another key: %w", file, fault.ErrConflict),
			"check that this is the right token; if the new key is intended, move "+file+" away, restart the agent, and give the new public key to those who verify: longshore-agent key")
	}
	return nil, false, fault.WithHint(fmt.Errorf("device key in %s: TPM %s: %w", file, p.TPM, tpm.ErrOtherKey),
		"the TPM was cleared or replaced, or the key was in a file before; if that is intended, move "+file+
			" away, restart the agent, and give the new public key to those who verify: longshore-agent key")
}

// unmade is the error of a key that is to be made, which is fs.ErrNotExist too.
type unmade struct{ error }

func (u unmade) Unwrap() error { return u.error }

func (u unmade) Is(target error) bool { return target == fs.ErrNotExist }

// Key is the device's own key, with which it signs what it says about itself.
type Key struct {
	crypto.Signer
	PublicPEM  []byte
	PublicFile string
}

// LoadKey reads the device's private key: PEM, PKCS #8, ECDSA P-256. A file that others can read or that belongs to another user
// is refused. The error wraps fs.ErrNotExist where there is no file.
func LoadKey(file string) (*Key, error) {
	if err := token.Private("device key", file); err != nil {
		return nil, err
	}
	data, err := bounded.File(os.Open, file, maxKeyFile)
	if err != nil {
		return nil, err
	}
	fail := func(why string) (*Key, error) {
		return nil, fault.WithHint(fmt.Errorf("device key %s: %s: %w", file, why, fault.ErrInvalid),
			"restore the file; or move it and "+publicFile(file)+" away and restart the agent, which creates another key: everyone who verifies reports needs its public key (longshore-agent key)")
	}
	block, rest := pem.Decode(data)
	if block == nil || block.Type != pemPrivate || len(bytes.TrimSpace(rest)) != 0 {
		return fail("not one PEM block of a private key")
	}
	parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return fail("not a key in PKCS #8")
	}
	key, ok := parsed.(*ecdsa.PrivateKey)
	if !ok || key.Curve != elliptic.P256() {
		return fail("not an ECDSA P-256 key")
	}
	return newKey(file, key)
}

// MakeKey is LoadKey, and makes the key where there is none; made reports that. The public half is written beside it. It is safe
// to be killed at any point: the file is whole or not there.
func MakeKey(file string) (key *Key, made bool, err error) {
	key, err = LoadKey(file)
	if errors.Is(err, fs.ErrNotExist) {
		if public := publicFile(file); exists(public) {
			return nil, false, fault.WithHint(fmt.Errorf("device key %s: %s is there, so its key is elsewhere: %w", file, public, fault.ErrConflict),
				"name the place of the key: --report-key, or report.key in agent.yaml; if the key is lost, move "+public+" away: the next key is another identity")
		}
		if err = generate(file); err != nil {
			return nil, false, fmt.Errorf("make device key %s: %w", file, err)
		}
		made = true
		key, err = LoadKey(file)
	}
	if err != nil {
		return nil, false, err
	}
	if there, err := os.ReadFile(key.PublicFile); err == nil && bytes.Equal(there, key.PublicPEM) {
		return key, made, nil
	}
	if err := files.Write(key.PublicFile, key.PublicPEM, 0o644); err != nil {
		return nil, false, fmt.Errorf("write %s: %w", key.PublicFile, err)
	}
	return key, made, nil
}

func newKey(file string, private crypto.Signer) (*Key, error) {
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		return nil, fmt.Errorf("device key %s: %w", file, err)
	}
	return &Key{Signer: private, PublicPEM: pem.EncodeToMemory(&pem.Block{Type: pemPublic, Bytes: der}), PublicFile: publicFile(file)}, nil
}

func exists(file string) bool {
	_, err := os.Lstat(file)
	return err == nil
}

func publicFile(file string) string { return strings.TrimSuffix(file, ".key") + ".pub" }

func generate(file string) error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	err = files.Place(file, pem.EncodeToMemory(&pem.Block{Type: pemPrivate, Bytes: der}), 0o600, os.Link) // a key that is there stays
	if errors.Is(err, fs.ErrExist) {
		return nil
	}
	return err
}
