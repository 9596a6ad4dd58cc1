package identity_test

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"net"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

const (
	domain  = "plant.acme.example"
	manager = "spiffe://plant.acme.example/margo/wfm/main"
	press   = manager + "/client/press-07"
)

func credentials(t *testing.T, a *identitytest.Authority, p identitytest.Pair) *identity.Credentials {
	t.Helper()
	svid, err := identity.ParseSVID("x.crt", p.Cert, "x.key", p.Key)
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := identity.ParseBundle("bundle.pem", a.PEM(), domain)
	if err != nil {
		t.Fatal(err)
	}
	return &identity.Credentials{SVID: svid, Bundle: bundle}
}

// shake does one handshake, and tells how each side ended.
func shake(t *testing.T, server, client *tls.Config) (serverErr, clientErr error) {
	t.Helper()
	var config net.ListenConfig
	l, err := config.Listen(t.Context(), "tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	done := make(chan error, 1)
	go func() {
		a, err := l.Accept()
		if err == nil {
			defer a.Close()
			_ = a.SetDeadline(time.Now().Add(time.Minute))
			s := tls.Server(a, server)
			if err = s.HandshakeContext(t.Context()); err == nil {
				_, err = s.Write([]byte("x"))
			}
		}
		done <- err
	}()
	b, err := (&net.Dialer{Timeout: time.Minute}).DialContext(t.Context(), "tcp", l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	_ = b.SetDeadline(time.Now().Add(time.Minute))
	c := tls.Client(b, client)
	if clientErr = c.HandshakeContext(t.Context()); clientErr == nil { // in TLS 1.3 a client learns with its first byte that it is let in
		_, clientErr = c.Read(make([]byte, 1))
	}
	_ = b.Close()
	return <-done, clientErr
}

// raw presents a pair as it is, and believes everything.
func raw(t *testing.T, p identitytest.Pair) *tls.Config {
	t.Helper()
	pair, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return &tls.Config{Certificates: []tls.Certificate{pair}, InsecureSkipVerify: true, MinVersion: tls.VersionTLS12}
}

func TestPeers(t *testing.T) {
	ours, strangers := identitytest.New(t), identitytest.New(t)
	below := ours.Intermediate(t)
	server := credentials(t, ours, ours.Issue(t, manager, nil))
	client := credentials(t, ours, ours.Issue(t, press, nil))
	key := func(k crypto.Signer, err error) crypto.Signer {
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	leafOnly := below.Issue(t, press, nil)
	leafOnly.Cert = leafOnly.Cert[:strings.Index(string(leafOnly.Cert), "-----END CERTIFICATE-----")+len("-----END CERTIFICATE-----\n")]
	_, ed, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	weak := key(rsa.GenerateKey(rand.Reader, 2048))
	with := func(edit func(*x509.Certificate)) identitytest.Pair { return ours.Issue(t, press, edit) }
	for name, tt := range map[string]struct {
		peer identitytest.Pair
		want string // "": let in
	}{
		"good":                       {with(nil), ""},
		"below an intermediate":      {below.Issue(t, press, nil), ""},
		"with host names too":        {with(func(c *x509.Certificate) { c.DNSNames = []string{"press-07.local"} }), ""},
		"without extended key usage": {with(func(c *x509.Certificate) { c.ExtKeyUsage = nil }), ""},
		"P-384":                      {ours.IssueKey(t, key(ecdsa.GenerateKey(elliptic.P384(), rand.Reader)), press, nil), ""},
		"Ed25519":                    {ours.IssueKey(t, ed, press, nil), ""},
		"RSA 3072":                   {ours.IssueKey(t, key(rsa.GenerateKey(rand.Reader, 3072)), press, nil), ""},

		"intermediate withheld": {leafOnly, "leads to no authority of the trust bundle"},
		"by a stranger":         {strangers.Issue(t, press, nil), "leads to no authority of the trust bundle"},
		"another trust domain":  {ours.Issue(t, "spiffe://other.example/margo/wfm/main/client/press-07", nil), "is of another trust domain than plant.acme.example"},
		"expired":               {with(func(c *x509.Certificate) { c.NotAfter = time.Now().Add(-time.Second) }), "expired at"},
		"not yet valid": {with(func(c *x509.Certificate) {
			c.NotBefore = time.Now().Add(time.Hour)
			c.NotAfter = c.NotBefore.Add(time.Hour)
		}), "is valid from"},
		"two URIs":               {with(func(c *x509.Certificate) { c.URIs = append(c.URIs, c.URIs[0]) }), "has 2 URIs"},
		"two ids":                {with(func(c *x509.Certificate) { c.URIs = append(c.URIs, &url.URL{Scheme: "https", Host: "acme.example"}) }), "has 2 URIs"},
		"host names only":        {with(func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"press-07"} }), "names hosts and no SPIFFE id"},
		"no name":                {with(func(c *x509.Certificate) { c.URIs = nil }), "has 0 URIs"},
		"cA":                     {with(func(c *x509.Certificate) { c.IsCA = true }), "is an authority's"},
		"keyCertSign":            {with(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }), "may sign certificates"},
		"cRLSign":                {with(func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }), "may sign certificates"},
		"no digitalSignature":    {with(func(c *x509.Certificate) { c.KeyUsage = x509.KeyUsageKeyAgreement }), "digitalSignature is missing"},
		"for servers only":       {with(func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[1:] }), "clientAuth is missing"},
		"RSA 2048":               {ours.IssueKey(t, weak, press, nil), "RSA key of 2048 bits"},
		"P-521":                  {ours.IssueKey(t, key(ecdsa.GenerateKey(elliptic.P521(), rand.Reader)), press, nil), "a key on curve P-521"},
		"signed with SHA-512":    {with(func(c *x509.Certificate) { c.SignatureAlgorithm = x509.ECDSAWithSHA512 }), "is signed with ECDSA-SHA512"},
		"the manager itself":     {ours.Issue(t, manager, nil), "is the id of a manager, not of a client"},
		"client of another":      {ours.Issue(t, "spiffe://plant.acme.example/margo/wfm/other/client/press-07", nil), "is a client of another manager"},
		"another case":           {ours.Issue(t, "spiffe://plant.acme.example/margo/wfm/Main/client/press-07", nil), "is a client of another manager"},
		"another path":           {ours.Issue(t, "spiffe://plant.acme.example/ns/prod/sa/press-07", nil), "the id of no manager and no client"},
		"more path":              {ours.Issue(t, press+"/x", nil), "the id of no manager and no client"},
		"no path":                {ours.Issue(t, "spiffe://plant.acme.example", nil), "the id of no manager and no client"},
		"another scheme":         {ours.Issue(t, "https://plant.acme.example/margo/wfm/main/client/press-07", nil), "is no SPIFFE id"},
		"escaped path":           {ours.Issue(t, manager+"/client/press%2d07", nil), "is no SPIFFE id"},
		"critical, and unknown":  {with(unknownCritical), "unhandled critical extension"},
		"issued by another leaf": {issuedByLeaf(t, ours), "leads to no authority of the trust bundle"},
	} {
		t.Run(name, func(t *testing.T) {
			serverErr, clientErr := shake(t, identity.ServerConfig(server, time.Now), raw(t, tt.peer))
			if tt.want == "" {
				if serverErr != nil || clientErr != nil {
					t.Errorf("handshake: %v; %v", serverErr, clientErr)
				}
				return
			}
			if clientErr == nil || serverErr == nil || !strings.Contains(serverErr.Error(), tt.want) || !errors.Is(serverErr, fault.ErrUnauthenticated) {
				t.Errorf("handshake = %v, want %q; the client: %v", serverErr, tt.want, clientErr)
			}
		})
	}
	for name, tt := range map[string]struct {
		peer identitytest.Pair
		want string
	}{
		"its manager":      {ours.Issue(t, manager, nil), ""},
		"another manager":  {ours.Issue(t, "spiffe://plant.acme.example/margo/wfm/other", nil), "the server is spiffe://plant.acme.example/margo/wfm/other, and this client belongs to " + manager},
		"another client":   {ours.Issue(t, manager+"/client/press-08", nil), "this client belongs to " + manager},
		"a web server":     {ours.Issue(t, manager, func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{"localhost"} }), "names hosts and no SPIFFE id"},
		"by a stranger":    {strangers.Issue(t, manager, nil), "leads to no authority of the trust bundle"},
		"for clients only": {ours.Issue(t, manager, func(c *x509.Certificate) { c.ExtKeyUsage = c.ExtKeyUsage[:1] }), "serverAuth is missing"},
	} {
		t.Run("server: "+name, func(t *testing.T) {
			config := raw(t, tt.peer)
			config.ClientAuth = tls.RequireAnyClientCert
			_, err := shake(t, config, identity.ClientConfig(client, time.Now))
			if tt.want == "" && err != nil || tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want) || !errors.Is(err, fault.ErrUnauthenticated)) {
				t.Errorf("handshake = %v, want %q", err, tt.want)
			}
		})
	}
	t.Run("no certificate", func(t *testing.T) {
		if err, _ := shake(t, identity.ServerConfig(server, time.Now), &tls.Config{InsecureSkipVerify: true}); err == nil || !strings.Contains(err.Error(), "no certificate was presented") {
			t.Errorf("handshake = %v", err)
		}
	})
	t.Run("TLS 1.2", func(t *testing.T) {
		config := raw(t, with(nil))
		config.MaxVersion = tls.VersionTLS12
		if err, _ := shake(t, identity.ServerConfig(server, time.Now), config); err == nil || !strings.Contains(err.Error(), "versions") {
			t.Errorf("handshake = %v", err)
		}
	})
	t.Run("both", func(t *testing.T) {
		if serverErr, clientErr := shake(t, identity.ServerConfig(server, time.Now), identity.ClientConfig(client, time.Now)); serverErr != nil || clientErr != nil {
			t.Errorf("handshake = %v; %v", serverErr, clientErr)
		}
	})
}

