package conform

import (
	"cmp"
	"context"
	"crypto"
	"crypto/ecdsa"
	"crypto/ed25519"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"time"

	"github.com/google/uuid"
)

const (
	minRSA   = 3072
	shortRSA = 2048
)

// forged makes a case of certificates with which there is no access.
func forged(id, rules, title string, wrong func(s *session) (map[string]forgery, error)) Case {
	return Case{id, strings.Fields(rules), title, func(ctx context.Context, s *session) error {
		if s.Authority == nil {
			return skip("the trust domain's authority (--authority-cert, --authority-key)")
		}
		all, err := wrong(s)
		if err != nil {
			return err
		}
		var faults []error
		for name, f := range all {
			if err := f.hasNoAccess(ctx, s); err != nil {
				faults = append(faults, fmt.Errorf("%s: %w", name, err))
			}
		}
		return errors.Join(faults...)
	}}
}

// forgery is a certificate that is wrong.
type forgery struct {
	by   *Authority // nil: the trust domain's
	id   string     // "": of the client under test
	key  crypto.Signer
	edit func(*x509.Certificate)
}

func (f forgery) hasNoAccess(ctx context.Context, s *session) error {
	f.by = cmp.Or(f.by, s.Authority)
	f.id = cmp.Or(f.id, s.client.id.String())
	if f.key == nil {
		key, err := newKey()
		if err != nil {
			return err
		}
		f.key = key
	}
	c, err := f.by.forge(f.id, f.key, f.edit)
	if err != nil {
		return err
	}
	return s.dial(c, nil).noAccess(ctx)
}

// noAccess is nil where the handshake fails, or all that a client gets is 403.
func (p *peer) noAccess(ctx context.Context) error {
	for _, path := range []string{manifestPath, "/api/v1/bundles/" + strings.Trim(otherETag, `"`)} {
		a, err := p.get(ctx, path)
		switch {
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case err != nil:
			continue // the connection was refused
		}
		if err := a.problem(403, "not-authorized"); err != nil {
			return fmt.Errorf("it has access: %w", err)
		}
	}
	return nil
}

// presented shows what the manager presents in a handshake.
func (s *session) presented(ctx context.Context) (tls.ConnectionState, error) {
	var state tls.ConnectionState
	p := s.dial(s.Client, func(c tls.ConnectionState) error {
		state = c
		return nil
	})
	_, err := p.get(ctx, manifestPath)
	if len(state.PeerCertificates) == 0 && err == nil {
		err = errors.New("the manager presents no certificate")
	}
	if len(state.PeerCertificates) > 0 {
		err = nil // what it answers is for other cases
	}
	return state, err
}

func onHandshake(id, rules, title string, check func(*session, tls.ConnectionState, *x509.Certificate) error) Case {
	return Case{id, strings.Fields(rules), title, func(ctx context.Context, s *session) error {
		state, err := s.presented(ctx)
		if err != nil {
			return err
		}
		return check(s, state, state.PeerCertificates[0])
	}}
}

