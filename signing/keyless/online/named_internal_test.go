package online

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"testing"

	"github.com/sigstore/rekor/pkg/generated/client/entries"

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
