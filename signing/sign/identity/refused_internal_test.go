package identity

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/sigstore/cosign/v2/pkg/providers"
	"github.com/sigstore/rekor/pkg/generated/client/entries"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// What a service refuses for good is not called temporary, and what the user broke off is not called anything.
func TestNamed(t *testing.T) {
	all := []error{fault.ErrTemporary, fault.ErrUnauthenticated, fault.ErrDenied}
	for name, c := range map[string]struct {
		err  error
		want error
	}{
		"rekor: bad request":      {entries.NewCreateLogEntryBadRequest(), fault.ErrDenied},
		"rekor: forbidden":        {entries.NewCreateLogEntryDefault(http.StatusForbidden), fault.ErrDenied},
		"rekor: busy":             {entries.NewCreateLogEntryDefault(http.StatusTooManyRequests), fault.ErrTemporary},
		"rekor: broken":           {entries.NewCreateLogEntryDefault(http.StatusBadGateway), fault.ErrTemporary},
		"fulcio: who":             {&statusError{code: http.StatusUnauthorized}, fault.ErrUnauthenticated},
		"fulcio: no":              {&statusError{code: http.StatusBadRequest}, fault.ErrDenied},
		"no server":               {&url.Error{Op: "Post", URL: "https://rekor.example", Err: errors.New("refused")}, fault.ErrTemporary},
		"broken off":              {&url.Error{Op: "Post", URL: "https://rekor.example", Err: context.Canceled}, nil},
		"broken off at a refusal": {errors.Join(context.Canceled, &statusError{code: http.StatusBadRequest}), nil},
	} {
		err := named(fmt.Errorf("sign: %w", c.err))
		for _, kind := range all {
			if errors.Is(err, kind) != (kind == c.want) {
				t.Errorf("%s: %v, want %v", name, err, c.want)
			}
		}
	}
}

// Without SPIFFE_ENDPOINT_SOCKET cosign's provider would take a socket below /tmp, whoever listens there.
func TestSPIFFENeedsItsVariable(t *testing.T) {
	for socket, want := range map[string]bool{"": false, "/run/spire/agent.sock": true} {
		t.Setenv("SPIFFE_ENDPOINT_SOCKET", socket)
		is := slices.ContainsFunc(considered(nil), func(p providers.Interface) bool { return strings.Contains(fmt.Sprintf("%T", p), "spiffe") })
		if is != want {
			t.Errorf("SPIFFE_ENDPOINT_SOCKET=%q: its provider is considered: %v, want %v", socket, is, want)
		}
	}
}

// The libraries of Google and of SPIFFE tell a status in their own ways.
func TestRefusal(t *testing.T) {
	for text, c := range map[string]struct{ err, want error }{
		"impersonate, busy":   {errors.New("impersonate: status code 503: <html>"), fault.ErrTemporary},
		"impersonate, denied": {errors.New("impersonate: status code 403: PERMISSION_DENIED"), fault.ErrDenied},
		"metadata, busy":      {errors.New("compute: Received 502 `bad gateway`"), fault.ErrTemporary},
		"login, busy":         {errors.New("oauth2: cannot fetch token: 500 Internal Server Error"), fault.ErrTemporary},
		"login, denied":       {errors.New("oauth2: cannot fetch token: 401 Unauthorized"), fault.ErrDenied},
		"SPIFFE, not there":   {status.Error(codes.Unavailable, "connection refused"), fault.ErrTemporary},
		"SPIFFE, denied":      {status.Error(codes.PermissionDenied, "no identity issued"), fault.ErrDenied},
		"no file":             {fs.ErrPermission, fault.ErrDenied},
		"no network":          {&url.Error{Op: "Get", URL: "https://token.example", Err: errors.New("refused")}, fault.ErrTemporary},
	} {
		if err := refusal(c.err); !errors.Is(err, c.want) || fault.Retryable(err) != (c.want == fault.ErrTemporary) {
			t.Errorf("%s: %v, want %v", text, err, c.want)
		}
	}
}
