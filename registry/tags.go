package registry

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	tagPage     = 1000
	maxTagPages = 2000
	maxTags     = 1_000_000 // 10,000 devices with 20 generations each, and their lists of signatures, are 410,000
)

// What ends a list of tags before its last page.
var (
	errEnough    = errors.New("no further tag is wanted")
	errUnordered = errors.New("the tags are in no order")
)

// tags pages through the registry's own list; mirrors know only what passed through them. With a prefix it begins at the
// tags that have it and ends behind them, where the registry lists in order and can begin anywhere ("last" of the
// distribution specification); else it lists everything. Tags without the prefix may be among the result.
func (p *remotePlace) tags(ctx context.Context, prefix string) ([]string, error) {
	if list, ok := p.snap.listed(); ok {
		return list, nil
	}
	var (
		a    = p.upstream()
		seen = map[string]bool{}
		page []string
	)
	take := func(tags []string) error {
		page = slices.DeleteFunc(tags, func(t string) bool { return !validTag(t) })
		if prefix != "" && (!slices.IsSorted(page) || len(page) > 0 && page[0] <= prefix) {
			return errUnordered // or from the beginning: the page says nothing about what is not on it
		}
		before := len(seen)
		for _, t := range page {
			seen[t] = true
		}
		switch {
		case len(seen) > maxTags:
			return fmt.Errorf("more than %d tags: %w", maxTags, fault.ErrTooLarge)
		case len(seen) == before: // also ends with a registry that sends the same page for ever
			return errEnough
		case prefix != "" && !strings.HasPrefix(page[len(page)-1], prefix):
			return errEnough
		}
		return nil
	}
	for last := prefix; ; last = page[len(page)-1] {
		page = nil
		err := a.repo.Tags(listing(ctx, listTags), last, take)
		switch {
		case errors.Is(err, errUnordered):
			return p.tags(ctx, "")
		case errors.Is(err, errEnough), err == nil && len(page) < tagPage:
			return sorted(seen), nil
		case err != nil:
			return nil, a.answer(ctx, err)
		}
		// Some cut the list and send no link: a full page is asked on from its last tag.
	}
}

func sorted(set map[string]bool) []string {
	out := make([]string, 0, len(set))
	for t := range set {
		out = append(out, t)
	}
	slices.Sort(out)
	return out
}
