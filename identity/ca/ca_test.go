package ca_test

import (
	"errors"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/ca"
)

// What the authority signs passes the profile's checks, also after it was written and read.
func TestIssue(t *testing.T) {
	const domain = "plant.acme.example"
	made, err := ca.New(domain, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	cert, key, err := made.Files()
	if err != nil {
		t.Fatal(err)
	}
	a, err := ca.Open(cert, key)
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []identity.Name{{TrustDomain: domain, Manager: "main"}, {TrustDomain: domain, Manager: "main", Client: "press-07"}} {
		cert, key, err := a.Issue(name, time.Now(), time.Hour)
		if err != nil {
			t.Fatal(err)
		}
		svid, err := identity.ParseSVID("a", cert, "b", key)
		if err != nil || svid.Name != name {
			t.Fatalf("ParseSVID = %+v, %v", svid, err)
		}
		if err := (&identity.Credentials{SVID: svid, Bundle: made.Bundle()}).Check(time.Now()); err != nil {
			t.Error(err)
		}
	}
	for what, err := range map[string]error{
		"another domain": func() error {
			_, _, err := a.Issue(identity.Name{TrustDomain: "x", Manager: "y"}, time.Now(), time.Hour)
			return err
		}(),
		"longer than itself": func() error {
			_, _, err := a.Issue(identity.Name{TrustDomain: domain, Manager: "y"}, time.Now(), ca.Lifetime+time.Hour)
			return err
		}(),
		"no domain": func() error { _, err := ca.New("Not A Domain", time.Now()); return err }(),
		"another key": func() error {
			_, k, _ := a.Issue(identity.Name{TrustDomain: domain, Manager: "y"}, time.Now(), time.Hour)
			_, err := ca.Open(cert, k)
			return err
		}(),
		"no PEM": func() error { _, err := ca.Open(nil, nil); return err }(),
	} {
		if !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
