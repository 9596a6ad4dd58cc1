package identity_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/sign/identity"
)

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// job sets the environment of a job of GitHub Actions.
func job(t *testing.T) {
	t.Helper()
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_URL", "https://token.example/request?api-version=2.0")
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_TOKEN", "secret-of-this-job")
}

// An answer that comes from something in between, or that says that it will be another one later, is no refusal.
func TestAmbientAnswers(t *testing.T) {
	job(t)
	const page = "<!DOCTYPE html>\n<title>Log in to the network</title>"
	for name, c := range map[string]struct {
		status int
		body   string
		want   error
		tries  int
	}{
		"proxy's page":            {200, page, fault.ErrTemporary, 3},
		"proxy's page, forbidden": {403, page, fault.ErrTemporary, 3},
		"bad gateway":             {502, page, fault.ErrTemporary, 3},
		"unavailable, in JSON":    {503, `{"message":"try later"}`, fault.ErrTemporary, 3},
		"unavailable, empty":      {503, "", fault.ErrTemporary, 3},
		"too many":                {429, `{}`, fault.ErrTemporary, 3},
		"cut off":                 {200, `{"value":"ey`, fault.ErrTemporary, 3},
		"unauthorized":            {401, `{"message":"bad secret"}`, fault.ErrDenied, 1},
		"forbidden, in words":     {403, "no\nno", fault.ErrDenied, 1},
		"no token":                {200, `{"value":""}`, fault.ErrDenied, 1},
		"not a token":             {200, `{"value":"abc"}`, fault.ErrInvalid, 1},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				tries := 0
				web := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
					tries++
					if got := r.URL.String(); got != "https://token.example/request?api-version=2.0&audience=sigstore" {
						t.Errorf("asked at %s", got)
					}
					return &http.Response{StatusCode: c.status, Status: http.StatusText(c.status), Body: io.NopCloser(strings.NewReader(c.body))}, nil
				})}
				_, found, err := identity.Ambient(t.Context(), web, time.Now())
				if !found || !errors.Is(err, c.want) || fault.Retryable(err) != (c.want == fault.ErrTemporary) || tries != c.tries {
					t.Errorf("Ambient = %v, %v after %d requests, want %v after %d", found, err, tries, c.want, c.tries)
				}
				if err != nil && (strings.Contains(err.Error(), "secret-of-this-job") || strings.Contains(err.Error(), "\n")) {
					t.Errorf("the error has the secret, or several lines: %q", err)
				}
			})
		})
	}
}

// A provider that never answers costs half a minute, whether it can be cancelled or not.
func TestAmbientIsLimited(t *testing.T) {
	job(t)
	for _, cancellable := range []bool{true, false} {
		synctest.Test(t, func(t *testing.T) {
			over := make(chan struct{})
			web := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
				if cancellable {
					<-r.Context().Done()
					return nil, r.Context().Err()
				}
				<-over
				return nil, errors.New("over")
			})}
			began := time.Now()
			_, found, err := identity.Ambient(t.Context(), web, time.Now())
			if took := time.Since(began); !found || !errors.Is(err, fault.ErrTemporary) || took != 30*time.Second {
				t.Errorf("Ambient = %v, %v after %s, want %v after 30 s", found, err, took, fault.ErrTemporary)
			}
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			if _, _, err := identity.Ambient(ctx, web, time.Now()); !errors.Is(err, context.DeadlineExceeded) || fault.Retryable(err) {
				t.Errorf("Ambient with the caller's own limit = %v, want %v", err, context.DeadlineExceeded)
			}
			close(over)
		})
	}
}

// A SPIFFE agent is asked only when the environment names its socket; SIGSTORE_ID_TOKEN is read by the caller, and may be empty.
func TestAmbientAsksWhomTheEnvironmentNames(t *testing.T) {
	t.Setenv("ACTIONS_ID_TOKEN_REQUEST_URL", "")
	t.Setenv("SIGSTORE_ID_TOKEN", "")
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", "")
	web := &http.Client{Transport: roundTripper(func(r *http.Request) (*http.Response, error) {
		t.Errorf("a request for %s", r.URL)
		return nil, errors.New("no")
	})}
	if _, found, err := identity.Ambient(t.Context(), web, time.Now()); found || err != nil {
		t.Errorf("Ambient with an empty SIGSTORE_ID_TOKEN = %v, %v, want none", found, err)
	}
	socket := filepath.Join(t.TempDir(), "s")
	agent, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	asked := make(chan struct{}, 100)
	go func() {
		for {
			c, err := agent.Accept()
			if err != nil {
				return
			}
			asked <- struct{}{}
			_ = c.Close()
		}
	}()
	defer agent.Close()
	t.Setenv("SPIFFE_ENDPOINT_SOCKET", socket)
	if _, found, err := identity.Ambient(t.Context(), web, time.Now()); !found || !errors.Is(err, fault.ErrTemporary) || len(asked) == 0 {
		t.Errorf("Ambient with an agent that hangs up = %v, %v, want %v", found, err, fault.ErrTemporary)
	}
}
