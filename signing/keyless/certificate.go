package keyless

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"fmt"
	"time"

	"github.com/sigstore/sigstore-go/pkg/root"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const maxCertificates = 16 // of one chain, and of one file of authorities

// inTime reports whether a certificate was valid at t.
func inTime(c *x509.Certificate, t time.Time) error {
	if !t.Before(c.NotBefore) && !t.After(c.NotAfter) {
		return nil
	}
	return fmt.Errorf("%w: %.200q is valid from %s to %s, and it is about %s", ErrOutOfTime, c.Subject.String()+subjectsText(c),
		c.NotBefore.UTC().Format(timeFormat), c.NotAfter.UTC().Format(timeFormat), t.UTC().Format(timeFormat))
}

func subjectsText(c *x509.Certificate) string {
	if c.Subject.String() != "" {
		return ""
	}
	if all := subjects(c); len(all) > 0 {
		return all[0]
	}
	return ""
}

// subjects are all names of the certificate's holder.
func subjects(c *x509.Certificate) []string {
	var all []string
	for _, u := range c.URIs {
		all = append(all, u.String())
	}
	all = append(all, c.EmailAddresses...)
	return append(all, c.DNSNames...)
}

// issuedBy reports whether any authority of the root signed the certificate, at any time.
func issuedBy(c *x509.Certificate, r *Root) bool {
	for _, a := range r.material.FulcioCertificateAuthorities() {
		f, ok := a.(*root.FulcioCertificateAuthority)
		if !ok {
			return true // unknown
		}
		for _, parent := range append([]*x509.Certificate{f.Root}, f.Intermediates...) {
			if c.CheckSignatureFrom(parent) == nil {
				return true
			}
		}
	}
	return false
}

// parsePEM reads the certificates of a PEM file, and rejects any other content.
func parsePEM(data []byte) ([]*x509.Certificate, error) {
	var all []*x509.Certificate
	for rest := data; len(bytes.TrimSpace(rest)) > 0; {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			return nil, fmt.Errorf("%w: something that is no PEM block", fault.ErrInvalid)
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%w: PEM block %.60q, where certificates are asked for", fault.ErrInvalid, block.Type)
		}
		if len(all) == maxCertificates {
			return nil, fmt.Errorf("%w: more than %d certificates", fault.ErrTooLarge, maxCertificates)
		}
		c, err := x509.ParseCertificate(block.Bytes)
		if err != nil {
			return nil, fmt.Errorf("%w: certificate %d: %w", fault.ErrInvalid, len(all)+1, err)
		}
		all = append(all, c)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: no certificate", fault.ErrInvalid)
	}
	return all, nil
}
