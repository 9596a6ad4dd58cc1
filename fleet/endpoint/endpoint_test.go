package endpoint_test

import (
	"context"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/endpoint"
	"github.com/longshore-dev/longshore/fleet/rollout"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var noon = time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)

const deploymentID = "a3e2f5dc-912e-494f-8395-%012d"

// views are those of the real endpoint, over devices of which every third has failed.
func views(t *testing.T, devices int) http.Handler {
	t.Helper()
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	db.SetQuota(store.Quota{Deployments: 10, Children: 10_000, Bytes: 1 << 30})
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	gateway := store.Capabilities{Device: "gateway-1", Body: []byte(`{"properties":{"id":"gateway-1","vendor":"v","modelNumber":"m","serialNumber":"s"}}`), By: "gateway-1", At: noon}
	if _, err := db.PutCapabilities(t.Context(), gateway); err != nil {
		t.Fatal(err)
	}
	for i := range devices {
		id := name(i)
		body := fmt.Sprintf(`{"properties":{"id":%q,"vendor":"v","modelNumber":"m","serialNumber":"s"},"x-longshore-extensions":{"agentVersion":"1.0.0",`+
			`"acceptedGeneration":4,"digest":%q,"runningGeneration":4,"committedGeneration":3,"progress":{"phase":"probation","since":"2026-11-20T12:00:00Z","generation":4,"history":[]},"refused":{"digest":%q,"generation":5,"code":"signature-invalid","message":"no key"}}}`,
			id, digest.FromString("4"), digest.FromString("5"))
		r := store.Capabilities{Device: id, Body: []byte(body), By: id, At: noon}
		status.Summarize(&r)
		if _, err := db.PutCapabilities(t.Context(), r); err != nil {
			t.Fatal(err)
		}
		for n := range 2 {
			state, told := margo.StateInstalled, ""
			if i%3 == 0 && n == 1 {
				state, told = margo.StateFailed, `,"error":{"code":"unhealthy","source":"web","message":"no answer"}`
			}
			body := fmt.Sprintf(`{"deploymentId":%q,"deviceId":%q,"adoptedManifestVersion":4,"status":{"state":%q%s},"components":[]}`, fmt.Sprintf(deploymentID, n), id, state, told)
			if _, err := db.PutStatus(t.Context(), store.Status{Device: id, Deployment: fmt.Sprintf(deploymentID, n), State: state, Body: []byte(body), By: id, At: noon}); err != nil {
				t.Fatal(err)
			}
		}
	}
	return status.Views(&status.Viewer{View: db, Now: func() time.Time { return noon }, Logger: slog.New(slog.DiscardHandler)})
}

func name(i int) string { return fmt.Sprintf("gateway-1/press-%04d", i) }

func serve(t *testing.T, h http.Handler) string {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s.URL
}

