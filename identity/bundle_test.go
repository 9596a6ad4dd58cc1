package identity_test

import (
	"bytes"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/base64"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

func extension() pkix.Extension {
	return pkix.Extension{Id: asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 99999, 1}, Critical: true, Value: []byte{5, 0}}
}

// key is an entry of a SPIFFE bundle, without the key's own members: what counts is the certificate.
func key(t testing.TB, pem []byte) string {
	t.Helper()
	b, err := identity.ParseBundle("x", pem, domain)
	if err != nil {
		t.Fatal(err)
	}
	text := string(b.JSON())
	return text[strings.Index(text, "[")+1 : strings.LastIndex(text, "]}")]
}

func TestParseBundle(t *testing.T) {
	one, two := identitytest.New(t), identitytest.New(t)
	entry := strings.TrimSuffix(key(t, one.PEM()), "]")
	other := `{"kty":"OKP","crv":"Ed25519","kid":"a","use":"jwt-svid","x":"` + base64.RawURLEncoding.EncodeToString(make([]byte, 32)) + `"}`
	for name, tt := range map[string]struct {
		data    string
		anchors int
		hint    time.Duration
		want    string
	}{
		"PEM":             {string(one.PEM()), 1, 0, ""},
		"two in PEM":      {string(one.PEM()) + "# comment\n" + string(two.PEM()), 2, 0, ""},
		"JSON":            {`{"keys":[` + entry + `],"spiffe_sequence":12,"spiffe_refresh_hint":3600,"unknown":{}}`, 1, time.Hour, ""},
		"rotation":        {`{"keys":[` + entry + "," + key(t, two.PEM()) + `]}`, 2, 0, ""},
		"other keys":      {`{"keys":[` + entry + "," + other + `]}`, 1, 0, ""},
		"only other keys": {`{"keys":[` + other + `]}`, 0, 0, "no trust anchor"},
		"empty":           {"", 0, 0, "no certificate in PEM"},
		"empty set":       {`{"keys":[]}`, 0, 0, "no trust anchor"},
		"no set":          {`{}`, 0, 0, "no SPIFFE bundle"},
		"cut":             {`{"keys":[` + entry[:40], 0, 0, "no SPIFFE bundle"},
		"a leaf":          {string(one.Issue(t, press, nil).Cert), 0, 0, `"CN=test" may not sign certificates`},
		"a key":           {string(one.Issue(t, press, nil).Key), 0, 0, `a PEM block "PRIVATE KEY"`},
		"many":            {strings.Repeat(string(one.PEM()), 70), 0, 0, "more than 64"},
	} {
		t.Run(name, func(t *testing.T) {
			b, err := identity.ParseBundle("bundle.json", []byte(tt.data), domain)
			if tt.want != "" {
				if err == nil || !strings.Contains(err.Error(), "bundle.json: "+tt.want) || !errors.Is(err, fault.ErrInvalid) {
					t.Fatalf("ParseBundle: %v, want %q", err, tt.want)
				}
				return
			}
			if err != nil || len(b.Anchors()) != tt.anchors || b.RefreshHint != tt.hint || b.TrustDomain() != domain {
				t.Fatalf("ParseBundle = %+v, %v", b, err)
			}
			again, err := identity.ParseBundle("again", b.JSON(), domain)
			if err != nil || !bytes.Equal(again.JSON(), b.JSON()) || bytes.Contains(b.JSON(), []byte("jwt-svid")) {
				t.Errorf("written and read: %s, %v", b.JSON(), err)
			}
		})
	}
}

