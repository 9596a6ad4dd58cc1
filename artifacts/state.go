package artifacts

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// StateOptions say what a device is to run.
type StateOptions struct {
	Device      DeviceID
	Generation  uint64           // from 1
	Deployments [][]byte         // ApplicationDeployments; none: the device is to run nothing
	Expires     time.Time        // zero: never
	Windows     schedule.Windows // in which the device makes changes, one list; the zero value: at any time
	Previous    digest.Digest    // of the generation before; "": none
	Repeats     digest.Digest    // of the earlier generation whose content this one has again; "": none
	Created     time.Time        // zero: left out
	Annotations map[string]string
	// Applications are the packages that it was made of, by name; for people and for promotion, not for devices.
	Applications map[string]ApplicationVersion
	Compressors  *Compressors // for who packs many; nil: none are kept
}

// PackState makes the state of one device: State Manifest, bundle archive, each deployment. Same options, same digest,
// in whatever order the deployments come.
func PackState(o StateOptions) (_ *Artifact, err error) {
	defer during(&err, "pack state %d of %s", o.Generation, o.Device)
	if _, err := ParseDeviceID(string(o.Device)); err != nil {
		return nil, err
	}
	if o.Previous != "" && !margo.ValidDigest(o.Previous) {
		return nil, fmt.Errorf("previous %q is not %s: %w", o.Previous, margo.DigestForm, fault.ErrInvalid)
	}
	if o.Repeats != "" && !margo.ValidDigest(o.Repeats) {
		return nil, fmt.Errorf("repeats %q is not %s: %w", o.Repeats, margo.DigestForm, fault.ErrInvalid)
	}
	switch n := len(o.Windows.JSON()); {
	case n == 0 && !o.Windows.Always():
		return nil, fmt.Errorf("windows: they are not one list without faults: %w", fault.ErrInvalid)
	case n > MaxWindows:
		return nil, fmt.Errorf("windows: %d bytes, more than %d: %w", n, MaxWindows, fault.ErrTooLarge)
	}
	ds, err := readDeployments(numbered(o.Deployments))
	if err != nil {
		return nil, err
	}
	m := &margo.StateManifest{ManifestVersion: o.Generation}
	var layers []Blob
	for _, d := range ds {
		if to := d.Document.Metadata.DeviceID; !o.Device.Covers(to) {
			return nil, fmt.Errorf("deployment %s (%s) is for device %q: %w", d.Document.ID, d.Document.Metadata.Name, to, fault.ErrInvalid)
		}
		m.Deployments = append(m.Deployments, margo.DeploymentRef{
			DeploymentID: d.Document.ID, Digest: d.Digest, SizeBytes: uint64(len(d.Bytes)), URL: margo.DeploymentPath(d.Document.ID, d.Digest),
		})
	}
	if len(ds) > 0 {
		archive, err := packBundle(ds, o.Compressors)
		if err != nil {
			return nil, err
		}
		b := layer(TypeBundle, "bundle.tar.gz", archive)
		m.Bundle = &margo.BundleRef{MediaType: TypeBundle, Digest: b.Descriptor.Digest, SizeBytes: uint64(len(archive)), URL: margo.BundlePath(b.Descriptor.Digest)}
		layers = append([]Blob{b}, inlineAll(deploymentLayers(ds), maxInlineDeployments)...)
	}
	data, err := m.Encode()
	if err != nil {
		return nil, err
	}
	applications, err := applicationsText(o.Applications)
	if err != nil {
		return nil, err
	}
	own := map[string]string{
		AnnotationApplications:    applications,
		AnnotationDevice:          string(o.Device),
		AnnotationGeneration:      strconv.FormatUint(o.Generation, 10),
		AnnotationPrevious:        o.Previous.String(),
		AnnotationRepeats:         o.Repeats.String(),
		AnnotationWindows:         o.Windows.JSON(),
		ocispec.AnnotationTitle:   string(o.Device),
		ocispec.AnnotationVersion: strconv.FormatUint(o.Generation, 10),
	}
	if !o.Expires.IsZero() {
		own[AnnotationExpires] = o.Expires.UTC().Truncate(time.Second).Format(time.RFC3339)
	}
	return pack(TypeState, append([]Blob{layer(TypeState, "state.json", data).inline(maxInlineState)}, layers...), o.Created, own, o.Annotations)
}

