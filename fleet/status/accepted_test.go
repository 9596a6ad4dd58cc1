package status_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/fleet/status"
)

const policy = `accept:
- press-07
- client: line-a
  devices: [press-08, press-09]
- client: odd
  devices: [press-10]
- "test-*"
deny: [test-3, press-11]
`

func TestAccepted(t *testing.T) {
	a, err := status.ParseAccepted("clients.yaml", []byte(policy))
	if err != nil {
		t.Fatal(err)
	}
	for id, want := range map[string]string{
		"press-07": "{press-07 [press-07]} true", "line-a": "{client:line-a [press-08 press-09]} true", "odd": "{press-10 [press-10]} true",
		"test-1": "{test-1 [test-1]} true", "test-": "{test- [test-]} true", "test-3": "{ []} false", "press-11": "{ []} false",
		"press-08": "{ []} false", "PRESS-07": "{ []} false", "": "{ []} false", "xtest-1": "{ []} false",
	} {
		c, ok := a.Client(id)
		if got := fmt.Sprint(c, ok); got != want {
			t.Errorf("Client(%q) = %s, want %s", id, got, want)
		}
	}
}

func TestAcceptedRefuses(t *testing.T) {
	for text, want := range map[string]string{
		"accept: [press-07, press-07]\n":                   `"press-07" is there twice`,
		"accept: ['']\n":                                   "is no client id",
		"accept: [a/b]\n":                                  `"a/b" is no client id`,
		"accept: ['spiffe://x/margo/wfm/a/client/b']\n":    "is no client id",
		"accept: [{client: a}]\n":                          "devices",
		"accept: [{client: a, devices: []}]\n":             "at least one",
		"accept: [{client: a, devices: ['a b']}]\n":        "device id",
		"accept: [{client: 'a*', devices: [b]}]\n":         "is no client id",
		"accept: []\ndeny: ['a*']\n":                       "is no client id",
		"deny: []\n":                                       "accept",
		"accept: []\nallow: []\n":                          "allow",
		"accept: [press-[0-9]*]\n":                         "clients.yaml",
		"accept: ['" + strings.Repeat("a", 300) + "']\n":   "is no client id",
		"accept: [{client: a, devices: [b], all: true}]\n": "all",
		"accept:\n- a\n- {client: a, devices: [b]}\n":      "twice",
		"accept: ['..']\n":                                 "is no client id",
	} {
		if _, err := status.ParseAccepted("clients.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

func FuzzParseAccepted(f *testing.F) {
	f.Add([]byte(policy))
	f.Fuzz(func(t *testing.T, data []byte) {
		a, err := status.ParseAccepted("clients.yaml", data)
		if err != nil {
			return
		}
		if c, ok := a.Client("press-07"); ok && len(c.Devices) == 0 {
			t.Fatalf("a client without devices: %+v", c)
		}
	})
}

func TestDiscovery(t *testing.T) {
	trust := func() (status.Trust, error) {
		return status.Trust{Domain: "plant.acme.example", Bundle: []byte(`{"keys":[]}`)}, nil
	}
	const uri = "https://fleet.acme.example/.well-known/spiffe/bundle.json"
	get := func(h http.Handler, method, path, etag string) *httptest.ResponseRecorder {
		r := httptest.NewRequestWithContext(t.Context(), method, path, http.NoBody)
		if etag != "" {
			r.Header.Set("If-None-Match", etag)
		}
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w
	}
	all := status.Discovery(trust, uri)
	for path, want := range map[string]string{
		status.PathDiscovery: `{"trustDomain":"plant.acme.example","trustBundleUri":"` + uri + `"}`, status.PathBundle: `{"keys":[]}`,
	} {
		w := get(all, "GET", path, "")
		if w.Code != 200 || w.Body.String() != want || w.Header().Get("Content-Type") != "application/json" {
			t.Errorf("GET %s = %d %s %v", path, w.Code, w.Body, w.Header())
		}
		if again := get(all, "GET", path, w.Header().Get("ETag")); again.Code != 304 || again.Body.Len() != 0 {
			t.Errorf("GET %s again = %d %s", path, again.Code, again.Body)
		}
		if w := get(all, "POST", path, ""); w.Code != 405 || w.Header().Get("Allow") != "GET, HEAD" {
			t.Errorf("POST %s = %d", path, w.Code)
		}
	}
	for path, want := range map[string]string{status.PathDiscovery: "#discovery-document-not-found", status.PathBundle: "#spiffe-bundle-not-found"} {
		if w := get(status.Discovery(nil, uri), "GET", path, ""); w.Code != 404 || !strings.Contains(w.Body.String(), want) {
			t.Errorf("GET %s without mutual TLS = %d %s", path, w.Code, w.Body)
		}
	}
	if w := get(status.Discovery(trust, ""), "GET", status.PathDiscovery, ""); w.Code != 404 {
		t.Errorf("without a URI: %d", w.Code)
	}
}
