package wire

import (
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"sync"
)

// WithTokenServers lets a registry on a private network name a token server of another name on that network, as GitLab's
// does. oras-go rejects every token server with a private address unless it has the registry's host name, so that a
// public registry cannot direct credentials or requests to hosts that only this machine can reach. This does not apply to
// a registry on the private network, which can reach these hosts itself.
//
// The challenge is rewritten to a path below the registry's own host, which oras-go accepts, and requests for that path are sent
// to the real address. Always rejected: link-local addresses (where clouds keep their metadata), http from https.
func WithTokenServers(base http.RoundTripper, host string) http.RoundTripper {
	return &tokenServers{base: base, host: host, lookup: (&net.Resolver{}), real: map[string]*url.URL{}}
}

// tokenPath is the path of a rewritten challenge; no registry has such a path.
const tokenPath = "/.longshore-token-server/"

// maxTokenServers bounds the stored token servers of one registry.
const maxTokenServers = 16

type tokenServers struct {
	base   http.RoundTripper
	host   string
	lookup *net.Resolver

	mu   sync.Mutex
	real map[string]*url.URL // by number
}

func (t *tokenServers) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Host != t.host {
		return t.base.RoundTrip(r)
	}
	if number, ok := strings.CutPrefix(r.URL.Path, tokenPath); ok {
		return t.base.RoundTrip(t.toReal(r, number))
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil || resp.StatusCode != http.StatusUnauthorized {
		return resp, err
	}
	if header := resp.Header.Get("Www-Authenticate"); header != "" {
		if changed, ok := t.rewrite(r, header); ok {
			resp.Header.Set("Www-Authenticate", changed)
		}
	}
	return resp, nil
}

// toReal changes the URL of a request to the token server with its number.
func (t *tokenServers) toReal(r *http.Request, number string) *http.Request {
	t.mu.Lock()
	real := t.real[number]
	t.mu.Unlock()
	if real == nil {
		return r // the registry answers that it does not exist
	}
	out := r.Clone(r.Context())
	u := *real
	q := u.Query()
	maps.Copy(q, r.URL.Query())
	u.RawQuery = q.Encode()
	out.URL, out.Host = &u, u.Host
	return out
}

// rewrite sets our path in a Bearer challenge whose token server oras-go rejects although it is safe.
func (t *tokenServers) rewrite(r *http.Request, header string) (string, bool) {
	scheme, _, _ := strings.Cut(header, " ")
	at := regexp.MustCompile(`(?i)[\s,]realm="([^"\\]+)"`).FindStringSubmatchIndex(header)
	if !strings.EqualFold(scheme, "bearer") || at == nil {
		return "", false
	}
	real, err := url.Parse(header[at[2]:at[3]])
	switch {
	case err != nil, real.Host == "", real.User != nil, real.Scheme != "https" && real.Scheme != "http",
		real.Scheme == "http" && r.URL.Scheme == "https", strings.EqualFold(real.Hostname(), r.URL.Hostname()):
		return "", false // oras-go accepts it, or rejects it for good reason
	}
	if !t.neighbours(r, real.Hostname()) {
		return "", false
	}
	u := url.URL{Scheme: r.URL.Scheme, Host: r.URL.Host, Path: tokenPath + t.remember(real)}
	return header[:at[2]] + u.String() + header[at[3]:], true
}

// neighbours reports whether the token server is on the same private network as the registry.
func (t *tokenServers) neighbours(r *http.Request, server string) bool {
	registry, other := t.addresses(r, r.URL.Hostname()), t.addresses(r, server)
	if len(registry) == 0 || len(other) == 0 {
		return false
	}
	loopback := true
	for _, a := range registry {
		if !a.IsPrivate() && !a.IsLoopback() {
			return false
		}
		loopback = loopback && a.IsLoopback()
	}
	for _, a := range other {
		if !a.IsPrivate() && (!a.IsLoopback() || !loopback) {
			return false
		}
	}
	return true
}

func (t *tokenServers) addresses(r *http.Request, host string) []netip.Addr {
	if a, err := netip.ParseAddr(host); err == nil {
		return []netip.Addr{a.Unmap()}
	}
	list, err := t.lookup.LookupNetIP(r.Context(), "ip", host)
	if err != nil {
		return nil
	}
	for i := range list {
		list[i] = list[i].Unmap()
	}
	return list
}

func (t *tokenServers) remember(real *url.URL) string {
	t.mu.Lock()
	defer t.mu.Unlock()
	for number, known := range t.real {
		if known.String() == real.String() {
			return number
		}
	}
	if len(t.real) >= maxTokenServers {
		clear(t.real)
	}
	for n := 0; ; n++ {
		if number := strconv.Itoa(n); t.real[number] == nil {
			t.real[number] = real
			return number
		}
	}
}
