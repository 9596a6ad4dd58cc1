package agenttest

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	foreign "github.com/longshore-dev/longshore/testenv/manager"
)

// ManagerURL is where the manager of a world is.
const ManagerURL = "https://manager.example"

// Manage has the device take orders from a manager that is not ours. Components and images stay in the registry. The manager is
// called without a network, unless edit, which may be nil, says otherwise.
func (w *World) Manage(t *testing.T, edit func(*manager.Options)) {
	t.Helper()
	w.Manager = foreign.New(string(Device))
	w.Manager.Token("secret", string(Device))
	w.Connect(t, edit)
}

// Connect makes the device's connection to the manager; edit may be nil.
func (w *World) Connect(t *testing.T, edit func(*manager.Options)) {
	t.Helper()
	o := manager.Options{URL: ManagerURL, Device: string(Device), Epoch: "e", Now: w.Now, Transport: direct{w}}
	if edit != nil {
		edit(&o)
	}
	var err error
	if w.client, err = manager.New(o); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.client.Close)
}

// Managed reports whether the device takes orders from a manager.
func (w *World) Managed() bool { return w.Manager != nil }

// source is the manager as an agent's source, anew for each agent.
func (w *World) source(s *store.Store) *manager.Source {
	return manager.NewSource(w.client, w.Registry, w.SignedIn, func() (d digest.Digest) {
		_ = s.View(func(tx *store.Tx) error { // an agent asks without it, too
			accepted, err := tx.State(store.Accepted)
			if accepted != nil && accepted.MediaType == artifacts.TypeState {
				d = accepted.Digest
			}
			return err
		})
		return d
	})
}

// serve gives the manager what a state has.
func (w *World) serve(t *testing.T, s *artifacts.Artifact) digest.Digest {
	t.Helper()
	x, err := artifacts.OpenState(s.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	var all []foreign.Deployment
	var manifest, bundle []byte
	for _, b := range s.Blobs {
		switch b.Descriptor.MediaType {
		case artifacts.TypeState:
			manifest = b.Data
		case artifacts.TypeBundle:
			bundle = b.Data
		}
		if b.Descriptor.MediaType == artifacts.TypeDeployment {
			d, err := artifacts.ReadDeployment("deployment", b.Data)
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, foreign.Deployment{ID: d.Document.ID, YAML: b.Data})
		}
	}
	if w.SignedIn != "" {
		return digest.Digest(w.Manager.SetBytes(string(Device), manifest, bundle, all...))
	}
	return digest.Digest(w.Manager.Set(string(Device), x.Generation, all...))
}

// direct calls the manager, as far as [Registry.Fail] and [Registry.Change] let it: "manager GET /api/v1/deployments".
type direct struct{ w *World }

func (d direct) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	what := "manager " + r.Method + " " + r.URL.Path
	reg := d.w.Registry
	reg.mu.Lock()
	err, change := reg.request(what), reg.change
	reg.mu.Unlock()
	if err != nil {
		return nil, err
	}
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer secret")
	rec := httptest.NewRecorder()
	d.w.Manager.ServeHTTP(rec, r)
	res := rec.Result()
	if change != nil && res.StatusCode == http.StatusOK {
		data, err := io.ReadAll(res.Body)
		if err != nil {
			return nil, err
		}
		res.Body = io.NopCloser(bytes.NewReader(change(what, data)))
	}
	return res, nil
}

// Client is the device's connection to the manager.
func (w *World) Client() *manager.Client { return w.client }
