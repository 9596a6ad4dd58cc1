package conform

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/identity/identitytest"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

const (
	domain    = "plant.acme.example"
	managerID = "spiffe://" + domain + "/margo/wfm/main"
	startTime = 20 * time.Second
)

func clientID(client string) string { return managerID + "/client/" + client }

// manager is longshore-fleet, as it is built for users, with a registry.
type manager struct {
	*identitytest.Authority
	target      Target
	repo        *registry.Repository
	server      *testenv.RegistryServer
	generations atomic.Uint64
}

func startManager(t *testing.T) *manager {
	t.Helper()
	dir := t.TempDir()
	m := &manager{Authority: identitytest.New(t), server: testenv.Registry(t, testenv.Distribution)}
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	if m.repo, err = client.OpenName(t.Context(), m.server.Host+"/plant/state"); err != nil {
		t.Fatal(err)
	}
	if err := m.assign(t.Context(), "press-07", 2); err != nil {
		t.Fatal(err)
	}
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	address := fmt.Sprintf("127.0.0.1:%d", port)
	cert, key := m.Issue(t, managerID, nil).Write(t, dir, "main")
	bundle, clients := filepath.Join(dir, "bundle.pem"), filepath.Join(dir, "clients.yaml")
	identitytest.Write(t, bundle, m.PEM())
	identitytest.Write(t, clients, []byte("accept: [press-07, press-08, fresh-1]\n"))
	if err := testenv.BuildOwn(t.Context(), dir, "longshore-fleet"); err != nil {
		t.Fatal(err)
	}
	m.run(t, filepath.Join(dir, "longshore-fleet"), "serve", "--database", filepath.Join(dir, "fleet.db"), "--listen", "127.0.0.1:0", "--mtls-listen", address,
		"--svid-cert", cert, "--svid-key", key, "--trust-bundle", bundle, "--clients", clients, "--trust-bundle-uri", "https://"+address+"/.well-known/spiffe/bundle.json",
		"--state", m.repo.Name(), "--state-interval", "1s")
	other := m.pair(t, clientID("press-08"), nil)
	m.target = Target{
		BaseURL: "https://" + address, Client: m.pair(t, clientID("press-07"), nil), Anchors: []*x509.Certificate{m.Certificate}, Other: &other,
		Authority: &Authority{m.Certificate, m.Key}, Fresh: "fresh-1", Assign: m.assign,
	}
	return m
}

// run starts the program and waits until it listens.
func (m *manager) run(t *testing.T, argv ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), argv[0], argv[1:]...)
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = startTime
	out, err := cmd.StderrPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	ready, done := make(chan struct{}), make(chan struct{})
	var log strings.Builder // until done is closed, of the goroutine
	go func() {
		defer close(done)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			fmt.Fprintln(&log, lines.Text())
			if strings.Contains(lines.Text(), " mtls=") {
				close(ready)
			}
		}
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		<-done
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("longshore-fleet:\n%s", log.String())
		}
	})
	select {
	case <-ready:
	case <-done:
		t.Fatal("longshore-fleet ended")
	case <-time.After(startTime):
		t.Fatal("longshore-fleet does not listen")
	}
}

// assign publishes a state of a device with new deployments.
func (m *manager) assign(ctx context.Context, device string, deployments int) error {
	generation := m.generations.Add(1)
	o := artifacts.StateOptions{Device: artifacts.DeviceID(device), Generation: generation}
	for i := range deployments {
		name := fmt.Sprintf("app-%d-%d", generation, i)
		d := margo.ApplicationDeployment{
			ID: artifacts.DeploymentID(o.Device, name), Metadata: margo.DeploymentMetadata{Name: name, Namespace: "default", DeviceID: device},
			Spec: margo.DeploymentSpec{ApplicationID: name, DeploymentProfile: margo.DeploymentProfile{Type: "compose", Components: []margo.Component{
				{Name: name, Properties: margo.ComponentProperties{Repository: "oci://" + m.server.Host + "/plant/components/" + name, Revision: "1.0.0", Wait: true}},
			}}},
		}
		b, err := d.Encode()
		if err != nil {
			return err
		}
		o.Deployments = append(o.Deployments, b)
	}
	a, err := artifacts.PackState(o)
	if err == nil {
		_, err = release.Publish(ctx, m.repo, a, release.PublishOptions{HistoryTag: artifacts.HistoryTag(o.Device.Tag(), generation), Tags: []string{o.Device.Tag()}})
	}
	return err
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
