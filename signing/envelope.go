package signing

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"

	"github.com/secure-systems-lab/go-securesystemslib/dsse"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// KeyBundle is the JSON of a sigstore bundle that is signed with a key, its members in the order that sigstore writes.
type KeyBundle struct {
	MediaType    string `json:"mediaType"`
	Verification struct {
		PublicKey struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
	} `json:"verificationMaterial"`
	Envelope dsse.Envelope `json:"dsseEnvelope"`
}

// SignStatement signs an in-toto statement with a key that the caller holds, SHA-256 as the hash, and returns the sigstore bundle.
// A device signs its current state with it; publishers sign artifacts with package sign.
func SignStatement(statement []byte, private crypto.Signer) ([]byte, error) {
	key, err := NewKey("", private.Public())
	if err != nil {
		return nil, fmt.Errorf("sign statement: %w", err)
	}
	sum := sha256.Sum256(dsse.PAE(PayloadType, statement))
	sig, err := private.Sign(rand.Reader, sum[:], crypto.SHA256)
	if err != nil {
		return nil, fmt.Errorf("sign statement: %w", err)
	}
	b := KeyBundle{MediaType: MediaTypeBundle, Envelope: dsse.Envelope{
		PayloadType: PayloadType, Payload: base64.StdEncoding.EncodeToString(statement),
		Signatures: []dsse.Signature{{Sig: base64.StdEncoding.EncodeToString(sig)}},
	}}
	b.Verification.PublicKey.Hint = key.Hint()
	return json.Marshal(b)
}

// ReadStatement returns the in-toto statement in a sigstore bundle, which one of keys has signed, and that key. The
// caller checks the content and the subject of the statement. Errors wrap fault.ErrInvalid (not a bundle), or fault.ErrBadSignature
// (by another key, or it does not match).
func ReadStatement(ctx context.Context, bundle []byte, keys []Key) (statement []byte, by Key, err error) {
	if len(bundle) > maxBundleBytes {
		return nil, Key{}, fmt.Errorf("%w: a bundle of more than %d bytes", fault.ErrTooLarge, maxBundleBytes)
	}
	e, said, err := openBundle(bundle, "")
	if err != nil {
		return nil, Key{}, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	var bad error
	for _, k := range keys {
		_, err := k.Verify(ctx, e)
		if err == nil {
			return said.raw, k, nil
		}
		if !errors.Is(err, ErrOtherSigner) {
			bad = fmt.Errorf("%w: key %s: %w", fault.ErrBadSignature, k.Name, err)
		}
	}
	if bad == nil {
		bad = fmt.Errorf("%w: it is by key %s, which is none of those given", fault.ErrBadSignature, hinted(e.Hint))
	}
	return nil, Key{}, bad
}