// StateIndex is what the manifest of a device state says. Nothing in it is trusted before the manifest's signature is.
type StateIndex struct {
	Device      DeviceID
	Generation  uint64
	Expires     time.Time        // zero: never
	Windows     schedule.Windows // in which the device makes changes; the zero value: at any time
	Previous    digest.Digest    // "": none told
	Repeats     digest.Digest    // of the earlier generation whose content it has again; "": none told
	Manifest    ocispec.Descriptor
	Bundle      *ocispec.Descriptor  // nil exactly when there is nothing to deploy
	Deployments []ocispec.Descriptor // empty when a foreign publisher pushed the bundle only
	Annotations map[string]string
	// Applications are the packages that it was made of, by name, as far as the publisher told.
	Applications map[string]ApplicationVersion
}

// OpenState checks the manifest of a device state: its types, its annotations, its layers and their sizes.
func OpenState(manifest []byte) (*StateIndex, error) {
	x, err := ScanState(manifest)
	if err == nil {
		err = x.ReadWindows()
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

// ReadWindows fills in the windows of a [ScanState].
func (x *StateIndex) ReadWindows() (err error) {
	defer during(&err, "open state")
	text, ok := x.Annotations[AnnotationWindows]
	switch {
	case !ok:
		return nil
	case len(text) > MaxWindows:
		return fmt.Errorf("annotation %s: %d bytes, more than %d: %w", AnnotationWindows, len(text), MaxWindows, fault.ErrTooLarge)
	}
	x.Windows, err = schedule.ParseJSON("annotation "+AnnotationWindows, []byte(text))
	return err
}

// ScanState is OpenState before the signature was verified: it does not read the windows, which can take long.
func ScanState(manifest []byte) (_ *StateIndex, err error) {
	defer during(&err, "open state")
	i, err := open(manifest, TypeState)
	if err != nil {
		return nil, err
	}
	x := &StateIndex{Annotations: i.annotations, Applications: readApplications(i.annotations[AnnotationApplications])}
	if x.Device, err = ParseDeviceID(i.annotations[AnnotationDevice]); err != nil {
		return nil, fmt.Errorf("annotation %s: %w", AnnotationDevice, err)
	}
	if x.Generation, err = i.number(AnnotationGeneration); err != nil {
		return nil, err
	}
	if e, ok := i.annotations[AnnotationExpires]; ok {
		if x.Expires, err = time.Parse(time.RFC3339, e); err != nil {
			return nil, fmt.Errorf("annotation %s: %q is no time (RFC 3339): %w", AnnotationExpires, e, fault.ErrInvalid)
		}
		x.Expires = x.Expires.UTC()
	}
	if x.Previous, err = i.digest(AnnotationPrevious); err != nil {
		return nil, err
	}
	if x.Repeats, err = i.digest(AnnotationRepeats); err != nil {
		return nil, err
	}
	if x.Repeats != "" && x.Generation == 1 {
		return nil, fmt.Errorf("annotation %s: generation 1 has none before it: %w", AnnotationRepeats, fault.ErrInvalid)
	}
	x.Manifest = i.layers[0]
	if err := layerIs("first layer", x.Manifest, TypeState, MaxDocument); err != nil {
		return nil, err
	}
	x.Bundle, x.Deployments, err = documentLayers(i.layers[1:])
	if err == nil && x.Bundle == nil && len(x.Deployments) > 0 {
		err = fmt.Errorf("there are deployments and no bundle: %w", fault.ErrInvalid)
	}
	if err != nil {
		return nil, err
	}
	return x, nil
}

// OpenStateManifest reads a State Manifest by itself, as a manager serves it to a device: nothing says which device it is for, nor
// until when it holds, nor when the device may be changed. The sizes of bundle and deployments are 0, not known: those in it are no more than advice. Their URLs are the
// manager's paths.
func OpenStateManifest(device DeviceID, data []byte) (*StateIndex, error) {
	m, err := margo.ParseStateManifest("State Manifest", data)
	if err != nil {
		return nil, err
	}
	if len(m.Deployments) > MaxEntries {
		return nil, fmt.Errorf("State Manifest: %d deployments, more than %d: %w", len(m.Deployments), MaxEntries, fault.ErrTooLarge)
	}
	x := &StateIndex{
		Device: device, Generation: m.ManifestVersion,
		Manifest: ocispec.Descriptor{MediaType: TypeState, Digest: digest.FromBytes(data), Size: int64(len(data))},
	}
	if m.Bundle != nil {
		x.Bundle = &ocispec.Descriptor{MediaType: TypeBundle, Digest: m.Bundle.Digest, URLs: []string{m.Bundle.URL}}
	}
	for _, d := range m.Deployments {
		x.Deployments = append(x.Deployments, ocispec.Descriptor{MediaType: TypeDeployment, Digest: d.Digest, URLs: []string{d.URL}})
	}
	return x, nil
}

// ErrMixed says that what is put together belongs to different states: each part is sound by itself. It comes with
// fault.ErrInvalid.
var ErrMixed = errors.New("parts of different states")

func mixed(format string, args ...any) error {
	return fmt.Errorf(format+": %w: %w", append(args, ErrMixed, fault.ErrInvalid)...)
}

// State is a device's desired state, parsed and with every digest checked.
type State struct {
	Manifest      *margo.StateManifest
	ManifestBytes []byte
	Deployments   []Deployment // in the order of the manifest
}

// Read fetches and checks the state by its single documents; blob may answer from what the caller keeps, the bytes are
// hashed here in any case. When the artifact has no such layers, Read takes the bundle.
//
// The documents' metadata.deviceId is for the caller to compare: see [DeviceID.Covers].
func (x *StateIndex) Read(blob func(ocispec.Descriptor) ([]byte, error)) (_ *State, err error) {
	if len(x.Deployments) == 0 {
		return x.ReadBundle(blob)
	}
	defer during(&err, "read state")
	s, err := x.manifest(blob)
	if err != nil {
		return nil, err
	}
	layers := make(map[digest.Digest]ocispec.Descriptor, len(x.Deployments))
	for _, l := range x.Deployments {
		layers[l.Digest] = l
	}
	return s.fill(func(ref margo.DeploymentRef) (*Deployment, error) {
		l, ok := layers[ref.Digest]
		if !ok {
			return nil, mixed("deployment %s has no layer", ref.Digest)
		}
		data, err := fetch(blob, l)
		if err != nil {
			return nil, err
		}
		return ReadDeployment(ref.DeploymentID+".yaml", data)
	})
}

// ReadBundle is Read with one request for all documents: the way of a device that has few of them.
func (x *StateIndex) ReadBundle(blob func(ocispec.Descriptor) ([]byte, error)) (_ *State, err error) {
	defer during(&err, "read state")
	s, err := x.manifest(blob)
	if err != nil {
		return nil, err
	}
	if x.Bundle == nil {
		return s, nil
	}
	data, err := fetch(blob, *x.Bundle)
	if err != nil {
		return nil, err
	}
	ds, err := ReadBundle(data)
	if err != nil {
		return nil, err
	}
	if len(ds) != len(s.Manifest.Deployments) {
		return nil, mixed("the bundle has %d deployments, the manifest %d", len(ds), len(s.Manifest.Deployments))
	}
	packed := make(map[digest.Digest]*Deployment, len(ds))
	for i := range ds {
		packed[ds[i].Digest] = &ds[i]
	}
	return s.fill(func(ref margo.DeploymentRef) (*Deployment, error) {
		d, ok := packed[ref.Digest]
		if !ok {
			return nil, mixed("deployment %s is not in the bundle", ref.Digest)
		}
		return d, nil
	})
}

// manifest fetches the State Manifest and holds it against what the artifact's manifest says.
func (x *StateIndex) manifest(blob func(ocispec.Descriptor) ([]byte, error)) (*State, error) {
	data, err := fetch(blob, x.Manifest)
	if err != nil {
		return nil, err
	}
	m, err := margo.ParseStateManifest("state.json", data)
	if err != nil {
		return nil, err
	}
	if m.ManifestVersion != x.Generation {
		return nil, mixed("manifestVersion is %d, annotation %s is %d", m.ManifestVersion, AnnotationGeneration, x.Generation)
	}
	switch {
	case m.Bundle == nil && x.Bundle != nil:
		return nil, mixed("there is a bundle that the manifest does not name")
	case m.Bundle != nil && (x.Bundle == nil || x.Bundle.Digest != m.Bundle.Digest):
		return nil, mixed("bundle %s is not among the layers", m.Bundle.Digest)
	case len(x.Deployments) > 0 && len(x.Deployments) != len(m.Deployments):
		return nil, mixed("%d layers for the %d deployments of the manifest", len(x.Deployments), len(m.Deployments))
	}
	return &State{Manifest: m, ManifestBytes: data}, nil
}

// fill returns s with each document that the manifest refers to, and checks that it is that one.
func (s *State) fill(get func(margo.DeploymentRef) (*Deployment, error)) (*State, error) {
	for _, ref := range s.Manifest.Deployments {
		d, err := get(ref)
		if err != nil {
			return nil, err
		}
		if d.Document.ID != ref.DeploymentID {
			return nil, mixed("the manifest calls deployment %s %s", d.Document.ID, ref.DeploymentID)
		}
		if d.Digest != ref.Digest {
			return nil, fmt.Errorf("deployment %s: %s, want %s: %w", d.Document.ID, d.Digest, ref.Digest, fault.ErrDigestMismatch)
		}
		s.Deployments = append(s.Deployments, *d)
	}
	return s, nil
}
