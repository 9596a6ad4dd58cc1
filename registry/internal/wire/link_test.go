package wire_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

func linked(headers ...string) *http.Response {
	return &http.Response{
		Request: httptest.NewRequest(http.MethodGet, "https://registry.example/v2/plant/state/tags/list?n=10", nil),
		Header:  http.Header{"Link": headers},
	}
}

func TestNextPage(t *testing.T) {
	t.Parallel()
	const page = "https://registry.example/v2/plant/state/tags/list"
	tests := map[string]struct {
		headers []string
		want    string // "": the last page
		is      error
	}{
		"none":                  {nil, "", nil},
		"empty":                 {[]string{""}, "", nil},
		"absolute path":         {[]string{`</v2/plant/state/tags/list?last=a&n=10>; rel="next"`}, page + "?last=a&n=10", nil},
		"relative":              {[]string{`<list?last=a>; rel="next"`}, page + "?last=a", nil},
		"query alone":           {[]string{`<?last=a>; rel=next`}, page + "?last=a", nil},
		"absolute":              {[]string{`<HTTPS://Registry.example:443/x>;rel="next"`}, "https://Registry.example:443/x", nil},
		"another path":          {[]string{`</pages/7>; rel="next"`}, "https://registry.example/pages/7", nil},
		"several in one header": {[]string{`</first>; rel="first", </prev>; rel=prev, </2>; rel="next", </9>; rel="last"`}, "https://registry.example/2", nil},
		"several headers":       {[]string{`</first>; rel="first"`, `</2>; rel="next"`}, "https://registry.example/2", nil},
		"several relations":     {[]string{`</2>; rel="last NEXT"`}, "https://registry.example/2", nil},
		"other parameters":      {[]string{`</1>; title="a, <b>; rel=\"next\"", </2> ; Title*=UTF-8''x ; REL = "next" ; flag`}, "https://registry.example/2", nil},
		"comma in the target":   {[]string{`</2?a,b;c>; rel="next"`}, "https://registry.example/2?a,b;c", nil},
		"first relation counts": {[]string{`</1>; rel="prev"; rel="next"`}, "", nil},
		"only others":           {[]string{`</first>; rel="first", <https://docs.example/>; rel="help"`}, "", nil},
		"next as a title":       {[]string{`</1>; rel="prev"; title="next"`}, "", nil},
		"a relation like next":  {[]string{`</1>; rel="nextpage"`}, "", nil},
		"without a relation":    {[]string{`</2>`}, "https://registry.example/2", nil},
		"foreign, not next":     {[]string{`<https://evil.example/>; rel="prev", </2>; rel="next"`}, "https://registry.example/2", nil},

		"foreign host":      {[]string{`<https://evil.example/v2/>; rel="next"`}, "", fault.ErrUnsupported},
		"foreign, second":   {[]string{`</1>; rel="prev", <https://evil.example/v2/>; rel="next"`}, "", fault.ErrUnsupported},
		"foreign port":      {[]string{`<https://registry.example:8443/>; rel="next"`}, "", fault.ErrUnsupported},
		"without TLS":       {[]string{`<http://registry.example/>; rel="next"`}, "", fault.ErrUnsupported},
		"TLS's port, plain": {[]string{`<http://registry.example:443/>; rel="next"`}, "", fault.ErrUnsupported},
		"no scheme":         {[]string{`<//evil.example/v2/>; rel="next"`}, "", fault.ErrUnsupported},
		"user information":  {[]string{`<https://u:p@registry.example/>; rel="next"`}, "", fault.ErrUnsupported},
		"host as user":      {[]string{`<https://registry.example@evil.example/>; rel="next"`}, "", fault.ErrUnsupported},
		"suffix":            {[]string{`<https://registry.example.evil.example/>; rel="next"`}, "", fault.ErrUnsupported},
		"other scheme":      {[]string{`<file:///etc/passwd>; rel="next"`}, "", fault.ErrUnsupported},
		"opaque":            {[]string{`<https:registry.example>; rel="next"`}, "", fault.ErrUnsupported},

		"no brackets":         {[]string{`/2; rel="next"`}, "", fault.ErrInvalid},
		"not closed":          {[]string{`</2; rel="next"`}, "", fault.ErrInvalid},
		"quote not closed":    {[]string{`</2>; rel="next`}, "", fault.ErrInvalid},
		"escape not ended":    {[]string{`</2>; rel="next\`}, "", fault.ErrInvalid},
		"words behind it":     {[]string{`</2> rel="next"`}, "", fault.ErrInvalid},
		"words behind quotes": {[]string{`</2>; title="a"b; rel="next"`}, "", fault.ErrInvalid},
		"no address":          {[]string{"<https://registry.example:x/>; rel=next"}, "", fault.ErrInvalid},
		"control character":   {[]string{"<https://\x00evil/>; rel=next"}, "", fault.ErrInvalid},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			next, err := wire.NextPage(linked(tt.headers...))
			got := ""
			if next != nil {
				got = next.String()
			}
			if got != tt.want || !errors.Is(err, tt.is) || tt.is != nil && fault.Retryable(err) {
				t.Errorf("NextPage(%q) = %q, %v, want %q, %v", tt.headers, got, err, tt.want, tt.is)
			}
		})
	}
}

func FuzzNextPage(f *testing.F) {
	f.Add(`</2?last=a>; rel="next", <https://evil.example>; rel="prev"`)
	f.Add(`<//evil.example/>; title="\"<>,;"; rel=next`)
	f.Add(`<https:/evil>;rel="next`)
	f.Fuzz(func(t *testing.T, header string) {
		next, err := wire.NextPage(linked(header))
		switch {
		case err != nil && (!errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrUnsupported) || strings.ContainsAny(err.Error(), "\n\x1b")):
			t.Errorf("NextPage(%q) = %q", header, err)
		case next != nil && (!strings.EqualFold(next.Scheme, "https") || !strings.EqualFold(next.Hostname(), "registry.example") || next.User != nil):
			t.Errorf("NextPage(%q) = %q, another origin", header, next)
		}
	})
}
