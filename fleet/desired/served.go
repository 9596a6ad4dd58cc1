package desired

import (
	"bytes"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// artifact is the state of a device in a registry.
type artifact struct {
	Device     artifacts.DeviceID `json:"device"`
	Repository string             `json:"repository"`
	Digest     digest.Digest      `json:"digest"`
	Size       int64              `json:"size"` // of its manifest
	Generation uint64             `json:"generation"`
}

// made lists the artifacts of a State Manifest, as stored.
type made struct {
	Artifacts []artifact `json:"artifacts"` // in order of the client's devices
}

// served is the content for a client. It is immutable.
type served struct {
	made
	version     uint64
	manifest    digest.Digest
	bundle      digest.Digest // "": there are no deployments
	deployments []reference   // sorted
	keep        []digest.Digest
	before      *served // without its own before; nil: none
}

// reference is a deployment of a manifest, in few bytes: a client may have thousands.
type reference struct {
	id     uuid.UUID
	digest [32]byte
}

func (r reference) compare(o reference) int {
	if c := bytes.Compare(r.id[:], o.id[:]); c != 0 {
		return c
	}
	return bytes.Compare(r.digest[:], o.digest[:])
}

func referenceOf(id string, d digest.Digest) (r reference, ok bool) {
	parsed, err := uuid.Parse(id)
	if err != nil || len(id) != len(parsed.String()) || d.Validate() != nil || d.Algorithm() != digest.SHA256 {
		return r, false
	}
	r.id = parsed
	_, err = hex.Decode(r.digest[:], []byte(d.Encoded()))
	return r, err == nil
}

func (s *served) has(id string, d digest.Digest) bool {
	r, ok := referenceOf(id, d)
	if !ok {
		return false
	}
	_, there := slices.BinarySearchFunc(s.deployments, r, reference.compare)
	return there
}

// of fills in the values that follow from a State Manifest.
func (s *served) of(m *margo.StateManifest, data []byte) error {
	s.version, s.manifest = m.ManifestVersion, digest.FromBytes(data)
	s.keep = append(s.keep, s.manifest)
	if m.Bundle != nil {
		s.bundle = m.Bundle.Digest
		s.keep = append(s.keep, s.bundle)
	}
	for _, d := range m.Deployments {
		r, ok := referenceOf(d.DeploymentID, d.Digest)
		if !ok {
			return fmt.Errorf("deployment %s: %w", d.DeploymentID, fault.ErrInvalid)
		}
		s.deployments = append(s.deployments, r)
		s.keep = append(s.keep, d.Digest)
	}
	slices.SortFunc(s.deployments, reference.compare)
	return nil
}

// restore finds on disk the content that a client was served before a restart. Only the manifests are read; the content that they name is
// verified when it is served.
func (v *View) restore(ctx context.Context, head store.Manifest) (*served, error) {
	s := &served{}
	if err := json.Unmarshal([]byte(head.Made), &s.made); err != nil {
		return nil, fmt.Errorf("what it was made of: %w: %w", fault.ErrInvalid, err)
	}
	f, err := v.o.Content.Open(ctx, digest.Digest(head.Digest))
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := bounded.Read(f, artifacts.MaxDocument)
	if err != nil {
		return nil, err
	}
	m, err := margo.ParseStateManifest("state.json", data)
	if err != nil {
		return nil, err
	}
	for _, a := range s.Artifacts {
		manifest, err := v.o.Content.Get(ctx, a.Digest)
		if err != nil {
			return nil, err
		}
		x, err := artifacts.OpenState(manifest)
		if err != nil {
			return nil, err
		}
		s.keep = append(s.keep, layersOf(a.Digest, x)...)
	}
	return s, s.of(m, data)
}

// layersOf are a state and the layers that are read.
func layersOf(d digest.Digest, x *artifacts.StateIndex) []digest.Digest {
	out := []digest.Digest{d, x.Manifest.Digest}
	if x.Bundle != nil {
		out = append(out, x.Bundle.Digest)
	}
	return out
}
