package release

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// MaxSkipped is how many history tags in a row may name something that cannot be followed. Anyone with push rights
// can make any number of them.
const MaxSkipped = 32

// Chain is a moving tag with numbered history tags, each generation naming the one before: the states of a device, the
// records of a fleet's rollouts. It is read here, and written by [Publish] with a [Precondition].
type Chain[X any] struct {
	Repository string // "host/path"
	Tag        string // the moving one
	// Resolve asks what a tag names, of the registry itself.
	Resolve func(ctx context.Context, tag string) (ocispec.Descriptor, error)
	// Open reads a generation as far as its manifest tells, and refuses what is not of the chain.
	Open func(ctx context.Context, d digest.Digest) (X, uint64, error)
	// Verify reports whether a generation may be followed. nil: every one may.
	Verify func(ctx context.Context, d digest.Digest) error
	// Read reads the blobs of a generation that Open returned, after Verify has let it pass: nothing below the manifest is parsed
	// before. What it refuses is not followed. nil: Open's value is all.
	Read func(ctx context.Context, x X) (X, error)
	// Generations lists those that have a history tag, the newest first. It is asked where the moving tag names nothing that can
	// be followed. nil: the history is gone up from 1.
	Generations func(ctx context.Context) ([]uint64, error)
	// Past goes on from the history also where what the moving tag names cannot be followed; else that is an error of Climb.
	Past bool
}

// Generation is one generation of a chain.
type Generation[X any] struct {
	Number uint64
	Digest digest.Digest
	Value  X
}

// Head is where a chain ends.
type Head[X any] struct {
	Tagged  digest.Digest  // what the moving tag names; "": nothing
	Current *Generation[X] // what the next generation follows; nil: nothing
	Refused error          // why what the moving tag names cannot be followed; nil: it can, or it names nothing
	Next    uint64         // number of the next generation, whose history tag was not there; 0: there is none above
	Skipped []string       // history tags that cannot be followed
	Reason  error          // of the first of them
	Blind   error          // why the history could not be listed; nil: it could, or did not have to be

	listed []uint64 // the newest first
	asked  []uint64 // those whose history tag was asked for, and was there
}

// Has reports whether a history tag was there, by the list or when it was asked for.
func (h *Head[X]) Has(n uint64) bool {
	return slices.Contains(h.listed, n) || slices.Contains(h.asked, n)
}

// Lags reports whether the newest generation is not what the moving tag names: a publication was interrupted, or the tag was
// moved back.
func (h *Head[X]) Lags() bool { return h.Current != nil && h.Current.Digest != h.Tagged }

// Number is that of the newest generation; 0: there is none.
func (h *Head[X]) Number() uint64 {
	if h.Current == nil {
		return 0
	}
	return h.Current.Number
}

// Look opens what the moving tag names. Who signed it is not looked at, and Read not called.
func (c *Chain[X]) Look(ctx context.Context) (*Head[X], error) {
	h := &Head[X]{Next: 1}
	desc, err := c.Resolve(ctx, c.Tag)
	switch {
	case errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrInvalid): // or cut off by a publisher that was killed
		return h, nil
	case err != nil:
		return nil, err
	}
	h.Tagged = desc.Digest
	x, n, err := c.Open(ctx, desc.Digest)
	switch {
	case err == nil:
		h.Current, h.Next = &Generation[X]{n, desc.Digest, x}, n+1
	case !Unfit(err):
		return nil, err
	default:
		h.Refused = err
	}
	return h, nil
}

// Climb goes up the history from what the moving tag names: a publication may have ended before the tag moved, or the tag was
// moved back. It costs one request for each generation above, and one for the first that is not there. An error that is
// [Unfit] says that what the tag names cannot be followed.
func (c *Chain[X]) Climb(ctx context.Context, h *Head[X]) error {
	if err := c.vouch(ctx, h); err != nil {
		return err
	}
	if h.Current == nil && c.Generations != nil {
		if err := c.search(ctx, h); err != nil {
			return err
		}
	}
	return c.Ascend(ctx, h)
}

// Ascend goes up from h.Next to the first number whose history tag is not there, which is asked for itself: a list of tags is as
// old as when it was made, one of a whole fleet minutes, and a publisher of that number sets the tag without another look.
func (c *Chain[X]) Ascend(ctx context.Context, h *Head[X]) error {
	for n := h.Next; n != 0 && len(h.Skipped) <= MaxSkipped; n++ {
		if !h.Has(n) { // else it was looked at
			if there, err := c.consider(ctx, h, n); err != nil || !there {
				return err
			}
		}
		h.Next = n + 1
	}
	return nil
}

