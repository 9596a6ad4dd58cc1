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

	orasregistry "oras.land/oras-go/v2/registry"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

// access is one repository at one endpoint, with its tokens. oras-go's requests about it go through Do, which gives them the
// endpoint's path, and turns every answer that is not what was asked for into an error of artifacts/fault.
type access struct {
	*endpoint
	repo     *remote.Repository
	auth     *auth.Client
	registry string      // host, as written in references
	withheld func() bool // the credentials of Options exist, and are not for this registry
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
		auth:     e.newAuth(find, auth.NewCache()), // a cache for each repository: podman's files have credentials for parts of a host
		withheld: func() bool { return !e.mirror && c.hasCredentials() && !c.isFor(ref.Registry) },
	}
	a.repo = &remote.Repository{
		Client: a, Reference: orasregistry.Reference{Registry: e.host, Repository: ref.Repository}, PlainHTTP: e.scheme == "http",
		ManifestMediaTypes: manifestTypes,
		TagListPageSize:    tagPage, TagListMaxPages: maxTagPages, ReferrerListMaxPages: maxReferrerPages, MaxMetadataBytes: maxIndex,
	}
	// The lists under tags are ours: oras-go loses what others write there meanwhile, and does not look again.
	_ = a.repo.SetReferrersCapability(true) // the first call cannot fail
	return a
}

// explain says why a registry was not told credentials that the user has given. nil stays nil.
func (a *access) explain(err error) error {
	if !errors.Is(err, fault.ErrUnauthenticated) && !errors.Is(err, fault.ErrDenied) || !a.withheld() {
		return err
	}
	return fault.WithHint(err, "the user name and password, or token, that were given are not sent to "+a.registry+", which is not the host that they are for: "+
		"if they are meant for it, set LONGSHORE_REGISTRY_HOST or --registry-host "+a.registry+", or log in to it")
}

// address of what stands behind "/v2/REPOSITORY/" in the distribution specification. what "": the API's base.
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

// call sends one request that oras-go has no function for, or none that tells enough of the answer. The caller closes the body.
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

// Do sends a request of oras-go, which builds addresses below "/v2/": they become those of the endpoint. What follows the
// registry's own words, a Link or a Location, stays as it is; page or oras-go has checked that it leads to the same host.
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
		// Mirrors say themselves what they want: their repositories may have other names.
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

// send gives the answer when its status is one that the request asks for, else the error that it tells.
func (a *access) send(r *http.Request) (*http.Response, error) {
	resp, err := a.auth.Do(r)
	if err != nil {
		return nil, a.explain(a.transportError(r.Context(), err))
	}
	resp.Request = r // behind a redirect it may be a signed link: no error repeats it, and no Link or Location counts from there
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
			resp.StatusCode = http.StatusCreated // the one that oras-go knows
			return resp, nil
		}
	case http.MethodDelete:
		if taken(s) {
			resp.StatusCode = http.StatusAccepted
			return resp, nil
		}
	}
	return nil, a.explain(&statusError{resp.StatusCode, wire.AnswerError(resp)})
}

// taken reports whether a registry accepted something: they differ in how they say it.
func taken(status int) bool {
	return status == http.StatusOK || status == http.StatusCreated || status == http.StatusAccepted || status == http.StatusNoContent
}

// answer classifies an error that oras-go has returned: one of Do stays as it is; the others are oras-go's own, about an
// answer that does not fit.
func (a *access) answer(ctx context.Context, err error) error {
	if err == nil || classified(err) || errors.Is(err, errNoAPI) {
		return err
	}
	if kind := new(json.UnmarshalTypeError); errors.As(err, &kind) {
		return errNoList
	}
	return a.explain(a.transportError(ctx, err))
}

// statusError keeps the status for those who decide by it.
type statusError struct {
	status int
	err    error
}

func (s *statusError) Error() string { return s.err.Error() }
func (s *statusError) Unwrap() error { return s.err }

// statusOf is the status that err came from, 0 when no answer came.
func statusOf(err error) int {
	var s *statusError
	if errors.As(err, &s) {
		return s.status
	}
	return 0
}
