package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"sync/atomic"

	orasregistry "oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// access is one repository at one endpoint, with its tokens. oras-go's requests for it go through Do, which sets the
// endpoint's path, and turns every unexpected response into an error of artifacts/fault.
type access struct {
	*endpoint
	repo     *remote.Repository
	auth     *auth.Client
	registry string      // host, as written in references
	withheld func() bool // Options have credentials, but not for this registry
	named    atomic.Bool // a user name and a password are known for it
	lacksAPI atomic.Bool // of referrers, as last answered
}

func (c *Client) newAccess(e *endpoint, ref Reference) *access {
	find := func(ctx context.Context, at string) (auth.Credential, error) {
		if at != e.host {
			return auth.EmptyCredential, nil
		}
		return c.lookup(ctx, e, ref.Registry, ref.Repository)
	}
	a := &access{
		endpoint: e, registry: ref.Registry,
		withheld: func() bool { return !e.mirror && (c.o.Username != "" || c.o.Token != "") && !c.isFor(ref.Registry) },
	}
	a.auth = &auth.Client{
		Client: e.client, Header: http.Header{"User-Agent": {e.userAgent}}, Credential: a.noting(find), ClientID: "longshore",
		Cache: auth.NewCache(), // one for each repository: podman's files have credentials for parts of a host
	}
	a.repo = &remote.Repository{
		Client: a, Reference: orasregistry.Reference{Registry: e.host, Repository: ref.Repository}, PlainHTTP: e.scheme == "http",
		ManifestMediaTypes: manifestTypes,
		TagListPageSize:    tagPage, TagListMaxPages: maxTagPages, ReferrerListMaxPages: maxReferrerPages, MaxMetadataBytes: maxIndex,
	}
	// We maintain the lists under tags: oras-go loses concurrent changes by others, and does not check again.
	_ = a.repo.SetReferrersCapability(true) // the first call cannot fail
	return a
}

// noting notes whether there is a password.
func (a *access) noting(find auth.CredentialFunc) auth.CredentialFunc {
	return func(ctx context.Context, at string) (auth.Credential, error) {
		c, err := find(ctx, at)
		if c.Username != "" && c.Password != "" {
			a.named.Store(true)
		}
		return c, err
	}
}

// errPassword: a registry or its token server rejects the user name and the password that were sent.
var errPassword = fault.WithHint(fmt.Errorf("the user name or the password is wrong: %w", fault.ErrUnauthenticated),
	"check both, and log in again; some registries want a token in place of the password")

// password replaces the error about a token server's or a registry's response if that means that the password is wrong. Where a
// token was granted, the password is right, and the account has no right.
func (a *access) password(err error, challenge string) error {
	scheme, _, _ := strings.Cut(challenge, " ")
	if a.named.Load() && errors.Is(err, fault.ErrUnauthenticated) && fault.Hint(err) == wire.HintLogin && !strings.EqualFold(scheme, "bearer") {
		return errPassword
	}
	return err
}

// explain adds to an error why the user's credentials were not sent to a registry. nil stays nil.
func (a *access) explain(err error) error {
	if !errors.Is(err, fault.ErrUnauthenticated) && !errors.Is(err, fault.ErrDenied) || !a.withheld() {
		return err
	}
	return fault.WithHint(err, "the user name and password, or token, that were given are not sent to "+a.registry+", which is not the host that they are for: "+
		"if they are meant for it, set LONGSHORE_REGISTRY_HOST or --registry-host "+a.registry+", or log in to it")
}

// address is the URL of a path below "/v2/REPOSITORY/" in the distribution specification. what "": the API's base.
func (a *access) address(what string) string {
	u := url.URL{Scheme: a.scheme, Host: a.host, Path: a.path + "/"}
	if what != "" {
		u.Path += a.repo.Reference.Repository + "/" + what
	}
	if a.ns != "" {
		u.RawQuery = url.Values{"ns": {a.ns}}.Encode()
	}
	return u.String()
}

