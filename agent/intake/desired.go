package intake

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// builder makes a [plan.Desired] of a state whose manifest was verified: checks 7 to 9.
type builder struct {
	in       *Intake
	c        fetcher
	x        *artifacts.StateIndex
	state    digest.Digest            // of the state artifact's manifest
	pins     map[string]digest.Digest // what references without a digest were resolved to; grows
	trusted  bool                     // accepted before: signatures and pins were held against the policy then
	insecure []string
	signers  []store.Signer
	parts    []Part // that the policy is asked about
	kept     []Kept // of parts
	unkept   error  // why something that counted is not on the device; nil: all of it is
}

// build reads and checks all that the state's manifest names.
func (b *builder) build(ctx context.Context) (*plan.Desired, error) {
	defer b.in.translations.turn()
	st, err := b.read(ctx)
	if err != nil {
		return nil, err
	}
	d := &plan.Desired{Digest: b.state, Generation: st.Manifest.ManifestVersion}
	for i := range st.Deployments {
		if err := b.fits(st.Deployments[i].Document); err != nil {
			return nil, err
		}
	}
	for i := range st.Deployments {
		if doc := st.Deployments[i].Document; !b.placed(doc) {
			d.Unplaced = append(d.Unplaced, unplaced(doc, st.Deployments[i].Digest))
			continue
		}
		mark := len(b.c.fetched)
		if len(b.x.Deployments) == 0 { // it came in a bundle only: a revision must be found by itself
			doc := ocispec.Descriptor{Digest: st.Deployments[i].Digest, Size: int64(len(st.Deployments[i].Bytes))}
			if err := b.c.keep(ctx, doc, st.Deployments[i].Bytes); err != nil {
				return nil, codes.Wrap(codes.Of(err), err)
			}
			b.c.fetched = append(b.c.fetched, doc.Digest)
		}
		dep, err := b.deployment(ctx, &st.Deployments[i], d.Generation)
		if err != nil {
			return nil, err
		}
		dep.Blobs = append(slices.Clone(b.c.fetched[mark:]), dep.Digest)
		d.Deployments = append(d.Deployments, dep)
	}
	if err := distinctPorts(d); err != nil {
		return nil, err
	}
	slices.Sort(b.c.fetched)
	d.Blobs = slices.Compact(b.c.fetched)
	return d, nil
}

// read is check 7 up to the documents: in one request when most of them are missing, else only those.
func (b *builder) read(ctx context.Context) (*artifacts.State, error) {
	var bundle digest.Digest
	fetch := func(d ocispec.Descriptor) ([]byte, error) {
		// A bundle is not kept when its documents are: the device would hold everything twice.
		return b.c.blob(ctx, b.c.repository, d, artifacts.MaxArchive, d.Digest != bundle)
	}
	data, err := fetch(b.x.Manifest)
	if err != nil {
		return nil, codes.Wrap(b.code(err, codes.ContentDigest, codes.ContentMissing, codes.StateInvalid), err)
	}
	m, err := margo.ParseStateManifest("State Manifest", data)
	if err != nil {
		return nil, codes.Wrap(codes.StateInvalid, err)
	}
	if m.ManifestVersion != b.x.Generation {
		return nil, codes.Errorf(codes.StateMixed, "state %s: its annotation says generation %d, its State Manifest %d: %w",
			b.state, b.x.Generation, m.ManifestVersion, fault.ErrInvalid)
	}
	missing := 0
	for _, d := range b.x.Deployments {
		if d.Data == nil && !b.c.has(ctx, d.Digest) {
			missing++
		}
	}
	read := b.x.Read
	if b.x.Bundle != nil && missing > 1 && 2*missing > len(b.x.Deployments) {
		read, bundle = b.x.ReadBundle, b.x.Bundle.Digest
	}
	st, err := read(fetch)
	if bundle != "" && errors.Is(err, fault.ErrNotFound) { // a manager may serve single deployments only
		bundle = ""
		st, err = b.x.Read(fetch)
	}
	if err != nil {
		return nil, codes.Wrap(b.code(err, codes.ContentDigest, codes.ContentMissing, codes.DeploymentInvalid), err)
	}
	for _, d := range b.x.Deployments {
		if bundle == "" && d.Data == nil { // it was kept when it was read
			continue
		}
		for i := range st.Deployments {
			if st.Deployments[i].Digest == d.Digest {
				d.Size, d.Data = int64(len(st.Deployments[i].Bytes)), nil
				if err := b.c.keep(ctx, d, st.Deployments[i].Bytes); err != nil {
					return nil, codes.Wrap(codes.Of(err), err)
				}
				b.c.fetched = append(b.c.fetched, d.Digest)
			}
		}
	}
	return st, nil
}

// code names what went wrong with content. invalid is only for what the bytes themselves got wrong.
func (b *builder) code(err error, mismatch, missing, invalid codes.Code) codes.Code {
	var fetch *fetchError
	switch {
	case errors.Is(err, errLocal):
		return codes.Of(err)
	case errors.Is(err, fault.ErrDigestMismatch):
		return mismatch
	case errors.Is(err, artifacts.ErrMixed):
		return codes.StateMixed
	case errors.As(err, &fetch), errors.Is(err, fault.ErrNotFound), errors.Is(err, fault.ErrTemporary):
		return sourceCode(err, missing)
	case errors.Is(err, fault.ErrInvalid), errors.Is(err, fault.ErrUnsupported), errors.Is(err, fault.ErrTooLarge):
		return invalid
	}
	return codes.Internal
}

