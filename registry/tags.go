package registry

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	tagPage     = 1000
	maxTagPages = 2000
	maxTags     = 1_000_000 // 10,000 devices with 20 generations each, and their lists of signatures, are 410,000
)

// Errors that end a list of tags before its last page.
var (
	errEnough    = errors.New("no further tag is wanted")
	errUnordered = errors.New("the tags are in no order")
)

// tags reads the registry's own list page by page; mirrors list only content that passed through them. With a prefix it begins at the
// tags with the prefix and ends after them, if the registry lists in order and can begin anywhere ("last" of the
// distribution specification); otherwise it lists all tags. Tags without the prefix may be among the result.
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
		page = slices.DeleteFunc(tags, func(t string) bool { return !ValidTag(t) })
		if prefix != "" && (!slices.IsSorted(page) || len(page) > 0 && page[0] <= prefix) {
			return errUnordered // or from the beginning, so the page does not show whether others exist
		}
		before := len(seen)
		for _, t := range page {
			seen[t] = true
		}
		switch {
		case len(seen) > maxTags:
			return fmt.Errorf("more than %d tags: %w", maxTags, fault.ErrTooLarge)
		case len(seen) == before: // also if a registry repeats the same page for ever
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
			return slices.Sorted(maps.Keys(seen)), nil
		case err != nil:
			return nil, a.answer(ctx, err)
		}
		// Some registries truncate the list without a link: after a full page, continue from its last tag.
	}
}
