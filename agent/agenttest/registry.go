// Package agenttest tests an agent against a world of its own: a registry, a trust policy, content and a fleet endpoint in
// memory, made of really packed artifacts, beside any runtime.
//
// Its tests are the scenarios that every runtime must pass, on a runtime in memory and on real containerd, also with an agent that
// ends at any step.
package agenttest

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Registry is a source in memory. Fail, when set, may answer a request with an error or change the bytes of an answer.
type Registry struct {
	mu       sync.Mutex
	tags     map[string]ocispec.Descriptor // "repository:tag"
	mirror   map[string]ocispec.Descriptor // "repository:tag", as a mirror shows them
	content  map[string][]byte             // "repository@digest"
	requests []string
	fail     func(request string) error
	change   func(request string, data []byte) []byte
}

func NewRegistry() *Registry {
	return &Registry{tags: map[string]ocispec.Descriptor{}, mirror: map[string]ocispec.Descriptor{}, content: map[string][]byte{}}
}

// Push stores an artifact and points tags at it.
func (r *Registry) Push(repository string, a *artifacts.Artifact, tags ...string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, b := range a.Blobs {
		r.content[repository+"@"+b.Descriptor.Digest.String()] = b.Data
	}
	r.content[repository+"@"+a.Descriptor.Digest.String()] = a.Manifest
	for _, t := range tags {
		r.tags[repository+":"+t] = a.Descriptor
	}
}

// Tag points a tag at any descriptor.
func (r *Registry) Tag(repository, tag string, d ocispec.Descriptor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.tags[repository+":"+tag] = d
}

// Mirror sets what a mirror, which is asked before the registry, shows that a tag names. Without a digest it has no such tag.
func (r *Registry) Mirror(repository, tag string, d ocispec.Descriptor) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.mirror[repository+":"+tag] = d
}

// Fail sets what happens to requests ("resolve host/repo:tag", "mirror host/repo:tag", "manifest host/repo@sha256:…", "blob …"): an error is the
// answer. nil: all is well.
func (r *Registry) Fail(f func(request string) error) { set(&r.mu, &r.fail, f) }

// Change sets what becomes of the bytes of an answer. nil: nothing.
func (r *Registry) Change(f func(request string, data []byte) []byte) { set(&r.mu, &r.change, f) }

func set[T any](mu *sync.Mutex, to *T, value T) {
	mu.Lock()
	defer mu.Unlock()
	*to = value
}

// Requests returns the requests since it was last called.
func (r *Registry) Requests() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	out := r.requests
	r.requests = nil
	return out
}

func (r *Registry) request(what string) error {
	r.requests = append(r.requests, what)
	if r.fail != nil {
		return r.fail(what)
	}
	return nil
}

func (r *Registry) Resolve(ctx context.Context, repository, tag string) (d ocispec.Descriptor, err error) {
	err = r.EachResolve(ctx, repository, tag, func(named ocispec.Descriptor) bool {
		d = named
		return true
	})
	return d, err
}

func (r *Registry) EachResolve(ctx context.Context, repository, tag string, enough func(ocispec.Descriptor) bool) error {
	if d, ok := r.mirrored(ctx, repository, tag); ok && enough(d) {
		return nil
	}
	d, err := r.resolve(ctx, repository, tag)
	if err == nil {
		enough(d)
	}
	return err
}

func (r *Registry) mirrored(ctx context.Context, repository, tag string) (ocispec.Descriptor, bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	d, ok := r.mirror[repository+":"+tag]
	if !ok || d.Digest == "" || errors.Join(ctx.Err(), r.request("mirror "+repository+":"+tag)) != nil {
		return d, false
	}
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, true
}

func (r *Registry) resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	what := "resolve " + repository + ":" + tag
	if err := errors.Join(ctx.Err(), r.request(what)); err != nil {
		return ocispec.Descriptor{}, err
	}
	d, ok := r.tags[repository+":"+tag]
	if !ok {
		return d, fmt.Errorf("%s: %w", what, fault.ErrNotFound)
	}
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: d.Digest, Size: d.Size}, nil
}

func (r *Registry) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	data, err := r.get(ctx, "manifest "+repository+"@"+d.String(), repository, d)
	return ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: d, Size: int64(len(data))}, data, err
}

func (r *Registry) Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if d.Size > limit {
		return nil, fmt.Errorf("blob %s: %w", d.Digest, fault.ErrTooLarge)
	}
	return r.get(ctx, "blob "+repository+"@"+d.Digest.String(), repository, d.Digest)
}

// get may return other bytes than were asked for: whoever asks must look.
func (r *Registry) get(ctx context.Context, what, repository string, d digest.Digest) ([]byte, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if err := errors.Join(ctx.Err(), r.request(what)); err != nil {
		return nil, err
	}
	data, ok := r.content[repository+"@"+d.String()]
	if !ok {
		return nil, fmt.Errorf("%s: %w", what, fault.ErrNotFound)
	}
	if r.change != nil {
		data = r.change(what, slices.Clone(data))
	}
	return slices.Clone(data), nil
}

