package fleet

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Origin is the source of a state.
type Origin struct {
	Source   string // address of the repository; "": it does not say
	Revision string // the commit, with "-dirty" behind it when its files were not as committed; "": it does not say
}

// origin reads the annotations of a state; s may be nil.
func (s *published) origin() Origin {
	if s == nil {
		return Origin{}
	}
	return Origin{s.index.Annotations[ocispec.AnnotationSource], s.index.Annotations[ocispec.AnnotationRevision]}
}

// Files are the files that the fleet was read from, in its directory.
func (f *Fleet) Files() []string { return slices.Sorted(maps.Keys(f.files)) }

// isOf reports whether a device's state is the saved one, whichever commit it names.
func (s *SavedState) isOf(d *DevicePlan) bool {
	return d.Digest == s.Digest || d.Content == cmp.Or(s.Content, s.Digest)
}

// History reports whether a commit is in the history of the one that a plan is of.
type History func(ctx context.Context, commit string) (bool, error)

var commitFormat = strict.Expression(`^[0-9a-f]{40}([0-9a-f]{24})?$`)

// Follows is an error, which wraps fault.ErrRollback, when a device of the plan has a state of a commit that is not in the
// history of the plan's: the branch was set back or rewritten, or the state is of another repository. forgiven are commits
// of which that is known. States that name no commit count for nothing.
func (p *Plan) Follows(ctx context.Context, in History, forgiven []string) error {
	devices := map[Origin][]string{}
	var order []Origin
	for _, d := range p.Devices {
		commit := strings.TrimSuffix(d.Origin.Revision, "-dirty")
		if !commitFormat.MatchString(commit) || slices.Contains(forgiven, commit) {
			continue
		}
		at := Origin{d.Origin.Source, commit}
		if devices[at] == nil {
			order = append(order, at)
		}
		devices[at] = append(devices[at], string(d.Device))
	}
	for _, at := range order {
		ok, err := in(ctx, at.Revision)
		if err != nil {
			return err
		}
		if !ok {
			from := at.Revision
			if at.Source != "" {
				from += " of " + at.Source
			}
			return fault.WithHint(fmt.Errorf("%s: published from %s, which is not in the history of this commit: %w", some(devices[at]), from, fault.ErrRollback),
				"the branch was set back or rewritten: put the commit back, or, if that was meant, say --rewritten "+at.Revision)
		}
	}
	return nil
}