func unknownCritical(c *x509.Certificate) {
	c.ExtraExtensions = append(c.ExtraExtensions, extension())
}

// issuedByLeaf is signed with the key of a leaf, whose certificate is presented as an intermediate one.
func issuedByLeaf(t *testing.T, ours *identitytest.Authority) identitytest.Pair {
	t.Helper()
	key := identitytest.NewKey(t)
	leaf := ours.IssueKey(t, key, press, nil)
	pair, err := tls.X509KeyPair(leaf.Cert, leaf.Key)
	if err != nil {
		t.Fatal(err)
	}
	by := &identitytest.Authority{Certificate: pair.Leaf, Key: key}
	return by.Issue(t, manager+"/client/press-08", nil)
}

// A session that is resumed is checked like a new one: a client whose authority left the bundle stays out.
func TestResumedSession(t *testing.T) {
	ours, next := identitytest.New(t), identitytest.New(t)
	source := &changing{credentials(t, ours, ours.Issue(t, manager, nil))}
	server := identity.ServerConfig(source, time.Now)
	client := raw(t, ours.Issue(t, press, nil))
	client.ClientSessionCache = tls.NewLRUClientSessionCache(1)
	client.ServerName = "fleet"
	resumed := false
	client.VerifyConnection = func(s tls.ConnectionState) error { resumed = s.DidResume; return nil }
	for i := range 2 {
		if serverErr, clientErr := shake(t, server, client); serverErr != nil || clientErr != nil || resumed != (i == 1) {
			t.Fatalf("handshake %d: %v, %v, resumed: %t", i, serverErr, clientErr, resumed)
		}
	}
	source.now = credentials(t, next, next.Issue(t, manager, nil))
	if serverErr, _ := shake(t, server, client); serverErr == nil || !strings.Contains(serverErr.Error(), "leads to no authority") || !resumed {
		t.Errorf("resumed: %t, handshake = %v", resumed, serverErr)
	}
}

type changing struct{ now *identity.Credentials }

func (c *changing) Credentials() (*identity.Credentials, error) { return c.now, nil }
