package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	devicestore "github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	fleetstatus "github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

// floor is many devices: agents on runtimes in memory, which verify what the real registry of a shell gives them, and
// report to the real fleet endpoint. They hear at once when their tag has moved, which saves the wait for their next poll.
type floor struct {
	most, passed atomic.Int64 // device tags that may be set before the next one hangs, and those that were; most 0: all may

	t         *testing.T
	url       string // of the endpoint
	dir       string
	client    *registry.Client
	verifiers []signing.Verifier
	web       *http.Transport
	ctx       context.Context
	devices   map[string]*floorDevice // by id
	edits     []func(id string, o *agent.Options)
	running   sync.WaitGroup
}

type floorDevice struct {
	*runtimetest.Memory
	agent *agent.Agent
	store *devicestore.Store
	moved chan struct{} // its tag has; capacity 1

	mu  sync.Mutex
	env map[string][]string // of containers
}

// sick is what the environment of a container says that does not run.
const sick = "POLL_SECONDS=666"

// Create remembers the environment.
func (d *floorDevice) Create(ctx context.Context, p *workload.Project, c workload.Container) error {
	d.mu.Lock()
	d.env[c.ID] = c.Service.Environment
	d.mu.Unlock()
	return d.Memory.Create(ctx, p, c)
}

func (d *floorDevice) exitCode(o workload.Observation) int {
	d.mu.Lock()
	defer d.mu.Unlock()
	if slices.Contains(d.env[o.ID], sick) {
		return 1
	}
	return -1
}

// memoryDir is a folder in memory where there is one: so many databases would wait for a disk.
func memoryDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("/dev/shm", "longshore-floor-")
	if err != nil {
		return t.TempDir()
	}
	t.Cleanup(func() {
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return dir
}

func newFloor(t *testing.T, s *shell, ids []string, edits ...func(id string, o *agent.Options)) *floor {
	t.Helper()
	f := &floor{edits: edits, t: t, dir: memoryDir(t), web: &http.Transport{MaxIdleConnsPerHost: 16, MaxConnsPerHost: 16}, devices: map[string]*floorDevice{}}
	t.Cleanup(f.web.CloseIdleConnections)
	quiet := slog.New(slog.DiscardHandler)
	db, err := store.Open(t.Context(), filepath.Join(f.dir, "fleet.db"), quiet)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	mux := http.NewServeMux()
	mux.Handle("/api/v1/", fleetstatus.API(fleetstatus.Options{Store: db, Now: time.Now, Logger: quiet}))
	mux.Handle("/fleet/v1/", fleetstatus.Views(&fleetstatus.Viewer{View: db, Now: time.Now, Logger: quiet}))
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	f.url = server.URL
	if f.client, err = registry.New(registry.Options{CertsDir: s.env["LONGSHORE_CERTS_DIR"]}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(f.client.Close)
	keys, err := publicKeys([]string{"release.pub"})
	if err != nil {
		t.Fatal(err)
	}
	f.verifiers = signing.Verifiers(keys...)
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	f.ctx = ctx
	t.Cleanup(func() { cancel(); f.running.Wait() })
	for _, id := range ids {
		f.devices[id] = f.start(db, id)
	}
	tag := regexp.MustCompile(`/plant/state/manifests/([a-z0-9-]+)$`)
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPut, Path: tag.String(), Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if most := f.most.Load(); most > 0 && f.passed.Add(1) > most {
			_, _ = io.Copy(io.Discard, r.Body) // then the server notices that the client is gone
			<-r.Context().Done()
			return
		}
		next.ServeHTTP(w, r)
		if d := f.devices[tag.FindStringSubmatch(r.URL.Path)[1]]; d != nil {
			select {
			case d.moved <- struct{}{}:
			default: // it knows
			}
		}
	}})
	return f
}

