package audit

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/signing"
)

const (
	maxComponents = 1024 // of one audit
	concurrency   = 4    // components at a time
)

// Places opens the repositories that documents name, of components and images, "host/path".
type Places interface {
	Place(ctx context.Context, repository string) (signing.Source, error)
	// ImagePlace is Place for an image reference in the form of Compose files.
	ImagePlace(ctx context.Context, reference string) (signing.Source, error)
}

// Options configure an audit.
type Options struct {
	Judge  Judge
	Places Places
	Kind   artifacts.Kind // expected kind of the first artifact; "": as it declares
	Alone  bool           // check nothing below the first artifact
	Now    time.Time      // for expiries; zero: not checked
	// Project returns the images that a component of a deployment uses, by the same rules for compose.yaml as a device, or the
	// device's error. nil: only the lock is used.
	Project func(ctx context.Context, a *artifacts.Archive, u Use) ([]ImageUse, error)
}

// Use is a component in a deployment.
type Use struct {
	Deployment *margo.ApplicationDeployment
	Component  string
}

// ImageUse is an image of a service: its own, a mounted one, or one of an init container.
type ImageUse struct {
	Repository string // "host/path"
	Tag        string
	Digest     digest.Digest // "": the tag is used
}

// Node is one artifact, or one deployment, with its results.
type Node struct {
	Kind      string        `json:"kind"`
	Name      string        `json:"name,omitempty"`      // of a deployment or a component
	Reference string        `json:"reference,omitempty"` // host/path, with a tag if one names it
	Digest    digest.Digest `json:"digest,omitempty"`
	Platforms []string      `json:"platforms,omitempty"` // of an image, as it is locked
	Checks    []Check       `json:"checks,omitempty"`
	Below     []*Node       `json:"contains,omitempty"`
}

// Report is the result of an audit.
type Report struct {
	*Node
	NotChecked []Unchecked `json:"notChecked"`
}

// walk calls visit for every check of the artifact and of everything below it.
func (n *Node) walk(visit func(*Node, Check)) {
	for _, c := range n.Checks {
		visit(n, c)
	}
	for _, child := range n.Below {
		child.walk(visit)
	}
}

// EachSignature calls visit for every good signature of the artifact and of everything below it, with its subject.
func (r *Report) EachSignature(visit func(of digest.Digest, s Signed)) {
	r.walk(func(n *Node, c Check) {
		for _, s := range c.Signatures {
			visit(n.Digest, s)
		}
	})
}

// Insecure reports whether something was accepted without a signature.
func (r *Report) Insecure() bool {
	insecure := false
	r.walk(func(_ *Node, c Check) { insecure = insecure || c.Result == Insecure })
	return insecure
}

// Err joins the reasons against using the artifact; nil: none.
func (r *Report) Err() error {
	var all []error
	r.walk(func(_ *Node, c Check) { all = append(all, c.Err) })
	return errors.Join(all...)
}

func (n *Node) add(c Check) { n.Checks = append(n.Checks, c) }

// audit is one run.
type audit struct {
	Options
	judged sync.Map // by artifact: func() []Check
}

// Chain checks the artifact of a tag or a digest, and everything below it: a state's deployments, their
// components, their images. An error means that there is no artifact to check; the reasons against an artifact are in the
// report.
func Chain(ctx context.Context, src signing.Source, target string, o Options) (*Report, error) {
	d, err := src.Resolve(ctx, target)
	if err != nil {
		return nil, err
	}
	desc, manifest, err := src.Manifest(ctx, d.Digest)
	if err != nil {
		return nil, err
	}
	outline, err := artifacts.ReadOutline(manifest)
	if err != nil {
		return nil, fmt.Errorf("%s@%s: %w", src.Name(), d.Digest, err)
	}
	o.Kind = cmp.Or(o.Kind, outline.Kind)
	if o.Kind == artifacts.KindIndex {
		o.Kind = artifacts.KindImage
	}
	a := &audit{Options: o}
	root := &Node{Kind: string(o.Kind), Reference: src.Name(), Digest: desc.Digest}
	if string(d.Digest) != target {
		root.Reference += ":" + target
	}
	root.Checks = a.judge(ctx, src, Subject{Kind: o.Kind, Descriptor: desc})
	a.open(ctx, src, root, manifest)
	r := &Report{Node: root, NotChecked: o.Judge.Unchecked()}
	if o.Kind == artifacts.KindState {
		r.NotChecked = append(r.NotChecked, Unchecked{"order of generations", "what a device accepted before is known to the device alone"})
	}
	if o.Alone {
		r.NotChecked = append(r.NotChecked, Unchecked{"what is below", "it was not to be looked at"})
	}
	return r, ctx.Err()
}

// OfFile checks a file by its signatures in src.
func OfFile(ctx context.Context, src signing.Source, file ocispec.Descriptor, j Judge) *Report {
	root := &Node{Kind: "file", Reference: src.Name(), Digest: file.Digest, Checks: j.Judge(ctx, src, Subject{Descriptor: file})}
	return &Report{Node: root, NotChecked: j.Unchecked()}
}

