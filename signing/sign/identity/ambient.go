package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/sigstore/cosign/v2/pkg/cosign/env"
	"github.com/sigstore/cosign/v2/pkg/providers"
	_ "github.com/sigstore/cosign/v2/pkg/providers/filesystem"
	_ "github.com/sigstore/cosign/v2/pkg/providers/google"
	_ "github.com/sigstore/cosign/v2/pkg/providers/spiffe"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const (
	// audience is for whom a token must be: Fulcio takes no other.
	audience = "sigstore"
	// ambientTime bounds how long all identity providers together may take. They answer within a second.
	ambientTime = 30 * time.Second
)

// Ambient asks the identity provider of the place where the program runs for a token: GitHub Actions, Google Cloud, the file
// that cosign reads, the SPIFFE agent that SPIFFE_ENDPOINT_SOCKET names; false when there is none. The environment says which.
// web carries the request to GitHub. A provider that does not answer within 30 seconds, or answers with a web page or 5xx, is
// fault.ErrTemporary; one that refuses is fault.ErrDenied.
//
// SIGSTORE_ID_TOKEN is the caller's to read. Buildkite's provider is left out: it links eight modules, a second YAML library
// among them; its agent prints a token for --identity-token.
func Ambient(ctx context.Context, web *http.Client, now time.Time) (Token, bool, error) {
	limited, cancel := context.WithTimeout(ctx, ambientTime)
	defer cancel()
	type answer struct {
		raw   string
		found bool
		err   error
	}
	given := make(chan answer, 1)
	// It is not waited for: Google's provider cannot be cancelled, and the program ends soon after.
	go func() {
		var a answer
		a.raw, a.found, a.err = ask(limited, considered(web))
		given <- a
	}()
	a := answer{found: true}
	select {
	case a = <-given:
	case <-limited.Done():
		a.err = errSilent
	}
	switch {
	case ctx.Err() != nil:
		return Token{}, true, ctx.Err()
	case a.err != nil:
		if limited.Err() != nil {
			a.err = errSilent // also where the provider's own words came first
		}
		return Token{}, true, fmt.Errorf("ask the identity provider of this job for a token: %w", refusal(a.err))
	case !a.found:
		return Token{}, false, nil
	}
	t, err := ParseToken(a.raw, now)
	return t, true, err
}

// considered are the providers that may be there.
func considered(web *http.Client) []providers.Interface {
	all := []providers.Interface{actions{web}}
	for _, p := range providers.Providers() {
		if p.Name == "spiffe" && env.Getenv(env.VariableSPIFFEEndpointSocket) == "" {
			continue // cosign's falls back to a socket below /tmp, where any user of the machine can put one
		}
		all = append(all, p.Provider)
	}
	return all
}

// ask gives the token of the first provider that gives one, else the error of the last; false when none is there.
func ask(ctx context.Context, all []providers.Interface) (raw string, found bool, err error) {
	for _, p := range all {
		if !p.Enabled(ctx) {
			continue
		}
		found = true
		raw, err = p.Provide(ctx, audience)
		switch raw = strings.TrimSpace(raw); {
		case err != nil:
		case raw == "":
			err = errNoToken
		case strings.HasPrefix(raw, "<"): // Google's give what came
			err = errPage
		default:
			return raw, true, nil
		}
	}
	return "", found, err
}

var (
	errSilent  = fmt.Errorf("no answer within %s: %w", ambientTime, fault.ErrTemporary)
	errPage    = fmt.Errorf("a web page came instead of an answer: %w", fault.ErrTemporary)
	errNoToken = fmt.Errorf("it gives none: %w", fault.ErrDenied)
)

// refusal gives the error of a provider its kind. What cannot be recognised is a refusal.
func refusal(err error) error {
	var network net.Error
	switch code := statusOf(err); {
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrInvalid):
		return err
	case code == http.StatusRequestTimeout, code == http.StatusTooManyRequests, code >= 500, code == 0 && errors.As(err, &network):
		return fmt.Errorf("%w: %w", fault.ErrTemporary, err)
	case !errors.Is(err, fault.ErrDenied):
		err = fmt.Errorf("%w: %w", fault.ErrDenied, err)
	}
	return fault.WithHint(err, "in GitHub Actions give the job the permission id-token: write")
}

// statusWords are how Google's libraries tell a status.
var statusWords = strict.Expression(`(?:status code|Received|cannot fetch token:) ([45])\d\d\b`)

// statusOf is what a provider answered, as HTTP says it; 0: it does not tell.
func statusOf(err error) int {
	var (
		answered *statusError
		remote   interface{ GRPCStatus() *status.Status }
	)
	switch {
	case errors.As(err, &answered):
		return answered.code
	case errors.As(err, &remote):
		switch remote.GRPCStatus().Code() {
		case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Aborted, codes.Internal:
			return http.StatusServiceUnavailable
		}
		return http.StatusForbidden
	}
	switch words := statusWords.Regexp().FindStringSubmatch(err.Error()); {
	case words == nil:
		return 0
	case words[1] == "5":
		return http.StatusServiceUnavailable
	}
	return http.StatusForbidden
}

// actions is the identity provider of a job of GitHub Actions. cosign's takes the body of a refusal, or of a proxy's error
// page, for an answer without a token, so they look the same.
type actions struct{ web *http.Client }

var _ providers.Interface = actions{}

// Enabled implements [providers.Interface].
func (actions) Enabled(context.Context) bool {
	return env.Getenv(env.VariableGitHubRequestToken) != "" && env.Getenv(env.VariableGitHubRequestURL) != ""
}

// Provide implements [providers.Interface]. It asks again while the answer may change.
func (a actions) Provide(ctx context.Context, audience string) (token string, err error) {
	for range 1 + requestsRetried {
		if token, err = a.ask(ctx, audience); err == nil || !fault.Retryable(refusal(err)) {
			return token, err
		}
		if err := delay.For(ctx, time.Second); err != nil {
			return "", err
		}
	}
	return "", err
}

func (a actions) ask(ctx context.Context, audience string) (string, error) {
	at, err := url.Parse(env.Getenv(env.VariableGitHubRequestURL))
	if err != nil {
		return "", fmt.Errorf("%s: %w: not a URL", env.VariableGitHubRequestURL, fault.ErrInvalid)
	}
	q := at.Query()
	q.Set("audience", audience)
	at.RawQuery = q.Encode()
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err != nil {
		return "", err
	}
	r.Header.Set("Authorization", "Bearer "+env.Getenv(env.VariableGitHubRequestToken))
	resp, err := a.web.Do(r)
	if err != nil {
		return "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err != nil {
		return "", err
	}
	var answer struct {
		Value string `json:"value"`
	}
	switch parsed := json.Unmarshal(data, &answer) == nil; {
	case bytes.HasPrefix(bytes.TrimSpace(data), []byte("<")), resp.StatusCode == http.StatusOK && !parsed:
		return "", errPage
	case resp.StatusCode != http.StatusOK:
		said := strings.Join(strings.Fields(string(data[:min(len(data), 300)])), " ")
		return "", &statusError{url: at.Scheme + "://" + at.Host, status: resp.Status, code: resp.StatusCode, said: strings.ToValidUTF8(said, "")}
	}
	return answer.Value, nil
}
