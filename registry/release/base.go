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

// maxIgnored is how many history tags in a row may name something that cannot be followed. Whoever may write to the
// registry can make any number of them.
const maxIgnored = 32

// base is what the next state follows: the newest generation that the device's tag or a history tag above it names, and
// that Options.Verify lets pass. The tag lags behind the history when a push was interrupted before it moved, or when
// somebody moved it back.
type base struct {
	device  artifacts.DeviceID
	tag     string
	where   string
	current *Current            // nil: there is none
	tagged  digest.Digest       // what the device's tag names; "": it is not there
	refused error               // why what it names cannot be followed; nil: it can, or it is not there
	ignored []string            // history tags above current that cannot be followed
	reason  error               // of the first of them
	taken   map[uint64]struct{} // generations whose history tag is there
}

func findBase(ctx context.Context, repo Repository, o Options) (*base, error) {
	b := &base{device: o.Device, tag: o.Device.Tag(), where: repo.Name()}
	desc, err := repo.Resolve(ctx, b.tag)
	switch {
	case errors.Is(err, fault.ErrNotFound):
	case err != nil:
		return nil, err
	default:
		b.tagged = desc.Digest
		if b.current, err = b.read(ctx, repo, o.Verify, desc.Digest.String()); unfit(err) {
			b.refused = err
		} else if err != nil {
			return nil, err
		}
	}
	all, err := history(ctx, repo, b.tag)
	if err != nil {
		return nil, err
	}
	b.taken = make(map[uint64]struct{}, len(all))
	for _, n := range all {
		b.taken[n] = struct{}{}
	}
	for _, n := range all {
		if b.current != nil && n <= b.current.Index.Generation || len(b.ignored) > maxIgnored {
			break
		}
		tag := artifacts.HistoryTag(b.tag, n)
		c, err := b.read(ctx, repo, o.Verify, tag)
		if err == nil && c.Index.Generation != n {
			err = fmt.Errorf("%s:%s is generation %d: %w", b.where, tag, c.Index.Generation, fault.ErrConflict)
		}
		if err == nil {
			b.current = c
			break
		}
		if !unfit(err) {
			return nil, err
		}
		if b.ignored = append(b.ignored, tag); b.reason == nil {
			b.reason = err
		}
	}
	return b, nil
}

// history lists the generations that have a history tag, newest first.
func history(ctx context.Context, repo Repository, tag string) ([]uint64, error) {
	tags, err := repo.Tags(ctx)
	if errors.Is(err, fault.ErrNotFound) { // a repository that nobody has pushed to yet
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var all []uint64
	for _, t := range tags {
		number, ok := strings.CutPrefix(t, tag+".v")
		if n, err := strconv.ParseUint(number, 10, 64); ok && err == nil && n > 0 && artifacts.HistoryTag(tag, n) == t {
			all = append(all, n)
		}
	}
	slices.Sort(all)
	slices.Reverse(all)
	return all, nil
}

// read reads a state that is the device's, and that verify lets pass.
func (b *base) read(ctx context.Context, repo Repository, verify func(context.Context, ocispec.Descriptor) error, target string) (*Current, error) {
	c, err := Read(ctx, repo, target)
	if err != nil {
		return nil, err
	}
	if c.Index.Device != b.device {
		return nil, fmt.Errorf("%s@%s is the state of %s and not of %s: %w", b.where, c.Descriptor.Digest, c.Index.Device, b.device, fault.ErrConflict)
	}
	if verify != nil {
		if err := verify(ctx, c.Descriptor); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// unfit tells errors that say what something is from those that say that nobody could tell.
func unfit(err error) bool {
	if errors.Is(err, fault.ErrTemporary) || fault.Distrusted(err) {
		return fault.Distrusted(err)
	}
	return slices.ContainsFunc([]error{
		fault.ErrConflict, fault.ErrInvalid,
		fault.ErrUnsupported, fault.ErrTooLarge, fault.ErrDigestMismatch, fault.ErrNotFound,
	}, func(kind error) bool { return errors.Is(err, kind) })
}

// check refuses to go on from what nobody vouches for: neither its number nor its deployments may be taken over.
func (b *base) check(o Options) error {
	const number = "say which number is next with --generation"
	switch {
	case b.refused != nil && o.KeepOthers:
		return fault.WithHint(fmt.Errorf("keep what %s:%s names: %w", b.where, b.tag, b.refused),
			"if another key of yours signed it, name it with --verify-key FILE; else name all deployments, without --keep-others")
	case b.refused != nil && b.current == nil && o.Generation == 0:
		return fault.WithHint(fmt.Errorf("follow what %s:%s names: %w", b.where, b.tag, b.refused),
			"if another key of yours signed it, name it with --verify-key FILE; else "+number)
	case b.current == nil && b.reason != nil && o.Generation == 0:
		return fault.WithHint(fmt.Errorf("follow %s:%s: %w", b.where, b.ignored[0], b.reason),
			"if another key of yours signed it, name it with --verify-key FILE; else "+number)
	case len(b.ignored) > maxIgnored && o.Generation == 0:
		return fault.WithHint(fmt.Errorf("follow %s:%s: more than %d generations like it: %w", b.where, b.ignored[0], maxIgnored, b.reason),
			"somebody seems to have made them; remove them, or "+number)
	case b.current != nil && (o.Generation != 0 && o.Generation < b.generation() || o.Generation == b.generation() && !b.lags()):
		return b.rollback(o.Generation)
	}
	return nil
}

func (b *base) rollback(n uint64) error {
	err := fmt.Errorf("generation %d of %s: %w: generation %d is there, and devices take nothing older", n, b.device, fault.ErrRollback, b.generation())
	return fault.WithHint(err, fmt.Sprintf("to go back to older content, publish it again as generation %d", b.generation()+1))
}

// generation is that of current; 0: there is none.
func (b *base) generation() uint64 {
	if b.current == nil {
		return 0
	}
	return b.current.Index.Generation
}

// lags tells that the newest generation is not what the device's tag names.
func (b *base) lags() bool { return b.current != nil && b.current.Descriptor.Digest != b.tagged }

// next is the number of the next generation: the first above current whose history tag is free.
func (b *base) next() (uint64, error) {
	for n := b.generation(); n < ^uint64(0); n++ {
		if _, taken := b.taken[n+1]; !taken {
			return n + 1, nil
		}
	}
	return 0, fmt.Errorf("%s:%s: generation %d has no next one: %w", b.where, b.tag, b.generation(), fault.ErrInvalid)
}

// notes tell what was unusual.
func (b *base) notes(n *Next, resumed bool) []string {
	var out []string
	if b.refused != nil {
		out = append(out, fmt.Sprintf("what %s named was not followed: %v", b.tag, b.refused))
	}
	switch {
	case resumed:
		out = append(out, fmt.Sprintf("generation %d says the same already, and %s did not name it: it does now", n.Generation, b.tag))
	case b.lags():
		out = append(out, fmt.Sprintf("generation %d is the newest, although %s does not name it: this follows it", b.generation(), b.tag))
	}
	if len(b.ignored) > 0 {
		first := b.ignored[:min(len(b.ignored), 3)]
		out = append(out, fmt.Sprintf("not followed: %s (%d in all): %v", strings.Join(first, ", "), len(b.ignored), b.reason))
	}
	return out
}
