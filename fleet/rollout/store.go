package rollout

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry/release"
)

// rolloutsRepository is the repository of rollouts, below the fleet's registry; the tag is the fleet's name. It is a
// repository of its own: device ids are tags in those of the states.
const rolloutsRepository = "rollouts"

// Store keeps a fleet's rollout in the registry, so that every machine with the key can go on with it. Devices never
// read it. Each step is a revision with a tag of its own, signed like a state; of two who write the next revision at once
// at most one succeeds.
type Store struct {
	Fleet    string
	Registry string // parent of the fleet's repositories
	From     fleet.Registry
	To       fleet.Publisher // nil: it is only read
	// Verify reports whether an artifact was signed by a key that may publish. nil: no check.
	Verify func(ctx context.Context, repository string, d digest.Digest) error

	files *fleet.Fleet // nil: none are known, see [Store.home]
}

// Of is the store of the rollouts of a fleet.
func Of(f *fleet.Fleet, from fleet.Registry, to fleet.Publisher, verify func(context.Context, string, digest.Digest) error) Store {
	return Store{Fleet: f.Name, Registry: f.Registry, From: from, To: to, Verify: verify, files: f}
}

// Record is a revision of a rollout in the registry.
type Record struct {
	Revision uint64
	Digest   digest.Digest // of the artifact; "": nothing is there
	Rollout  *artifacts.Rollout

	tagged digest.Digest // digest of the tag; "": none
	next   uint64        // number of the next revision
	// doubt is what may have become the next revision: writing it ended with a temporary error, which may have come between
	// the tags, or in place of an answer. nil: nothing.
	doubt *artifacts.Artifact
}

// Repository is the repository of the rollouts.
func (s Store) Repository() string { return fleet.Absolute(s.Registry, rolloutsRepository) }

// Read reads the newest revision. Its error wraps fault.ErrNotFound when the fleet has never had a rollout.
func (s Store) Read(ctx context.Context) (*Record, error) {
	rec, err := s.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("read the rollout of %s: %w", s.Fleet, err)
	}
	if rec.Rollout == nil {
		return nil, fault.WithHint(fmt.Errorf("there is no rollout in %s:%s: %w", s.Repository(), s.Fleet, fault.ErrNotFound),
			"longshore fleet publish begins one, when fleet.yaml has a rollout")
	}
	return rec, nil
}

// Fleets are those that have had a rollout there, whatever l.Fleet is.
func (s Store) Fleets(ctx context.Context) ([]string, error) {
	tags, err := s.From.Tags(ctx, s.Repository())
	if errors.Is(err, fault.ErrNotFound) {
		return nil, nil
	}
	var out []string
	for _, t := range tags {
		if i := strings.LastIndex(t, ".v"); i > 0 {
			t = t[:i] // its tag may not have been set yet
		}
		if fleet.ValidName(t) && !slices.Contains(out, t) {
			out = append(out, t)
		}
	}
	return out, err
}

// Needs is the newest rollout, when states that were before it may be given back to devices; nil when there is none, or all of
// it is rolled back already. One that cannot be read, or has no trusted signature, is an error: what it needs is not known.
func (s Store) Needs(ctx context.Context) (*artifacts.Rollout, error) {
	rec, err := s.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("what the rollout of %s may go back to: %w", s.Fleet, err)
	}
	if rec.Rollout == nil || rec.Rollout.Phase == artifacts.RolloutRolledBack && !slices.ContainsFunc(rec.Rollout.Waves, reached) {
		return nil, nil
	}
	return rec.Rollout, nil
}

// Unverified is the newest rollout, whoever signed it and whatever became of it; nil when there is none. It is only for leaving its
// devices alone.
func (s Store) Unverified(ctx context.Context) (*artifacts.Rollout, error) {
	s.Verify = nil
	rec, err := s.find(ctx)
	if err != nil {
		return nil, fmt.Errorf("which devices the rollout of %s is of: %w", s.Fleet, err)
	}
	return rec.Rollout, nil
}

