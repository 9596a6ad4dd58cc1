package registry

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry/internal/wire"
)

const (
	tagPage     = 1000
	maxTagPages = 2000
	maxTagList  = 4 << 20   // bytes of one page: a thousand tags of 128 characters are 128 KiB
	maxTags     = 1_000_000 // 10,000 devices with 20 generations each, and their lists of signatures, are 410,000
)

// tags pages through the registry's own list; mirrors know only what passed through them.
func (p *remotePlace) tags(ctx context.Context) ([]string, error) {
	a := p.upstream()
	ctx = p.reading(ctx, a)
	seen := map[string]bool{}
	query := url.Values{"n": {strconv.Itoa(tagPage)}}
	var next *url.URL
	for range maxTagPages {
		resp, err := a.do(ctx, request{method: http.MethodGet, suffix: p.name + "/tags/list", query: query, page: next})
		if err != nil {
			return nil, err
		}
		data, err := readAtMost(resp, maxTagList)
		if err != nil {
			return nil, err
		}
		page, err := parseTags(resp, data)
		if err != nil {
			return nil, err
		}
		before := len(seen)
		for _, t := range page {
			seen[t] = true
		}
		if len(seen) > maxTags {
			return nil, fmt.Errorf("more than %d tags: %w", maxTags, fault.ErrTooLarge)
		}
		if len(page) == 0 || len(seen) == before {
			return sorted(seen), nil // also ends with a registry that sends the same page for ever
		}
		var more bool
		if next, more = wire.Next(resp); !more {
			// Some cut the list and send no link. A full page is asked on from its last tag.
			if len(page) < tagPage {
				return sorted(seen), nil
			}
			query.Set("last", page[len(page)-1])
		}
	}
	return nil, fmt.Errorf("more than %d pages of tags: %w", maxTagPages, fault.ErrTooLarge)
}

func parseTags(resp *http.Response, data []byte) ([]string, error) {
	if isPage(resp, data) {
		return nil, errPage
	}
	var list struct {
		Tags []string `json:"tags"`
	}
	if err := json.Unmarshal(data, &list); err != nil {
		return nil, fmt.Errorf("a list of tags that is not JSON: %w", fault.ErrInvalid)
	}
	return slices.DeleteFunc(list.Tags, func(t string) bool { return !validTag(t) }), nil
}

func sorted(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for t := range set {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}
