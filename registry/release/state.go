package release

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

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

// Options say what a device is to run from now on.
type Options struct {
	Device      artifacts.DeviceID
	Deployments []Document // all of them, unless KeepOthers
	// KeepOthers takes over the deployments of the current generation that are not among Deployments. Without it they
	// are removed from the device.
	KeepOthers bool
	Generation uint64 // 0: the one after the current; else it must be above it
	// Verify tells whether a state in the repository may be followed: an error that wraps fault.ErrUnsigned,
	// fault.ErrBadSignature or fault.ErrRejected says that it may not, any other ends everything. Without it every state
	// counts, which suits who does not sign: a signature on the next state vouches for its number and what it keeps.
	Verify func(ctx context.Context, state ocispec.Descriptor) error
	// Look is asked by Rollback, before anything else is, whether the device could load what it goes back to; notes are what could
	// not be found out. nil: nobody is asked.
	Look        func(ctx context.Context, deployments []artifacts.Deployment) (notes []string, err error)
	Expires     time.Time     // zero: never
	Repeats     digest.Digest // of the earlier generation whose content this is; "": none
	Created     time.Time     // zero: left out
	Annotations map[string]string
}

// Next is a state that is ready to be published.
type Next struct {
	Artifact   *artifacts.Artifact
	Generation uint64
	Previous   digest.Digest // of the generation that it follows; "": there is none
	Repeats    digest.Digest // of the earlier generation whose content it has again; "": none
	Tag        string        // moving
	HistoryTag string
	NextTag    string        // history tag of the generation above
	Tagged     digest.Digest // what Tag names until now; "": nothing
	Changes    []Change      // by name
	Notes      []string      // what is unusual about the tags, in sentences
}

// Changes of a deployment.
const (
	New       = "new"
	Changed   = "changed"
	Unchanged = "unchanged"
	Removed   = "removed"
)

// Change is what a release does to one deployment.
type Change struct {
	Deployment string      `json:"deployment"` // id
	Name       string      `json:"name"`
	Change     string      `json:"change"`
	Was        []Component `json:"was,omitempty"` // before, unless new or unchanged
	Components []Component `json:"components,omitempty"`
}

// Component is one component as a state names it.
type Component struct {
	Name       string        `json:"name"`
	Repository string        `json:"repository"`
	Version    string        `json:"version"`
	Digest     digest.Digest `json:"digest,omitempty"` // "": not pinned
}

// Current is what a device's tag points at.
type Current struct {
	Descriptor ocispec.Descriptor
	Index      *artifacts.StateIndex
	State      *artifacts.State
}

// Read reads a state by tag or digest, with every digest in it checked. fault.ErrNotFound when it is not there.
func Read(ctx context.Context, repo Repository, target string) (*Current, error) {
	desc, manifest, err := fetch(ctx, repo, target)
	if err != nil {
		return nil, err
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", repo.Name(), desc.Digest, err)
	}
	state, err := x.Read(func(l ocispec.Descriptor) ([]byte, error) {
		return repo.Blob(ctx, l, artifacts.MaxArchive)
	})
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", repo.Name(), desc.Digest, err)
	}
	return &Current{Descriptor: desc, Index: x, State: state}, nil
}

// fetch fetches the manifest that a tag or a digest names; a digest is not asked for first.
func fetch(ctx context.Context, repo Repository, target string) (ocispec.Descriptor, []byte, error) {
	d := digest.Digest(target)
	if d.Validate() != nil {
		desc, err := repo.Resolve(ctx, target)
		if err != nil {
			return ocispec.Descriptor{}, nil, err
		}
		d = desc.Digest
	}
	return repo.Manifest(ctx, d)
}

// State makes the state that follows the newest one of o.Device in repo: its components are pinned to what their tags
// mean now, unless they are pinned already. A push that was interrupted before the device's tag moved is taken up again
// when it was of the same content; else the next free generation follows it.
func State(ctx context.Context, from Components, repo Repository, o Options) (*Next, error) {
	b, err := findBase(ctx, repo, o)
	if err != nil {
		return nil, fmt.Errorf("read the current generation: %w", err)
	}
	if err := b.check(o); err != nil {
		return nil, err
	}
	deployments, err := pinAll(ctx, from, o)
	if err != nil {
		return nil, err
	}
	next := &Next{Tag: b.tag, Tagged: b.tagged}
	deployments = next.compare(b.current, deployments, o.KeepOthers)
	if b.lags() && (o.Generation == 0 || o.Generation == b.generation()) {
		if err := next.pack(o, b.generation(), b.current.Index.Previous, deployments); err != nil {
			return nil, err
		}
		if next.Artifact.Descriptor.Digest == b.current.Descriptor.Digest {
			next.Notes = b.notes(next, true)
			return next, nil
		}
		if o.Generation != 0 {
			return nil, b.rollback(o.Generation)
		}
	}
	generation, previous := o.Generation, digest.Digest("")
	if generation == 0 {
		if generation, err = b.next(); err != nil {
			return nil, err
		}
	}
	if b.current != nil {
		previous = b.current.Descriptor.Digest
	}
	if err := next.pack(o, generation, previous, deployments); err != nil {
		return nil, err
	}
	next.Notes = b.notes(next, false)
	return next, nil
}

