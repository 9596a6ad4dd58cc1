package audit

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// Subject is one artifact to check.
type Subject struct {
	Kind       artifacts.Kind
	Descriptor ocispec.Descriptor
	Below      bool // named by digest in an artifact that was checked before
}

// Judge decides whether artifacts may be used. It is safe for concurrent use.
type Judge interface {
	// Judge checks one artifact, which is in src, and returns the results.
	Judge(ctx context.Context, src signing.Source, s Subject) []Check
	// Unchecked lists what this judge never checks, for any artifact.
	Unchecked() []Unchecked
}

// Result is the result of a check.
type Result string

// Results of checks.
const (
	Passed   Result = "passed"
	Failed   Result = "failed"
	Unknown  Result = "unknown"   // it could not be checked
	NotAsked Result = "not-asked" // no rule requires it
	Insecure Result = "insecure"  // the policy accepts it without a signature
)

// Check is one check and its result.
type Check struct {
	Name       string   `json:"check"` // "signature", "content", "pin", "expiry", "attestation", "freshness"
	Result     Result   `json:"result"`
	Detail     string   `json:"detail,omitempty"`
	Signatures []Signed `json:"signatures,omitempty"`
	Ruling     *Ruling  `json:"ruling,omitempty"` // why a policy decides so
	Err        error    `json:"-"`                // the reason of failed and unknown
}

// fails turns an error into a check.
func fails(name string, err error) Check {
	c := Check{Name: name, Result: Failed, Detail: fault.Summary(err), Err: err}
	for _, open := range []error{fault.ErrTemporary, fault.ErrUnauthenticated, fault.ErrDenied, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, open) {
			c.Result = Unknown
		}
	}
	return c
}

// Unchecked is something that was not checked, and why.
type Unchecked struct {
	What string `json:"what"`
	Why  string `json:"why"`
}

// Signed is a good signature or other statement.
type Signed struct {
	By            string            `json:"key"` // name of the verifier
	Algorithm     string            `json:"algorithm,omitempty"`
	Fingerprint   digest.Digest     `json:"fingerprint,omitempty"`
	Identity      string            `json:"identity,omitempty"`
	Issuer        string            `json:"issuer,omitempty"`
	Format        signing.Format    `json:"format,omitempty"`
	Digest        digest.Digest     `json:"digest,omitempty"` // of the referrer, or of the signed payload
	Time          string            `json:"time,omitempty"`   // as the signer claims
	Proven        string            `json:"proven,omitempty"` // by a timestamp authority or a log
	Checked       []string          `json:"checked,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
	PredicateType string            `json:"predicateType,omitempty"`
	Predicate     json.RawMessage   `json:"predicate,omitempty"`
}

// SignedOf describes signatures, or statements of a predicate type.
func SignedOf(all []signing.Signature, predicateType string) []Signed {
	out := []Signed{}
	for _, s := range all {
		one := Signed{
			By: s.By, Algorithm: s.Algorithm, Fingerprint: s.Fingerprint, Identity: s.Identity, Issuer: s.Issuer, Format: s.Format,
			Digest: s.Digest, Checked: s.Checked, Annotations: s.Annotations, PredicateType: predicateType, Predicate: s.Predicate,
		}
		if !s.Time.IsZero() {
			one.Time = s.Time.UTC().Format(time.RFC3339)
		}
		if !s.Proven.IsZero() {
			one.Proven = s.Proven.UTC().Format(time.RFC3339)
		}
		out = append(out, one)
	}
	return out
}

// Keys is a judge without a policy: one of Verifiers must have signed the first artifact. Artifacts that it names
// by digest need no signature of their own.
type Keys struct {
	Verifiers   []signing.Verifier
	Annotations map[string]string // that must be signed with the digest
	// Attestation is a predicate type: then a statement of that type by one of Verifiers is required instead
	// of a signature.
	Attestation string
}

// Judge implements [Judge].
func (k Keys) Judge(ctx context.Context, src signing.Source, s Subject) []Check {
	switch {
	case k.Attestation != "":
		found, err := signing.Statements(ctx, src, s.Descriptor, k.Attestation, k.Verifiers)
		return []Check{k.claimed("attestation", found, err, src, s)}
	case s.Kind == artifacts.KindImage && s.Below:
		return []Check{{Name: "signature", Result: NotAsked, Detail: "not required: the artifact above names its digest"}}
	}
	if !s.Below {
		found, err := signing.Verify(ctx, src, s.Descriptor, k.Verifiers)
		return []Check{k.claimed("signature", found, err, src, s)}
	}
	found, err := signing.Examine(ctx, src, s.Descriptor, signing.Query{PredicateType: signing.PredicateSign, Verifiers: k.Verifiers})
	switch {
	case err != nil:
		return []Check{fails("signature", err)}
	case len(found.Good) > 0:
		return []Check{{Name: "signature", Result: Passed, Signatures: SignedOf(found.Good, "")}}
	case found.Unread == nil && len(found.Bad) == 0: // at most by other signers
		return []Check{{Name: "signature", Result: NotAsked, Detail: "not required: the artifact above names its digest"}}
	}
	return []Check{fails("signature", found.Of(src, s.Descriptor))}
}

// claimed keeps the signatures with all required annotations.
func (k Keys) claimed(name string, found []signing.Signature, err error, src signing.Source, s Subject) Check {
	if err != nil {
		return fails(name, err)
	}
	found = slices.DeleteFunc(found, func(one signing.Signature) bool {
		for key, value := range k.Annotations {
			if have, ok := one.Annotations[key]; !ok || have != value {
				return true
			}
		}
		return false
	})
	if len(found) == 0 {
		return fails(name, fmt.Errorf("verify %s@%s: %w: no signature contains %s", src.Name(), s.Descriptor.Digest, fault.ErrBadSignature, spelled(k.Annotations)))
	}
	return Check{Name: name, Result: Passed, Signatures: SignedOf(found, k.Attestation)}
}

// spelled writes claims in the syntax of --annotation.
func spelled(claims map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(claims)) {
		out = append(out, k+"="+claims[k])
	}
	return strings.Join(out, ", ")
}

// Unchecked implements [Judge].
func (k Keys) Unchecked() []Unchecked {
	out := []Unchecked{
		{"transparency log", "not used for keys"},
		{"freshness", "only a policy can require it"},
	}
	if k.Attestation != "" {
		return append(out, Unchecked{"signatures", "only the attestation was verified"})
	}
	return append(out,
		Unchecked{"attestations", "verify one with --attestation"},
		Unchecked{"signers of components and images", "not required: the signed artifact names them by digest; a policy can require them"},
	)
}
