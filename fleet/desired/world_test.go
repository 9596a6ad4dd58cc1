package desired_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/desired"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const (
	repository = fleettest.Base + "/state"
	every      = 30 * time.Second
)

// content is a disk in memory.
type content struct {
	mu   sync.Mutex
	data map[digest.Digest][]byte
}

func (c *content) Put(_ context.Context, d ocispec.Descriptor, data []byte) error {
	if digest.FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
		return fault.ErrDigestMismatch
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.data[d.Digest] = data
	return nil
}

func (c *content) Get(_ context.Context, d digest.Digest) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.data[d]
	if !ok {
		return nil, fault.ErrNotFound
	}
	return data, nil
}

type file struct{ *bytes.Reader }

func (file) Close() error { return nil }

func (c *content) Open(ctx context.Context, d digest.Digest) (io.ReadSeekCloser, error) {
	data, err := c.Get(ctx, d)
	return file{bytes.NewReader(data)}, err
}

func (c *content) Retain(_ context.Context, keep []digest.Digest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.data, func(d digest.Digest, _ []byte) bool { return !slices.Contains(keep, d) })
	return nil
}

// counting counts what the database is asked.
type counting struct {
	*store.SQLite
	asked atomic.Int64
}

func (c *counting) Manifest(ctx context.Context, client string) (store.Manifest, error) {
	c.asked.Add(1)
	return c.SQLite.Manifest(ctx, client)
}

func (c *counting) PutManifest(ctx context.Context, m store.Manifest) error {
	c.asked.Add(1)
	return c.SQLite.PutManifest(ctx, m)
}

func (c *counting) Token(ctx context.Context, id string) (store.Token, error) {
	c.asked.Add(1)
	return c.SQLite.Token(ctx, id)
}

// world is an endpoint that serves desired state from a registry of maps. The header Client says who asks: a device, or several
// with commas.
type world struct {
	t     testing.TB
	reg   *fleettest.Registry
	disk  *content
	db    *counting
	clock atomic.Int64
	log   bytes.Buffer
	view  *desired.View
	http  *httptest.Server
}

