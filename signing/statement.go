package signing

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

const (
	// PredicateSign is the in-toto predicate that makes a statement a signature.
	PredicateSign = "https://sigstore.dev/cosign/sign/v1"

	inTotoPrefix = "https://in-toto.io/Statement/" // v0.1 too, which is what cosign 2 attests

	maxSubjects = 1024 // of one statement; a build's provenance names what it made
)

// payload is what a statement says, of whatever tool.
type payload struct {
	raw           []byte // the whole statement
	predicateType string
	predicate     json.RawMessage
	subjects      []payloadSubject
}

type payloadSubject struct {
	digests     map[string]string
	annotations map[string]any
}

// openStatement reads a statement exactly: names of members in their own case, none twice.
func openStatement(data []byte) (*payload, error) {
	top, err := Members(data)
	if err != nil {
		return nil, fmt.Errorf("statement: %w", err)
	}
	p := payload{raw: data}
	var kind string
	var subjects []json.RawMessage
	for name, into := range map[string]any{"_type": &kind, "predicateType": &p.predicateType, "subject": &subjects} {
		if err := json.Unmarshal(top[name], into); err != nil {
			return nil, fmt.Errorf("statement: %s: %w", name, err)
		}
	}
	if !strings.HasPrefix(kind, inTotoPrefix) {
		return nil, fmt.Errorf("statement: of type %.100q", kind)
	}
	if len(subjects) > maxSubjects {
		return nil, fmt.Errorf("statement: %d subjects, more than %d", len(subjects), maxSubjects)
	}
	for _, raw := range subjects {
		m, err := Members(raw)
		if err != nil {
			return nil, fmt.Errorf("statement: subject: %w", err)
		}
		var s payloadSubject
		if err := json.Unmarshal(m["digest"], &s.digests); err != nil {
			return nil, fmt.Errorf("statement: subject: digest: %w", err)
		}
		if a, there := m["annotations"]; there {
			if err := json.Unmarshal(a, &s.annotations); err != nil {
				return nil, fmt.Errorf("statement: subject: annotations: %w", err)
			}
		}
		p.subjects = append(p.subjects, s)
	}
	p.predicate = top["predicate"]
	return &p, nil
}

// about returns the claims beside d; false when the statement is not about d.
func (p *payload) about(d digest.Digest) (map[string]string, bool) {
	for _, s := range p.subjects {
		if s.digests[d.Algorithm().String()] == d.Encoded() {
			return stringClaims(s.annotations), true
		}
	}
	return nil, false
}

// Members reads one JSON object, and nothing after it. encoding/json alone would take a member in any case, and the last
// of two.
func Members(data []byte) (map[string]json.RawMessage, error) {
	dec := json.NewDecoder(bytes.NewReader(data))
	if t, err := dec.Token(); err != nil {
		return nil, err
	} else if t != json.Delim('{') {
		return nil, errors.New("no object")
	}
	all := map[string]json.RawMessage{}
	for dec.More() {
		t, err := dec.Token()
		if err != nil {
			return nil, err
		}
		name, _ := t.(string)
		if _, twice := all[name]; twice {
			return nil, fmt.Errorf("member %.100q twice", name)
		}
		var raw json.RawMessage
		if err := dec.Decode(&raw); err != nil {
			return nil, err
		}
		all[name] = raw
	}
	if _, err := dec.Token(); err != nil {
		return nil, err
	}
	if _, err := dec.Token(); err != io.EOF {
		return nil, errors.New("something after the object")
	}
	return all, nil
}

// stringClaims keeps what a person wrote: cosign's claims are strings.
func stringClaims(m map[string]any) map[string]string {
	var claims map[string]string
	for k, v := range m {
		if s, ok := v.(string); ok {
			if claims == nil {
				claims = make(map[string]string)
			}
			claims[k] = s
		}
	}
	return claims
}

// Statements returns the good statements of one predicate type about subject's digest by any of trustees, at least one.
// The errors are those of [Verify]: fault.ErrUnsigned when there is no statement of this type.
func Statements(ctx context.Context, st Source, subject ocispec.Descriptor, predicateType string, trustees []Verifier) ([]Signature, error) {
	found, err := Examine(ctx, st, subject, Query{PredicateType: predicateType, Verifiers: trustees})
	if err != nil {
		return nil, err
	}
	if len(found.Good) > 0 {
		return found.Good, nil
	}
	return nil, found.Of(st, subject)
}