// placed reports whether a deployment is for this device, and not for one behind it.
func (b *builder) placed(d *margo.ApplicationDeployment) bool {
	return d.Metadata.DeviceID == "" || d.Metadata.DeviceID == string(b.in.o.Device)
}

func unplaced(d *margo.ApplicationDeployment, digest digest.Digest) plan.Unplaced {
	out := plan.Unplaced{ID: d.ID, Name: d.Metadata.Name, Device: d.Metadata.DeviceID, Digest: digest}
	for _, c := range d.Spec.DeploymentProfile.Components {
		out.Components, out.Revisions = append(out.Components, c.Name), append(out.Revisions, c.Properties.Revision)
	}
	return out
}

// fits holds a deployment against this device: its id, its type, its constraints. One for a device behind it is not looked at.
func (b *builder) fits(d *margo.ApplicationDeployment) error {
	if !b.placed(d) {
		if b.in.o.Device.Covers(d.Metadata.DeviceID) {
			return nil
		}
		return codes.Errorf(codes.WrongDevice, "deployment %s: it is for device %q, this is %q: %w", d.Metadata.Name, d.Metadata.DeviceID, b.in.o.Device, fault.ErrUnfit)
	}
	p := d.Spec.DeploymentProfile
	if p.Type != "compose" {
		return codes.Errorf(codes.ComponentUnsupported, "deployment %s: type %q is not run by this device: %w", d.Metadata.Name, p.Type, fault.ErrUnsupported)
	}
	if b.trusted {
		return nil
	}
	if err := p.DeviceConstraints.Check(&b.in.self.Load().capabilities); err != nil {
		return codes.Wrap(codes.DeviceUnfit, fmt.Errorf("deployment %s: %w", d.Metadata.Name, err))
	}
	return nil
}

// deployment is checks 8 and 9 of one deployment.
func (b *builder) deployment(ctx context.Context, d *artifacts.Deployment, generation uint64) (plan.Deployment, error) {
	doc := d.Document
	out := plan.Deployment{ID: doc.ID, Name: doc.Metadata.Name, Digest: d.Digest, Size: int64(len(d.Bytes))}
	for _, c := range doc.Spec.DeploymentProfile.Components {
		env, err := doc.Environment(c.Name)
		if err != nil {
			return out, codes.Wrap(codes.DeploymentInvalid, fmt.Errorf("deployment %s: %w", doc.Metadata.Name, err))
		}
		manifest, name, data, err := b.component(ctx, doc.Metadata.Name, c)
		if err != nil {
			return out, err
		}
		p, err := b.in.translations.load(ctx, name, compose.Options{
			Deployment: doc.ID, Application: doc.Metadata.Name, Component: c.Name, Generation: generation, Environment: env,
			Platform: b.in.o.Platform, AllowUnpinned: true,
		}, func(ctx context.Context, o compose.Options) (*workload.Project, error) {
			archive, err := artifacts.ReadArchive(data)
			if err != nil {
				return nil, fmt.Errorf("archive: %w", err)
			}
			return compose.Load(ctx, archive, o)
		})
		if err != nil {
			code := codes.ComponentInvalid
			if errors.Is(err, fault.ErrUnfit) {
				code = codes.ImagePlatform
			}
			return out, codes.Wrap(code, fmt.Errorf("deployment %s, component %s: %w", doc.Metadata.Name, c.Name, err))
		}
		if err := b.images(ctx, doc.Metadata.Name, p); err != nil {
			return out, err
		}
		comp := plan.NewComponent(c.Name, c.Properties.Revision, p)
		comp.Digest, comp.Values, comp.Wait, comp.Timeout = manifest, plan.Hash(env), c.Properties.Wait, c.Properties.Timeout
		out.Components = append(out.Components, comp)
	}
	return out, nil
}

// component brings one component's archive, with the digests of its manifest and of the archive.
func (b *builder) component(ctx context.Context, deployment string, c margo.Component) (d, archive digest.Digest, data []byte, err error) {
	about := fmt.Sprintf("deployment %s, component %s", deployment, c.Name)
	repository := strings.TrimPrefix(c.Properties.Repository, "oci://")
	d, pinned, err := c.Pinned()
	if err != nil {
		return "", "", nil, codes.Wrap(codes.DeploymentInvalid, fmt.Errorf("%s: %w", about, err))
	}
	if !pinned {
		if d, err = b.pin(ctx, repository, c.Properties.Revision, codes.ComponentUnpinned, codes.ComponentMissing); err != nil {
			return "", "", nil, fmt.Errorf("%s: %w", about, err)
		}
	}
	desc, manifest, err := b.c.manifest(ctx, repository, ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d}, true)
	if err != nil {
		return "", "", nil, codes.Wrap(b.code(err, codes.ComponentDigest, codes.ComponentMissing, codes.ComponentInvalid), fmt.Errorf("%s: %w", about, err))
	}
	if err := b.verify(ctx, KindComponent, repository, desc); err != nil {
		return "", "", nil, fmt.Errorf("%s: %w", about, err)
	}
	x, err := artifacts.OpenComponent(manifest)
	if err != nil {
		return "", "", nil, codes.Wrap(codes.ComponentInvalid, fmt.Errorf("%s: %s@%s: %w", about, repository, d, err))
	}
	data, err = b.c.blob(ctx, repository, x.Archive, artifacts.MaxArchive, true)
	if err != nil {
		return "", "", nil, codes.Wrap(b.code(err, codes.ComponentDigest, codes.ComponentMissing, codes.ComponentInvalid), fmt.Errorf("%s: %w", about, err))
	}
	return d, x.Archive.Digest, data, nil
}

