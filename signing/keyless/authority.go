package keyless

import (
	"context"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"
	"github.com/sigstore/sigstore-go/pkg/root"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// MaxAuthorityBytes bounds a file of certificate authorities.
const MaxAuthorityBytes = 256 << 10

// AuthorityOptions define the signers of an [Authority].
type AuthorityOptions struct {
	Name string // for display
	// Certificates are PEM: each of them is trusted to certify keys.
	Certificates []byte
	Subject      Pattern // one of the certificate's names: an address, a URL, a host; needed
	// Root's logs and timestamp authorities can prove when a signature was made, so that it is valid after its certificate has expired; nil:
	// none.
	Root *Root
}

// Authority is the user's own certificate authority with a pattern for its signers. [Authority.At] returns a verifier for a
// time.
type Authority struct {
	options AuthorityOptions
	anchors *x509.CertPool
	clocks  root.TrustedMaterial
	digest  digest.Digest
}

// NewAuthority reads the certificates of an authority. Expired ones are accepted, because signatures may have been made
// before their expiry.
func NewAuthority(o AuthorityOptions) (*Authority, error) {
	if len(o.Certificates) > MaxAuthorityBytes {
		return nil, fmt.Errorf("authority %s: %w: more than %d bytes", o.Name, fault.ErrTooLarge, MaxAuthorityBytes)
	}
	if o.Subject.IsZero() {
		return nil, fmt.Errorf("authority %s: %w: no subject: any certificate of the authority could sign", o.Name, fault.ErrInvalid)
	}
	all, err := parsePEM(o.Certificates)
	if err != nil {
		return nil, fmt.Errorf("authority %s: %w", o.Name, err)
	}
	a := &Authority{options: o, anchors: x509.NewCertPool(), clocks: &root.BaseTrustedMaterial{}, digest: digest.FromBytes(o.Certificates)}
	for _, c := range all {
		if !c.IsCA || !c.BasicConstraintsValid {
			err := fmt.Errorf("authority %s: %w: %.200q is the certificate of no authority", o.Name, fault.ErrInvalid, c.Subject.String())
			return nil, fault.WithHint(err, "give the certificate that signs others; who may sign is told by subject")
		}
		if _, err := signing.NewKey(c.Subject.String(), c.PublicKey); err != nil {
			return nil, fmt.Errorf("authority %s: %w", o.Name, err)
		}
		a.anchors.AddCert(c)
	}
	if o.Root != nil {
		a.clocks = o.Root.material
	}
	return a, nil
}

// Digest is the digest of the file of certificates.
func (a *Authority) Digest() digest.Digest { return a.digest }

// At returns a verifier that uses now for the validity of certificates if a signature has no proven time.
func (a *Authority) At(now time.Time) signing.Verifier { return authorityAt{a, now} }

type authorityAt struct {
	*Authority
	now time.Time
}

// VerifierName is the name in the options.
func (a authorityAt) VerifierName() string { return a.options.Name }

// Verify verifies a signature with the authority.
func (a authorityAt) Verify(ctx context.Context, e *signing.Evidence) (signing.Verification, error) {
	return guarded(func() (signing.Verification, error) { return a.verify(ctx, e) })
}

func (a authorityAt) verify(ctx context.Context, e *signing.Evidence) (signing.Verification, error) {
	leaf, err := signer(e)
	if err != nil {
		return signing.Verification{}, err
	}
	named := slices.IndexFunc(subjects(leaf), a.options.Subject.Match)
	if named < 0 {
		return signing.Verification{}, fmt.Errorf("certificate of %.200q, where %s is asked for: %w", subjects(leaf), a.options.Subject, signing.ErrOtherSigner)
	}
	subject := subjects(leaf)[named]
	key, err := signing.NewKey(subject, leaf.PublicKey)
	if err != nil {
		return signing.Verification{}, err
	}
	found, err := open(e, leaf)
	if err != nil {
		return signing.Verification{}, err
	}
	times, err := a.times(found)
	if err != nil {
		return signing.Verification{}, err
	}
	v := signing.Verification{Fingerprint: key.Fingerprint, Algorithm: key.Algorithm, Identity: subject, Issuer: leaf.Issuer.String()}
	v.Checked = []string{"certificate chain"}
	for _, t := range times {
		if err := a.chain(found, t.Timestamp); err != nil {
			return signing.Verification{}, err
		}
		if t.Type == "" {
			v.Checked = append(v.Checked, "certificate valid at "+t.Timestamp.UTC().Format(timeFormat)+", now")
			continue
		}
		if v.Proven.IsZero() || t.Timestamp.Before(v.Proven) {
			v.Proven = t.Timestamp.UTC()
		}
		v.Checked = append(v.Checked, "time "+t.Timestamp.UTC().Format(timeFormat)+" by "+by(t))
	}
	if _, err := key.Verify(ctx, &signing.Evidence{Signed: e.Signed, Signature: e.Signature, Hint: key.Hint()}); err != nil {
		return signing.Verification{}, err
	}
	if err := found.same(e); err != nil {
		return signing.Verification{}, err
	}
	// By the file and not by the issuer: a renewed authority has two certificates there, and one person must count once.
	v.Principal = "certificate " + a.digest.String() + " " + subject
	return v, nil
}

// times are the proven signing times by trusted authorities; otherwise now, without a type.
func (a authorityAt) times(found *entity) ([]verify.TimestampVerificationResult, error) {
	stamped, _, err := verify.VerifySignedTimestamp(found, a.clocks)
	if err != nil {
		return nil, fmt.Errorf("timestamps: %w", err)
	}
	var times []verify.TimestampVerificationResult
	for _, t := range stamped {
		times = append(times, verify.TimestampVerificationResult{Type: "TimestampAuthority", URI: t.URI, Timestamp: t.Time})
	}
	// An entry that no log of the root confirms proves nothing, but is not an error, because none is required.
	if logged, err := verify.VerifyTlogEntry(found, a.clocks, 1, true); err == nil {
		for _, t := range logged {
			times = append(times, verify.TimestampVerificationResult{Type: "Tlog", URI: t.URI, Timestamp: t.Time})
		}
	}
	if len(times) == 0 {
		times = append(times, verify.TimestampVerificationResult{Timestamp: a.now})
	}
	return times, nil
}

// chain checks that the authority issued the certificate, and that all certificates of the chain were valid at the time.
func (a authorityAt) chain(found *entity, at time.Time) error {
	between := x509.NewCertPool()
	for _, c := range found.chain {
		between.AddCert(c)
	}
	chains, err := found.leaf.Verify(x509.VerifyOptions{
		Roots: a.anchors, Intermediates: between, CurrentTime: at, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageCodeSigning},
	})
	var invalid x509.CertificateInvalidError
	var unknown x509.UnknownAuthorityError
	switch {
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		if err := inTime(invalid.Cert, at); err != nil {
			return err
		}
		return fmt.Errorf("%w: %w", ErrOutOfTime, err)
	case errors.As(err, &unknown):
		return fmt.Errorf("certificate of %.200q by %.200q: not of authority %s: %w", subjects(found.leaf), found.leaf.Issuer.String(), a.options.Name, signing.ErrOtherSigner)
	case err != nil:
		return fmt.Errorf("certificate of %.200q: %w", subjects(found.leaf), err)
	case len(chains) == 0:
		return fmt.Errorf("certificate of %.200q: no chain", subjects(found.leaf))
	case found.leaf.IsCA, found.leaf.KeyUsage != 0 && found.leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return fmt.Errorf("certificate of %.200q is not for signatures", subjects(found.leaf))
	}
	return nil
}
