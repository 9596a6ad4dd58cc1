package signing

import (
	"context"
	"errors"
	"time"

	"github.com/opencontainers/go-digest"
)

// Verifier verifies who signed an artifact: a [Key], or an identity or an X.509 authority (signing/keyless). It is safe
// for concurrent use, and opens no connection.
type Verifier interface {
	// VerifierName is how people call it; it need not be unique.
	VerifierName() string
	// Verify holds the signature in e against the trustee: is it the trustee's, and right? What the signed bytes say, and
	// of which digest, is the caller's business.
	//
	// An error that wraps [ErrOtherSigner] says that the signature is not in the trustee's name. Any other error says that
	// it is, and that it is broken, forged, or cannot be believed: an alarm.
	Verify(ctx context.Context, e *Evidence) (Verification, error)
}

// Verification is what a trustee can say of a good signature.
type Verification struct {
	// Principal is who signed, however many names the policy has for it: the fingerprint of a key; of a certificate its
	// subject and who vouches for it: the provider that issued the name, or the file of authorities that the policy trusts.
	Principal string
	// Fingerprint is of the public key that made the signature, its certificate's for an identity.
	Fingerprint digest.Digest
	Algorithm   string    // "ECDSA P-256"
	Identity    string    // subject of the certificate; "" for keys
	Issuer      string    // who said that it is this subject; "" for keys
	Proven      time.Time // when, as a timestamp authority or a log says; zero: only the signer says
	Checked     []string  // what else was checked, in words: "transparency log entry, offline"
}

// Evidence is one signature as it was found, before anyone believed it.
type Evidence struct {
	Format  Format // FormatBundle or FormatLegacy
	Subject digest.Digest
	// Signed are the exact bytes that the signature is of: of a bundle the pre-authentication encoding of its statement,
	// of the legacy format the payload.
	Signed    []byte
	Signature []byte
	// Bundle is the bundle's JSON; nil when Format is FormatLegacy.
	Bundle []byte
	// Hint is what a bundle says about the key, base64 of the SHA-256 of its DER; "" when it says nothing.
	Hint string
	// Certificates are DER, the signer's first; none: signed with a key. Those of the legacy format are in Annotations.
	Certificates [][]byte
	// Annotations are of the layer of the legacy format: certificate, chain, log entry and timestamp as cosign names them.
	Annotations map[string]string
}

// ErrOtherSigner means that a signature is by another signer than the verifier's; it does not invalidate the verifier's own.
var ErrOtherSigner = errors.New("not one of the expected signers")

// errSpeechless: a signature that does not tell by which key it is, and is not by this one. It may be anyone's, so it is
// noted as bad, in no verifier's name.
var errSpeechless = errors.New("signature does not match")

// errNoSignature says that what was found is another kind of statement, or of a blob, and nothing against anyone.
var errNoSignature = errors.New("not a signature")

// Verifiers makes a list of what [Verify] takes out of keys.
func Verifiers[T Verifier](all ...T) []Verifier {
	list := make([]Verifier, len(all))
	for i, t := range all {
		list[i] = t
	}
	return list
}