// start runs a device.
func (f *floor) start(db store.Tokens, id string) *floorDevice {
	f.t.Helper()
	token, kept, err := fleetstatus.Mint(time.Now(), artifacts.DeviceID(id))
	if err == nil {
		err = db.AddTokens(f.t.Context(), kept)
	}
	file := filepath.Join(f.dir, id+".token")
	if err == nil {
		err = os.WriteFile(file, []byte(token), 0o600)
	}
	if err != nil {
		f.t.Fatal(err)
	}
	d := &floorDevice{Memory: runtimetest.NewMemory(), moved: make(chan struct{}, 1), env: map[string][]string{}}
	d.Memory.Now, d.Memory.Running = time.Now, d.exitCode
	if d.store, err = devicestore.Open(devicestore.Options{Path: filepath.Join(f.dir, id+".db"), Device: id}); err != nil {
		f.t.Fatal(err)
	}
	reports, err := manager.New(manager.Options{URL: f.url, Device: id, Epoch: d.store.Epoch(), TokenFile: file, Transport: f.web, Now: time.Now})
	if err != nil {
		f.t.Fatal(err)
	}
	yes := true
	o := agent.Options{
		Device: artifacts.DeviceID(id), Repository: host + "/plant/state", Platform: "linux/amd64", Interval: time.Hour, Probation: 300 * time.Millisecond,
		Capabilities: margo.DeviceCapabilities{Properties: margo.DeviceProperties{
			ID: id, Vendor: "v", ModelNumber: "m", SerialNumber: "s", CPUs: []margo.CPU{{Cores: 4, Architecture: "amd64"}}, Memory: "8Gi", Storage: "32Gi",
			OTELCollector: &yes, SupportedRuntimes: []string{"oci"}, SupportedDeploymentTypes: []string{"compose"},
			Peripherals: []margo.Peripheral{}, Interfaces: []margo.Interface{{Type: "ethernet"}},
		}},
		Store: d.store, Source: f.client, Verifier: f, Content: agenttest.NewContent(), Runtime: d, Reporter: reports, Version: "0.0.0-test",
		Logger: slog.New(slog.NewTextHandler(io.Discard, nil)), Now: time.Now,
	}
	for _, edit := range f.edits {
		edit(id, &o)
	}
	if d.agent, err = agent.New(o); err != nil {
		f.t.Fatal(err)
	}
	f.running.Go(func() {
		err := d.agent.Run(f.ctx)
		if err = errors.Join(err, d.store.Close()); err != nil {
			f.t.Errorf("%s: %v", id, err)
		}
	})
	f.running.Go(func() {
		for {
			select {
			case <-f.ctx.Done():
				return
			case <-d.moved:
			}
			_, _ = d.agent.Sync(f.ctx) // what comes of it, the device reports
		}
	})
	return d
}

// Verify implements [intake.Verifier]: states must be signed by release.key.
func (f *floor) Verify(ctx context.Context, kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
	if kind != intake.KindState {
		return intake.Verdict{}, nil
	}
	repo, err := f.client.OpenName(ctx, repository)
	if err != nil {
		return intake.Verdict{}, err
	}
	if _, err := signing.Verify(ctx, repo, d, f.verifiers); err != nil {
		return intake.Verdict{}, err
	}
	return intake.Verdict{SignedBy: []string{"release"}}, nil
}

// settled waits until every device runs the state that its tag names and has reported it, and counts them by generation.
func (f *floor) settled(patience time.Duration) map[uint64]int {
	f.t.Helper()
	out, tags := map[uint64]int{}, f.tags() // a device may not have looked since its tag was moved
	err := testenv.Await(f.t.Context(), patience, func() error {
		clear(out)
		waits := []string{}
		for id, d := range f.devices {
			x := d.agent.Status()
			if x.Committed == nil || x.Accepted == nil || x.Committed.Generation != tags[id] || x.Accepted.Generation != tags[id] || x.Phase != status.PhaseInSync || x.Outbox.Depth > 0 {
				waits = append(waits, id)
				continue
			}
			out[x.Committed.Generation]++
		}
		if len(waits) > 0 {
			slices.Sort(waits)
			return fmt.Errorf("%d of %d devices are not in sync, or have not reported it: %s", len(waits), len(f.devices), strings.Join(waits[:min(3, len(waits))], ", "))
		}
		return nil
	})
	if err != nil {
		f.t.Fatal(err)
	}
	return out
}

// tags reads which generation each device's tag names, from the registry.
func (f *floor) tags() map[string]uint64 {
	f.t.Helper()
	out := map[string]uint64{}
	for id := range f.devices {
		d, err := f.client.Resolve(f.t.Context(), host+"/plant/state", id)
		if err != nil {
			f.t.Fatal(err)
		}
		_, manifest, err := f.client.Manifest(f.t.Context(), host+"/plant/state", d.Digest)
		if err != nil {
			f.t.Fatal(err)
		}
		x, err := artifacts.OpenState(manifest)
		if err != nil {
			f.t.Fatal(err)
		}
		out[id] = x.Generation
	}
	return out
}

// changes are those that the device holds back.
func (d *floorDevice) changes(t *testing.T) []status.Change {
	t.Helper()
	all, err := d.agent.Changes(t.Context())
	if err != nil || len(all) == 0 {
		t.Fatal(all, err)
	}
	return all
}
