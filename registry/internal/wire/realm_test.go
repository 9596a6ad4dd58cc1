package wire_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/registry/internal/wire"
)

func TestTokenServersOfTheNeighbourhood(t *testing.T) {
	tests := map[string]struct {
		registry, challenge string
		rewritten           bool
	}{
		"both private":           {"https://10.0.0.5", `Bearer realm="https://10.0.0.6/jwt/auth?x=1",service="r"`, true},
		"other private network":  {"https://192.168.1.5:5000", `bearer service="r", realm="https://10.0.0.6/jwt/auth"`, true},
		"both this machine":      {"http://127.0.0.1:5000", `Bearer realm="http://localhost:5001/token"`, true},
		"one host name":          {"https://10.0.0.5", `Bearer realm="https://10.0.0.5:8443/token"`, false},
		"registry out there":     {"https://8.8.8.8", `Bearer realm="https://10.0.0.6/token"`, false},
		"server out there":       {"https://10.0.0.5", `Bearer realm="https://8.8.8.8/token"`, false},
		"this machine, from LAN": {"https://10.0.0.5", `Bearer realm="https://127.0.0.1/token"`, false},
		"metadata":               {"https://10.0.0.5", `Bearer realm="http://169.254.169.254/"`, false},
		"metadata, plain":        {"http://10.0.0.5", `Bearer realm="http://169.254.169.254/"`, false},
		"downgrade":              {"https://10.0.0.5", `Bearer realm="http://10.0.0.6/token"`, false},
		"other scheme":           {"https://10.0.0.5", `Bearer realm="ftp://10.0.0.6/token"`, false},
		"user information":       {"https://10.0.0.5", `Bearer realm="https://u:p@10.0.0.6/token"`, false},
		"basic":                  {"https://10.0.0.5", `Basic realm="https://10.0.0.6/token"`, false},
		"not quoted":             {"https://10.0.0.5", `Bearer realm=https://10.0.0.6/token`, false},
		"nothing":                {"https://10.0.0.5", ``, false},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			var asked []string
			base := roundTripper(func(r *http.Request) (*http.Response, error) {
				asked = append(asked, r.URL.String())
				resp := respond(401, "", "")
				resp.Header.Set("Www-Authenticate", tt.challenge)
				return resp, nil
			})
			first := httptest.NewRequest("GET", tt.registry+"/v2/", nil)
			rt := wire.WithTokenServers(base, first.URL.Host)
			for range 2 {
				resp, err := rt.RoundTrip(first)
				if err != nil {
					t.Fatal(err)
				}
				got := resp.Header.Get("Www-Authenticate")
				if (got != tt.challenge) != tt.rewritten {
					t.Fatalf("challenge %q became %q, want a change: %v", tt.challenge, got, tt.rewritten)
				}
				if !tt.rewritten {
					continue
				}
				_, rest, _ := strings.Cut(got, `realm="`)
				realm, _, _ := strings.Cut(rest, `"`)
				if !strings.HasPrefix(realm, tt.registry+"/") {
					t.Fatalf("challenge names %q, want something at the registry", realm)
				}
				asked = nil
				if _, err := rt.RoundTrip(httptest.NewRequest("GET", realm+"?scope=a", nil)); err != nil {
					t.Fatal(err)
				}
				_, rest, _ = strings.Cut(tt.challenge, `realm="`)
				real, _, _ := strings.Cut(rest, `"`)
				real, _, _ = strings.Cut(real, "?")
				if len(asked) != 1 || !strings.HasPrefix(asked[0], real) || !strings.Contains(asked[0], "scope=a") {
					t.Errorf("the token was asked for at %q, want %q", asked, real)
				}
			}
		})
	}
}