// Search is Climb by a list of all generations that have a history tag: it finds those behind a gap as well.
func (c *Chain[X]) Search(ctx context.Context, h *Head[X]) error {
	if err := c.vouch(ctx, h); err != nil {
		return err
	}
	if err := c.search(ctx, h); err != nil {
		return err
	}
	return h.Blind
}

// vouch looks who signed what the moving tag names, and reads it.
func (c *Chain[X]) vouch(ctx context.Context, h *Head[X]) error {
	if h.Current != nil {
		x, err := c.accept(ctx, h.Current.Digest, h.Current.Value)
		switch {
		case err == nil:
			h.Current.Value = x
		case !Unfit(err):
			return err
		default:
			h.Refused, h.Current, h.Next = err, nil, 1
		}
	}
	if h.Refused != nil && !c.Past {
		return fmt.Errorf("read %s:%s: %w", c.Repository, c.Tag, h.Refused)
	}
	return nil
}

// accept looks who signed what Open returned, and reads the rest of it.
func (c *Chain[X]) accept(ctx context.Context, d digest.Digest, x X) (X, error) {
	if c.Verify != nil {
		if err := c.Verify(ctx, d); err != nil {
			return x, err
		}
	}
	if c.Read == nil {
		return x, nil
	}
	return c.Read(ctx, x)
}

// search goes to the newest generation above that can be followed. Only a list tells which there are: the first ones may be
// pruned, and no single one has to be there.
func (c *Chain[X]) search(ctx context.Context, h *Head[X]) error {
	listed, err := c.Generations(ctx)
	switch {
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrTooLarge), ctx.Err() != nil:
		return err
	case err != nil && !errors.Is(err, fault.ErrNotFound):
		h.Blind = err // listing tags may be denied
		return nil
	}
	h.listed = listed
	current := h.Current
	for _, n := range listed {
		if n <= h.Number() || len(h.Skipped) > MaxSkipped || h.Current != current {
			break
		}
		if _, err := c.consider(ctx, h, n); err != nil {
			return err
		}
	}
	return nil
}

// consider makes what a history tag names the newest generation, or remembers why it cannot be followed. It reports whether the
// tag is there.
func (c *Chain[X]) consider(ctx context.Context, h *Head[X], n uint64) (bool, error) {
	g, there, err := c.at(ctx, n)
	if !there && errors.Is(err, fault.ErrNotFound) {
		return false, nil
	}
	if err != nil && !Unfit(err) {
		return true, err
	}
	h.asked = append(h.asked, n)
	if err == nil {
		h.Current, h.Next = g, n+1
	} else if h.Skipped = append(h.Skipped, artifacts.HistoryTag(c.Tag, n)); h.Reason == nil {
		h.Reason = err
	}
	return true, nil
}

// At reads the generation of a number by its history tag.
func (c *Chain[X]) At(ctx context.Context, n uint64) (*Generation[X], error) {
	g, _, err := c.at(ctx, n)
	return g, err
}

// at reports as well whether the history tag is there.
func (c *Chain[X]) at(ctx context.Context, n uint64) (g *Generation[X], there bool, err error) {
	tag := artifacts.HistoryTag(c.Tag, n)
	desc, err := c.Resolve(ctx, tag)
	if err != nil {
		return nil, false, err
	}
	x, is, err := c.Open(ctx, desc.Digest)
	if err == nil && is != n {
		err = fmt.Errorf("%s:%s is generation %d: %w", c.Repository, tag, is, fault.ErrConflict)
	}
	if err == nil {
		x, err = c.accept(ctx, desc.Digest, x)
	}
	if err != nil {
		return nil, true, err
	}
	return &Generation[X]{n, desc.Digest, x}, true, nil
}

// Unfit reports whether an error says what something is, and not that it could not be found out.
func Unfit(err error) bool {
	if errors.Is(err, fault.ErrTemporary) || fault.Distrusted(err) {
		return fault.Distrusted(err)
	}
	return slices.ContainsFunc([]error{
		fault.ErrConflict, fault.ErrInvalid,
		fault.ErrUnsupported, fault.ErrTooLarge, fault.ErrDigestMismatch, fault.ErrNotFound,
	}, func(kind error) bool { return errors.Is(err, kind) })
}

// Generations are the numbers of history tags among tags, by the moving tag, the newest first.
func Generations(tags []string) map[string][]uint64 {
	out := map[string][]uint64{}
	for _, t := range tags {
		i := strings.LastIndex(t, ".v")
		if i < 0 {
			continue
		}
		if n, err := strconv.ParseUint(t[i+2:], 10, 64); err == nil && n > 0 && artifacts.HistoryTag(t[:i], n) == t {
			out[t[:i]] = append(out[t[:i]], n)
		}
	}
	for _, all := range out {
		slices.Sort(all)
		slices.Reverse(all)
	}
	return out
}