// images is check 9: digests, signatures. The platform was held against the lock before.
func (b *builder) images(ctx context.Context, deployment string, p *workload.Project) error {
	for i := range p.Services {
		about := fmt.Sprintf("deployment %s, component %s, service %s", deployment, p.Component, p.Services[i].Name)
		if err := b.imagesOf(ctx, about, &p.Services[i]); err != nil {
			return err
		}
	}
	return nil
}

// imagesOf checks every image of a service: what a service runs on, what it mounts, what runs before it.
func (b *builder) imagesOf(ctx context.Context, about string, s *workload.Service) error {
	if err := b.image(ctx, about, &s.Image); err != nil {
		return err
	}
	for i := range s.Mounts {
		if img := s.Mounts[i].Image; img != nil {
			if err := b.image(ctx, about+", mount "+s.Mounts[i].Target, img); err != nil {
				return err
			}
		}
	}
	for i := range s.PreStart {
		if err := b.imagesOf(ctx, fmt.Sprintf("%s, pre_start[%d]", about, i), &s.PreStart[i].Service); err != nil {
			return err
		}
	}
	return nil
}

func (b *builder) image(ctx context.Context, about string, img *workload.Image) error {
	if img.Digest == "" {
		tag := cmp.Or(img.Tag, "latest")
		d, err := b.pin(ctx, img.Repository, tag, codes.ImageUnpinned, codes.ImageMissing)
		if err != nil {
			return fmt.Errorf("%s: %w", about, err)
		}
		img.Digest = d
	}
	if err := b.verify(ctx, KindImage, img.Repository, ocispec.Descriptor{Digest: img.Digest}); err != nil {
		return fmt.Errorf("%s: %w", about, err)
	}
	return nil
}

// pin resolves a reference that a foreign publisher left open, once: what it was when the state was accepted, it stays.
func (b *builder) pin(ctx context.Context, repository, tag string, unpinned, missing codes.Code) (digest.Digest, error) {
	ref := repository + ":" + tag
	if d, ok := b.pins[ref]; ok {
		return d, nil
	}
	if b.trusted { // the tag may have moved, and the policy is not asked here
		return "", fault.WithHint(codes.Errorf(missing, "%s: the digest that it was accepted with is lost: %w", ref, fault.ErrNotFound),
			"publish a new generation")
	}
	if b.in.o.RequirePins {
		return "", codes.Errorf(unpinned, "%s: it is named by a tag only, and this device wants digests: %w", ref, fault.ErrRejected)
	}
	d, err := b.in.o.Source.Resolve(ctx, repository, tag)
	if err != nil {
		return "", codes.Wrap(sourceCode(err, missing), err)
	}
	if err := hashable(d.Digest); err != nil {
		return "", codes.Wrap(missing, fmt.Errorf("resolve %s: %w", ref, err)) // a tag can move: asked again
	}
	b.pins[ref] = d.Digest
	return d.Digest, nil
}

// verify asks the policy about a component or an image, unless it did so when the state was accepted.
func (b *builder) verify(ctx context.Context, kind Kind, repository string, d ocispec.Descriptor) error {
	p := Part{kind, repository, d}
	b.parts = append(b.parts, p)
	if b.trusted {
		return nil
	}
	v, err := b.in.verify(ctx, kind, repository, d)
	if err != nil {
		return err
	}
	return b.passed(ctx, p, v)
}

// distinctPorts refuses two services that publish the same port of the device.
func distinctPorts(d *plan.Desired) error {
	type claim struct {
		p     workload.Port
		owner string
	}
	var claims []claim
	for _, dep := range d.Deployments {
		for _, c := range dep.Components {
			for _, s := range c.Project.Services {
				for _, p := range s.Ports {
					owner := fmt.Sprintf("%s, component %s, service %s", dep.Name, c.Name, s.Name)
					for _, x := range claims {
						if x.p.Overlaps(p) {
							return codes.Errorf(codes.PortConflict, "deployment %s: publishes %d/%s, as does deployment %s: %w",
								owner, p.HostPort, p.Protocol, x.owner, fault.ErrConflict)
						}
					}
					claims = append(claims, claim{p, owner})
				}
			}
		}
	}
	return nil
}
