package sign

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

const statementType = "https://in-toto.io/Statement/v1"

// Statement is something to be said about an artifact, and signed: an in-toto Statement v1 with one subject.
type Statement struct {
	Type        string            // predicate type, a URI
	Predicate   json.RawMessage   // what is said, a JSON object; nil is {}
	Annotations map[string]string // claims beside the subject's digest
}

// encode gives the bytes to be signed.
func (s Statement) encode(d digest.Digest) ([]byte, error) {
	type subject struct {
		Digest      map[string]string `json:"digest"`
		Annotations map[string]string `json:"annotations,omitempty"`
	}
	predicate := s.Predicate
	if predicate == nil {
		predicate = json.RawMessage("{}")
	}
	return json.Marshal(struct {
		Type          string          `json:"_type"`
		Subject       []subject       `json:"subject"`
		PredicateType string          `json:"predicateType"`
		Predicate     json.RawMessage `json:"predicate"`
	}{statementType, []subject{{map[string]string{"sha256": d.Encoded()}, s.Annotations}}, s.Type, predicate})
}

// NewStatement makes a statement of what a file says: of JSON as it is, of [PredicateCustom] wrapped as cosign does, whatever
// it is. at is when, for the latter.
func NewStatement(predicateType string, file []byte, at time.Time) (Statement, error) {
	s := Statement{Type: predicateType, Predicate: file}
	if predicateType == PredicateCustom {
		data, err := json.Marshal(struct{ Data, Timestamp string }{string(file), at.UTC().Format(time.RFC3339)})
		s.Predicate = data
		return s, err
	}
	if _, err := signing.Members(file); err != nil {
		return s, fmt.Errorf("predicate of type %s: %w: %w", predicateType, fault.ErrInvalid, err)
	}
	return s, nil
}

// NewFreshness makes the statement of how long a state is the current one.
func NewFreshness(f signing.Freshness) (Statement, error) {
	f.IssuedAt, f.NotAfter = f.IssuedAt.UTC().Truncate(time.Second), f.NotAfter.UTC().Truncate(time.Second)
	if err := f.Check(); err != nil {
		return Statement{}, err
	}
	data, err := json.Marshal(f)
	if err != nil {
		return Statement{}, err
	}
	return Statement{
		Type: signing.PredicateFreshness, Predicate: data,
		Annotations: map[string]string{signing.AnnotationTime: f.IssuedAt.Format(time.RFC3339)}, // when, whatever the build says
	}, nil
}

// Attest signs a statement about subject and attaches it in the layout that the artifact has: under cosign's older tag where its
// signatures are under such a tag and there is no bundle, since cosign looks for no other signature where there is one; else,
// and for an identity always, as a bundle. The signer's own format and annotations are not for statements; its time is, as a claim,
// unless the statement has one. over are digests of earlier statements of the older format that this one takes the place of.
func (s *Signer) Attest(ctx context.Context, st signing.Store, subject ocispec.Descriptor, said Statement, over ...digest.Digest) (signing.Signature, error) {
	if err := signing.CheckSubject(st, subject); err != nil {
		return signing.Signature{}, err
	}
	switch {
	case said.Type == "" || said.Type == signing.PredicateSign:
		return signing.Signature{}, fmt.Errorf("attest %s@%s: %w: predicate type %q", st.Name(), subject.Digest, fault.ErrInvalid, said.Type)
	case said.Predicate != nil && !json.Valid(said.Predicate):
		return signing.Signature{}, fmt.Errorf("attest %s@%s: %w: the predicate is no JSON", st.Name(), subject.Digest, fault.ErrInvalid)
	case len(said.Predicate) > signing.MaxStatementBytes/2: // base64, and the rest of the bundle
		return signing.Signature{}, fmt.Errorf("attest %s@%s: %w: the predicate has %d bytes", st.Name(), subject.Digest, fault.ErrTooLarge, len(said.Predicate))
	}
	st, err := s.place(ctx, st)
	if err != nil {
		return signing.Signature{}, err
	}
	said.Annotations = s.claims(said.Annotations)
	format := signing.FormatBundle
	if s.keyless == nil {
		if format, err = signing.Layout(ctx, st, subject); err != nil {
			return signing.Signature{}, fmt.Errorf("attest %s@%s: %w", st.Name(), subject.Digest, err)
		}
	}
	var d digest.Digest
	if format == signing.FormatLegacy {
		d, err = s.writeEnvelope(ctx, st, subject, said, over)
	} else {
		format = signing.FormatBundle
		d, err = s.writeBundle(ctx, st, subject, said)
	}
	if err != nil {
		return signing.Signature{}, fmt.Errorf("attest %s@%s: %w", st.Name(), subject.Digest, err)
	}
	return s.signature(format, d, said.Annotations), nil
}