// call sends a request for which oras-go has no function, or none that returns enough of the response. The caller closes the body.
func (a *access) call(ctx context.Context, method, what string, header http.Header, body []byte) (*http.Response, error) {
	var content io.Reader
	if body != nil {
		content = bytes.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, a.address(what), content)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, fault.ErrInvalid)
	}
	if header != nil {
		r.Header = header
	}
	return a.send(r)
}

// Do sends a request of oras-go, which builds addresses below "/v2/": they become those of the endpoint. An address
// from the registry's Link or Location is not changed; page or oras-go has checked that it is on the same host.
func (a *access) Do(r *http.Request) (*http.Response, error) {
	built := "/v2/" + a.repo.Reference.Repository + "/"
	what, ours := strings.CutPrefix(r.URL.Path, built)
	if ours && r.Method != http.MethodPut && (a.path == "/v2" || !strings.HasPrefix(r.URL.Path, a.path+built[len("/v2"):])) {
		r = r.Clone(r.Context())
		r.URL.Path = a.path + built[len("/v2"):] + what
		if a.ns != "" {
			q := r.URL.Query()
			q.Set("ns", a.ns)
			r.URL.RawQuery = q.Encode()
		}
	}
	if a.mirror {
		// Mirrors request their own scopes: their repositories may have other names.
		r = r.WithContext(auth.WithScopesForHost(r.Context(), a.host))
	}
	resp, err := a.send(r)
	if err != nil {
		return nil, err
	}
	if kind, ok := r.Context().Value(listKey{}).(listKind); ok {
		if err := a.page(r.Context(), resp, kind); err != nil {
			return nil, err
		}
	}
	return resp, nil
}

// send returns the response if its status is expected, otherwise the error in it.
func (a *access) send(r *http.Request) (*http.Response, error) {
	resp, err := a.auth.Do(r)
	if err != nil {
		return nil, a.explain(a.password(a.transportError(r.Context(), err), ""))
	}
	resp.Request = r // after a redirect it may be a signed link: errors must not contain it, and Link or Location are not relative to it
	switch s := resp.StatusCode; r.Method {
	case http.MethodGet, http.MethodHead:
		if s == http.StatusOK || s == http.StatusPartialContent && r.Header.Get("Range") != "" || s == http.StatusNotModified && r.Header.Get("If-None-Match") != "" {
			return resp, nil
		}
		if taken(s) && r.Context().Value(uploadKey{}) != nil {
			return resp, nil
		}
	case http.MethodPatch:
		if taken(s) {
			return resp, nil
		}
	case http.MethodPost:
		if s == http.StatusCreated || s == http.StatusAccepted {
			return resp, nil
		}
	case http.MethodPut:
		if taken(s) {
			resp.StatusCode = http.StatusCreated // the one that oras-go expects
			return resp, nil
		}
	case http.MethodDelete:
		if taken(s) {
			resp.StatusCode = http.StatusAccepted
			return resp, nil
		}
	}
	return nil, a.rejected(resp)
}

// rejected is the error of an unexpected response.
func (a *access) rejected(resp *http.Response) error {
	return a.explain(&statusError{resp.StatusCode, a.password(wire.AnswerError(resp), resp.Header.Get("WWW-Authenticate"))})
}

// taken reports whether a registry accepted an upload: registries use different statuses.
func taken(status int) bool {
	return status == http.StatusOK || status == http.StatusCreated || status == http.StatusAccepted || status == http.StatusNoContent
}

// answer classifies an error of oras-go: one of Do is not changed; the others are oras-go's own, about an
// unexpected response.
func (a *access) answer(ctx context.Context, err error) error {
	if err == nil || classified(err) || errors.Is(err, errNoAPI) {
		return err
	}
	if kind := new(json.UnmarshalTypeError); errors.As(err, &kind) {
		return errNoList
	}
	return a.explain(a.transportError(ctx, err))
}

// statusError keeps the status for callers that need it.
type statusError struct {
	status int
	err    error
}

func (s *statusError) Error() string { return s.err.Error() }
func (s *statusError) Unwrap() error { return s.err }

// statusOf is the status that caused err, 0 without a response.
func statusOf(err error) int {
	if s, ok := errors.AsType[*statusError](err); ok {
		return s.status
	}
	return 0
}
