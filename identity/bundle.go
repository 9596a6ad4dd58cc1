package identity

import (
	"bytes"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/bundle/spiffebundle"
	"github.com/spiffe/go-spiffe/v2/bundle/x509bundle"
	"github.com/spiffe/go-spiffe/v2/spiffeid"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxBundle bounds a trust bundle, in bytes.
const MaxBundle = 1 << 20

// maxAnchors bounds the trust anchors of a bundle: rotations need two or three.
const maxAnchors = 64

// Bundle has the trust anchors of one trust domain. It does not change.
type Bundle struct {
	RefreshHint time.Duration // how often the bundle should be read again, as it says; 0: it does not say

	domain  spiffeid.TrustDomain
	anchors *x509bundle.Bundle
	json    []byte
}

// ParseBundle reads a trust bundle: a SPIFFE bundle (JSON, of which only x509-svid keys count), or certificates in PEM. A bundle
// without a trust anchor is an error, as is one whose anchor is no authority. file names the data in errors.
func ParseBundle(file string, data []byte, trustDomain string) (*Bundle, error) {
	domain, err := spiffeid.TrustDomainFromString(trustDomain)
	if err != nil {
		return nil, fmt.Errorf("trust domain %q: %w: %w", trustDomain, fault.ErrInvalid, err)
	}
	fail := func(why string) (*Bundle, error) {
		return nil, fault.WithHint(fmt.Errorf("trust bundle %s: %s: %w", file, why, fault.ErrInvalid),
			"a SPIFFE bundle (JSON) of the trust domain "+trustDomain+", or its authorities' certificates in PEM")
	}
	if len(data) > MaxBundle {
		return nil, fmt.Errorf("trust bundle %s: more than %d bytes: %w", file, MaxBundle, fault.ErrTooLarge)
	}
	var spiffe *spiffebundle.Bundle
	if text := bytes.TrimSpace(data); len(text) > 0 && text[0] == '{' {
		text, err := onlyX509(text)
		if err == nil {
			spiffe, err = spiffebundle.Parse(domain, text)
		}
		if err != nil {
			return fail("no SPIFFE bundle: " + err.Error())
		}
	} else {
		certificates, err := parseCertificates(data)
		if err != nil {
			return fail(err.Error())
		}
		spiffe = spiffebundle.FromX509Authorities(domain, certificates)
	}
	anchors := spiffe.X509Bundle()
	switch n := len(anchors.X509Authorities()); {
	case n == 0:
		return fail("no trust anchor (x509-svid) in it")
	case n > maxAnchors:
		return fail(fmt.Sprintf("%d trust anchors, more than %d", n, maxAnchors))
	}
	for _, c := range anchors.X509Authorities() {
		if !c.IsCA || c.KeyUsage != 0 && c.KeyUsage&x509.KeyUsageCertSign == 0 {
			return fail(fmt.Sprintf("%q may not sign certificates (cA, keyCertSign)", c.Subject.String()))
		}
	}
	b := &Bundle{domain: domain, anchors: anchors}
	b.RefreshHint, _ = spiffe.RefreshHint()
	only := spiffebundle.FromX509Authorities(domain, anchors.X509Authorities())
	if b.RefreshHint > 0 {
		only.SetRefreshHint(b.RefreshHint)
	}
	if n, ok := spiffe.SequenceNumber(); ok {
		only.SetSequenceNumber(n)
	}
	if b.json, err = only.Marshal(); err != nil {
		return fail(err.Error())
	}
	return b, nil
}

// onlyX509 leaves the keys for other purposes out of a SPIFFE bundle: whatever is in them does not count.
func onlyX509(data []byte) ([]byte, error) {
	var doc struct {
		Keys        []json.RawMessage `json:"keys"`
		Sequence    json.RawMessage   `json:"spiffe_sequence,omitempty"`
		RefreshHint json.RawMessage   `json:"spiffe_refresh_hint,omitempty"`
	}
	if err := json.Unmarshal(data, &doc); err != nil {
		return nil, err
	}
	doc.Keys = slices.DeleteFunc(doc.Keys, func(raw json.RawMessage) bool {
		var key struct {
			Use string `json:"use"`
		}
		return json.Unmarshal(raw, &key) == nil && key.Use != "x509-svid"
	})
	return json.Marshal(doc)
}

// TrustDomain is the name of the trust domain.
func (b *Bundle) TrustDomain() string { return b.domain.Name() }

// JSON is the bundle in SPIFFE's format, with its X.509 trust anchors only.
func (b *Bundle) JSON() []byte { return b.json }

// Anchors are the certificates of the bundle.
func (b *Bundle) Anchors() []*x509.Certificate { return b.anchors.X509Authorities() }

// Only is a bundle of the same trust domain with one of its anchors.
func (b *Bundle) Only(anchor *x509.Certificate) (*Bundle, error) {
	return ParseBundle("of one authority", pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: anchor.Raw}), b.TrustDomain())
}

// parseCertificates reads one or more certificates in PEM, and nothing else.
func parseCertificates(data []byte) ([]*x509.Certificate, error) {
	var out []*x509.Certificate
	for rest := data; ; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("a PEM block %q where certificates are expected", block.Type)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("certificate %d: %w", len(out)+1, err)
		}
		if out = append(out, c); len(out) > maxAnchors {
			return nil, fmt.Errorf("more than %d certificates", maxAnchors)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no certificate in PEM")
	}
	return out, nil
}
