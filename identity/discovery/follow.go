// Package discovery keeps the trust bundle of a device as its manager publishes it: /.well-known/margo names where the bundle is. The
// entry point is [Follower]; TestFollow holds what is not adopted.
//
// # Whom a new bundle is believed
//
// Both documents are read over mutual TLS, from the manager that the bundle before authenticates, wherever the bundle is said to be. So a
// bundle may leave out the authority before: that one has vouched for it. The authorities of the web do not count: one of them would be
// enough to become every manager.
package discovery

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/identity"
	"github.com/longshore-dev/longshore/identity/enroll"
)

// Limits.
const (
	maxDocument  = 64 << 10 // bytes of the discovery document, and of headers
	wait         = 30 * time.Second
	defaultEvery = time.Hour // where the bundle has no hint
	minEvery     = time.Minute
	maxEvery     = 24 * time.Hour
)

// path is where a manager has the discovery document.
const path = "/.well-known/margo"

// Follower reads the trust bundle again, as often as the bundle says. All members but UserAgent and Proxy are required.
type Follower struct {
	URL       string          // of the manager, https://host[:port][/prefix]
	File      string          // of the trust bundle; it is replaced
	Own       identity.Source // credentials with the bundle of File
	Now       func() time.Time
	Log       *slog.Logger
	UserAgent string
	Proxy     func(*http.Request) (*url.URL, error)
}

// Run works until ctx ends. Whatever goes wrong keeps the bundle before; the log tells each reason once.
func (f *Follower) Run(ctx context.Context) {
	told, failures := "", 0
	for {
		every, err := f.Once(ctx)
		switch {
		case ctx.Err() != nil:
			return
		case err == nil:
			told, failures = "", 0
		default:
			every = min(every, minEvery<<min(failures, 10))
			if after, ok := fault.RetryAfter(err); ok {
				every = min(max(every, after), maxEvery)
			}
			failures++
			if err.Error() != told {
				told = err.Error()
				f.Log.Warn("the trust bundle of the manager is not read: the one before stays in use", "error", err, "hint", fault.Hint(err))
			}
		}
		timer := time.NewTimer(every - rand.N(every/10+1)) // devices that started together do not ask together
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-timer.C:
		}
	}
}

