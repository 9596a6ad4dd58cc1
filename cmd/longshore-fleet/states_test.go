package main

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// publisher publishes states into a real registry.
type publisher struct {
	t      *testing.T
	server *testenv.RegistryServer
	repo   *registry.Repository
}

func newPublisher(t *testing.T, kind testenv.Kind) *publisher {
	t.Helper()
	server := testenv.Registry(t, kind)
	client, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	repo, err := client.OpenName(t.Context(), server.Host+"/plant/state")
	if err != nil {
		t.Fatal(err)
	}
	return &publisher{t, server, repo}
}

// publish publishes a generation of a device's state; it returns what was pushed, by digest.
func (p *publisher) publish(device artifacts.DeviceID, generation uint64, names ...string) (*artifacts.StateIndex, map[digest.Digest][]byte) {
	p.t.Helper()
	o := artifacts.StateOptions{Device: device, Generation: generation}
	for _, name := range names {
		d := margo.ApplicationDeployment{
			ID: artifacts.DeploymentID(device, name), Metadata: margo.DeploymentMetadata{Name: name, Namespace: "default", DeviceID: string(device)},
			Spec: margo.DeploymentSpec{ApplicationID: name, DeploymentProfile: margo.DeploymentProfile{Type: "compose", Components: []margo.Component{
				{Name: name, Properties: margo.ComponentProperties{Repository: "oci://" + p.server.Host + "/plant/components/" + name, Revision: "1.0.0", Wait: true}},
			}}},
		}
		b, err := d.Encode()
		if err != nil {
			p.t.Fatal(err)
		}
		o.Deployments = append(o.Deployments, b)
	}
	a, err := artifacts.PackState(o)
	if err == nil {
		_, err = release.Publish(p.t.Context(), p.repo, a, release.PublishOptions{HistoryTag: artifacts.HistoryTag(device.Tag(), generation), Tags: []string{device.Tag()}})
	}
	if err != nil {
		p.t.Fatal(err)
	}
	x, err := artifacts.OpenState(a.Manifest)
	if err != nil {
		p.t.Fatal(err)
	}
	blobs := map[digest.Digest][]byte{}
	for _, b := range a.Blobs {
		blobs[b.Descriptor.Digest] = b.Data
	}
	return x, blobs
}

// poll asks for something as a device with a token.
func poll(t *testing.T, c *http.Client, url, token, known string) (int, []byte) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), "GET", url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Authorization", "Bearer "+token)
	if known != "" {
		r.Header.Set("If-None-Match", known)
	}
	res, err := c.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, b
}

// comes polls until the manifest of a generation comes.
func comes(t *testing.T, c *http.Client, url, token string, generation uint64) []byte {
	t.Helper()
	var manifest []byte
	testenv.Eventually(t, time.Minute, fmt.Sprintf("generation %d", generation), func() error {
		code, body := poll(t, c, url+"/api/v1/deployments", token, "")
		m, err := margo.ParseStateManifest("manifest", body)
		if code != 200 || err != nil || m.ManifestVersion != generation {
			return fmt.Errorf("%d %s", code, body)
		}
		manifest = body
		return nil
	})
	return manifest
}

// Desired state from real registries: the bytes that were pushed; served on while the registry is down, also after a restart; and
// what is new once it is back.
func TestServeDesiredState(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			p := newPublisher(t, kind)
			x, blobs := p.publish("press-07", 1, "web", "db")
			dir := t.TempDir()
			db := filepath.Join(dir, "fleet.db")
			_, token, _ := command(t, "token", "create", "--device", "press-07", "--database", db)
			token = strings.TrimSpace(token)
			args := []string{"--database", db, "--state", "oci://" + p.repo.Name(), "--state-interval", "1s"}
			url, out, stop := serve(t, args...)
			c := client(t)
			same := func(path string, d digest.Digest) {
				t.Helper()
				if code, body := poll(t, c, url+path, token, ""); code != 200 || !bytes.Equal(body, blobs[d]) {
					t.Errorf("GET %s = %d, not the bytes that were pushed: %s", path, code, body)
				}
				if code, body := poll(t, c, url+path, token, `"`+d.String()+`"`); code != 304 || len(body) > 0 {
					t.Errorf("GET %s with If-None-Match = %d %s", path, code, body)
				}
			}
			everything := func() {
				t.Helper()
				same("/api/v1/deployments", x.Manifest.Digest)
				same(margo.BundlePath(x.Bundle.Digest), x.Bundle.Digest)
				m, err := margo.ParseStateManifest("manifest", blobs[x.Manifest.Digest])
				if err != nil || len(m.Deployments) != 2 {
					t.Fatal(m, err)
				}
				for _, d := range m.Deployments {
					same(d.URL, d.Digest)
				}
			}
			everything()
			x, blobs = p.publish("press-07", 2, "web", "sensor")
			comes(t, c, url, token, 2)
			everything()
			p.server.Down()
			everything()
			if code := stop(); code != 0 {
				t.Errorf("serve = %d\n%s", code, out)
			}
			url, _, _ = serve(t, args...)
			everything()
			if err := p.server.Up(); err != nil {
				t.Fatal(err)
			}
			p.publish("press-07", 3)
			if got, want := string(comes(t, c, url, token, 3)), `{"bundle":null,"deployments":[],"manifestVersion":3}`; got != want {
				t.Errorf("manifest = %s, want %s", got, want)
			}
			_, metrics := poll(t, c, url+"/metrics", "", "")
			for _, want := range []string{"longshore_fleet_clients 1\n", `longshore_fleet_state_looks_total{outcome="changed"} `, `longshore_fleet_desired_total{kind="unchanged"} `} {
				if !strings.Contains(string(metrics), want) {
					t.Errorf("/metrics lacks %q", want)
				}
			}
		})
	}
}

// A revoked token gets no desired state a moment later, though polls ask no database.
func TestRevokedTokenPolls(t *testing.T) {
	p := newPublisher(t, testenv.Distribution)
	p.publish("press-07", 1, "web")
	db := filepath.Join(t.TempDir(), "fleet.db")
	_, token, _ := command(t, "token", "create", "--device", "press-07", "--database", db)
	token = strings.TrimSpace(token)
	url, _, _ := serve(t, "--database", db, "--state", p.repo.Name())
	c := client(t)
	comes(t, c, url, token, 1)
	if code, _, errs := command(t, "token", "revoke", "--device", "press-07", "--database", db); code != 0 {
		t.Fatal(errs)
	}
	for until := time.Now().Add(time.Minute); ; {
		if code, _ := poll(t, c, url+"/api/v1/deployments", token, ""); code == 403 {
			break
		}
		if time.Now().After(until) {
			t.Fatal("a revoked token is good for a minute")
		}
		<-time.After(50 * time.Millisecond)
	}
}
