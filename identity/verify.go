package identity

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rsa"
	"crypto/x509"
	"fmt"
	"slices"
	"time"

	"github.com/spiffe/go-spiffe/v2/svid/x509svid"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxChain bounds the certificates that a peer presents.
const maxChain = 8

// minRSA is the length of an RSA key in bits.
const minRSA = 3072

// VerifyClient checks, as a manager, the certificates that a peer presents, the leaf first, and tells whose they are. Every error
// is a fault.ErrUnauthenticated, and a sentence that says what is wrong with the peer.
func (c *Credentials) VerifyClient(chain []*x509.Certificate, now time.Time) (Name, error) {
	name, err := c.Bundle.verify(chain, now, x509.ExtKeyUsageClientAuth)
	switch {
	case err != nil:
		return Name{}, err
	case name.Client == "":
		return Name{}, refused("%s is the id of a manager, not of a client", name)
	case name.ManagerName() != c.SVID.Name:
		return Name{}, refused("%s is a client of another manager: this one is %s", name, c.SVID.Name)
	}
	return name, nil
}

// VerifyManager checks, as a client, the certificates that a peer presents: they must be of the manager that the client's own SVID
// names. Every error is a fault.ErrUnauthenticated.
func (c *Credentials) VerifyManager(chain []*x509.Certificate, now time.Time) error {
	name, err := c.Bundle.verify(chain, now, x509.ExtKeyUsageServerAuth)
	switch {
	case err != nil && len(chain) > 0 && len(chain[0].URIs) == 0:
		return fault.WithHint(err, "this is not the manager's address of mutual TLS, or a proxy before it ends TLS: it must pass TLS through")
	case err != nil:
		return err
	case name != c.SVID.Name.ManagerName():
		return refused("the server is %s, and this client belongs to %s", name, c.SVID.Name.ManagerName())
	}
	return nil
}

// VerifyManager checks, as a client that has no SVID yet, the certificates that a peer presents: they must be of a manager of the
// trust domain, and any one passes. Every error is a fault.ErrUnauthenticated.
func (b *Bundle) VerifyManager(chain []*x509.Certificate, now time.Time) (Name, error) {
	name, err := b.verify(chain, now, x509.ExtKeyUsageServerAuth)
	if err == nil && name.Client != "" {
		return Name{}, refused("the server is %s, which is the id of a client and not of a manager", name)
	}
	return name, err
}

func refused(format string, args ...any) error {
	return fmt.Errorf("%w: %w", fmt.Errorf(format, args...), fault.ErrUnauthenticated)
}

// verify checks a chain by X.509-SVID validation: trust domain, leaf, dates, algorithms, path to a trust anchor. usages is what the
// leaf must be good for, where it limits that.
func (b *Bundle) verify(chain []*x509.Certificate, now time.Time, usages ...x509.ExtKeyUsage) (Name, error) {
	switch {
	case len(chain) == 0:
		return Name{}, refused("no certificate was presented, as by a proxy that ends TLS: it must pass TLS through")
	case len(chain) > maxChain:
		return Name{}, refused("%d certificates were presented, more than %d", len(chain), maxChain)
	}
	leaf := chain[0]
	name, err := checkLeaf(leaf)
	if err != nil {
		return Name{}, fmt.Errorf("%w: %w", err, fault.ErrUnauthenticated)
	}
	if name.TrustDomain != b.TrustDomain() {
		return Name{}, refused("%s is of another trust domain than %s", name, b.TrustDomain())
	}
	for _, u := range usages {
		limited := len(leaf.ExtKeyUsage)+len(leaf.UnknownExtKeyUsage) > 0
		if limited && !slices.Contains(leaf.ExtKeyUsage, u) && !slices.Contains(leaf.ExtKeyUsage, x509.ExtKeyUsageAny) {
			return Name{}, refused("the certificate of %s is not for this side of a connection (extended key usage %s is missing)", name, usageNames[u])
		}
	}
	switch {
	case now.Before(leaf.NotBefore):
		return Name{}, refused("the certificate of %s is valid from %s, and here it is %s", name, stamp(leaf.NotBefore), stamp(now))
	case now.After(leaf.NotAfter):
		return Name{}, refused("the certificate of %s expired at %s, and here it is %s", name, stamp(leaf.NotAfter), stamp(now))
	}
	_, paths, err := x509svid.Verify(chain, b.anchors, x509svid.WithTime(now))
	if err != nil {
		return Name{}, refused("the certificate of %s leads to no authority of the trust bundle: %w", name, err)
	}
	for _, path := range paths {
		if err = checkPath(path); err == nil {
			return name, nil
		}
	}
	return Name{}, refused("the certificate of %s: %w", name, err)
}

var usageNames = map[x509.ExtKeyUsage]string{x509.ExtKeyUsageClientAuth: "clientAuth", x509.ExtKeyUsageServerAuth: "serverAuth"}

func stamp(t time.Time) string { return t.UTC().Format(time.RFC3339) }

// checkLeaf checks what the leaf has to be by itself, its dates aside.
func checkLeaf(leaf *x509.Certificate) (Name, error) {
	fail := func(format string, args ...any) (Name, error) {
		return Name{}, fmt.Errorf("%w: %w", fmt.Errorf(format, args...), fault.ErrInvalid)
	}
	switch n := len(leaf.URIs); {
	case n == 0 && len(leaf.DNSNames) > 0:
		return fail("the certificate names hosts and no SPIFFE id: exactly one URI is needed as subject alternative name")
	case n != 1:
		return fail("the certificate has %d URIs as subject alternative names, and needs exactly one", n)
	}
	name, err := ParseName(leaf.URIs[0].String())
	switch {
	case err != nil:
		return Name{}, err
	case leaf.IsCA:
		return fail("the certificate of %s is an authority's (cA)", name)
	case leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0:
		return fail("the certificate of %s may sign certificates or revocation lists (keyCertSign, cRLSign)", name)
	case leaf.KeyUsage&x509.KeyUsageDigitalSignature == 0:
		return fail("the certificate of %s may not sign (digitalSignature is missing in its key usage)", name)
	}
	if err := CheckKey(leaf.PublicKey); err != nil {
		return fail("the certificate of %s: %w", name, err)
	}
	return name, nil
}

// checkPath checks the keys and signatures between a leaf and its trust anchor. The anchor's own signature says nothing.
func checkPath(path []*x509.Certificate) error {
	for i, c := range path {
		if err := CheckKey(c.PublicKey); err != nil {
			return err
		}
		if i == len(path)-1 {
			break
		}
		switch c.SignatureAlgorithm {
		case x509.ECDSAWithSHA256, x509.ECDSAWithSHA384, x509.PureEd25519, x509.SHA256WithRSA, x509.SHA256WithRSAPSS:
		default:
			return fmt.Errorf("%q is signed with %s, which the profile does not allow", c.Subject.String(), c.SignatureAlgorithm)
		}
	}
	return nil
}

// CheckKey reports what is wrong with a public key for the profile: kind, curve or length.
func CheckKey(public crypto.PublicKey) error {
	switch key := public.(type) {
	case *ecdsa.PublicKey:
		if key.Curve == elliptic.P256() || key.Curve == elliptic.P384() {
			return nil
		}
		return fmt.Errorf("a key on curve %s, and the profile allows P-256 and P-384", key.Curve.Params().Name)
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if key.N.BitLen() >= minRSA {
			return nil
		}
		return fmt.Errorf("an RSA key of %d bits, and the profile asks for %d", key.N.BitLen(), minRSA)
	}
	return fmt.Errorf("a key of kind %T, which the profile does not allow", public)
}
