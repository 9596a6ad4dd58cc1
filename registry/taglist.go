package registry

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// TagList has the tags of a repository, for removals. What all of them name is read once, when a removal first needs it. It is safe for
// concurrent use.
type TagList struct {
	tags map[string]bool

	mu    sync.Mutex
	named map[string]digest.Digest // nil: not read yet
}

// NewTagList returns the list of tags, as [Repository.Tags] returns them.
func NewTagList(tags []string) *TagList {
	l := &TagList{tags: make(map[string]bool, len(tags))}
	for _, tag := range tags {
		l.tags[tag] = true
	}
	return l
}

// tagReads is how many tags are read at a time.
const tagReads = 16

// release ends that a tag names d: if another tag names it, too, drop is called to remove the tag, and others is true. Other removals wait
// meanwhile: of two that release the same manifest, the second one finds no other tag.
func (l *TagList) release(ctx context.Context, d digest.Digest, tag string, resolve func(context.Context, string) (digest.Digest, error), drop func() error) (others bool, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.named == nil {
		named, err := l.read(ctx, resolve)
		if err != nil {
			return false, err
		}
		l.named = named
	}
	delete(l.named, tag)
	for _, there := range l.named {
		if there == d {
			return true, drop()
		}
	}
	return false, nil
}

// naming lists the tags that named d when what the tags name was read.
func (l *TagList) naming(ctx context.Context, d digest.Digest, resolve func(context.Context, string) (digest.Digest, error)) (tags []string, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.named == nil {
		if l.named, err = l.read(ctx, resolve); err != nil {
			return nil, err
		}
	}
	for tag, there := range l.named {
		if there == d {
			tags = append(tags, tag)
		}
	}
	slices.Sort(tags)
	return tags, nil
}

func (l *TagList) read(ctx context.Context, resolve func(context.Context, string) (digest.Digest, error)) (map[string]digest.Digest, error) {
	named := make(map[string]digest.Digest, len(l.tags))
	var mu sync.Mutex
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(tagReads)
	for tag := range l.tags {
		g.Go(func() error {
			d, err := resolve(inner, tag)
			if errors.Is(err, fault.ErrNotFound) {
				return nil
			}
			if err == nil {
				mu.Lock()
				named[tag] = d
				mu.Unlock()
			}
			return err
		})
	}
	return named, g.Wait()
}
