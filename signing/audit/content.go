package audit

import (
	"context"
	"encoding/json"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

const maxImageConfig = 1 << 20 // bytes

// Deployments describes deployments.
func Deployments(all []artifacts.Deployment) []Deployment {
	out := []Deployment{}
	for _, d := range all {
		out = append(out, Deployment{ID: d.Document.ID, Name: d.Document.Metadata.Name, Digest: d.Digest, Components: d.Components()})
	}
	return out
}

func (c *Content) readComponent(manifest []byte, blob func(ocispec.Descriptor) ([]byte, error)) error {
	x, err := artifacts.OpenComponent(manifest)
	if err != nil {
		return err
	}
	archive, err := x.Read(blob)
	if err != nil {
		return err
	}
	c.Component = &Component{Version: x.Version, Root: archive.Root, Files: []File{}, Locked: archive.Lock != nil, Images: []artifacts.LockedImage{}}
	if archive.Lock != nil {
		c.Component.Images = append(c.Component.Images, archive.Lock.Images...)
	}
	return fs.WalkDir(archive.FS, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		info, err := d.Info()
		if err != nil {
			return err
		}
		c.Component.Files = append(c.Component.Files, File{name, info.Size()})
		return nil
	})
}

func (c *Content) readPackage(manifest []byte, blob func(ocispec.Descriptor) ([]byte, error)) error {
	x, err := artifacts.OpenPackage(manifest)
	if err != nil {
		return err
	}
	d, err := x.Read(blob)
	if err != nil {
		return err
	}
	c.Package = &Package{
		ID: d.ID, Name: d.Metadata.Name, Version: d.Metadata.Version, Profiles: []string{},
		Resources: slices.AppendSeq([]string{}, maps.Keys(x.Resources)),
	}
	slices.Sort(c.Package.Resources)
	for _, p := range d.DeploymentProfiles {
		c.Package.Profiles = append(c.Package.Profiles, p.ID)
	}
	return nil
}

func (c *Content) readTrust(manifest []byte, blob func(ocispec.Descriptor) ([]byte, error)) error {
	x, err := artifacts.OpenTrust(manifest)
	if err != nil {
		return err
	}
	policy, root, err := x.Read(blob)
	if err != nil {
		return err
	}
	c.Trust, c.Document = &Trust{Version: x.Version, Previous: x.Previous, TrustedRoot: int64(len(root))}, string(policy)
	return nil
}

func (c *Content) readImage(ctx context.Context, src signing.Source, config ocispec.Descriptor) error {
	data, err := src.Blob(ctx, config, maxImageConfig)
	if err != nil {
		return err
	}
	var i ocispec.Image
	if err := json.Unmarshal(data, &i); err != nil {
		return fmt.Errorf("image configuration: %w: %w", fault.ErrInvalid, err)
	}
	c.Image = &Image{User: i.Config.User, Labels: i.Config.Labels, Command: slices.Concat(i.Config.Entrypoint, i.Config.Cmd)}
	if i.OS != "" || i.Architecture != "" {
		c.Image.Platform = platform(i.OS, i.Architecture, i.Variant)
	}
	if i.Created != nil && !i.Created.IsZero() {
		c.Image.Created = i.Created.UTC().Format(time.RFC3339)
	}
	return nil
}
