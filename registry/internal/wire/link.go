package wire

import (
	"net/http"
	"net/url"
	"strings"
)

// Next finds the address of the next page in an answer's Link headers (RFC 8288), resolved against the request's own.
// A link to another origin is no link: the credentials of a registry are not carried elsewhere by one of its answers.
func Next(resp *http.Response) (*url.URL, bool) {
	for _, header := range resp.Header.Values("Link") {
		if target, ok := nextIn(header); ok {
			u, err := resp.Request.URL.Parse(target)
			if err != nil || u.Scheme != resp.Request.URL.Scheme || u.Host != resp.Request.URL.Host || u.User != nil {
				continue
			}
			return u, true
		}
	}
	return nil, false
}

// nextIn reads "<target>; rel=next, <target2>; …" and returns the target whose relation is next. A single target without
// any relation counts too: some registries leave it out.
func nextIn(header string) (string, bool) {
	for rest := header; ; {
		open := strings.IndexByte(rest, '<')
		if open < 0 {
			return "", false
		}
		end := strings.IndexByte(rest[open:], '>')
		if end < 0 {
			return "", false
		}
		target := rest[open+1 : open+end]
		rest = rest[open+end+1:]
		params, after := cutUnquoted(rest, ',')
		if relatesNext(params) && target != "" {
			return target, true
		}
		rest = after
	}
}

func relatesNext(params string) bool {
	seen := false
	for params != "" {
		var one string
		one, params = cutUnquoted(params, ';')
		name, value, ok := strings.Cut(strings.TrimSpace(one), "=")
		if !ok || !strings.EqualFold(strings.TrimSpace(name), "rel") {
			continue
		}
		seen = true
		for _, rel := range strings.Fields(strings.Trim(strings.TrimSpace(value), `"`)) {
			if strings.EqualFold(rel, "next") {
				return true
			}
		}
	}
	return !seen
}

// cutUnquoted cuts at the first sep outside double quotes.
func cutUnquoted(s string, sep byte) (before, after string) {
	quoted := false
	for i := range len(s) {
		switch {
		case s[i] == '"' && (i == 0 || s[i-1] != '\\'):
			quoted = !quoted
		case s[i] == sep && !quoted:
			return s[:i], s[i+1:]
		}
	}
	return s, ""
}