func identityCases() []Case {
	year := 365 * 24 * time.Hour
	return []Case{
		onHandshake("identity.manager", "8.1.1", "the manager's certificate has one URI, its SPIFFE id", func(s *session, _ tls.ConnectionState, leaf *x509.Certificate) error {
			if want := s.client.id.managerID(); len(leaf.URIs) != 1 || leaf.URIs[0].String() != want {
				return fmt.Errorf("the URIs are %v, want only %s", leaf.URIs, want)
			}
			return nil
		}),
		onHandshake("identity.leaf", "8.1.2", "the manager's certificate is no authority's", func(_ *session, _ tls.ConnectionState, leaf *x509.Certificate) error {
			if leaf.IsCA || leaf.KeyUsage&(x509.KeyUsageCertSign|x509.KeyUsageCRLSign) != 0 {
				return fmt.Errorf("cA is %v, key usage %b", leaf.IsCA, leaf.KeyUsage)
			}
			return nil
		}),
		onHandshake("identity.chain", "8.1.3", "the manager's chain leads to the trust bundle", func(s *session, state tls.ConnectionState, _ *x509.Certificate) error {
			return s.isManager(state, s.client.id.managerID())
		}),
		onHandshake("identity.key", "8.1.4", "the manager's key is of an allowed kind", func(_ *session, _ tls.ConnectionState, leaf *x509.Certificate) error {
			return allowedKey(leaf.PublicKey)
		}),
		onHandshake("identity.tls", "8.2.1", "TLS 1.3 is negotiated", func(_ *session, state tls.ConnectionState, _ *x509.Certificate) error {
			if state.Version != tls.VersionTLS13 {
				return fmt.Errorf("%s is negotiated", tls.VersionName(state.Version))
			}
			return nil
		}),
		{"identity.none", []string{"8.2.2"}, "without a certificate there is no access", func(ctx context.Context, s *session) error {
			return s.over(&tls.Config{MinVersion: tls.VersionTLS12, InsecureSkipVerify: true}).noAccess(ctx)
		}},
		forged("identity.stranger", "8.2.3", "clients of other authorities, trust domains and managers have no access", strangers),
		forged("identity.time", "8.2.4", "certificates that are not valid now have no access", func(*session) (map[string]forgery, error) {
			return map[string]forgery{
				"expired": {edit: func(c *x509.Certificate) {
					c.NotBefore, c.NotAfter = time.Now().Add(-year), time.Now().Add(-time.Minute)
				}},
				"not valid yet": {edit: func(c *x509.Certificate) { c.NotBefore, c.NotAfter = time.Now().Add(time.Hour), time.Now().Add(year) }},
			}, nil
		}),
		forged("identity.uris", "8.2.5", "certificates without exactly one URI have no access", func(s *session) (map[string]forgery, error) {
			second, err := url.Parse(s.client.id.String() + "-2")
			return map[string]forgery{
				"two":  {edit: func(c *x509.Certificate) { c.URIs = append(c.URIs, second) }},
				"none": {edit: func(c *x509.Certificate) { c.URIs, c.DNSNames = nil, []string{s.client.id.client} }},
			}, err
		}),
		forged("identity.ca", "8.2.6", "certificates of authorities have no access", func(*session) (map[string]forgery, error) {
			return map[string]forgery{
				"cA":          {edit: func(c *x509.Certificate) { c.IsCA = true }},
				"keyCertSign": {edit: func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCertSign }},
				"cRLSign":     {edit: func(c *x509.Certificate) { c.KeyUsage |= x509.KeyUsageCRLSign }},
			}, nil
		}),
		forged("identity.rsa", "8.2.7", "a short RSA key has no access", func(*session) (map[string]forgery, error) {
			key, err := rsa.GenerateKey(rand.Reader, shortRSA)
			return map[string]forgery{"RSA": {key: key}}, err
		}),
		{"identity.p256", []string{"8.2.7"}, "ECDSA P-256 is accepted", func(ctx context.Context, s *session) error {
			p, err := s.issue(s.client.id.client)
			if err != nil {
				return err
			}
			return p.expect(ctx, "GET", manifestPath, nil, 200)
		}},
		forged("identity.exact", "8.2.8", "ids that only resemble the client's have no access", func(s *session) (map[string]forgery, error) {
			id := s.client.id.String()
			return map[string]forgery{
				"longer path": {id: id + "/x"}, "longer id": {id: id + "-conform"}, "no client": {id: strings.TrimSuffix(id, "/client/"+s.client.id.client)},
				"another path": {id: strings.Replace(id, "/margo/wfm/", "/margo/", 1)}, "upper case": {id: strings.Replace(id, s.client.id.client, strings.ToUpper(s.client.id.client), 1)},
			}, nil
		}),
		{"identity.accepted", []string{"8.3.1"}, "a client that is not accepted is answered 403 everywhere", notAccepted},
		onManifest("identity.others", "8.3.2", "no client reads what is of another", func(ctx context.Context, s *session, m *manifest) error {
			other, err := s.other()
			if err != nil {
				return err
			}
			var all []error
			for _, path := range []string{m.bundle.URL, m.deployments[0].URL} {
				all = append(all, other.expect(ctx, "GET", path, nil, 403, 404), s.client.expect(ctx, "GET", path, nil, 200))
			}
			return errors.Join(all...)
		}),
		{"identity.discovery", []string{"8.4.1", "8.4.2"}, "discovery document and trust bundle", discovery},
	}
}

