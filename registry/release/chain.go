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

// MaxSkipped bounds the consecutive history tags with unacceptable generations. Anyone with push rights
// can create any number of them.
const MaxSkipped = 32

// Chain is a moving tag with numbered history tags, each generation naming the one before: the states of a device, the
// records of a fleet's rollouts. It is read here, and written by [Publish] with a [Precondition].
type Chain[X any] struct {
	Repository string // "host/path"
	Tag        string // the moving one
	// Tagged reads the manifest that a tag names at the registry itself, with one request.
	Tagged func(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error)
	// Resolve returns the digest of a tag whose manifest Tagged cannot read.
	Resolve func(ctx context.Context, tag string) (ocispec.Descriptor, error)
	// Open parses the manifest of a generation, and returns an error if it is not of the chain.
	Open func(d digest.Digest, manifest []byte) (X, uint64, error)
	// Verify returns an error if a generation must not be followed. nil: every one may.
	Verify func(ctx context.Context, d digest.Digest) error
	// Read reads the blobs of a generation of Open, after Verify has accepted it: nothing below the manifest is parsed
	// before. After an error the generation is not followed. nil: Open's value is complete.
	Read func(ctx context.Context, x X) (X, error)
	// Generations lists the generations with a history tag, the newest first. It is called if the moving tag has no acceptable
	// generation. nil: the history is searched upwards from 1.
	Generations func(ctx context.Context) ([]uint64, error)
	// Past continues from the history also if the generation of the moving tag is not acceptable; otherwise FollowHistory returns an error.
	Past bool
}

// Generation is one generation of a chain.
type Generation[X any] struct {
	Number uint64
	Digest digest.Digest
	Value  X
}

// Head is the end of a chain.
type Head[X any] struct {
	Tagged  digest.Digest  // digest of the moving tag; "": there is none
	Current *Generation[X] // predecessor of the next generation; nil: none
	Refused error          // why the generation of the moving tag is not acceptable; nil: it is, or there is none
	Next    uint64         // number of the next generation, whose history tag did not exist; 0: the numbers are used up
	Skipped []string       // history tags with unacceptable generations
	Reason  error          // of the first of them
	Blind   error          // why the history could not be listed; nil: listed, or not needed

	searched bool     // the list was read
	listed   []uint64 // the newest first
	asked    []uint64 // those whose history tag was requested and existed
}

// Has reports whether a history tag existed, in the list or when it was requested.
func (h *Head[X]) Has(n uint64) bool {
	return slices.Contains(h.listed, n) || slices.Contains(h.asked, n)
}

// Lags reports whether the moving tag does not name the newest generation: a publication was interrupted, or the tag was
// moved back.
func (h *Head[X]) Lags() bool { return h.Current != nil && h.Current.Digest != h.Tagged }

// Number is the number of the newest generation; 0: there is none.
func (h *Head[X]) Number() uint64 {
	if h.Current == nil {
		return 0
	}
	return h.Current.Number
}

// ReadTag opens the generation of the moving tag. It does not call Verify and Read.
func (c *Chain[X]) ReadTag(ctx context.Context) (*Head[X], error) {
	h := &Head[X]{Next: 1}
	x, n, d, err := c.open(ctx, c.Tag)
	h.Tagged = d
	switch {
	case d == "" && (errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrInvalid)): // or truncated by a killed publisher
		return h, nil
	case err == nil:
		h.Current, h.Next = &Generation[X]{n, d, x}, n+1
	case d == "" || !Unfit(err):
		return nil, err
	default:
		h.Refused = err
	}
	return h, nil
}

// open reads the generation that a tag names, and returns the tag's digest also if that is none: "" only if there is no tag, or
// it could not be read.
func (c *Chain[X]) open(ctx context.Context, tag string) (x X, n uint64, d digest.Digest, err error) {
	desc, manifest, err := c.Tagged(ctx, tag)
	if err == nil {
		x, n, err = c.Open(desc.Digest, manifest)
		return x, n, desc.Digest, err
	}
	// A registry may have lost the manifest of a tag. The publisher of a state finds that out when it reads the moving tag again.
	if !Unfit(err) || errors.Is(err, fault.ErrNotFound) && c.Generations != nil {
		return x, 0, "", err
	}
	desc, lookErr := c.Resolve(ctx, tag)
	if lookErr != nil {
		return x, 0, "", lookErr
	}
	return x, 0, desc.Digest, err
}

