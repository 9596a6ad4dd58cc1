package conform

import (
	"context"
	"crypto"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"sync/atomic"
	"testing"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/fleetserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

const (
	domain    = fleetserver.Domain
	managerID = "spiffe://" + domain + "/margo/wfm/" + fleetserver.Manager
)

func clientID(client string) string { return managerID + "/client/" + client }

// manager is longshore-fleet, as it is built for users, with a registry.
type manager struct {
	*identitytest.Authority
	*fleetserver.Server
	target      Target
	generations atomic.Uint64
}

func startManager(t *testing.T) *manager {
	t.Helper()
	box := testenv.NewBox(t)
	m := &manager{}
	t.Cleanup(func() {
		if t.Failed() && m.Server != nil {
			t.Log(m.Log())
		}
	})
	var err error
	if m.Server, err = fleetserver.Start(t.Context(), box, fleetserver.Options{Clients: "accept: [press-07, press-08, fresh-1]\n"}); err != nil {
		t.Fatal(err)
	}
	if err := m.assign(t.Context(), "press-07", 2); err != nil {
		t.Fatal(err)
	}
	anchor, pair, err := m.Anchor()
	if err != nil {
		t.Fatal(err)
	}
	key, _ := pair.PrivateKey.(crypto.Signer)
	m.Authority = &identitytest.Authority{Certificate: anchor, Key: key}
	other := m.pair(t, clientID("press-08"), nil)
	m.target = Target{
		BaseURL: m.URL, Client: m.pair(t, clientID("press-07"), nil), Anchors: []*x509.Certificate{anchor}, Other: &other,
		Authority: &Authority{anchor, key}, Fresh: "fresh-1", Assign: m.assign,
	}
	return m
}

// assign publishes a state of a device with new deployments.
func (m *manager) assign(ctx context.Context, device string, deployments int) error {
	generation := m.generations.Add(1)
	names := make([]string, deployments)
	for i := range names {
		names[i] = fmt.Sprintf("app-%d-%d", generation, i)
	}
	return m.Publish(ctx, device, generation, names...)
}

// pair is a certificate of the manager's authority.
func (m *manager) pair(t *testing.T, id string, edit func(*x509.Certificate)) tls.Certificate {
	t.Helper()
	p := m.Issue(t, id, edit)
	c, err := tls.X509KeyPair(p.Cert, p.Key)
	if err != nil {
		t.Fatal(err)
	}
	return c
}
