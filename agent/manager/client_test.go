package manager_test

import (
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func client(t *testing.T, url string, edit func(*manager.Options)) *manager.Client {
	t.Helper()
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("s3cret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	o := manager.Options{
		URL: url, Device: "press-07", Epoch: "e", TokenFile: token, UserAgent: "longshore-agent/test",
		Now: func() time.Time { return time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC) },
	}
	if edit != nil {
		edit(&o)
	}
	c, err := manager.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

func TestRequests(t *testing.T) {
	var got []string
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body) // the assertion below sees what arrived
		got = append(got, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization")+" "+r.Header.Get(manager.HeaderSequence)+
			" "+r.Header.Get(manager.HeaderEpoch)+" "+r.Header.Get(manager.HeaderDevice)+" "+r.Header.Get(manager.HeaderInterval)+" "+r.Header.Get("Content-Type")+" "+string(b))
		w.WriteHeader(http.StatusCreated)
	}))
	defer srv.Close()
	c := client(t, srv.URL+"/margo/", func(o *manager.Options) { o.Interval = 5 * time.Minute })
	for _, r := range []store.Report{
		{Sequence: 1, Kind: "capabilities", Subject: "gw/press-07", Body: []byte(`{"a":1}`)},
		{Sequence: 2, Kind: "status", Subject: "d-1", Body: []byte(`{"b":2}`)},
	} {
		if _, err := c.Deliver(t.Context(), r); err != nil {
			t.Fatal(err)
		}
	}
	want := []string{
		`PUT /margo/api/v1/capabilities/gw/press-07 Bearer s3cret 1 e press-07 300 application/json {"a":1}`,
		`POST /margo/api/v1/deployments/d-1/status Bearer s3cret 2 e press-07 300 application/json {"b":2}`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("requests (-want +got):\n%s", diff)
	}
}

func TestDeliver(t *testing.T) {
	problem := `{"type":"about:blank","title":"no","status":422,"retryable":true,"retryAfterSeconds":7,"errors":[{"field":"f","message":"m"}]}`
	says := map[string]string{"Content-Type": "application/problem+json"}
	kind := func(name string, status int) string {
		return fmt.Sprintf(`{"type":"https://docs.margo.org/specification/problem-types#%s","title":"no","status":%d,"retryable":false}`, name, status)
	}
	for _, tc := range []struct {
		name    string
		status  int
		header  map[string]string
		body    string
		keep    bool
		after   time.Duration
		message string
	}{
		{"created", 201, nil, "", false, 0, ""},
		{"ok", 200, nil, "whatever", false, 0, ""},
		{"bad request of a proxy", 400, nil, "no such\nfield", true, 0, "no such field"},
		{"unprocessable, says nobody knows who", 422, nil, "", true, 0, "422"},
		{"invalid request", 400, says, kind("invalid-request", 400), false, 0, "400"},
		{"semantic error", 422, map[string]string{"Content-Type": "application/problem+json; charset=utf-8"}, kind("semantic-error", 422), false, 0, "422"},
		{"conflict", 409, says, `{"type":"about:blank","title":"no","status":409}`, false, 0, "409"},
		{"too large", 413, says, `{"type":"about:blank","title":"no","status":413}`, false, 0, "413"},
		{"a problem of another API", 422, says, `{"type":"https://waf.example/blocked","title":"no","status":422}`, true, 0, "422"},
		{"a problem that does not say so", 422, map[string]string{"Content-Type": "application/json"}, kind("semantic-error", 422), true, 0, "422"},
		{"gateway not found", 404, says, kind("gateway-not-found", 404), true, 0, "404"},
		{"unprocessable but retryable", 422, map[string]string{"Content-Type": "application/problem+json"}, problem, true, 7 * time.Second, "f: m"},
		{"not a problem although it says so", 422, map[string]string{"Content-Type": "application/problem+json"}, "{", true, 0, "422"},
		{"unauthorized", 401, nil, "", true, 0, "401"},
		{"forbidden", 403, nil, "", true, 0, "403"},
		{"wrong place", 404, nil, "", true, 0, "404"},
		{"moved", 302, map[string]string{"Location": "http://elsewhere.example/"}, "", true, 0, "302"},
		{"too many", 429, map[string]string{"Retry-After": "9"}, "", true, 9 * time.Second, "429"},
		{"date", 503, map[string]string{"Retry-After": "Fri, 20 Nov 2026 12:00:05 GMT"}, "", true, 5 * time.Second, "503"},
		{"fixed pause", 503, says, `{"type":"about:blank","title":"no","status":503,"retryable":true,"retryAfterSeconds":7,"backoffStrategy":"fixed"}`, true, 7 * time.Second, "503"},
		{"the header beats the problem", 503, map[string]string{"Content-Type": "application/problem+json", "Retry-After": "9"}, `{"type":"about:blank","title":"no","status":503,"retryAfterSeconds":7}`, true, 9 * time.Second, "503"},
		{"absurd delay", 503, map[string]string{"Retry-After": "999999"}, "", true, time.Hour, "503"},
		{"nonsense delay", 503, map[string]string{"Retry-After": "-3"}, "", true, 0, "503"},
		{"broken server", 500, nil, strings.Repeat("x", 1<<20), true, 0, "500"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				for k, v := range tc.header {
					w.Header().Set(k, v)
				}
				w.WriteHeader(tc.status)
				_, _ = io.WriteString(w, tc.body) // the client may have hung up
			}))
			defer srv.Close()
			_, err := client(t, srv.URL, nil).Deliver(t.Context(), store.Report{Kind: "status", Subject: "d", Body: []byte("{}")})
			if (err == nil) != (tc.message == "") {
				t.Fatalf("Deliver = %v", err)
			}
			if got := errors.Is(err, fault.ErrTemporary); got != tc.keep {
				t.Errorf("kept = %v, want %v (%v)", got, tc.keep, err)
			}
			if got, _ := fault.RetryAfter(err); got != tc.after {
				t.Errorf("retry after %v, want %v", got, tc.after)
			}
			if got := fault.Steady(err); got != strings.Contains(tc.body, `"fixed"`) {
				t.Errorf("the pause may not grow: %v", got)
			}
			if err != nil && (!strings.Contains(err.Error(), tc.message) || len(err.Error()) > 1000 || strings.Contains(err.Error(), "s3cret")) {
				t.Errorf("message %q, want %q in it", err, tc.message)
			}
		})
	}
}