// FollowHistory reads the history upwards from the generation of the moving tag: a publication may have ended before the tag moved, or the tag was
// moved back. It costs one request for each generation above, and one for the first missing one. An [Unfit]
// error means that the generation of the tag is not acceptable.
func (c *Chain[X]) FollowHistory(ctx context.Context, h *Head[X]) error {
	if err := c.verifyCurrent(ctx, h); err != nil {
		return err
	}
	if h.Current == nil && c.Generations != nil {
		if err := c.search(ctx, h); err != nil {
			return err
		}
	}
	return c.FindNext(ctx, h)
}

// FindNext goes up from h.Next to the first number without a history tag, and requests each tag, because [Publish] sets it without
// another check. It does check it if there is no moving tag; then a list of tags suffices, which may be minutes old in a large fleet.
func (c *Chain[X]) FindNext(ctx context.Context, h *Head[X]) error {
	for n := h.Next; n != 0 && len(h.Skipped) <= MaxSkipped; n++ {
		if !h.Has(n) { // otherwise it was checked already
			if h.Tagged == "" && h.searched {
				return nil
			}
			if there, err := c.consider(ctx, h, n); err != nil || !there {
				return err
			}
		}
		h.Next = n + 1
	}
	return nil
}

// Search is FollowHistory by a list of all history tags: it also finds generations behind a gap.
func (c *Chain[X]) Search(ctx context.Context, h *Head[X]) error {
	if err := c.verifyCurrent(ctx, h); err != nil {
		return err
	}
	if err := c.search(ctx, h); err != nil {
		return err
	}
	return h.Blind
}

// verifyCurrent verifies the generation of the moving tag, and reads it.
func (c *Chain[X]) verifyCurrent(ctx context.Context, h *Head[X]) error {
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

// accept verifies a generation of Open, and reads the rest of it.
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

// search finds the newest acceptable generation above. This needs a list: the first ones may be
// pruned, and each single one may be missing.
func (c *Chain[X]) search(ctx context.Context, h *Head[X]) error {
	listed, err := c.Generations(ctx)
	switch {
	case errors.Is(err, fault.ErrTemporary), errors.Is(err, fault.ErrTooLarge), ctx.Err() != nil:
		return err
	case err != nil && !errors.Is(err, fault.ErrNotFound):
		h.Blind = err // the caller may not have the right to list tags
		return nil
	}
	h.listed, h.searched = listed, true
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

// consider makes the generation of a history tag the newest one, or records why it is not acceptable. It reports whether the
// tag exists.
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

// at also reports whether the history tag exists.
func (c *Chain[X]) at(ctx context.Context, n uint64) (g *Generation[X], there bool, err error) {
	tag := artifacts.HistoryTag(c.Tag, n)
	x, is, d, err := c.open(ctx, tag)
	if d == "" {
		return nil, false, err
	}
	if err == nil && is != n {
		err = fmt.Errorf("%s:%s is generation %d: %w", c.Repository, tag, is, fault.ErrConflict)
	}
	if err == nil {
		x, err = c.accept(ctx, d, x)
	}
	if err != nil {
		return nil, true, err
	}
	return &Generation[X]{n, d, x}, true, nil
}

// Unfit reports whether an error is about the content itself, not about a failed query.
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
		if moving, n, ok := cutHistory(t); ok {
			out[moving] = append(out[moving], n)
		}
	}
	for _, all := range out {
		slices.Sort(all)
		slices.Reverse(all)
	}
	return out
}

// cutHistory parts a history tag into its moving tag and its number; ok: it is one.
func cutHistory(tag string) (moving string, n uint64, ok bool) {
	moving = tag[:max(strings.LastIndex(tag, ".v"), 0)]
	n, err := strconv.ParseUint(strings.TrimPrefix(tag, moving+".v"), 10, 64)
	return moving, n, err == nil && n > 0 && artifacts.HistoryTag(moving, n) == tag
}
