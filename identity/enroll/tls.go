package enroll

import (
	"crypto"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
)

// Protocol is the application protocol (ALPN) that a device without a certificate offers beside HTTP/1.1, which is what is spoken. It
// tells the manager before the handshake ends.
const Protocol = "longshore-enroll/1"

const http11 = "http/1.1"

// ServerConfig adds [Protocol] to the TLS of a manager: other connections stay as they are. On it a client presents a certificate that
// names nobody, only for its key; what it may do is decided by who serves the request, see [PeerKey].
func ServerConfig(mutual *tls.Config) *tls.Config {
	enroll := &tls.Config{
		MinVersion: tls.VersionTLS13, NextProtos: []string{http11}, ClientAuth: tls.RequireAnyClientCert,
		GetCertificate: mutual.GetCertificate, SessionTicketsDisabled: true,
		VerifyConnection: func(state tls.ConnectionState) error {
			if !Enrolling(&state) {
				return fmt.Errorf("a device without a certificate of its own names somebody: %w", fault.ErrUnauthenticated)
			}
			return nil
		},
	}
	out := mutual.Clone()
	out.GetConfigForClient = func(hello *tls.ClientHelloInfo) (*tls.Config, error) {
		if slices.Contains(hello.SupportedProtos, Protocol) {
			return enroll, nil
		}
		return nil, nil
	}
	return out
}

// Enrolling reports whether a connection is one of [Protocol]: on others the certificate has a SPIFFE id.
func Enrolling(state *tls.ConnectionState) bool {
	return state != nil && len(state.PeerCertificates) > 0 && len(state.PeerCertificates[0].URIs) == 0
}

// PeerKey is the key that the other side of a connection has proved to have, and its fingerprint.
func PeerKey(state *tls.ConnectionState) (crypto.PublicKey, digest.Digest, error) {
	if state == nil || len(state.PeerCertificates) == 0 {
		return nil, "", fault.WithHint(fmt.Errorf("the connection has no certificate of the device: %w", fault.ErrUnauthenticated),
			"the device has to reach the manager's address of mutual TLS itself: a proxy may pass TLS on, and must not end it")
	}
	key := state.PeerCertificates[0].PublicKey
	if err := identity.CheckKey(key); err != nil {
		return nil, "", fmt.Errorf("the device has %w: %w", err, fault.ErrUnsupported)
	}
	fingerprint, err := identity.Fingerprint(key)
	return key, fingerprint, err
}

// selfSigned is a certificate that only carries a key into TLS.
func selfSigned(key crypto.Signer) (tls.Certificate, error) {
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "longshore enrollment"}, KeyUsage: x509.KeyUsageDigitalSignature,
		NotBefore: time.Unix(0, 0), NotAfter: time.Unix(0, 0).AddDate(130, 0, 0),
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("make a certificate for the connection: %w", err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, nil
}

// Trust says how a device authenticates the manager. Without either member, no manager passes.
type Trust struct {
	Anchors []byte        // trust bundle (SPIFFE's JSON, or PEM)
	Pin     digest.Digest // fingerprint of an authority's key: of Anchors only authorities with this key count; "": all count
	Manager string        // SPIFFE id of the manager; "": any manager of the trust domain
}

// errNoTrust is a device that knows nothing of its manager.
var errNoTrust = fault.WithHint(fmt.Errorf("nothing is known by which the manager could be authenticated: %w", fault.ErrUnauthenticated),
	"give the manager's trust bundle, or the fingerprint that it prints (--trust-bundle, --expect-manager)")

// Verify checks the certificates of a manager, the leaf first, and returns its name.
func (t Trust) Verify(chain []*x509.Certificate, now time.Time) (identity.Name, error) {
	if len(t.Anchors) == 0 {
		return identity.Name{}, errNoTrust
	}
	if len(chain) == 0 || len(chain[0].URIs) != 1 {
		return identity.Name{}, notManager(errors.New("its certificate has no SPIFFE id"))
	}
	name, err := identity.ParseName(chain[0].URIs[0].String())
	if err != nil {
		return identity.Name{}, notManager(err)
	}
	b, err := identity.ParseBundle("of the manager", t.Anchors, name.TrustDomain)
	if err == nil && t.Pin != "" {
		b, err = pinned(b, t.Pin)
	}
	if err != nil {
		return identity.Name{}, err
	}
	if name, err = b.VerifyManager(chain, now); err != nil {
		return identity.Name{}, badClock(fmt.Errorf("the server is not the expected manager: %w", err), chain[0], now)
	}
	if t.Manager != "" && name.String() != t.Manager {
		return identity.Name{}, fmt.Errorf("the server is %s, and %s is expected: %w", name, t.Manager, fault.ErrUnauthenticated)
	}
	return name, nil
}

func notManager(err error) error {
	return fault.WithHint(fmt.Errorf("the server is no manager: %w: %w", err, fault.ErrUnauthenticated),
		"use the manager's address of mutual TLS; a proxy before it may pass TLS on, and must not end it")
}

// badClock gives a hint where a certificate fails by its dates.
func badClock(err error, leaf *x509.Certificate, now time.Time) error {
	if now.Before(leaf.NotBefore) || now.After(leaf.NotAfter) {
		return fault.WithHint(err, "compare the clocks of this device and of the manager; set the wrong one and try again")
	}
	return fault.WithHint(err, "is it the right manager, and the trust bundle or fingerprint that this manager prints now?")
}

// pinned leaves those anchors in a bundle whose key has a fingerprint.
func pinned(b *identity.Bundle, pin digest.Digest) (*identity.Bundle, error) {
	for _, c := range b.Anchors() {
		if f, err := identity.Fingerprint(c.PublicKey); err == nil && f == pin {
			return b.Only(c)
		}
	}
	return nil, fault.WithHint(fmt.Errorf("no authority of the server has the fingerprint %s: %w", pin, fault.ErrUnauthenticated),
		"compare it with the one that the manager prints when it starts; another one may be an attack")
}

// ManagerFingerprint is what a device can be told to expect: the fingerprint of the first authority of a bundle.
func ManagerFingerprint(b *identity.Bundle) (digest.Digest, error) {
	return identity.Fingerprint(b.Anchors()[0].PublicKey)
}