// Verifier lets artifacts pass that were signed; a test may put another rule in its place.
type Verifier struct {
	mu     sync.Mutex
	signed map[digest.Digest]bool
	rule   func(kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error)
}

// Sign makes a state pass.
func (v *Verifier) Sign(d digest.Digest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	if v.signed == nil {
		v.signed = map[digest.Digest]bool{}
	}
	v.signed[d] = true
}

// Rule replaces the verdict; nil: states must be signed, nothing else.
func (v *Verifier) Rule(f func(kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error)) {
	set(&v.mu, &v.rule, f)
}

func (v *Verifier) Verify(ctx context.Context, kind intake.Kind, repository string, d ocispec.Descriptor) (intake.Verdict, error) {
	v.mu.Lock()
	defer v.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		return intake.Verdict{}, ctx.Err()
	case v.rule != nil:
		return v.rule(kind, repository, d)
	case kind != intake.KindState:
		return intake.Verdict{}, nil
	case v.signed[d.Digest]:
		return intake.Verdict{SignedBy: []string{"release"}}, nil
	}
	return intake.Verdict{}, fmt.Errorf("%s@%s: %w", repository, d.Digest, fault.ErrUnsigned)
}

// Content keeps artifacts in memory. What was not synced is lost with the agent, see [Content.Reopen].
type Content struct {
	mu     sync.Mutex
	data   map[digest.Digest][]byte
	staged map[digest.Digest]bool // of data
}

func NewContent() *Content {
	return &Content{data: map[digest.Digest][]byte{}, staged: map[digest.Digest]bool{}}
}

// Reopen is what an agent does that starts: what another one has not synced is gone.
func (c *Content) Reopen() *Content {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d := range c.staged {
		delete(c.data, d)
	}
	clear(c.staged)
	return c
}

func (c *Content) Get(ctx context.Context, d digest.Digest) ([]byte, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	data, ok := c.data[d]
	if !ok || digest.FromBytes(data) != d {
		return nil, fmt.Errorf("content %s: %w", d, fault.ErrNotFound)
	}
	return slices.Clone(data), ctx.Err()
}

func (c *Content) Stage(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	if digest.FromBytes(data) != d.Digest || int64(len(data)) != d.Size {
		return fmt.Errorf("content %s: %w", d.Digest, fault.ErrDigestMismatch)
	}
	if was, ok := c.data[d.Digest]; !ok || digest.FromBytes(was) != d.Digest {
		c.data[d.Digest], c.staged[d.Digest] = slices.Clone(data), true
	}
	return nil
}

func (c *Content) StageSpare(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	return c.Stage(ctx, d, data)
}

func (c *Content) Sync(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	clear(c.staged)
	return nil
}

func (c *Content) Retain(ctx context.Context, keep []digest.Digest) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.data, func(d digest.Digest, _ []byte) bool { return !slices.Contains(keep, d) })
	return ctx.Err()
}

func (c *Content) Yield(do func() error) error { return do() }

// Len is how many blobs are kept.
func (c *Content) Len() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.data)
}

// Damage changes every kept blob for which pick is true; nil: all.
func (c *Content) Damage(pick func(d digest.Digest, text string) bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for d, data := range c.data {
		if pick == nil || pick(d, string(data)) {
			c.data[d] = append(slices.Clone(data), 'x')
		}
	}
}

// Fleet is a fleet endpoint: it remembers every report that it took.
type Fleet struct {
	mu      sync.Mutex
	reports []store.Report
	fail    func(store.Report) error
	forgot  bool // the next capabilities are those of a new device
}

// Forget loses every report, and knows the device no more.
func (f *Fleet) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.reports, f.forgot = nil, true
}

// Fail sets the answer to reports; nil: all are taken.
func (f *Fleet) Fail(g func(store.Report) error) { set(&f.mu, &f.fail, g) }

func (f *Fleet) Deliver(ctx context.Context, r store.Report) (created bool, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return false, fmt.Errorf("%w: %w", fault.ErrTemporary, err)
	}
	if f.fail != nil {
		if err := f.fail(r); err != nil {
			return false, err
		}
	}
	f.reports = append(f.reports, r)
	if r.Kind == store.KindCapabilities {
		created, f.forgot = f.forgot, false
	}
	return created, nil
}

// Reports lists what was taken, in order, repetitions left out.
func (f *Fleet) Reports() []store.Report {
	f.mu.Lock()
	defer f.mu.Unlock()
	var out []store.Report
	for _, r := range f.reports {
		if len(out) == 0 || out[len(out)-1].Sequence != r.Sequence {
			out = append(out, r)
		}
	}
	return out
}