func allowedKey(key any) error {
	switch k := key.(type) {
	case *ecdsa.PublicKey:
		if k.Curve == elliptic.P256() || k.Curve == elliptic.P384() {
			return nil
		}
	case ed25519.PublicKey:
		return nil
	case *rsa.PublicKey:
		if k.N.BitLen() >= minRSA {
			return nil
		}
	}
	return fmt.Errorf("a key of type %T", key)
}

func strangers(s *session) (map[string]forgery, error) {
	by, err := s.Authority.stranger()
	id := s.client.id
	domain, manager := id, id
	domain.domain, manager.manager = "conform.example", "conform-other"
	return map[string]forgery{"another authority": {by: by}, "another trust domain": {id: domain.String()}, "another manager": {id: manager.String()}, "the manager itself": {id: id.managerID()}}, err
}

func notAccepted(ctx context.Context, s *session) error {
	p, err := s.issue("conform-not-accepted")
	if err != nil {
		return err
	}
	id := uuid.NewString()
	var all []error
	for _, r := range []struct {
		method, path string
		body         any
	}{
		{"GET", manifestPath, nil},
		{"GET", manifestPath + "/" + id + "/" + strings.Trim(otherETag, `"`), nil},
		{"GET", "/api/v1/bundles/" + strings.Trim(otherETag, `"`), nil},
		{"PUT", capabilitiesPath(p.device), hosting(p.device)},
		{"DELETE", capabilitiesPath(p.device), nil},
		{"POST", statusPath(id), status(id, "installed")},
	} {
		all = append(all, p.rejects(ctx, r.method, r.path, r.body, 403, "not-authorized"))
	}
	return errors.Join(all...)
}

func discovery(ctx context.Context, s *session) error {
	a, err := s.client.get(ctx, "/.well-known/margo")
	if err != nil {
		return err
	}
	if a.status == 404 {
		return a.problem(404, "discovery-document-not-found")
	}
	var doc struct {
		TrustDomain    string
		TrustBundleURI string `json:"trustBundleUri"`
	}
	if err := errors.Join(a.want(200), json.Unmarshal(a.body, &doc)); err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	u, err := url.Parse(doc.TrustBundleURI)
	if err != nil || u.Scheme != "https" || u.Host == "" || doc.TrustDomain != s.client.id.domain {
		return fmt.Errorf("%s: want the trust domain %s, and an https URL of its bundle", a, s.client.id.domain)
	}
	if !strings.HasPrefix(doc.TrustBundleURI, s.BaseURL+"/") {
		return nil // at a server of which the suite has no certificates
	}
	a, err = s.client.get(ctx, u.EscapedPath())
	if err != nil {
		return err
	}
	var bundle struct {
		Keys []struct {
			Use string   `json:"use"`
			X5C [][]byte `json:"x5c"`
		} `json:"keys"`
	}
	if err := errors.Join(a.want(200), json.Unmarshal(a.body, &bundle)); err != nil {
		return fmt.Errorf("%s: %w", a, err)
	}
	anchors := 0
	for _, k := range bundle.Keys {
		if k.Use == "x509-svid" && len(k.X5C) == 1 {
			anchors++
		}
	}
	if anchors == 0 {
		return fmt.Errorf("%s: no key with use x509-svid and one x5c", a)
	}
	return nil
}