func client(t *testing.T, o endpoint.Options) *endpoint.Client {
	t.Helper()
	c, err := endpoint.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// Few devices one by one and many in pages are told the same.
func TestLook(t *testing.T) {
	const devices = 1203 // more than a page; of deployments there are three
	c := client(t, endpoint.Options{URL: serve(t, views(t, devices)) + "/"})
	var all []artifacts.DeviceID
	for i := range devices {
		all = append(all, artifacts.DeviceID(name(i)))
	}
	many, err := c.Look(t.Context(), append(all, "never-heard"))
	if err != nil || len(many) != devices {
		t.Fatalf("%d devices, %v", len(many), err)
	}
	few, err := c.Look(t.Context(), []artifacts.DeviceID{all[0], all[1], all[1200], "never-heard", "never/heard"})
	if err != nil || len(few) != 3 {
		t.Fatalf("%d devices, %v", len(few), err)
	}
	for id, s := range few {
		if diff := cmp.Diff(s, many[id]); diff != "" {
			t.Errorf("%s: (-one -of many):\n%s", id, diff)
		}
	}
	want := &rollout.DeviceReport{
		Heard: noon, Agent: "1.0.0", Accepted: 4, Running: 4, Committed: 3, Digest: digest.FromString("4"),
		Refused:  &artifacts.CurrentRefusal{Digest: digest.FromString("5"), Generation: 5, Code: "signature-invalid", Message: "no key"},
		Progress: &artifacts.CurrentProgress{Phase: "probation", Since: time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC), Generation: 4},
		Deployments: []rollout.DeploymentReport{
			{ID: fmt.Sprintf(deploymentID, 0), Generation: 4, State: margo.StateInstalled},
			{ID: fmt.Sprintf(deploymentID, 1), Generation: 4, State: margo.StateFailed, Error: "unhealthy: no answer"},
		},
	}
	if diff := cmp.Diff(want, few[all[1200]]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// A device with more deployments than fit into one answer is told completely, and one that is offline as such.
func TestLookFurther(t *testing.T) {
	db, err := store.Open(t.Context(), filepath.Join(t.TempDir(), "fleet.db"), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	r := store.Capabilities{Device: "press-07", By: "press-07", At: noon, Body: []byte(`{"x-longshore-extensions":{"agentVersion":"1","reportIntervalSeconds":60}}`)}
	status.Summarize(&r)
	if _, err := db.PutCapabilities(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	const n = 150
	for i := range n {
		body := fmt.Sprintf(`{"adoptedManifestVersion":4,"status":{"state":"installed","error":{"code":"x","message":%q}}}`, strings.Repeat("y", 30_000))
		if _, err := db.PutStatus(t.Context(), store.Status{Device: "press-07", Deployment: fmt.Sprintf(deploymentID, i), State: margo.StateInstalled, Body: []byte(body), By: "press-07", At: noon}); err != nil {
			t.Fatal(err)
		}
	}
	h := status.Views(&status.Viewer{View: db, Now: func() time.Time { return noon.Add(time.Hour) }, Logger: slog.New(slog.DiscardHandler)})
	seen, err := client(t, endpoint.Options{URL: serve(t, h)}).Look(t.Context(), []artifacts.DeviceID{"press-07"})
	if err != nil {
		t.Fatal(err)
	}
	s := seen["press-07"]
	ids := map[string]bool{}
	for _, d := range s.Deployments {
		ids[d.ID] = true
	}
	if len(ids) != n || len(s.Deployments) != n || !s.OfflineSince.Equal(noon) {
		t.Errorf("%d deployments, %d different, offline since %v", len(s.Deployments), len(ids), s.OfflineSince)
	}
}

// counted counts requests by path; instead, where it is not nil, answers what is asked of the list.
func counted(h http.Handler, asked map[string]int, mu *sync.Mutex, instead func(w http.ResponseWriter, r *http.Request) bool) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		asked[strings.TrimRight(r.URL.Path, "0123456789")]++
		mu.Unlock()
		if instead == nil || r.URL.Path != "/fleet/v1/devices" || !instead(w, r) {
			h.ServeHTTP(w, r)
		}
	})
}

// Of many devices what they can do is listed: a request for 200. An endpoint that does not list it is asked one by one.
func TestCapabilities(t *testing.T) {
	const devices = 405
	h := views(t, devices)
	ids := []artifacts.DeviceID{"never-heard"}
	for i := range devices {
		ids = append(ids, artifacts.DeviceID(name(i)))
	}
	const list, single = "/fleet/v1/devices", "/fleet/v1/devices/gateway-1/press-"
	older := func(_ http.ResponseWriter, r *http.Request) bool {
		q := r.URL.Query()
		q.Del("capabilities")
		r.URL.RawQuery = q.Encode()
		return false
	}
	long := func(w http.ResponseWriter, _ *http.Request) bool {
		_, _ = w.Write(make([]byte, 64<<20+1))
		return true
	}
	for what, tt := range map[string]struct {
		of      []artifacts.DeviceID
		instead func(http.ResponseWriter, *http.Request) bool
		want    map[string]int
	}{
		"few":      {ids[:3], nil, map[string]int{single: 2, list + "/never-heard": 1}},
		"many":     {ids, nil, map[string]int{list: 3}}, // with the gateway 406
		"an older": {ids[:100], older, map[string]int{list: 3, single: 99}},
		"too long": {ids[:100], long, map[string]int{list: 1, single: 99, list + "/never-heard": 1}},
	} {
		t.Run(what, func(t *testing.T) {
			var mu sync.Mutex
			asked := map[string]int{}
			c := client(t, endpoint.Options{URL: serve(t, counted(h, asked, &mu, tt.instead))})
			told, err := c.Capabilities(t.Context(), tt.of)
			if err != nil || len(told) != len(tt.of)-1 || told["never-heard"] != nil {
				t.Fatalf("%d documents, %v", len(told), err)
			}
			for id, data := range told {
				doc := &margo.DeviceCapabilities{}
				if err := json.Unmarshal(data, doc); err != nil || doc.Properties.ID != string(id) {
					t.Fatalf("%s told %s, %v", id, data, err)
				}
			}
			mu.Lock()
			defer mu.Unlock()
			if diff := cmp.Diff(tt.want, asked); diff != "" {
				t.Errorf("requests (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefusals(t *testing.T) {
	answer := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = w.Write([]byte(body))
		})
	}
	for name, tt := range map[string]struct {
		h    http.Handler
		want error
	}{
		"breaks":               {answer(500, "oops"), fault.ErrTemporary},
		"too fast":             {answer(429, ""), fault.ErrTemporary},
		"asks for a password":  {answer(401, ""), fault.ErrUnauthenticated},
		"lets nobody in":       {answer(403, ""), fault.ErrDenied},
		"a page":               {answer(200, "<html>"), fault.ErrInvalid},
		"something else":       {answer(404, "404 page not found"), fault.ErrInvalid},
		"sends elsewhere":      {http.RedirectHandler("https://example.com", http.StatusFound), fault.ErrInvalid},
		"another device":       {answer(200, `{"id":"x"}`), fault.ErrInvalid},
		"the same page always": {answer(200, `{"devices":[],"next":"a"}`), fault.ErrInvalid},
	} {
		c := client(t, endpoint.Options{URL: serve(t, tt.h)})
		ids := []artifacts.DeviceID{"press-07"}
		if name == "the same page always" {
			for i := range 20 {
				ids = append(ids, artifacts.DeviceID(fmt.Sprint("press-", i)))
			}
		}
		_, err := c.Look(t.Context(), ids)
		if !errors.Is(err, tt.want) {
			t.Errorf("%s: %v, want %v", name, err, tt.want)
		}
		if after, _ := fault.RetryAfter(err); tt.want == fault.ErrTemporary && after != 7*time.Second {
			t.Errorf("%s: retry after %v", name, after)
		}
	}
	gone := httptest.NewServer(http.NotFoundHandler())
	gone.Close()
	c := client(t, endpoint.Options{URL: gone.URL})
	if _, err := c.Look(t.Context(), []artifacts.DeviceID{"a"}); !errors.Is(err, fault.ErrTemporary) ||
		err.Error() != "fleet endpoint "+gone.URL+": connect to "+gone.Listener.Addr().String()+": connection refused: temporarily unavailable" {
		t.Errorf("nobody there: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := c.Look(ctx, []artifacts.DeviceID{"a"}); !errors.Is(err, context.Canceled) {
		t.Errorf("ended: %v", err)
	}
	for _, o := range []endpoint.Options{{URL: "fleet.example"}, {URL: "https://a:b@fleet.example"}, {URL: "https://fleet.example", Password: "a", Token: "b"}, {URL: "https://f", CA: []byte("x")}} {
		if _, err := endpoint.New(o); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("New(%+v) = %v", o, err)
		}
	}
}

// A password and a token go along, and to a server whose certificate is of a CA that is named.
func TestCredentials(t *testing.T) {
	got := ""
	s := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r.Header.Get("Authorization")
		_, _ = w.Write([]byte(`{"id":"a"}`))
	}))
	t.Cleanup(s.Close)
	ca := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	for want, o := range map[string]endpoint.Options{"Basic bG9uZ3Nob3JlOnNlZS1pdA==": {Password: "see-it"}, "Bearer abc": {Token: "abc"}, "": {}} {
		o.URL, o.CA = s.URL, ca
		if _, err := client(t, o).Look(t.Context(), []artifacts.DeviceID{"a"}); err != nil || got != want {
			t.Errorf("%q, want %q; %v", got, want, err)
		}
	}
	if _, err := client(t, endpoint.Options{URL: s.URL}).Look(t.Context(), []artifacts.DeviceID{"a"}); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("an unknown CA: %v", err)
	}
}
