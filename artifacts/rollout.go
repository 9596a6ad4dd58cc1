package artifacts

import (
	"fmt"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	// TypeRollout is the artifact type of a rollout, and the media type of the [Rollout] in it.
	TypeRollout = "application/vnd.longshore.rollout.v1+json"
	// TypeRolloutTargets is the media type of the states that a rollout publishes.
	TypeRolloutTargets = "application/vnd.longshore.rollout.targets.v1+json"
	// AnnotationFleet is the fleet that a rollout is of. Its revision is the generation of the artifact.
	AnnotationFleet = "dev.longshore.rollout.fleet"

	MaxRollout        = 4 << 20  // bytes of a rollout without its targets
	MaxRolloutTargets = 64 << 20 // bytes of the targets; those of 100,000 devices have 40 MB
)

// RolloutOptions are a rollout that is to be kept in a registry.
type RolloutOptions struct {
	Rollout  *Rollout
	Revision uint64        // of the artifact, from 1, through all rollouts of the fleet
	Previous digest.Digest // of the revision before; "": none
	Created  time.Time     // zero: left out
}

// PackRollout makes the artifact of a rollout: what changes with every step in one layer, what never does in another, so
// that a step moves few bytes. Same options, same digest.
func PackRollout(o RolloutOptions) (_ *Artifact, err error) {
	defer during(&err, "pack rollout revision %d", o.Revision)
	switch {
	case o.Revision == 0:
		return nil, fmt.Errorf("revisions begin at 1: %w", fault.ErrInvalid)
	case o.Previous != "" && !margo.ValidDigest(o.Previous):
		return nil, fmt.Errorf("previous %q is not %s: %w", o.Previous, margo.DigestForm, fault.ErrInvalid)
	}
	state, targets, err := o.Rollout.Encode()
	if err != nil {
		return nil, err
	}
	revision := strconv.FormatUint(o.Revision, 10)
	return pack(TypeRollout, []Blob{layer(TypeRollout, "rollout.json", state), layer(TypeRolloutTargets, "targets.json", targets)}, o.Created, map[string]string{
		AnnotationFleet:           o.Rollout.Fleet,
		AnnotationGeneration:      revision,
		AnnotationPrevious:        o.Previous.String(),
		ocispec.AnnotationTitle:   o.Rollout.Fleet,
		ocispec.AnnotationVersion: revision,
	}, nil)
}

// RolloutIndex is what the manifest of a rollout says. Nothing in it is trusted before the manifest's signature is.
type RolloutIndex struct {
	Fleet    string
	Revision uint64
	Previous digest.Digest // "": none told
	Rollout  ocispec.Descriptor
	Targets  ocispec.Descriptor
}

// OpenRollout checks the manifest of a rollout: its types, its annotations, its layers and their sizes.
func OpenRollout(manifest []byte) (_ *RolloutIndex, err error) {
	defer during(&err, "open rollout")
	i, err := open(manifest, TypeRollout)
	if err != nil {
		return nil, err
	}
	x := &RolloutIndex{Fleet: i.annotations[AnnotationFleet]}
	if !fleetFormat.MatchString(x.Fleet) {
		return nil, fmt.Errorf("annotation %s: %q is no name of a fleet: %w", AnnotationFleet, x.Fleet, fault.ErrInvalid)
	}
	if x.Revision, err = i.number(AnnotationGeneration); err != nil {
		return nil, err
	}
	if x.Previous, err = i.digest(AnnotationPrevious); err != nil {
		return nil, err
	}
	if len(i.layers) != 2 {
		return nil, fmt.Errorf("%d layers, want the rollout and its targets: %w", len(i.layers), fault.ErrInvalid)
	}
	x.Rollout, x.Targets = i.layers[0], i.layers[1]
	if err := layerIs("first layer", x.Rollout, TypeRollout, MaxRollout); err != nil {
		return nil, err
	}
	if err := layerIs("second layer", x.Targets, TypeRolloutTargets, MaxRolloutTargets); err != nil {
		return nil, err
	}
	return x, nil
}

// Read fetches and parses the rollout; the bytes are hashed here whatever blob did.
func (x *RolloutIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (*Rollout, error) {
	state, err := fetch(blob, x.Rollout)
	if err != nil {
		return nil, fmt.Errorf("read rollout: %w", err)
	}
	targets, err := fetch(blob, x.Targets)
	if err != nil {
		return nil, fmt.Errorf("read rollout: targets: %w", err)
	}
	r, err := ParseRollout("rollout", state, targets)
	if err != nil {
		return nil, err
	}
	if r.Fleet != x.Fleet {
		return nil, fmt.Errorf("read rollout: it is of the fleet %s, its manifest says %s: %w", r.Fleet, x.Fleet, fault.ErrInvalid)
	}
	return r, nil
}