// pack makes the artifact of a generation.
func (n *Next) pack(o Options, generation uint64, previous digest.Digest, deployments []artifacts.Deployment) (err error) {
	data := make([][]byte, len(deployments))
	for i, d := range deployments {
		data[i] = d.Bytes
	}
	n.Repeats = o.Repeats
	n.Generation, n.Previous, n.HistoryTag = generation, previous, artifacts.HistoryTag(n.Tag, generation)
	n.NextTag = artifacts.HistoryTag(n.Tag, generation+1)
	n.Artifact, err = artifacts.PackState(artifacts.StateOptions{
		Device: o.Device, Generation: generation, Deployments: data,
		Expires: o.Expires, Previous: previous, Repeats: o.Repeats, Created: o.Created, Annotations: o.Annotations,
	})
	return err
}

// pinAll parses the documents and pins their components.
func pinAll(ctx context.Context, from Components, o Options) ([]artifacts.Deployment, error) {
	out := make([]artifacts.Deployment, len(o.Deployments))
	files := map[string]string{} // by deployment id
	for i, doc := range o.Deployments {
		d, err := artifacts.ReadDeployment(doc.File, doc.Data)
		if err != nil {
			return nil, err
		}
		if first, twice := files[d.Document.ID]; twice {
			return nil, fmt.Errorf("%s: %w: deployment %s is in %s already", doc.File, fault.ErrInvalid, d.Document.ID, first)
		}
		files[d.Document.ID] = doc.File
		if err := checkDevice(doc.File, d.Document.Metadata.DeviceID, o.Device); err != nil {
			return nil, err
		}
		out[i] = *d
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(concurrency)
	for i := range out {
		g.Go(func() error {
			pinned, err := pin(ctx, from, o.Deployments[i].File, out[i])
			if err == nil {
				out[i] = *pinned
			}
			return err
		})
	}
	return out, g.Wait()
}

// checkDevice wants a deployment to be for this device: others are refused there, also one for whichever child a gateway
// chooses.
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

// pin writes what the tags of a deployment's components mean now into it.
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

// checkComponent finds out now what a device would refuse later.
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

// compare says what changes, and returns the deployments of the next state.
func (n *Next) compare(current *Current, deployments []artifacts.Deployment, keep bool) []artifacts.Deployment {
	was := map[string]artifacts.Deployment{}
	if current != nil {
		for _, d := range current.State.Deployments {
			was[d.Document.ID] = d
		}
	}
	for _, d := range deployments {
		c := change(d, New)
		if old, there := was[d.Document.ID]; there {
			c.Change = Unchanged
			if old.Digest != d.Digest {
				c.Change, c.Was = Changed, ComponentsOf(old)
			}
			delete(was, d.Document.ID)
		}
		n.Changes = append(n.Changes, c)
	}
	for _, d := range was {
		if keep {
			deployments = append(deployments, d)
			n.Changes = append(n.Changes, change(d, Unchanged))
			continue
		}
		c := change(d, Removed)
		c.Was, c.Components = c.Components, nil
		n.Changes = append(n.Changes, c)
	}
	slices.SortFunc(n.Changes, func(a, b Change) int {
		return strings.Compare(a.Name+"\n"+a.Deployment, b.Name+"\n"+b.Deployment)
	})
	slices.SortFunc(deployments, func(a, b artifacts.Deployment) int {
		return strings.Compare(a.Document.ID, b.Document.ID)
	})
	return deployments
}

func change(d artifacts.Deployment, kind string) Change {
	return Change{Deployment: d.Document.ID, Name: d.Document.Metadata.Name, Change: kind, Components: ComponentsOf(d)}
}

// ComponentsOf lists the components of a deployment.
func ComponentsOf(d artifacts.Deployment) []Component {
	var out []Component
	for _, c := range d.Document.Spec.DeploymentProfile.Components {
		pinned, _, err := c.Pinned()
		if err != nil { // the parser has refused it before
			pinned = ""
		}
		out = append(out, Component{
			Name: c.Name, Repository: strings.TrimPrefix(c.Properties.Repository, "oci://"), Version: c.Properties.Revision, Digest: pinned,
		})
	}
	return out
}

// ReadBundle reads the deployments of a bundle by tag or digest, with every digest in it checked.
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
