package wire_test

import (
	"encoding/pem"
	"errors"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

func TestTransportFiles(t *testing.T) {
	dir := t.TempDir()
	text := filepath.Join(dir, "text.pem")
	if err := os.WriteFile(text, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	big := filepath.Join(dir, "big.pem")
	if err := os.WriteFile(big, make([]byte, 5<<20), 0o600); err != nil {
		t.Fatal(err)
	}
	missing := filepath.Join(dir, "missing.pem")
	tests := map[string]struct {
		tls wire.TLS
		is  error
	}{
		"missing CA":       {wire.TLS{CAFiles: []string{missing}}, fault.ErrNotFound},
		"CA of words":      {wire.TLS{CAFiles: []string{text}}, fault.ErrInvalid},
		"CA too large":     {wire.TLS{CAFiles: []string{big}}, fault.ErrTooLarge},
		"CA is a folder":   {wire.TLS{CAFiles: []string{dir}}, fault.ErrInvalid},
		"missing key":      {wire.TLS{Pairs: [][2]string{{text, missing}}}, fault.ErrNotFound},
		"pair of words":    {wire.TLS{Pairs: [][2]string{{text, text}}}, fault.ErrInvalid},
		"later, of words":  {wire.TLS{LaterCAFile: text}, fault.ErrInvalid},
		"later":            {wire.TLS{LaterCAFile: missing}, nil},
		"nothing to check": {wire.TLS{}, nil},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := wire.NewTransport(tt.tls, time.Minute, nil, nil)
			if !errors.Is(err, tt.is) {
				t.Errorf("NewTransport = %v, want %v", err, tt.is)
			}
			if err != nil && !strings.Contains(err.Error(), dir) {
				t.Errorf("NewTransport = %v, want the file named", err)
			}
		})
	}
}

// Files that cannot be used any more are told once for each change, and those before stay in use; when they are good again they count.
func TestTransportFilesChange(t *testing.T) {
	server := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	t.Cleanup(server.Close)
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: server.Certificate().Raw})
	file := filepath.Join(t.TempDir(), "ca.pem")
	write := func(text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	told := 0
	rt, err := wire.NewTransport(wire.TLS{LaterCAFile: file}, time.Minute, nil, func(error) { told++ })
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(rt.CloseIdleConnections)
	get := func(what string, in bool, want int) {
		t.Helper()
		for range 3 {
			res, err := (&http.Client{Transport: rt}).Get(server.URL)
			if err == nil {
				_ = res.Body.Close()
			}
			if (err == nil) != in || told != want {
				t.Errorf("%s: %v, told %d times, want %d", what, err, told, want)
			}
		}
	}
	get("no file", false, 0)
	write(string(good))
	get("the authority", true, 0)
	write("words")
	server.CloseClientConnections()
	get("words", true, 1)
	write("others")
	get("other words", true, 2)
	if err := os.Remove(file); err != nil {
		t.Fatal(err)
	}
	get("no file again", false, 2)
	write(string(good))
	get("the authority again", true, 2)
}

func TestProxyFromEnvironment(t *testing.T) {
	env := map[string]string{"https_proxy": "http://proxy.test:3128", "HTTP_PROXY": "http://plain.test:80", "NO_PROXY": "inside.test,10.0.0.0/8"}
	proxy := wire.Proxy(func(k string) string { return env[k] })
	for target, want := range map[string]string{
		"https://registry.test/v2/":    "http://proxy.test:3128",
		"http://registry.test/v2/":     "http://plain.test:80",
		"https://a.inside.test/v2/":    "",
		"https://10.1.2.3:5000/v2/":    "",
		"http://127.0.0.1:5000/v2/":    "",
		"https://localhost/v2/":        "",
		"https://registry.test:5/v2/x": "http://proxy.test:3128",
	} {
		r := httptest.NewRequest(http.MethodGet, target, nil)
		u, err := proxy(r)
		got := ""
		if u != nil {
			got = u.String()
		}
		if err != nil || got != want {
			t.Errorf("proxy(%s) = %q, %v, want %q", target, got, err, want)
		}
	}
}

func TestRedirect(t *testing.T) {
	secure, plain := httptest.NewRequest("GET", "https://a.test/", nil), httptest.NewRequest("GET", "http://b.test/", nil)
	if err := wire.Redirect(plain, []*http.Request{secure}); !errors.Is(err, fault.ErrDenied) {
		t.Errorf("Redirect from https to http = %v, want fault.ErrDenied", err)
	}
	if err := wire.Redirect(secure, []*http.Request{plain}); err != nil {
		t.Errorf("Redirect from http to https = %v", err)
	}
	many := make([]*http.Request, 10)
	for i := range many {
		many[i] = secure
	}
	if err := wire.Redirect(secure, many); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("Redirect for the tenth time = %v, want fault.ErrTemporary", err)
	}
}

func TestHeaderStaysWithItsHost(t *testing.T) {
	var seen []string
	base := roundTripper(func(r *http.Request) (*http.Response, error) {
		seen = append(seen, r.URL.Host+"="+r.Header.Get("X-Key"))
		return respond(200, "", ""), nil
	})
	rt := wire.WithHeader(base, "mirror.test", http.Header{"X-Key": {"secret"}})
	for _, u := range []string{"https://mirror.test/", "https://cdn.test/", "https://mirror.test:444/"} {
		if _, err := rt.RoundTrip(httptest.NewRequest("GET", u, nil)); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(seen, " "); got != "mirror.test=secret cdn.test= mirror.test:444=" {
		t.Errorf("headers sent: %s", got)
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }
