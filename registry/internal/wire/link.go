package wire

import (
	"fmt"
	"net"
	"net/http"
	"net/url"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
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

// nextLink finds the target whose relation is "next". A link without a relation is used if there is no other: some
// clients always use the first link, so some registries may not set a relation.
func nextLink(headers []string) (string, error) {
	unnamed := ""
	for _, rest := range headers {
		for {
			if rest = strings.TrimLeft(rest, " \t,"); rest == "" {
				break
			}
			link, after, err := cutLink(rest)
			if err != nil {
				return "", err
			}
			rest = after
			for _, rel := range strings.Fields(link.rel) {
				if strings.EqualFold(rel, "next") {
					return link.target, nil
				}
			}
			if link.rel == "" && unnamed == "" {
				unnamed = link.target
			}
		}
	}
	return unnamed, nil
}

type link struct{ target, rel string }

// cutLink reads one link with its parameters. after is empty, or begins with the comma before the next link.
func cutLink(s string) (l link, after string, err error) {
	target, rest, closed := strings.Cut(strings.TrimPrefix(s, "<"), ">")
	if !strings.HasPrefix(s, "<") || !closed {
		return link{}, "", errLink
	}
	l.target = target
	for {
		if rest = strings.TrimLeft(rest, " \t"); rest == "" || rest[0] == ',' {
			return l, rest, nil
		}
		if rest[0] != ';' {
			return link{}, "", errLink
		}
		var name, value string
		if name, value, rest, err = cutParameter(rest[1:]); err != nil {
			return link{}, "", err
		}
		if strings.EqualFold(name, "rel") && l.rel == "" { // the first of several is used
			l.rel = value
		}
	}
}

// cutParameter reads NAME, NAME=TOKEN or NAME="STRING". rest is the text after the parameter.
func cutParameter(s string) (name, value, rest string, err error) {
	end := strings.IndexAny(s, "=;,")
	if end < 0 {
		return strings.TrimSpace(s), "", "", nil
	}
	name, rest = strings.TrimSpace(s[:end]), s[end:]
	if rest[0] != '=' {
		return name, "", rest, nil
	}
	if rest = strings.TrimLeft(rest[1:], " \t"); strings.HasPrefix(rest, `"`) {
		value, rest, err = cutQuoted(rest[1:])
		return name, value, rest, err
	}
	if end = strings.IndexAny(rest, ";,"); end < 0 {
		end = len(rest)
	}
	return name, strings.TrimSpace(rest[:end]), rest[end:], nil
}

// cutQuoted reads a quoted string after its opening quote.
func cutQuoted(s string) (value, rest string, err error) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch s[i] {
		case '"':
			return b.String(), s[i+1:], nil
		case '\\':
			if i++; i == len(s) {
				return "", "", errLink
			}
		}
		b.WriteByte(s[i])
	}
	return "", "", errLink
}
