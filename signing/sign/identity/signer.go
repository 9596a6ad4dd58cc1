package identity

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sigstore/sigstore-go/pkg/sign"
	"google.golang.org/protobuf/encoding/protojson"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

const (
	maxAnswer       = 1 << 20          // bytes of what a service says
	answerTime      = 30 * time.Second // for one request
	requestsRetried = 2                // times that a request is repeated when a service is busy
)

// Options of keyless signing.
type Options struct {
	Services Services
	Token    Token
	// Client carries requests to Fulcio and to timestamp authorities; needed. Rekor's client has its own, on
	// http.DefaultTransport's settings.
	Client *http.Client
}

// New returns what signs statements (sign.Keyless) as the token's holder, each with a key and a certificate of its own.
func New(o Options) (func(ctx context.Context, statement []byte) (bundle []byte, err error), error) {
	if err := o.Services.Check(); err != nil {
		return nil, err
	}
	if o.Token.raw == "" {
		return nil, fmt.Errorf("sign with an identity: %w: no identity token", fault.ErrUnauthenticated)
	}
	return func(ctx context.Context, statement []byte) ([]byte, error) {
		return o.sign(ctx, statement)
	}, nil
}

func (o Options) sign(ctx context.Context, statement []byte) ([]byte, error) {
	key, err := sign.NewEphemeralKeypair(nil)
	if err != nil {
		return nil, fmt.Errorf("make a key: %w", err)
	}
	transport := bounded{o.Client.Transport}
	options := sign.BundleOptions{
		Context: ctx,
		CertificateProvider: sign.NewFulcio(&sign.FulcioOptions{
			BaseURL: o.Services.Fulcio, Timeout: answerTime, Retries: requestsRetried, Transport: transport,
		}),
		CertificateProviderOptions: &sign.CertificateProviderOptions{IDToken: o.Token.raw},
	}
	for _, url := range o.Services.Clocks {
		options.TimestampAuthorities = append(options.TimestampAuthorities, sign.NewTimestampAuthority(&sign.TimestampAuthorityOptions{
			URL: url, Timeout: answerTime, Retries: requestsRetried, Transport: transport,
		}))
	}
	for _, l := range o.Services.Logs {
		options.TransparencyLogs = append(options.TransparencyLogs, sign.NewRekor(&sign.RekorOptions{
			BaseURL: l.URL, Timeout: answerTime, Retries: requestsRetried, Version: l.Version,
		}))
	}
	b, err := sign.Bundle(&sign.DSSEData{Data: statement, PayloadType: signing.PayloadType}, key, options)
	if err != nil {
		return nil, fmt.Errorf("sign as %s: %w", o.Token.Subject(), named(err))
	}
	data, err := protojson.Marshal(b)
	if err != nil {
		return nil, fmt.Errorf("sign as %s: %w", o.Token.Subject(), err)
	}
	// protojson varies its spaces on purpose; take them out, so that equal bundles have equal bytes.
	var compact bytes.Buffer
	if err := json.Compact(&compact, data); err != nil {
		return nil, fmt.Errorf("sign as %s: %w", o.Token.Subject(), err)
	}
	return compact.Bytes(), nil
}

// statusError is a refusal by a service.
type statusError struct {
	url, status string
	code        int
	said        string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("%s answered %s: %s", e.url, e.status, e.said)
}

// named gives the error of a service one of our names.
func named(err error) error {
	var s *statusError
	// Rekor's client does not go by the transport above; its refusals tell themselves.
	var log interface {
		error
		IsClientError() bool
		IsCode(code int) bool
	}
	switch {
	case errors.Is(err, context.Canceled):
		return err
	case errors.As(err, &s) && s.code == http.StatusUnauthorized:
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrUnauthenticated, s), "the token may have expired, or be for another audience than sigstore")
	case errors.As(err, &s) && s.code >= 400 && s.code < 500 && s.code != http.StatusTooManyRequests:
		return fault.WithHint(fmt.Errorf("%w: %w", fault.ErrDenied, s), "the token may have expired, or come from an identity provider that this instance does not know")
	case errors.As(err, &log) && log.IsClientError() && !log.IsCode(http.StatusTooManyRequests):
		return fault.WithHint(fmt.Errorf("%w: the transparency log does not take it: %w", fault.ErrDenied, err), "the log may be for another instance than the certificate: check the signing config")
	default:
		return fmt.Errorf("%w: %w", fault.ErrTemporary, err)
	}
}

// bounded is a transport whose answers have an end, and whose refusals have a name.
type bounded struct{ next http.RoundTripper }

// RoundTrip implements http.RoundTripper.
func (b bounded) RoundTrip(r *http.Request) (*http.Response, error) {
	resp, err := b.next.RoundTrip(r)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode >= 400 && resp.StatusCode < 500 && resp.StatusCode != http.StatusTooManyRequests {
		defer resp.Body.Close()
		said, err := io.ReadAll(io.LimitReader(resp.Body, 300))
		if err != nil {
			return nil, err
		}
		return nil, &statusError{url: r.URL.Scheme + "://" + r.URL.Host, status: resp.Status, code: resp.StatusCode, said: string(bytes.ToValidUTF8(said, nil))}
	}
	resp.Body = struct {
		io.Reader
		io.Closer
	}{io.LimitReader(resp.Body, maxAnswer), resp.Body}
	return resp, nil
}
