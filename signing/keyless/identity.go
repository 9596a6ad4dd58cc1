package keyless

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/google/certificate-transparency-go/x509util"
	"github.com/sigstore/sigstore-go/pkg/fulcio/certificate"
	"github.com/sigstore/sigstore-go/pkg/verify"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Reasons why a signature with the right name is rejected. Such an error of [Identity.Verify] and of an authority's Verify
// wraps one of these, or none if the signature itself does not match.
var (
	// ErrOutOfTime: the certificate was not valid yet, or no longer, when it signed.
	ErrOutOfTime = errors.New("certificate out of time")
	// ErrNoTime: no authority of the root proves when it was signed, and the certificate is valid for minutes.
	ErrNoTime = errors.New("no trusted timestamp")
	// ErrNoSCT: the certificate is in no certificate log.
	ErrNoSCT = errors.New("certificate is in no certificate log")
	// ErrNotLogged: the signature is in no transparency log.
	ErrNotLogged = errors.New("signature is in no transparency log")
	// ErrOldRoot: a log or an authority is not in the trusted root, because the root is of another instance, or
	// outdated.
	ErrOldRoot = errors.New("not in the trusted root")
)

// IdentityOptions define an [Identity].
type IdentityOptions struct {
	Name    string  // for display
	Issuer  Pattern // the identity provider's URL; needed
	Subject Pattern // the authenticated subject: an address, a URL of a workflow; needed
	// Unlogged accepts signatures that are in no transparency log, with certificates that are in no certificate log; a
	// timestamp of the root's timestamp authorities is then needed. Instances without logs do this, for example GitHub's for private
	// repositories.
	Unlogged bool
}

// Identity is a verifier of keyless signatures: the subject that an identity provider has authenticated, as sigstore's certificates name it.
type Identity struct {
	options  IdentityOptions
	root     *Root
	verifier *verify.Verifier
}

var _ signing.Verifier = (*Identity)(nil)

// NewIdentity creates a verifier whose signatures are verified with root.
func NewIdentity(o IdentityOptions, root *Root) (*Identity, error) {
	switch {
	case o.Issuer.IsZero():
		return nil, fmt.Errorf("identity %s: %w: no issuer: any provider could issue the subject", o.Name, fault.ErrInvalid)
	case o.Subject.IsZero():
		return nil, fmt.Errorf("identity %s: %w: no subject: any account of the issuer could sign", o.Name, fault.ErrInvalid)
	case root == nil:
		err := fmt.Errorf("identity %s: %w: no trusted root", o.Name, fault.ErrInvalid)
		return nil, fault.WithHint(err, "give the trusted_root.json that cosign trusted-root create writes")
	}
	options := []verify.VerifierOption{
		verify.WithSignedCertificateTimestamps(1), verify.WithTransparencyLog(1), verify.WithObserverTimestamps(1),
	}
	if o.Unlogged {
		options = []verify.VerifierOption{verify.WithSignedTimestamps(1)}
	}
	v, err := verify.NewVerifier(root.material, options...)
	if err != nil {
		return nil, fmt.Errorf("identity %s: %w", o.Name, err)
	}
	return &Identity{options: o, root: root, verifier: v}, nil
}

// VerifierName is the name in the options.
func (i *Identity) VerifierName() string { return i.options.Name }

// Verify verifies a signature with the identity.
func (i *Identity) Verify(_ context.Context, e *signing.Evidence) (signing.Verification, error) {
	return guarded(func() (signing.Verification, error) { return i.verify(e) })
}

func (i *Identity) verify(e *signing.Evidence) (signing.Verification, error) {
	leaf, err := signer(e)
	if err != nil {
		return signing.Verification{}, err
	}
	summary, err := certificate.SummarizeCertificate(leaf)
	if err != nil {
		return signing.Verification{}, fmt.Errorf("certificate: %w: %w", err, signing.ErrOtherSigner)
	}
	issuer, subject := summary.Issuer, summary.SubjectAlternativeName
	if !i.options.Issuer.Match(issuer) || !i.options.Subject.Match(subject) {
		return signing.Verification{}, fmt.Errorf("certificate of %.200q by issuer %.200q, where %s by %s is asked for: %w",
			subject, issuer, i.options.Subject, i.options.Issuer, signing.ErrOtherSigner)
	}
	key, err := signing.NewKey(subject, leaf.PublicKey)
	if err != nil {
		return signing.Verification{}, err
	}
	found, err := open(e, leaf)
	if err != nil {
		return signing.Verification{}, err
	}
	result, err := i.verifier.Verify(found, verify.NewPolicy(found.policy, verify.WithoutIdentitiesUnsafe())) // matched above and below
	if err != nil {
		return signing.Verification{}, i.explain(found, err)
	}
	// The name that was matched is the name in the certificate that was verified: both come from the same leaf.
	proven := result.Signature.Certificate
	if proven == nil || proven.Issuer != issuer || proven.SubjectAlternativeName != subject {
		return signing.Verification{}, errors.New("certificate changed while it was verified")
	}
	if err := found.same(e); err != nil {
		return signing.Verification{}, err
	}
	v := signing.Verification{
		Principal: "identity " + issuer + " " + subject, Fingerprint: key.Fingerprint, Algorithm: key.Algorithm,
		Identity: subject, Issuer: issuer,
	}
	if i.options.Unlogged {
		v.Checked = []string{"certificate chain"}
	} else {
		v.Checked = []string{"certificate chain", "certificate log entry, offline", "transparency log entry, offline"}
	}
	for _, t := range result.VerifiedTimestamps {
		if v.Proven.IsZero() || t.Timestamp.Before(v.Proven) {
			v.Proven = t.Timestamp.UTC()
		}
		v.Checked = append(v.Checked, "time "+t.Timestamp.UTC().Format(timeFormat)+" by "+by(t))
	}
	return v, nil
}