// judge checks one artifact once, however often it is used.
func (a *audit) judge(ctx context.Context, src signing.Source, s Subject) []Check {
	key := fmt.Sprint(s.Kind, " ", src.Name(), "@", s.Descriptor.Digest)
	judge, _ := a.judged.LoadOrStore(key, sync.OnceValue(func() []Check { return a.Judge.Judge(ctx, src, s) }))
	return slices.Clone(judge.(func() []Check)())
}

// open reads an artifact and continues below it.
func (a *audit) open(ctx context.Context, src signing.Source, n *Node, manifest []byte) {
	blob := func(d ocispec.Descriptor) ([]byte, error) { return src.Blob(ctx, d, artifacts.MaxArchive) }
	var all []artifacts.Deployment
	var err error
	switch a.Kind {
	case artifacts.KindState:
		all, err = a.state(ctx, src, n, manifest, blob)
	case artifacts.KindBundle:
		var x *artifacts.BundleIndex
		if x, err = artifacts.OpenBundle(manifest); err == nil {
			all, err = x.Read(blob)
		}
	case artifacts.KindComponent:
		err = a.component(ctx, src, n, manifest, nil)
	default:
		return
	}
	if err != nil {
		n.add(fails("content", fmt.Errorf("%s: %w", n.at(), err)))
		return
	}
	if a.Kind != artifacts.KindComponent {
		n.add(Check{Name: "content", Result: Passed, Detail: fmt.Sprintf("%s, every digest agrees", printable.Counted(len(all), "deployment"))})
		a.deployments(ctx, n, all)
	}
}

func (n *Node) at() string { return n.Reference + "@" + n.Digest.String() }

// state checks a state like a device, except for the order of generations.
func (a *audit) state(ctx context.Context, src signing.Source, n *Node, manifest []byte, blob func(ocispec.Descriptor) ([]byte, error)) ([]artifacts.Deployment, error) {
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, err
	}
	n.Name = string(x.Device)
	n.add(Check{Name: "generation", Result: Passed, Detail: fmt.Sprintf("%d of %s", x.Generation, x.Device)})
	switch {
	case x.Expires.IsZero() || a.Now.IsZero():
	case a.Now.Before(x.Expires):
		n.add(Check{Name: "expiry", Result: Passed, Detail: "until " + x.Expires.Format(time.RFC3339)})
	default:
		n.add(fails("expiry", fmt.Errorf("%s: generation %d expired %s: %w", n.at(), x.Generation, x.Expires.Format(time.RFC3339), fault.ErrRejected)))
	}
	if f, ok := a.Judge.(fresher); ok {
		subject := Subject{Kind: a.Kind, Descriptor: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: n.Digest, Size: int64(len(manifest))}}
		if c, asked := f.fresh(ctx, src, subject, x.Device.Tag(), x.Generation); asked {
			n.add(c)
		}
	}
	x.Manifest.Data = nil // it is about what the registry has, also where the manifest carries the same
	for i := range x.Deployments {
		x.Deployments[i].Data = nil
	}
	s, err := x.Read(blob)
	if err != nil {
		return nil, err
	}
	for _, d := range s.Deployments {
		if to := d.Document.Metadata.DeviceID; to != "" && to != string(x.Device) {
			return nil, fmt.Errorf("deployment %s is for device %q, the state for %q: %w", d.Document.Metadata.Name, to, x.Device, fault.ErrUnfit)
		}
	}
	return s.Deployments, nil
}

// deployments adds them below n, with their components.
func (a *audit) deployments(ctx context.Context, n *Node, all []artifacts.Deployment) {
	if a.Alone {
		return
	}
	var g errgroup.Group
	g.SetLimit(concurrency)
	components := 0
	for i, d := range Deployments(all) {
		node := &Node{Kind: "deployment", Name: d.Name, Digest: d.Digest}
		n.Below = append(n.Below, node)
		for _, c := range d.Components {
			if components++; components > maxComponents {
				node.add(fails("content", fmt.Errorf("%s: more than %d components: %w", n.at(), maxComponents, fault.ErrTooLarge)))
				break
			}
			child := &Node{Kind: string(artifacts.KindComponent), Name: c.Name, Reference: c.Repository + ":" + c.Version, Digest: c.Digest}
			node.Below = append(node.Below, child)
			use := &Use{Deployment: all[i].Document, Component: c.Name}
			g.Go(func() error {
				a.pinned(ctx, child, c, use)
				return nil
			})
		}
	}
	_ = g.Wait() // errors are in the nodes
}

// pinned checks a component that a deployment names.
func (a *audit) pinned(ctx context.Context, n *Node, c artifacts.DeployedComponent, use *Use) {
	src := a.pin(ctx, n, c.Repository, c.Version)
	if src == nil {
		return
	}
	desc, manifest, err := src.Manifest(ctx, n.Digest)
	if err != nil {
		n.add(fails("content", fmt.Errorf("component %s: %w", n.Reference, err)))
		return
	}
	n.Checks = append(n.Checks, a.judge(ctx, src, Subject{Kind: artifacts.KindComponent, Descriptor: desc, Below: true})...)
	if err := a.component(ctx, src, n, manifest, use); err != nil {
		n.add(fails("content", fmt.Errorf("component %s: %w", n.at(), err)))
	}
}

