package rollout

import (
	"context"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry/release"
)

// History lists the fleet's rollouts as the registry has them, the newest first and at most limit, each by its last revision, and
// reports whether there are, or were, older ones. It ends at a revision that is not there or no rollout. Signatures are not checked. It reads a few revisions of each, not all.
func (s Store) History(ctx context.Context, limit int) (all []*Record, more bool, err error) {
	s.Verify = nil
	rec, err := s.Read(ctx)
	targets := map[digest.Digest][]byte{} // of the last rollout: all of its revisions have the same
	for err == nil && rec != nil {
		all, more = append(all, rec), rec.Rollout.Number > 1
		if !more || len(all) == limit {
			return all, more, nil
		}
		rec, err = s.before(ctx, rec, targets)
	}
	return all, more, err
}

// before finds the last revision of the rollout before that of rec; nil: it is not there any more. The numbers of rollouts rise with
// the revisions, so it goes back in steps that double, and then halves the last one.
func (s Store) before(ctx context.Context, rec *Record, targets map[digest.Digest][]byte) (*Record, error) {
	above := rec.Revision // is of this rollout, or of a later one
	var found *Record
	for step := uint64(1); found == nil || found.Revision+1 < above; step *= 2 {
		next := above - min(step, above-1)
		switch {
		case found != nil:
			next = found.Revision + (above-found.Revision)/2
		case above == 1:
			return nil, nil
		}
		x, err := s.at(ctx, next, targets)
		switch {
		case err != nil || x == nil:
			return nil, err
		case x.Rollout.Number < rec.Rollout.Number:
			found = x
		default:
			above = x.Revision
		}
	}
	return found, nil
}

// at reads one revision; nil: it is not there, or no rollout of this fleet.
func (s Store) at(ctx context.Context, revision uint64, targets map[digest.Digest][]byte) (*Record, error) {
	desc, manifest, err := s.From.Tagged(ctx, s.Repository(), artifacts.HistoryTag(s.Fleet, revision))
	switch {
	case release.Unfit(err):
		return nil, nil
	case err != nil:
		return nil, err
	}
	r, n, err := s.open(desc.Digest, manifest)
	if err != nil || n != revision {
		return nil, nil
	}
	x, err := r.index.Read(func(b ocispec.Descriptor) ([]byte, error) {
		if data := targets[b.Digest]; data != nil {
			return data, nil
		}
		data, err := s.From.Blob(ctx, s.Repository(), b, artifacts.MaxRolloutTargets)
		if err == nil && b.Digest == r.index.Targets.Digest {
			clear(targets)
			targets[b.Digest] = data
		}
		return data, err
	})
	if release.Unfit(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return &Record{Revision: revision, Digest: desc.Digest, Rollout: x}, nil
}
