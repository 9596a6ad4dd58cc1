package release

import (
	"context"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// Document is an ApplicationDeployment to be released. File is its name in errors.
type Document struct {
	File string
	Data []byte
}

// Current is the state of a device's tag.
type Current struct {
	Descriptor ocispec.Descriptor
	Index      *artifacts.StateIndex
	State      *artifacts.State
}

// Read reads a state by tag or digest and checks every digest in it. fault.ErrNotFound if it does not exist.
func Read(ctx context.Context, repo Repository, target string) (*Current, error) {
	c, err := Open(ctx, repo, target)
	if err != nil {
		return nil, err
	}
	return c.read(ctx, repo)
}

// Open is [Read] of the manifest alone: State is nil.
func Open(ctx context.Context, repo Repository, target string) (*Current, error) {
	desc, manifest, err := fetch(ctx, repo, target)
	if err != nil {
		return nil, err
	}
	return open(repo.Name(), desc, manifest)
}

func open(repository string, desc ocispec.Descriptor, manifest []byte) (*Current, error) {
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", repository, desc.Digest, err)
	}
	return &Current{Descriptor: desc, Index: x}, nil
}

// read reads the blobs of a result of [Open].
func (c *Current) read(ctx context.Context, repo Repository) (*Current, error) {
	state, err := c.Index.Read(func(l ocispec.Descriptor) ([]byte, error) {
		return repo.Blob(ctx, l, artifacts.MaxArchive)
	})
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", repo.Name(), c.Descriptor.Digest, err)
	}
	return &Current{Descriptor: c.Descriptor, Index: c.Index, State: state}, nil
}

// fetch fetches the manifest that a tag or a digest names.
func fetch(ctx context.Context, repo Repository, target string) (ocispec.Descriptor, []byte, error) {
	if d := digest.Digest(target); d.Validate() == nil {
		return repo.Manifest(ctx, d)
	}
	return repo.Tagged(ctx, target)
}

// Pin parses the documents of a device's deployments, and pins their components to the current digests of their tags.
func Pin(ctx context.Context, from Components, device artifacts.DeviceID, documents []Document) ([]artifacts.Deployment, error) {
	out := make([]artifacts.Deployment, len(documents))
	files := map[string]string{} // by deployment id
	for i, doc := range documents {
		d, err := artifacts.ReadDeployment(doc.File, doc.Data)
		if err != nil {
			return nil, err
		}
		if first, twice := files[d.Document.ID]; twice {
			return nil, fmt.Errorf("%s: %w: deployment %s is in %s already", doc.File, fault.ErrInvalid, d.Document.ID, first)
		}
		files[d.Document.ID] = doc.File
		if err := checkDevice(doc.File, d.Document.Metadata.DeviceID, device); err != nil {
			return nil, err
		}
		out[i] = *d
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i := range out {
		g.Go(func() error {
			pinned, err := pin(ctx, from, documents[i].File, out[i])
			if err == nil {
				out[i] = *pinned
			}
			return err
		})
	}
	return out, g.Wait()
}

// checkDevice returns an error if a deployment is not for this device: the device rejects others, also those for any child of a
// gateway.
func checkDevice(file, said string, device artifacts.DeviceID) error {
	if said == "" || said == string(device) {
		return nil
	}
	err := fmt.Errorf("%s: metadata.deviceId: %w: it is for %s, not for %s", file, fault.ErrInvalid, said, device)
	if gateway, child := strings.CutSuffix(said, "/*"); child {
		return fault.WithHint(err, "a device runs what is for itself: name the child of "+gateway+", and push it to the child's state")
	}
	return err
}

// pin sets the current digests of the tags of a deployment's components.
func pin(ctx context.Context, from Components, file string, d artifacts.Deployment) (*artifacts.Deployment, error) {
	pins := map[string]digest.Digest{}
	for _, c := range d.Document.Spec.DeploymentProfile.Components {
		repository, ok := strings.CutPrefix(c.Properties.Repository, "oci://")
		if !ok {
			return nil, fmt.Errorf("%s: component %s: %w: it is in no registry", file, c.Name, fault.ErrUnsupported)
		}
		pinned, there, err := c.Pinned()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", file, err)
		}
		if !there {
			desc, err := from.Resolve(ctx, repository, c.Properties.Revision)
			if err != nil {
				return nil, fmt.Errorf("%s: component %s: %w", file, c.Name, err)
			}
			pinned = desc.Digest
		}
		if d.Document.Spec.DeploymentProfile.Type == "compose" {
			if err := checkComponent(ctx, from, repository, pinned, c.Properties.Revision); err != nil {
				return nil, fmt.Errorf("%s: component %s: %w", file, c.Name, err)
			}
		}
		pins[c.Name] = pinned
	}
	data, err := margo.Pin(file, d.Bytes, pins)
	if err != nil {
		return nil, err
	}
	return artifacts.ReadDeployment(file, data)
}

// checkComponent finds errors for which a device would reject the component later.
func checkComponent(ctx context.Context, from Components, repository string, d digest.Digest, version string) error {
	_, manifest, err := from.Manifest(ctx, repository, d)
	if err != nil {
		return err
	}
	x, err := artifacts.OpenComponent(manifest)
	if err != nil {
		err = fmt.Errorf("%s@%s: %w", repository, d, err)
		return fault.WithHint(err, "push it with: longshore component push")
	}
	if x.Version != "" && x.Version != version {
		return fmt.Errorf("%s:%s: %w: it says that it is version %s", repository, version, fault.ErrInvalid, x.Version)
	}
	return nil
}

// ReadBundle reads the deployments of a bundle by tag or digest, and checks every digest in it.
func ReadBundle(ctx context.Context, repo Repository, target string) ([]Document, error) {
	desc, manifest, err := fetch(ctx, repo, target)
	if err != nil {
		return nil, err
	}
	name := repo.Name() + "@" + desc.Digest.String()
	x, err := artifacts.OpenBundle(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	deployments, err := x.Read(func(l ocispec.Descriptor) ([]byte, error) {
		return repo.Blob(ctx, l, artifacts.MaxArchive)
	})
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	var out []Document
	for _, d := range deployments {
		out = append(out, Document{File: "deployment " + d.Document.ID + " in " + name, Data: d.Bytes})
	}
	return out, nil
}
