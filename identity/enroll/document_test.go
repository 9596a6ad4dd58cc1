package enroll_test

import (
	"bytes"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/json"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/ca"
	"github.com/longshore-dev/longshore/identity/enroll"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

func TestParseRequest(t *testing.T) {
	key, other := identitytest.NewKey(t), identitytest.NewKey(t)
	r, err := enroll.NewRequest(key)
	if err != nil {
		t.Fatal(err)
	}
	r.Device, r.Token, r.About = "press-07", "lsj_a_b", enroll.About{Hostname: strings.Repeat("ä", 300)}
	encode := func(r enroll.Request) []byte {
		data, err := json.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		return data
	}
	got, err := enroll.ParseRequest(encode(r), key.Public())
	r.About.Hostname = r.About.Hostname[:256]
	if diff := cmp.Diff(r, got); err != nil || diff != "" {
		t.Errorf("ParseRequest: %v (-want +got):\n%s", err, diff)
	}
	forged := r
	forged.CSR = bytes.Clone(r.CSR)
	forged.CSR[len(forged.CSR)-1] ^= 1
	if _, err := enroll.ParseRequest(encode(forged), key.Public()); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "signature") {
		t.Errorf("a forged signature: %v", err)
	}
	if _, err := enroll.ParseRequest(encode(r), other.Public()); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "another key") {
		t.Errorf("on the connection of another key: %v", err)
	}
	for _, bad := range []string{"", "{", "[]", "{} {}", `{"csr":"AAAA"}`, `{"csr":1}`} {
		if _, err := enroll.ParseRequest([]byte(bad), key.Public()); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("ParseRequest(%q): %v", bad, err)
		}
	}
	if _, err := enroll.ParseRequest(make([]byte, enroll.MaxRequest+1), key.Public()); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("a long request: %v", err)
	}
	if _, err := enroll.ParseRequest([]byte(`{"check":true}`), key.Public()); err != nil {
		t.Errorf("a check: %v", err)
	}
}

// A certificate request of a key that is slow to check, by a client whose connection has another one, costs the manager nothing.
func TestRequestOfAHugeKey(t *testing.T) {
	const size = 18 << 10 // bytes: seconds
	modulus := bytes.Repeat([]byte{0xab}, size)
	public, err := x509.MarshalPKIXPublicKey(&rsa.PublicKey{N: new(big.Int).SetBytes(modulus), E: 1<<31 - 1})
	if err != nil {
		t.Fatal(err)
	}
	signature := bytes.Repeat([]byte{0x55}, size)
	csr, err := asn1.Marshal(struct {
		Info struct {
			Version    int
			Subject    pkix.RDNSequence
			Key        asn1.RawValue
			Attributes asn1.RawValue
		}
		Algorithm pkix.AlgorithmIdentifier
		Signature asn1.BitString
	}{
		Info: struct {
			Version    int
			Subject    pkix.RDNSequence
			Key        asn1.RawValue
			Attributes asn1.RawValue
		}{Key: asn1.RawValue{FullBytes: public}, Attributes: asn1.RawValue{Class: asn1.ClassContextSpecific, IsCompound: true}},
		Algorithm: pkix.AlgorithmIdentifier{Algorithm: asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 11}, Parameters: asn1.NullRawValue},
		Signature: asn1.BitString{Bytes: signature, BitLength: 8 * size},
	})
	if err != nil {
		t.Fatal(err)
	}
	data, err := json.Marshal(enroll.Request{CSR: csr})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := enroll.ParseRequest(data, identitytest.NewKey(t).Public()); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "another key") {
		t.Errorf("ParseRequest = %v", err)
	}
}

func FuzzParseRequest(f *testing.F) {
	key := identitytest.NewKey(f)
	r, err := enroll.NewRequest(key)
	if err != nil {
		f.Fatal(err)
	}
	good, err := json.Marshal(r)
	if err != nil {
		f.Fatal(err)
	}
	f.Add(good)
	f.Add([]byte(`{"check":true,"about":{"hostname":"\ud800"}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		r, err := enroll.ParseRequest(data, key.Public())
		if err == nil && !r.Check && len(r.CSR) == 0 {
			t.Error("a request without a certificate request")
		}
	})
}

func FuzzParseAnswer(f *testing.F) {
	f.Add([]byte(`{"status":"pending","retryAfterSeconds":5}`))
	f.Add([]byte(`{"status":"approved","grant":{"certificate":"x","trustBundle":{},"manager":"x","source":{"margo":true}}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := enroll.ParseAnswer(data)
		if err == nil && a.Grant != nil && (a.Status != enroll.Approved || a.Grant.Trust != nil && a.Grant.Trust.Digest != digest.FromString(a.Grant.Trust.Document)) {
			t.Errorf("ParseAnswer = %+v", a)
		}
		if d := a.RetryAfter(); d < time.Second || d > 10*time.Minute {
			t.Errorf("RetryAfter = %s", d)
		}
	})
}

// A grant that passes is for this key, this manager and a device, and leads to the trust bundle that it brings.
func FuzzGrant(f *testing.F) {
	a, err := ca.New(managerName.TrustDomain, time.Now())
	if err != nil {
		f.Fatal(err)
	}
	key, now := identitytest.NewKey(f), time.Now()
	for _, client := range []string{"press-07", ""} {
		name := managerName
		name.Client = client
		c, err := a.Certify(key.Public(), name, now, time.Hour)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(pemOf(c.Raw)), []byte(a.Bundle().JSON()))
		f.Add(string(pemOf(c.Raw)), []byte(`{"keys":[]}`))
	}
	f.Fuzz(func(t *testing.T, certificate string, bundle []byte) {
		g := &enroll.Grant{Certificate: certificate, TrustBundle: bundle}
		c, err := g.Check(enroll.Expected{Key: key, Manager: managerName, Now: now})
		if err == nil && (c.SVID.Name.ManagerName() != managerName || c.SVID.Name.Client == "" || len(c.Bundle.Anchors()) == 0) {
			t.Errorf("Check = %+v", c)
		}
	})
}

