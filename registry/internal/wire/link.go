package wire

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// NextPage returns the address of the page that follows a page of a list, from the answer's Link headers (RFC 8288): nil for
// the last page. A relative address is relative to resp.Request. An address at another origin, or with user information, is
// fault.ErrUnsupported: no request may be sent there for this registry. A header that cannot be read is
// fault.ErrInvalid.
func NextPage(resp *http.Response) (*url.URL, error) {
	target, err := nextLink(resp.Header.Values("Link"))
	if err != nil || target == "" {
		return nil, err
	}
	here := resp.Request.URL
	next, err := here.Parse(target)
	if err != nil {
		return nil, fmt.Errorf("its list goes on at an address that is none: %w", fault.ErrInvalid)
	}
	if !SameOrigin(next, here) {
		return nil, fault.WithHint(
			fmt.Errorf("its list goes on at %s, not at %s: %w",
				Clean(next.Scheme+"://"+next.Host), here.Scheme+"://"+here.Host, fault.ErrUnsupported),
			"is the registry told its public address, and is it the right registry?")
	}
	return next, nil
}

// SameOrigin reports whether two addresses have the same scheme, host and port, and none a user's name.
func SameOrigin(a, b *url.URL) bool {
	return strings.EqualFold(a.Scheme, b.Scheme) && origin(a) == origin(b) && a.User == nil && b.User == nil
}

// origin is the host and port of an http or https address.
func origin(u *url.URL) string {
	port := u.Port()
	switch {
	case port != "":
	case strings.EqualFold(u.Scheme, "https"):
		port = "443"
	case strings.EqualFold(u.Scheme, "http"):
		port = "80"
	}
	return strings.ToLower(net.JoinHostPort(u.Hostname(), port))
}

var errLink = fmt.Errorf("a Link header that cannot be read: %w", fault.ErrInvalid)

// The parts of a Link header: <TARGET>, then parameters ;NAME, ;NAME=TOKEN or ;NAME="STRING", in which a backslash escapes a character.
var (
	linkTarget    = strict.Expression(`^<([^>]*)>`)
	linkParameter = strict.Expression(`(?s)^[ \t]*;([^=;,]*)(?:=[ \t]*(?:"((?:[^"\\]|\\.)*)"|([^";,][^;,]*)?))?`)
	linkEscape    = strict.Expression(`(?s)\\(.)`)
)

// nextLink finds the target whose relation is "next". A link without a relation is used if there is no other: some
// clients always use the first link, so some registries may not set a relation.
func nextLink(headers []string) (string, error) {
	unnamed := ""
	for _, rest := range headers {
		for {
			if rest = strings.TrimLeft(rest, " \t,"); rest == "" {
				break
			}
			m := linkTarget.Regexp().FindStringSubmatch(rest)
			if m == nil {
				return "", errLink
			}
			target, rel := m[1], ""
			rest = rest[len(m[0]):]
			for m = linkParameter.Regexp().FindStringSubmatch(rest); m != nil; m = linkParameter.Regexp().FindStringSubmatch(rest) {
				rest = rest[len(m[0]):]
				if strings.EqualFold(strings.TrimSpace(m[1]), "rel") && rel == "" { // the first of several is used
					rel = linkEscape.Regexp().ReplaceAllString(m[2], "$1") + strings.TrimSpace(m[3])
				}
			}
			if rest = strings.TrimLeft(rest, " \t"); rest != "" && rest[0] != ',' {
				return "", errLink
			}
			for _, one := range strings.Fields(rel) {
				if strings.EqualFold(one, "next") {
					return target, nil
				}
			}
			if rel == "" && unnamed == "" {
				unnamed = target
			}
		}
	}
	return unnamed, nil
}