// Once reads the bundle and saves it where its authorities are others than before. It returns when to do that again, also with an error.
// A manager without a discovery document is no error.
func (f *Follower) Once(ctx context.Context) (next time.Duration, err error) {
	own, err := f.Own.Credentials()
	if err != nil {
		return defaultEvery, err
	}
	next = every(own.Bundle)
	fail := func(err error) (time.Duration, error) {
		return next, fmt.Errorf("trust bundle of %s: %w", f.URL, err)
	}
	config := identity.ClientConfig(f.Own, f.Now)
	t := &http.Transport{Proxy: f.Proxy, TLSClientConfig: config, TLSHandshakeTimeout: wait, DisableKeepAlives: true, MaxResponseHeaderBytes: maxDocument}
	defer t.CloseIdleConnections()
	client := &http.Client{Transport: t, Timeout: wait, CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	base, err := url.Parse(f.URL)
	if err != nil {
		return fail(fmt.Errorf("%w: %w", fault.ErrInvalid, err))
	}
	base.Path = path // well-known paths begin at the top, whatever prefix the API has
	data, _, err := f.get(ctx, client, base.String(), true, maxDocument)
	if err != nil || data == nil {
		if err != nil {
			return fail(err)
		}
		return next, nil
	}
	var document struct {
		TrustDomain    string `json:"trustDomain"`
		TrustBundleURI string `json:"trustBundleUri"`
	}
	if err := json.Unmarshal(data, &document); err != nil {
		return fail(fmt.Errorf("discovery document: %w: %w", fault.ErrInvalid, err))
	}
	at, err := url.Parse(document.TrustBundleURI)
	switch {
	case document.TrustDomain != own.Bundle.TrustDomain():
		return fail(fmt.Errorf("discovery document: it is of the trust domain %q, and this device is of %s: %w", document.TrustDomain, own.Bundle.TrustDomain(), fault.ErrInvalid))
	case err != nil || at.Scheme != "https" || at.Host == "" || at.User != nil:
		return fail(fmt.Errorf("discovery document: trustBundleUri %q is no absolute https URL: %w", document.TrustBundleURI, fault.ErrInvalid))
	}
	data, peer, err := f.get(ctx, client, at.String(), false, identity.MaxBundle)
	if err != nil {
		return fail(err)
	}
	bundle, err := identity.ParseBundle("from "+at.String(), data, document.TrustDomain)
	if err != nil {
		return fail(err)
	}
	// Whoever is out of reach with the next bundle would not get another one.
	if err := (&identity.Credentials{SVID: own.SVID, Bundle: bundle}).VerifyManager(peer, f.Now()); err != nil {
		return fail(fmt.Errorf("the manager does not pass by its own bundle: %w", err))
	}
	next = every(bundle)
	if same(own.Bundle, bundle) {
		return next, nil
	}
	if err := enroll.SaveBundle(f.File, bundle.JSON(), f.Own, f.Now()); err != nil {
		return fail(err)
	}
	f.Log.Info("trust bundle replaced", "file", f.File, "from", at.String(), "anchors", len(bundle.Anchors()))
	return next, nil
}

// every is how often a bundle wants to be read again.
func every(b *identity.Bundle) time.Duration {
	if b.RefreshHint == 0 {
		return defaultEvery
	}
	return min(max(b.RefreshHint, minEvery), maxEvery)
}

// same reports whether two bundles have the same authorities.
func same(a, b *identity.Bundle) bool {
	has := func(all []*x509.Certificate) func(*x509.Certificate) bool {
		return func(c *x509.Certificate) bool { return !slices.ContainsFunc(all, c.Equal) }
	}
	return !slices.ContainsFunc(a.Anchors(), has(b.Anchors())) && !slices.ContainsFunc(b.Anchors(), has(a.Anchors()))
}

// get reads a document from the manager, and returns by which certificates that was authenticated. Where an optional
// one is not there, that is no error and no data.
func (f *Follower) get(ctx context.Context, client *http.Client, at string, optional bool, limit int64) ([]byte, []*x509.Certificate, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at, nil)
	if err != nil {
		return nil, nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	req.Header.Set("Accept", "application/json, "+margo.ProblemMediaType+";q=0.1")
	if f.UserAgent != "" {
		req.Header.Set("User-Agent", f.UserAgent)
	}
	res, err := client.Do(req)
	if err != nil {
		if u, ok := errors.AsType[*url.Error](err); ok {
			err = u.Err
		}
		var alert tls.AlertError
		if errors.Is(err, fault.ErrUnauthenticated) || errors.As(err, &alert) {
			err = fault.WithHint(err, "the bundle counts only where the manager itself serves it by mutual TLS")
		}
		return nil, nil, fmt.Errorf("read %s: %w: %w", at, fault.ErrTemporary, err)
	}
	defer res.Body.Close()
	switch {
	case optional && res.StatusCode == http.StatusNotFound:
		return nil, nil, nil
	case res.StatusCode != http.StatusOK:
		err := fmt.Errorf("read %s: %s: %w", at, res.Status, fault.ErrTemporary)
		if seconds, bad := strconv.ParseUint(res.Header.Get("Retry-After"), 10, 31); bad == nil {
			err = fault.WithRetryAfter(err, time.Duration(seconds)*time.Second)
		}
		return nil, nil, err
	}
	data, err := bounded.Read(res.Body, limit)
	if err != nil {
		return nil, nil, fmt.Errorf("read %s: %w: %w", at, fault.ErrTemporary, err)
	}
	return data, res.TLS.PeerCertificates, nil
}
