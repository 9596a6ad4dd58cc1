package audit

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/signing"
)

// Inspection is the type and content of one artifact. Its digests and documents are checked, its signatures are not.
type Inspection struct {
	Digest       digest.Digest     `json:"digest"`
	Kind         artifacts.Kind    `json:"kind,omitempty"`
	MediaType    string            `json:"mediaType,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Size         int64             `json:"size"`        // of the manifest
	ContentSize  int64             `json:"contentSize"` // of config and layers together
	Annotations  map[string]string `json:"annotations,omitempty"`
	Subject      *Blob             `json:"subject,omitempty"`
	Config       *Blob             `json:"config,omitempty"`
	Layers       []Blob            `json:"layers,omitempty"`
	Manifests    []Blob            `json:"manifests,omitempty"` // of an index
	Content
	Referrers []Referrer `json:"referrers"` // nil: they could not be listed
	// Unlisted is the number of further referrers.
	Unlisted int `json:"unlistedReferrers,omitempty"`
	// Faults are errors in the artifact, and read errors.
	Faults []string `json:"faults,omitempty"`
}

// Blob is a blob of an artifact, by its manifest.
type Blob struct {
	Digest       digest.Digest     `json:"digest"`
	MediaType    string            `json:"mediaType,omitempty"`
	ArtifactType string            `json:"artifactType,omitempty"`
	Size         int64             `json:"size"`
	Platform     string            `json:"platform,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

func blobOf(d ocispec.Descriptor) Blob {
	b := Blob{Digest: d.Digest, MediaType: d.MediaType, ArtifactType: d.ArtifactType, Size: d.Size, Annotations: withoutBundle(d.Annotations)}
	if p := d.Platform; p != nil {
		b.Platform = platform(p.OS, p.Architecture, p.Variant)
	}
	return b
}

// withoutBundle drops the text of a signature, which is shown as its statement.
func withoutBundle(annotations map[string]string) map[string]string {
	shown := maps.Clone(annotations) // the list that they are of may be read again
	delete(shown, signing.AnnotationBundle)
	return shown
}

func platform(os, architecture, variant string) string {
	s := os + "/" + architecture
	if variant != "" {
		s += "/" + variant
	}
	return s
}

// Inspect reads the artifact of a tag or a digest. Artifacts of other tools are shown as far as possible; errors in
// ours are in Faults. It returns an error if there is nothing to show.
func Inspect(ctx context.Context, src signing.Source, target string) (*Inspection, error) {
	d, err := src.Resolve(ctx, target)
	if err != nil {
		return nil, err
	}
	desc, manifest, err := src.Manifest(ctx, d.Digest)
	if err != nil {
		return nil, err
	}
	o, err := artifacts.ReadOutline(manifest)
	if err != nil {
		return nil, fmt.Errorf("inspect %s@%s: %w", src.Name(), d.Digest, err)
	}
	o.MediaType = cmp.Or(o.MediaType, desc.MediaType)
	i := &Inspection{
		Digest: desc.Digest, Kind: o.Kind, MediaType: o.MediaType, ArtifactType: o.ArtifactType, Size: int64(len(manifest)),
		ContentSize: o.Size(), Annotations: withoutBundle(o.Annotations), Referrers: []Referrer{},
	}
	if o.Subject != nil {
		i.Subject = new(blobOf(*o.Subject))
	}
	if o.Config != nil {
		i.Config = new(blobOf(*o.Config))
	}
	for _, l := range o.Layers {
		i.Layers = append(i.Layers, blobOf(l))
	}
	for _, m := range o.Manifests {
		i.Manifests = append(i.Manifests, blobOf(m))
	}
	if err := i.Content.read(ctx, src, o, manifest); err != nil {
		if ctx.Err() != nil {
			return nil, err
		}
		i.Faults = append(i.Faults, err.Error())
	}
	i.referrers(ctx, src, desc)
	return i, ctx.Err()
}

// Content is the content of an artifact of a known type; it is empty for others.
type Content struct {
	State       *State       `json:"state,omitempty"`
	Deployments []Deployment `json:"deployments,omitempty"` // of a state or a bundle
	Component   *Component   `json:"component,omitempty"`
	Package     *Package     `json:"package,omitempty"`
	Image       *Image       `json:"image,omitempty"`
	Statements  []Statement  `json:"statements,omitempty"` // of a signature or attestation
	Trust       *Trust       `json:"trust,omitempty"`
	Document    string       `json:"document,omitempty"` // of a trust policy or a current state: its text
}

// State has the annotations of a device's state.
type State struct {
	Device     artifacts.DeviceID `json:"device"`
	Generation uint64             `json:"generation"`
	Previous   digest.Digest      `json:"previous,omitempty"`
	Expires    string             `json:"expires,omitempty"`
	Windows    schedule.Windows   `json:"windows,omitzero"`
}

// Trust has the annotations of a trust policy in a registry.
type Trust struct {
	Version     uint64        `json:"version"`
	Previous    digest.Digest `json:"previous,omitempty"`
	TrustedRoot int64         `json:"trustedRoot,omitempty"` // bytes of the sigstore root beside it
}

// Deployment is one deployment of a state or a bundle.
type Deployment struct {
	ID         string                        `json:"id"`
	Name       string                        `json:"name"`
	Digest     digest.Digest                 `json:"digest"`
	Components []artifacts.DeployedComponent `json:"components"`
}

// Component is the content of a Compose Archive.
type Component struct {
	Version string                  `json:"version,omitempty"`
	Root    string                  `json:"root"` // the archive's one folder
	Files   []File                  `json:"files"`
	Locked  bool                    `json:"locked"` // it has a lock of its images
	Images  []artifacts.LockedImage `json:"images"`
}

// File is one file of a Compose Archive.
type File struct {
	Name string `json:"name"`
	Size int64  `json:"size"`
}

// Package is the content of an application package.
type Package struct {
	ID        string   `json:"id"`
	Name      string   `json:"name"`
	Version   string   `json:"version"`
	Profiles  []string `json:"profiles"`
	Resources []string `json:"resources"`
}

// Image is an image's configuration.
type Image struct {
	Platform string            `json:"platform,omitempty"`
	Created  string            `json:"created,omitempty"`
	User     string            `json:"user,omitempty"`
	Command  []string          `json:"command,omitempty"` // entrypoint and arguments
	Labels   map[string]string `json:"labels,omitempty"`
}

func (c *Content) read(ctx context.Context, src signing.Source, o *artifacts.Outline, manifest []byte) error {
	blob := func(limit int64) func(ocispec.Descriptor) ([]byte, error) {
		return func(d ocispec.Descriptor) ([]byte, error) { return src.Blob(ctx, d, limit) }
	}
	switch o.Kind {
	case artifacts.KindState:
		return c.readState(manifest, blob(artifacts.MaxArchive))
	case artifacts.KindBundle:
		x, err := artifacts.OpenBundle(manifest)
		if err != nil {
			return err
		}
		ds, err := x.Read(blob(artifacts.MaxArchive))
		if err != nil {
			return err
		}
		c.Deployments = Deployments(ds)
		return nil
	case artifacts.KindComponent:
		return c.readComponent(manifest, blob(artifacts.MaxArchive))
	case artifacts.KindPackage:
		return c.readPackage(manifest, blob(artifacts.MaxDocument))
	case artifacts.KindTrust:
		return c.readTrust(manifest, blob(artifacts.MaxDocument))
	case artifacts.KindCurrentState:
		if len(o.Layers) == 0 {
			return fmt.Errorf("%w: there is no layer", fault.ErrInvalid)
		}
		data, err := src.Blob(ctx, o.Layers[0], artifacts.MaxDocument)
		c.Document = string(data)
		return err
	case artifacts.KindImage:
		return c.readImage(ctx, src, *o.Config)
	case artifacts.KindSignature:
		var err error
		c.Statements, err = statements(ctx, src, o, new(int64(maxStatementsBytes)))
		return err
	}
	return nil
}

func (c *Content) readState(manifest []byte, blob func(ocispec.Descriptor) ([]byte, error)) error {
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return err
	}
	c.State = &State{Device: x.Device, Generation: x.Generation, Previous: x.Previous, Windows: x.Windows}
	if !x.Expires.IsZero() {
		c.State.Expires = x.Expires.Format(time.RFC3339)
	}
	s, err := x.Read(blob)
	if err != nil {
		return err
	}
	c.Deployments = Deployments(s.Deployments)
	return nil
}