func newWorld(t testing.TB, change ...func(*desired.Options)) *world {
	t.Helper()
	w := &world{t: t, reg: fleettest.New(), disk: &content{data: map[digest.Digest][]byte{}}}
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	w.db = &counting{SQLite: db}
	w.start(change...)
	t.Cleanup(func() {
		w.http.Close()
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// start starts the endpoint, with the disk and the database that there are.
func (w *world) start(change ...func(*desired.Options)) {
	o := desired.Options{
		Sources: []desired.Source{w.reg.At(repository)}, Content: w.disk, Manifests: w.db, Every: every, Now: w.now,
		Logger: slog.New(slog.NewTextHandler(&w.log, nil)),
	}
	for _, f := range change {
		f(&o)
	}
	if w.http != nil {
		w.http.Close()
	}
	w.view = desired.New(o)
	w.http = httptest.NewServer(status.API(status.Options{
		Store: w.db, Now: w.now, Logger: slog.New(slog.DiscardHandler), Desired: w.view,
		Identify: func(r *http.Request) (status.Client, error) {
			switch who := r.Header.Get("Client"); {
			case who == "":
				return status.Client{}, status.Denied("nobody")
			case strings.Contains(who, ","):
				return status.Client{ID: "client:line", Devices: strings.Split(who, ",")}, nil
			default:
				return status.DeviceClient(who), nil
			}
		},
	}))
}

// began is real time: connections have deadlines by it.
var began = time.Now()

func (w *world) now() time.Time {
	return began.Add(time.Duration(w.clock.Load()))
}

func (w *world) discard() *slog.Logger { return slog.New(slog.DiscardHandler) }

// later lets so much time pass that the next poll waits for a look.
func (w *world) later() { w.clock.Add(int64(20 * every)) }

// logs asks for a client's manifest until the log has a text: on a busy machine one look is too short to fetch thousands of deployments.
func (w *world) logs(client, text string) {
	w.t.Helper()
	for range 20 {
		w.later()
		w.get(client, "/api/v1/deployments")
		if strings.Contains(w.log.String(), text) {
			return
		}
	}
	w.t.Fatalf("the log lacks %q:\n%s", text, &w.log)
}

// publish publishes a state of a device, with a deployment for each name.
func (w *world) publish(device artifacts.DeviceID, generation uint64, names ...string) *artifacts.Artifact {
	w.t.Helper()
	var documents [][]byte
	for _, name := range names {
		documents = append(documents, document(w.t, device, name, fmt.Sprint("1.0.", generation)))
	}
	return w.push(artifacts.StateOptions{Device: device, Generation: generation, Deployments: documents})
}

func (w *world) push(o artifacts.StateOptions) *artifacts.Artifact {
	w.t.Helper()
	a, err := artifacts.PackState(o)
	if err != nil {
		w.t.Fatal(err)
	}
	w.reg.Push(repository, o.Device.Tag(), a)
	return a
}

func document(t testing.TB, device artifacts.DeviceID, name, version string) []byte {
	t.Helper()
	d := margo.ApplicationDeployment{
		ID:       artifacts.DeploymentID(device, name),
		Metadata: margo.DeploymentMetadata{Name: name, Namespace: "default", DeviceID: string(device)},
		Spec: margo.DeploymentSpec{ApplicationID: name, DeploymentProfile: margo.DeploymentProfile{
			Type:       "compose",
			Components: []margo.Component{{Name: name, Properties: margo.ComponentProperties{Repository: "oci://" + fleettest.Base + "/components/" + name, Revision: version, Wait: true}}},
		}},
	}
	b, err := d.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// answer is what a request got.
type answer struct {
	code   int
	header http.Header
	body   []byte
}

func (w *world) get(client, path string, header ...string) answer {
	w.t.Helper()
	return w.do("GET", client, path, header...)
}

func (w *world) do(method, client, path string, header ...string) answer {
	w.t.Helper()
	return w.send(method, client, path, "", header...)
}

func (w *world) send(method, client, path, body string, header ...string) answer {
	w.t.Helper()
	r, err := http.NewRequestWithContext(w.t.Context(), method, w.http.URL+path, strings.NewReader(body))
	if err != nil {
		w.t.Fatal(err)
	}
	r.Header.Set("Client", client)
	if body != "" {
		r.Header.Set("Content-Type", "application/json")
	}
	for i := 0; i < len(header); i += 2 {
		r.Header.Add(header[i], header[i+1])
	}
	res, err := w.http.Client().Do(r)
	if err != nil {
		w.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		w.t.Fatal(err)
	}
	return answer{res.StatusCode, res.Header, b}
}

// manifest polls and wants a manifest of a version.
func (w *world) manifest(client string, version uint64) *margo.StateManifest {
	w.t.Helper()
	a := w.get(client, "/api/v1/deployments")
	if a.code != 200 {
		w.t.Fatalf("GET deployments as %s = %d %s\n%s", client, a.code, a.body, &w.log)
	}
	m, err := margo.ParseStateManifest("manifest", a.body)
	if err != nil {
		w.t.Fatal(err)
	}
	if m.ManifestVersion != version {
		w.t.Errorf("manifestVersion for %s = %d, want %d\n%s", client, m.ManifestVersion, version, &w.log)
	}
	if want := `"` + digest.FromBytes(a.body).String() + `"`; a.header.Get("ETag") != want {
		w.t.Errorf("ETag = %s, want %s", a.header.Get("ETag"), want)
	}
	return m
}

// complete wants everything that a manifest names, and the bundle to hold exactly its deployments.
func (w *world) complete(client string, m *margo.StateManifest) {
	w.t.Helper()
	var single []digest.Digest
	for _, d := range m.Deployments {
		a := w.get(client, d.URL)
		if a.code != 200 || digest.FromBytes(a.body) != d.Digest {
			w.t.Fatalf("GET %s = %d %s", d.URL, a.code, a.body)
		}
		single = append(single, d.Digest)
	}
	if m.Bundle == nil {
		return
	}
	a := w.get(client, m.Bundle.URL)
	if a.code != 200 || digest.FromBytes(a.body) != m.Bundle.Digest {
		w.t.Fatalf("GET %s = %d %s", m.Bundle.URL, a.code, a.body)
	}
	packed, err := artifacts.ReadBundle(a.body)
	if err != nil {
		w.t.Fatal(err)
	}
	var all []digest.Digest
	for _, d := range packed {
		all = append(all, d.Digest)
	}
	slices.Sort(all)
	slices.Sort(single)
	if !slices.Equal(all, single) {
		w.t.Errorf("the bundle has %v, the manifest names %v", all, single)
	}
}

// asked is how many requests the registry has got.
func (w *world) asked() int {
	w.reg.Lock()
	defer w.reg.Unlock()
	n := 0
	for _, calls := range w.reg.Asked {
		n += calls
	}
	return n
}

func (w *world) away(err error) {
	w.reg.Lock()
	defer w.reg.Unlock()
	w.reg.Err = err
}

var errAway = fmt.Errorf("connection refused: %w", fault.ErrTemporary)

var someID = uuid.MustParse("a3e2f5dc-912e-494f-8395-52cf3769bc06").String()
