package desired

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/store"
)

// manifestOf creates the State Manifest of a client whose last one was head (zero: none) from the states of its devices: that of
// a single state unchanged, otherwise a composed one, and an archive if no state has the bundle already. The same states and
// version give the same bytes.
func manifestOf(states []*artifacts.State, of []artifact, head store.Manifest) (m *margo.StateManifest, data, archive []byte, err error) {
	if len(states) == 1 {
		m, data = states[0].Manifest, states[0].ManifestBytes
		if m.ManifestVersion > head.Version || m.ManifestVersion == head.Version && digest.FromBytes(data).String() == head.Digest {
			return m, data, nil, nil
		}
	}
	m = &margo.StateManifest{}
	if m.Bundle, m.Deployments, archive, err = union(states, of); err != nil {
		return nil, nil, nil, err
	}
	if m.ManifestVersion = head.Version; head.Version > 0 { // the same content again, after a loss of the disk
		if data, err = m.Encode(); err != nil || digest.FromBytes(data).String() == head.Digest {
			return m, data, archive, err
		}
	}
	if m.ManifestVersion, err = nextVersion(head.Version, of); err != nil {
		return nil, nil, nil, err
	}
	data, err = m.Encode()
	if err == nil && len(data) > artifacts.MaxDocument {
		err = fmt.Errorf("the manifest of %d deployments has %d bytes, more than %d: %w", len(m.Deployments), len(data), artifacts.MaxDocument, fault.ErrTooLarge)
	}
	return m, data, archive, err
}

// nextVersion is above all previous versions: by head, or, if the database was lost, by the generations of the states, because
// each change has used one.
func nextVersion(head uint64, of []artifact) (uint64, error) {
	version := uint64(1)
	for _, a := range of {
		if version += a.Generation - 1; version < a.Generation-1 {
			return 0, fmt.Errorf("there is no version above those of the states: %w", fault.ErrInvalid)
		}
	}
	if head+1 == 0 {
		return 0, fmt.Errorf("there is no version above %d: %w", head, fault.ErrInvalid)
	}
	return max(version, head+1), nil
}

// union has the deployments of several devices. archive is nil if one of the states has the bundle.
func union(states []*artifacts.State, of []artifact) (*margo.BundleRef, []margo.DeploymentRef, []byte, error) {
	var out []margo.DeploymentRef
	var documents [][]byte
	var bundle *margo.BundleRef
	full := 0
	from := map[string]artifact{}
	for i, s := range states {
		if s.Manifest.Bundle != nil {
			full, bundle = full+1, s.Manifest.Bundle
		}
		for j, d := range s.Deployments {
			id := strings.ToLower(d.Document.ID)
			if other, twice := from[id]; twice {
				return nil, nil, nil, fmt.Errorf("%s and %s both have deployment %s: %w", other.Device, of[i].Device, d.Document.ID, fault.ErrConflict)
			}
			if from[id] = of[i]; d.Document.Metadata.DeviceID == "" && len(states) > 1 {
				return nil, nil, nil, fmt.Errorf("deployment %s of %s has no metadata.deviceId, which one of several devices needs: %w", d.Document.ID, of[i].Device, fault.ErrInvalid)
			}
			ref := s.Manifest.Deployments[j]
			ref.URL = margo.DeploymentPath(ref.DeploymentID, ref.Digest)
			out, documents = append(out, ref), append(documents, d.Bytes)
		}
	}
	if len(out) > artifacts.MaxEntries {
		err := fmt.Errorf("%d deployments of %d devices are for one client, which may have %d: %w", len(out), len(states), artifacts.MaxEntries, fault.ErrTooLarge)
		return nil, nil, nil, fault.WithHint(err, "give some of the devices another client in the clients file, or publish fewer deployments")
	}
	slices.SortFunc(out, func(a, b margo.DeploymentRef) int { return strings.Compare(a.DeploymentID, b.DeploymentID) })
	if full <= 1 {
		return bundle, out, nil, nil
	}
	archive, err := artifacts.PackBundle(documents)
	if err != nil {
		return nil, nil, nil, err
	}
	d := digest.FromBytes(archive)
	return &margo.BundleRef{MediaType: margo.BundleMediaType, Digest: d, SizeBytes: uint64(len(archive)), URL: margo.BundlePath(d)}, out, archive, nil
}