func TestOfflineAndMissingTokenAreTemporary(t *testing.T) {
	srv := httptest.NewServer(http.NotFoundHandler())
	url := srv.URL
	srv.Close()
	r := store.Report{Kind: "status", Subject: "d", Body: []byte("{}")}
	if _, err := client(t, url, nil).Deliver(t.Context(), r); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("offline: %v, want temporary", err)
	}
	c := client(t, url, func(o *manager.Options) { o.TokenFile = filepath.Join(t.TempDir(), "none") })
	if _, err := c.Deliver(t.Context(), r); !errors.Is(err, fault.ErrTemporary) || fault.Hint(err) == "" {
		t.Errorf("no token: %v, want temporary with a hint", err)
	}
}

// An empty token is not sent: the endpoint would blame the device.
func TestEmptyTokenIsTold(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(file, []byte("\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := client(t, "http://127.0.0.1:1", func(o *manager.Options) { o.TokenFile = file })
	_, err := c.Deliver(t.Context(), store.Report{Kind: store.KindCapabilities, Subject: "d"})
	if !errors.Is(err, fault.ErrTemporary) || !strings.Contains(err.Error(), file+" is empty") {
		t.Errorf("Deliver = %v, want temporary, naming the file", err)
	}
}

func TestBadOptions(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "ca")
	if err := os.WriteFile(ca, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, o := range []manager.Options{
		{URL: ""},
		{URL: "fleet.example"},
		{URL: "ftp://fleet.example"},
		{URL: "https://user:secret@fleet.example"},
		{URL: "https://fleet.example?x=1"},
		{URL: "https://fleet.example", CAFile: ca},
		{URL: "https://fleet.example", CAFile: ca + "-none"},
	} {
		if _, err := manager.New(o); err == nil || strings.Contains(err.Error(), "secret") {
			t.Errorf("New(%q, %q) = %v", o.URL, o.CAFile, err)
		}
	}
}