// find reads the newest revision; one without a Rollout when there is none.
func (s Store) find(ctx context.Context) (*Record, error) {
	c := &release.Chain[*revision]{Repository: s.Repository(), Tag: s.Fleet, Open: s.open, Read: s.read}
	c.Resolve = func(ctx context.Context, tag string) (ocispec.Descriptor, error) {
		return s.From.Resolve(ctx, s.Repository(), tag)
	}
	c.Tagged = func(ctx context.Context, tag string) (ocispec.Descriptor, []byte, error) {
		return s.From.Tagged(ctx, s.Repository(), tag)
	}
	if s.Verify != nil {
		c.Verify = func(ctx context.Context, d digest.Digest) error {
			err := s.Verify(ctx, s.Repository(), d)
			if err != nil {
				err = fmt.Errorf("%s@%s: %w", s.Repository(), d, err)
			}
			return err
		}
	}
	h, err := c.ReadTag(ctx)
	if err == nil {
		err = c.FollowHistory(ctx, h)
	}
	switch {
	case err != nil && h != nil && h.Refused != nil:
		return nil, fault.WithHint(err, "if another key of yours signed it, name it with --verify-key FILE; what none of your publishers has written may be removed")
	case err != nil:
		return nil, err
	case len(h.Skipped) > release.MaxSkipped:
		return nil, fmt.Errorf("more than %d revisions above %d cannot be followed: %w", release.MaxSkipped, h.Number(), fault.ErrConflict)
	}
	rec := &Record{tagged: h.Tagged, next: h.Next}
	if g := h.Current; g != nil {
		rec.Revision, rec.Digest, rec.Rollout = g.Number, g.Digest, g.Value.rollout
	}
	return rec, nil
}

// revision is one of a rollout. Its documents are read after its signature was checked.
type revision struct {
	digest  digest.Digest
	index   *artifacts.RolloutIndex
	rollout *artifacts.Rollout // nil: not read yet
}

// open parses the manifest of one revision.
func (s Store) open(d digest.Digest, manifest []byte) (*revision, uint64, error) {
	x, err := artifacts.OpenRollout(manifest)
	if err != nil {
		return nil, 0, fmt.Errorf("%s@%s: %w", s.Repository(), d, err)
	}
	if x.Fleet != s.Fleet {
		return nil, 0, fmt.Errorf("%s@%s is of the fleet %s: %w", s.Repository(), d, x.Fleet, fault.ErrConflict)
	}
	return &revision{digest: d, index: x}, x.Revision, nil
}

// read reads the documents of one revision.
func (s Store) read(ctx context.Context, r *revision) (*revision, error) {
	x, err := r.index.Read(func(b ocispec.Descriptor) ([]byte, error) {
		return s.From.Blob(ctx, s.Repository(), b, artifacts.MaxRolloutTargets)
	})
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", s.Repository(), r.digest, err)
	}
	return &revision{digest: r.digest, index: r.index, rollout: x}, nil
}

// write publishes the next revision, and makes rec that. An error that wraps fault.ErrConflict says that another process
// has written it.
func (s Store) write(ctx context.Context, rec *Record, r *artifacts.Rollout, now time.Time) error {
	a, err := artifacts.PackRollout(artifacts.RolloutOptions{Rollout: r, Revision: rec.next, Previous: rec.Digest, Created: now})
	if err != nil {
		return err
	}
	if err = s.publish(ctx, rec.next, rec.tagged, a); err != nil {
		if errors.Is(err, fault.ErrTemporary) {
			rec.doubt = a
		}
		return err
	}
	rec.Rollout, rec.Revision, rec.Digest, rec.tagged, rec.next, rec.doubt = r, rec.next, a.Descriptor.Digest, a.Descriptor.Digest, rec.next+1, nil
	return nil
}

func (s Store) publish(ctx context.Context, revision uint64, tagged digest.Digest, a *artifacts.Artifact) error {
	err := s.To.Publish(ctx, s.Repository(), a, fleet.Publication{
		Tag: s.Fleet, HistoryTag: artifacts.HistoryTag(s.Fleet, revision),
		Precondition: release.Precondition{Tagged: tagged, Verify: fleet.VerifyAt(s.Repository(), s.Verify)},
	})
	if err != nil {
		err = fmt.Errorf("keep revision %d of the rollout of %s: %w", revision, s.Fleet, err)
	}
	return err
}

// settle sets the tag to a record that was in doubt and was since found in the history.
func (s Store) settle(ctx context.Context, rec *Record, doubt *artifacts.Artifact) error {
	if doubt == nil || doubt.Descriptor.Digest != rec.Digest || rec.tagged == rec.Digest {
		return nil
	}
	err := s.publish(ctx, rec.Revision, rec.tagged, doubt)
	if err == nil {
		rec.tagged = rec.Digest
	}
	return err
}

// moved reports whether there is or may be a newer revision: of another process, or the one in doubt.
func (s Store) moved(ctx context.Context, rec *Record) (bool, error) {
	if rec.doubt != nil {
		return true, nil
	}
	desc, err := s.From.Resolve(ctx, s.Repository(), s.Fleet)
	if errors.Is(err, fault.ErrNotFound) {
		return rec.tagged != "", nil
	}
	return err == nil && desc.Digest != rec.tagged, err
}