const timeFormat = "2006-01-02T15:04:05Z"

func by(t verify.TimestampVerificationResult) string {
	kind := "timestamp authority"
	if t.Type == "Tlog" {
		kind = "transparency log"
	}
	if t.URI == "" {
		return "a " + kind
	}
	return kind + " " + t.URI
}

// explain finds the reason for a rejection by sigstore's verifier, for the error message. It never changes
// the result.
func (i *Identity) explain(found *entity, cause error) error {
	for _, look := range []func(*entity) error{i.explainAuthority, i.explainLog, i.explainTime, i.explainSCT} {
		if err := look(found); err != nil {
			return err
		}
	}
	return fmt.Errorf("signature does not hold: %w", cause)
}

const renewHint = "renew the trusted root, if this signer is to be trusted: logs and authorities are replaced by newer ones from time to time"

func (i *Identity) unknown(format string, args ...any) error {
	return fault.WithHint(fmt.Errorf("%s: %w: %s", fmt.Sprintf(format, args...), ErrOldRoot, i.root.aged()), renewHint)
}

func (i *Identity) explainAuthority(found *entity) error {
	if issuedBy(found.leaf, i.root) {
		return nil
	}
	return i.unknown("certificate authority %.200q", found.leaf.Issuer.String())
}

func (i *Identity) explainLog(found *entity) error {
	if i.options.Unlogged {
		return nil
	}
	entries, err := found.TlogEntries()
	if err != nil {
		return fmt.Errorf("transparency log entry: %w", err)
	}
	if len(entries) == 0 {
		return ErrNotLogged
	}
	logs := i.root.material.RekorLogs()
	for _, e := range entries {
		if _, known := logs[hex.EncodeToString([]byte(e.LogKeyID()))]; known {
			return nil
		}
	}
	return i.unknown("transparency log %s", shortID([]byte(entries[0].LogKeyID())))
}

func (i *Identity) explainTime(found *entity) error {
	stamps, err := found.Timestamps()
	if err != nil {
		return fmt.Errorf("timestamps: %w", err)
	}
	good, bad, err := verify.VerifySignedTimestamp(found, i.root.material)
	if err != nil {
		return fmt.Errorf("timestamps: %w", err)
	}
	told := false
	for _, t := range good {
		told = true
		if err := inTime(found.leaf, t.Time); err != nil {
			return err
		}
	}
	if !i.options.Unlogged {
		entries, err := found.TlogEntries()
		if err != nil {
			return fmt.Errorf("transparency log entry: %w", err)
		}
		for _, e := range entries {
			if !e.HasInclusionPromise() || e.IntegratedTime().IsZero() {
				continue
			}
			told = true
			if err := inTime(found.leaf, e.IntegratedTime()); err != nil {
				return err
			}
		}
	}
	switch {
	case told:
		return nil
	case len(stamps) == 0:
		return fmt.Errorf("%w, and a certificate that was valid from %s for %s only", ErrNoTime,
			found.leaf.NotBefore.UTC().Format(timeFormat), found.leaf.NotAfter.Sub(found.leaf.NotBefore))
	case len(i.root.material.TimestampingAuthorities()) == 0:
		return fmt.Errorf("%w: %w", ErrNoTime, i.unknown("its timestamp authority"))
	default:
		return fault.WithHint(fmt.Errorf("%w: none by the timestamp authorities of %s: %w", ErrNoTime, i.root.aged(), errors.Join(bad...)), renewHint)
	}
}

func (i *Identity) explainSCT(found *entity) error {
	if i.options.Unlogged {
		return nil
	}
	timestamps, err := x509util.ParseSCTsFromCertificate(found.leaf.Raw)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrNoSCT, err)
	}
	if len(timestamps) == 0 {
		return ErrNoSCT
	}
	logs := i.root.material.CTLogs()
	for _, t := range timestamps {
		if _, known := logs[hex.EncodeToString(t.LogID.KeyID[:])]; known {
			return nil
		}
	}
	return i.unknown("certificate log %s", shortID(timestamps[0].LogID.KeyID[:]))
}