func TestParseName(t *testing.T) {
	for text, want := range map[string]identity.Name{
		manager: {TrustDomain: domain, Manager: "main"}, press: {TrustDomain: domain, Manager: "main", Client: "press-07"},
		manager + "/": {}, manager + "/client": {}, manager + "/client/": {}, manager + "/device/x": {}, "spiffe://" + domain: {}, "": {},
		"spiffe://" + domain + "/margo/wfm/..": {}, press + "/x": {}, press + strings.Repeat("x", 2048): {}, "spiffe://Plant/margo/wfm/main": {},
		manager + "/client/press~07": {}, manager + "?x": {}, manager + "#x": {}, "spiffe://" + domain + ":443/margo/wfm/main": {},
	} {
		got, err := identity.ParseName(text)
		if (err != nil) != (want == identity.Name{}) || got != want {
			t.Errorf("ParseName(%q) = %+v, %v", text, got, err)
		}
		if err == nil && got.String() != text {
			t.Errorf("%q is written %q", text, got)
		}
	}
}

// What is wrong with one's own SVID is told before any peer sees it.
func TestParseSVID(t *testing.T) {
	a := identitytest.New(t)
	good, other := a.Issue(t, press, nil), a.Issue(t, press, nil)
	for name, tt := range map[string]struct {
		cert, key []byte
		want      string
	}{
		"good":        {good.Cert, good.Key, ""},
		"another key": {good.Cert, other.Key, "private key does not match"},
		"swapped":     {good.Key, good.Cert, `a PEM block "PRIVATE KEY"`},
		"no key":      {good.Cert, nil, "key"},
		"nothing":     {nil, nil, "no certificate in PEM"},
		"cA":          {a.Issue(t, press, func(c *x509.Certificate) { c.IsCA = true }).Cert, nil, ""},
	} {
		_, err := identity.ParseSVID("own.crt", tt.cert, "own.key", tt.key)
		if name == "good" && err != nil || name != "good" && (err == nil || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: %v, want %q", name, err, tt.want)
		}
		if err != nil && (strings.Contains(err.Error(), "BEGIN") || !errors.Is(err, fault.ErrInvalid)) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Check tells what a peer would reject.
func TestCheck(t *testing.T) {
	a, stranger := identitytest.New(t), identitytest.New(t)
	own := credentials(t, a, a.Issue(t, press, nil))
	if err := own.Check(time.Now()); err != nil {
		t.Error(err)
	}
	for want, at := range map[string]time.Time{"expired at": time.Now().Add(2 * time.Hour), "is valid from": time.Now().Add(-2 * time.Hour)} {
		if err := own.Check(at); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Check: %v, want %q", err, want)
		}
	}
	if err := credentials(t, stranger, a.Issue(t, press, nil)).Check(time.Now()); err == nil || !strings.Contains(err.Error(), "leads to no authority") {
		t.Errorf("Check of another authority's: %v", err)
	}
}

func FuzzParseBundle(f *testing.F) {
	a := identitytest.New(f)
	f.Add(a.PEM())
	f.Add([]byte(`{"keys":[` + key(f, a.PEM()) + `],"spiffe_sequence":1,"spiffe_refresh_hint":60}`))
	f.Add([]byte(`{"keys":[{"use":"x509-svid","kty":"EC","x5c":[""]}]}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		b, err := identity.ParseBundle("bundle", data, domain)
		if err != nil {
			return
		}
		if len(b.Anchors()) == 0 {
			t.Fatal("a bundle without anchors")
		}
		again, err := identity.ParseBundle("again", b.JSON(), domain)
		if err != nil || !bytes.Equal(again.JSON(), b.JSON()) {
			t.Fatalf("%s: written and read: %v", data, err)
		}
	})
}

func FuzzParseName(f *testing.F) {
	f.Add(manager)
	f.Add(press)
	f.Fuzz(func(t *testing.T, text string) {
		if n, err := identity.ParseName(text); err == nil && n.String() != text {
			t.Fatalf("%q is written %q", text, n)
		}
	})
}

func FuzzParseSVID(f *testing.F) {
	p := identitytest.New(f).Issue(f, press, nil)
	f.Add(p.Cert, p.Key)
	f.Fuzz(func(t *testing.T, cert, key []byte) {
		if s, err := identity.ParseSVID("x", cert, "y", key); err == nil && s.Name.Manager == "" {
			t.Fatal("an SVID without a name")
		}
	})
}
