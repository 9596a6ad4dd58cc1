package audit

import (
	"cmp"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	fulcio "github.com/sigstore/sigstore-go/pkg/fulcio/certificate"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

const (
	maxStatement = 4 << 20 // bytes of a bundle with a statement; SBOMs are large
	maxClaims    = 64      // shown of one statement
)

// Statement is the content of a bundle, without any verification.
type Statement struct {
	// Kind is "signature", "freshness" or "attestation".
	Kind          string            `json:"kind"`
	PredicateType string            `json:"predicateType,omitempty"`
	Subject       digest.Digest     `json:"subject,omitempty"`     // its subject, unverified
	Key           digest.Digest     `json:"key,omitempty"`         // claimed fingerprint
	Identity      string            `json:"identity,omitempty"`    // of the signer's certificate
	Issuer        string            `json:"issuer,omitempty"`      // of that identity
	Time          string            `json:"time,omitempty"`        // when, as the signer claims
	Logged        string            `json:"logged,omitempty"`      // when, by an entry of a transparency log in the bundle
	Annotations   map[string]string `json:"annotations,omitempty"` // what else is signed with the digest
}

// bundle has the members of a sigstore bundle of any version that are read.
type bundle struct {
	Material struct {
		PublicKey *struct {
			Hint string `json:"hint"`
		} `json:"publicKey"`
		Certificate *certificate `json:"certificate"`
		Chain       *struct {
			Certificates []certificate `json:"certificates"`
		} `json:"x509CertificateChain"`
		Entries []struct {
			IntegratedTime json.RawMessage `json:"integratedTime"` // usually a number in quotes
		} `json:"tlogEntries"`
	} `json:"verificationMaterial"`
	Envelope *envelope `json:"dsseEnvelope"`
}

type certificate struct {
	RawBytes []byte `json:"rawBytes"`
}

type envelope struct {
	PayloadType string `json:"payloadType"`
	Payload     []byte `json:"payload"`
}

// statement has the members of an in-toto statement of any version that are read.
type statement struct {
	Subject []struct {
		Digest      map[string]string `json:"digest"`
		Annotations map[string]any    `json:"annotations"`
	} `json:"subject"`
	PredicateType string `json:"predicateType"`
}

// ReadBundle reads a sigstore bundle without verifying it.
func ReadBundle(data []byte) (*Statement, error) {
	if len(data) > maxStatement {
		return nil, fmt.Errorf("read bundle: %d bytes, more than %d: %w", len(data), maxStatement, fault.ErrTooLarge)
	}
	var b bundle
	if err := json.Unmarshal(data, &b); err != nil {
		return nil, fmt.Errorf("read bundle: %w: %w", fault.ErrInvalid, err)
	}
	s := &Statement{Kind: "signature"}
	if b.Envelope != nil {
		if err := s.read(*b.Envelope); err != nil {
			return nil, fmt.Errorf("read bundle: %w", err)
		}
	}
	switch m := b.Material; {
	case m.PublicKey != nil:
		s.Key = fingerprint(m.PublicKey.Hint)
	case m.Certificate != nil:
		s.Identity, s.Issuer = identity(m.Certificate.RawBytes)
	case m.Chain != nil && len(m.Chain.Certificates) > 0:
		s.Identity, s.Issuer = identity(m.Chain.Certificates[0].RawBytes)
	}
	for _, e := range b.Material.Entries {
		var seconds int64
		if json.Unmarshal([]byte(strings.Trim(string(e.IntegratedTime), `"`)), &seconds) == nil && seconds > 0 && seconds < 1<<40 {
			s.Logged = time.Unix(seconds, 0).UTC().Format(time.RFC3339)
		}
	}
	return s, nil
}

// read reads the envelope's payload.
func (s *Statement) read(e envelope) error {
	if e.PayloadType != signing.PayloadType {
		return fmt.Errorf("a payload of type %.100q: %w", e.PayloadType, fault.ErrUnsupported)
	}
	var st statement
	if err := json.Unmarshal(e.Payload, &st); err != nil {
		return fmt.Errorf("statement: %w: %w", fault.ErrInvalid, err)
	}
	s.PredicateType = st.PredicateType
	switch st.PredicateType {
	case signing.PredicateSign:
	case signing.PredicateFreshness:
		s.Kind = "freshness"
	default:
		s.Kind = "attestation"
	}
	if len(st.Subject) > 0 {
		if hex := st.Subject[0].Digest["sha256"]; hex != "" {
			s.Subject = digest.NewDigestFromEncoded(digest.SHA256, hex)
		}
		s.claims(st.Subject[0].Annotations)
	}
	return nil
}

// claims keeps claims, which are strings. Of too many the first ones by name are kept, and always the time.
func (s *Statement) claims(all map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(all)) {
		text, ok := all[k].(string)
		switch {
		case !ok:
		case k == signing.AnnotationTime:
			s.Time = text
		case len(s.Annotations) < maxClaims:
			if s.Annotations == nil {
				s.Annotations = make(map[string]string)
			}
			s.Annotations[k] = text
		}
	}
}

// fingerprint reads a bundle's reference to a key; "" if it is not a SHA-256.
func fingerprint(hint string) digest.Digest {
	sum, err := base64.StdEncoding.DecodeString(hint)
	if err != nil || len(sum) != digest.SHA256.Size() {
		return ""
	}
	return digest.NewDigestFromBytes(digest.SHA256, sum)
}

// identity reads the subject of a signing certificate, without verifying its chain.
func identity(der []byte) (subject, issuer string) {
	c, err := x509.ParseCertificate(der)
	if err != nil {
		return "a certificate that cannot be read", ""
	}
	s, err := fulcio.SummarizeCertificate(c)
	if err != nil { // not one as Fulcio makes it
		var uris []string
		for _, u := range c.URIs {
			uris = append(uris, u.String())
		}
		return cmp.Or(strings.Join(slices.Concat(uris, c.EmailAddresses, c.DNSNames), ", "), c.Subject.String()), ""
	}
	return s.SubjectAlternativeName, s.Issuer
}

// readSimple reads a simple signing payload: cosign's older signatures.
func readSimple(data []byte) (*Statement, error) {
	var p struct {
		Critical struct {
			Image struct {
				Digest digest.Digest `json:"docker-manifest-digest"`
			} `json:"image"`
		} `json:"critical"`
		Optional map[string]any `json:"optional"`
	}
	if err := json.Unmarshal(data, &p); err != nil {
		return nil, fmt.Errorf("read signature: %w: %w", fault.ErrInvalid, err)
	}
	s := &Statement{Kind: "signature", Subject: p.Critical.Image.Digest}
	s.claims(p.Optional)
	return s, nil
}

// readEnvelope reads a DSSE envelope without a bundle: cosign's older attestations.
func readEnvelope(data []byte) (*Statement, error) {
	var e envelope
	if err := json.Unmarshal(data, &e); err != nil {
		return nil, fmt.Errorf("read envelope: %w: %w", fault.ErrInvalid, err)
	}
	s := &Statement{Kind: "attestation"}
	if err := s.read(e); err != nil {
		return nil, fmt.Errorf("read envelope: %w", err)
	}
	return s, nil
}