func TestGrant(t *testing.T) {
	a := authority(t)
	key := identitytest.NewKey(t)
	now := time.Now()
	name := managerName
	name.Client = "press-07"
	issue := func(name identity.Name) *enroll.Grant {
		c, err := a.Certify(key.Public(), name, now, time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		return &enroll.Grant{Certificate: string(pemOf(c.Raw)), TrustBundle: a.Bundle().JSON(), Registries: []enroll.Login{{Host: "harbor.acme.example", Username: "robot$a", Password: "b:c"}}}
	}
	good := enroll.Expected{Key: key, Device: "press-07", Manager: managerName, Now: now}
	with := func(edit func(*enroll.Expected)) enroll.Expected { e := good; edit(&e); return e }
	other := name
	other.Manager = "other"
	for what, tt := range map[string]struct {
		grant *enroll.Grant
		e     enroll.Expected
		want  string
	}{
		"another key":          {issue(name), with(func(e *enroll.Expected) { e.Key = identitytest.NewKey(t) }), "of another key"},
		"another device":       {issue(name), with(func(e *enroll.Expected) { e.Device = "press-08" }), "as press-07, and not as press-08"},
		"another manager":      {issue(other), good, "and the manager is"},
		"a manager":            {issue(managerName), good, "not for a device"},
		"a clock that is slow": {issue(name), with(func(e *enroll.Expected) { e.Now = now.Add(-time.Hour) }), "is valid from"},
		"a clock that is fast": {issue(name), with(func(e *enroll.Expected) { e.Now = now.Add(2 * time.Hour) }), "expired at"},
	} {
		if _, err := tt.grant.Check(tt.e); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v, want %q", what, err, tt.want)
		}
	}
	stranger := issue(name)
	stranger.TrustBundle = authority(t).Bundle().JSON()
	if _, err := stranger.Check(good); err == nil || !strings.Contains(err.Error(), "leads to no authority") {
		t.Errorf("another trust bundle: %v", err)
	}
	g := issue(name)
	if c, err := g.Check(good); err != nil || c.SVID.Name != name {
		t.Fatalf("Check: %v", err)
	}
	dir := enroll.Dir(filepath.Join(t.TempDir(), "identity"))
	for range 2 {
		if err := dir.Save(g); err != nil {
			t.Fatal(err)
		}
	}
	for _, f := range []string{dir.Certificate(), dir.Bundle(), dir.Logins()} {
		if info, err := os.Stat(f); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", f, info.Mode(), err)
		}
	}
	if _, err := os.Stat(dir.RegistryCA()); !os.IsNotExist(err) {
		t.Errorf("a file of no authority: %v", err)
	}
	if data, err := os.ReadFile(dir.Logins()); err != nil || !strings.Contains(string(data), `"auth": "cm9ib3QkYTpiOmM="`) {
		t.Errorf("logins: %s, %v", data, err)
	}
	if _, to, err := enroll.Lifetime(dir.Certificate()); err != nil || to.Sub(now).Abs() > time.Hour+time.Minute {
		t.Errorf("Lifetime = %s, %v", to, err)
	}
}

// A trust bundle that would cost the device its manager is not saved.
func TestSaveBundle(t *testing.T) {
	a, next := authority(t), authority(t)
	name := managerName
	name.Client = "press-07"
	own, err := a.Manager(name, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "bundle.json")
	identitytest.Write(t, file, a.Bundle().JSON())
	if err := enroll.SaveBundle(file, next.Bundle().JSON(), own, time.Now()); !errors.Is(err, fault.ErrUnauthenticated) {
		t.Errorf("a bundle without the own authority: %v", err)
	}
	one, _, _ := a.Files()
	two, _, _ := next.Files()
	both, err := identity.ParseBundle("both", append(one, two...), "plant.acme.example")
	if err != nil {
		t.Fatal(err)
	}
	if err := enroll.SaveBundle(file, both.JSON(), own, time.Now()); err != nil {
		t.Fatal(err)
	}
	if data, err := os.ReadFile(file); err != nil || !bytes.Equal(data, both.JSON()) {
		t.Errorf("the new bundle is not saved: %v", err)
	}
}