// pin checks how a component or an image is named, sets its digest, and returns its repository; nil: it could not be found.
func (a *audit) pin(ctx context.Context, n *Node, repository, tag string) signing.Source {
	c := Check{Name: "pin", Result: Passed, Detail: "named by its digest"}
	src, err := a.Places.Place(ctx, repository)
	if err == nil && n.Digest == "" {
		var d ocispec.Descriptor
		d, err = src.Resolve(ctx, tag)
		n.Digest, c.Result, c.Detail = d.Digest, Insecure, "named by a tag, which means this today"
	}
	if err != nil {
		n.add(fails("pin", fmt.Errorf("%s %s: %w", n.Kind, n.Reference, err)))
		return nil
	}
	n.add(c)
	return src
}

// component checks a Compose Archive, the images of its lock, and other images of the project. use is nil
// for a component without a deployment: then its parameters are unknown, and only the lock is read.
func (a *audit) component(ctx context.Context, src signing.Source, n *Node, manifest []byte, use *Use) error {
	if o, err := artifacts.ReadOutline(manifest); err == nil && o.ArtifactType == artifacts.TypeChartConfig {
		return a.chart(ctx, src, n, manifest)
	}
	x, err := artifacts.OpenComponent(manifest)
	if err != nil || a.Alone {
		return err
	}
	x.Archive.Data = nil // as of a state
	archive, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) { return src.Blob(ctx, d, artifacts.MaxArchive) })
	if err != nil {
		return err
	}
	locked := &artifacts.Lock{}
	if archive.Lock != nil {
		locked = archive.Lock
		n.add(Check{Name: "content", Result: Passed, Detail: "safe to unpack, " + printable.Counted(len(locked.Images), "image") + " locked"})
	} else {
		n.add(Check{Name: "lock", Result: Insecure, Detail: "there is none: tags may decide which images run"})
	}
	for _, i := range locked.Images {
		n.Below = append(n.Below, a.image(ctx, i))
	}
	if a.Project == nil || use == nil {
		return nil
	}
	used, err := a.Project(ctx, archive, *use)
	if err != nil {
		n.add(fails("project", fmt.Errorf("component %s: %w", n.at(), err)))
		return nil
	}
	for _, u := range used {
		if !slices.ContainsFunc(n.Below, func(other *Node) bool { return u.Digest != "" && other.Digest == u.Digest }) {
			n.Below = append(n.Below, a.unlocked(ctx, u))
		}
	}
	return nil
}

// chart checks a Helm chart. The images of its templates are unknown without Helm.
func (a *audit) chart(ctx context.Context, src signing.Source, n *Node, manifest []byte) error {
	x, err := artifacts.OpenChart(manifest)
	if err != nil || a.Alone {
		return err
	}
	c, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) { return src.Blob(ctx, d, artifacts.MaxArchive) })
	if err != nil {
		return err
	}
	n.add(Check{Name: "content", Result: Passed, Detail: fmt.Sprintf("chart %s %s, safe to unpack; the images that it names are not looked at", c.Name, c.Version)})
	return nil
}

// unlocked checks an image that a project uses and its lock does not name.
func (a *audit) unlocked(ctx context.Context, u ImageUse) *Node {
	n := &Node{Kind: string(artifacts.KindImage), Reference: u.Repository, Digest: u.Digest}
	if u.Tag != "" {
		n.Reference += ":" + u.Tag
	}
	if src := a.pin(ctx, n, u.Repository, cmp.Or(u.Tag, "latest")); src != nil {
		n.Checks = append(n.Checks, a.judge(ctx, src, Subject{
			Kind: artifacts.KindImage, Descriptor: ocispec.Descriptor{Digest: n.Digest}, Below: true,
		})...)
	}
	return n
}

// image checks an image that a lock names.
func (a *audit) image(ctx context.Context, i artifacts.LockedImage) *Node {
	n := &Node{Kind: string(artifacts.KindImage), Reference: i.Reference, Digest: i.Digest}
	for _, p := range i.Platforms {
		n.Platforms = append(n.Platforms, p.Platform)
	}
	n.add(Check{Name: "pin", Result: Passed, Detail: "locked by its digest"})
	if named, _, ok := strings.Cut(i.Reference, "@"); ok {
		n.Reference = named
	}
	src, err := a.Places.ImagePlace(ctx, i.Reference)
	if err != nil {
		n.add(fails("signature", fmt.Errorf("image %s: %w", i.Reference, err)))
		return n
	}
	n.Checks = append(n.Checks, a.judge(ctx, src, Subject{
		Kind: artifacts.KindImage, Descriptor: ocispec.Descriptor{Digest: i.Digest}, Below: true,
	})...)
	return n
}
