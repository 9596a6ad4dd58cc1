package site

import (
	"context"
	"errors"

	"golang.org/x/sync/errgroup"
)

// each calls do with all items, so many at a time, until one call fails or ctx ends.
func each[T any](ctx context.Context, most int, items []T, do func(context.Context, T) error) error {
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(most)
	for _, x := range items {
		g.Go(func() error {
			if inner.Err() != nil {
				return inner.Err()
			}
			return do(inner, x)
		})
	}
	return errors.Join(g.Wait(), ctx.Err())
}
