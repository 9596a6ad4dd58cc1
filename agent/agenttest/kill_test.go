package agenttest

import (
	"context"
	"errors"
	"sync"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/outbox"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Killer ends an agent at one boundary of a step: just before or just after something that the agent does to the world or to
// its own memory. Boundaries are numbered from 1 in the order in which they are met.
//
// By default it kills within the process: from then on nothing that the agent does has any effect, and it is told to stop.
// With Kill set to one that never returns (SIGKILL to oneself), it works in a process of its own.
type Killer struct {
	At   int    // boundary to die at; 0: only count
	Kill func() // nil: within the process

	mu     sync.Mutex
	cancel context.CancelFunc // of the agent's context
	met    int
	dead   bool
	where  string
}

var errKilled = errors.New("the agent was killed")

// Met is how many boundaries were met.
func (k *Killer) Met() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.met
}

// Where names the boundary at which the agent died; "": it did not.
func (k *Killer) Where() string {
	k.mu.Lock()
	defer k.mu.Unlock()
	return k.where
}

// point is one boundary.
func (k *Killer) point(name string) error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return errKilled
	}
	if k.met++; k.met != k.At {
		return nil
	}
	k.where = name
	if k.Kill != nil {
		k.Kill()
	}
	k.dead = true
	k.cancel()
	return errKilled
}

// around does something between two boundaries.
func (k *Killer) around(name string, f func() error) error {
	if err := k.point("before " + name); err != nil {
		return err
	}
	if err := f(); err != nil {
		return err
	}
	return k.point("after " + name)
}

// alive answers questions only while the agent lives.
func (k *Killer) alive() error {
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.dead {
		return errKilled
	}
	return nil
}

// Commit is for store.Options: a boundary before and after each transaction.
func (k *Killer) Commit(after bool) error {
	if after {
		return k.point("after commit")
	}
	return k.point("before commit")
}

// StartToDie runs an agent that k kills. It checks the registry at once: devices that start again spread their first checks
// over 10 s, which is not what is looked at.
func (w *World) StartToDie(t *testing.T, k *Killer) *Running {
	t.Helper()
	r := w.start(t, k.Commit, k.wrap)
	r.asking.Go(func() { _, _ = r.Sync(context.WithoutCancel(t.Context())) }) // ends with the agent
	return r
}

// wrap puts the boundaries around an agent's ports.
func (k *Killer) wrap(o agent.Options, cancel context.CancelFunc) agent.Options {
	k.cancel = cancel
	o.Source = killSource{k, o.Source}
	o.Content = killContent{k, o.Content}
	o.Runtime = killRuntime{o.Runtime, k}
	if o.Reporter != nil {
		o.Reporter = killReporter{k, o.Reporter}
	}
	return o
}

type killSource struct {
	k *Killer
	intake.Source
}

func (s killSource) Resolve(ctx context.Context, repository, tag string) (ocispec.Descriptor, error) {
	if err := s.k.point("resolve"); err != nil {
		return ocispec.Descriptor{}, err
	}
	return s.Source.Resolve(ctx, repository, tag)
}

func (s killSource) EachResolve(ctx context.Context, repository, tag string, enough func(ocispec.Descriptor) bool) error {
	if err := s.k.point("resolve"); err != nil {
		return err
	}
	return s.Source.EachResolve(ctx, repository, tag, enough)
}

func (s killSource) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if err := s.k.point("manifest"); err != nil {
		return ocispec.Descriptor{}, nil, err
	}
	return s.Source.Manifest(ctx, repository, d)
}

func (s killSource) Blob(ctx context.Context, repository string, d ocispec.Descriptor, limit int64) ([]byte, error) {
	if err := s.k.point("blob"); err != nil {
		return nil, err
	}
	return s.Source.Blob(ctx, repository, d, limit)
}

type killContent struct {
	k *Killer
	intake.Content
}

func (c killContent) Get(ctx context.Context, d digest.Digest) ([]byte, error) {
	if err := c.k.alive(); err != nil {
		return nil, err
	}
	return c.Content.Get(ctx, d)
}

func (c killContent) Stage(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	return c.k.around("stage", func() error { return c.Content.Stage(ctx, d, data) })
}

func (c killContent) StageSpare(ctx context.Context, d ocispec.Descriptor, data []byte) error {
	return c.k.around("stage", func() error { return c.Content.StageSpare(ctx, d, data) })
}

func (c killContent) Sync(ctx context.Context) error {
	return c.k.around("sync", func() error { return c.Content.Sync(ctx) })
}

func (c killContent) Retain(ctx context.Context, keep []digest.Digest) error {
	return c.k.around("retain", func() error { return c.Content.Retain(ctx, keep) })
}

type killReporter struct {
	k *Killer
	r outbox.Reporter
}

func (r killReporter) Deliver(ctx context.Context, rep store.Report) (created bool, err error) {
	err = r.k.around("deliver", func() (err error) {
		created, err = r.r.Deliver(ctx, rep)
		return err
	})
	return created, err
}

type killRuntime struct {
	agent.Runtime
	k *Killer
}

func (r killRuntime) Pull(ctx context.Context, image workload.Image, progress func(done, total int64)) (info workload.ImageInfo, err error) {
	err = r.k.around("pull", func() (err error) {
		info, err = r.Runtime.Pull(ctx, image, progress)
		return err
	})
	return info, err
}

func (r killRuntime) Observe(ctx context.Context) (workload.Observed, error) {
	if err := r.k.alive(); err != nil {
		return workload.Observed{}, err
	}
	return r.Runtime.Observe(ctx)
}

func (r killRuntime) Prepare(ctx context.Context, p *workload.Project) error {
	return r.k.around("prepare", func() error { return r.Runtime.Prepare(ctx, p) })
}

func (r killRuntime) Admit(ctx context.Context, projects []*workload.Project) error {
	if err := r.k.alive(); err != nil {
		return err
	}
	return r.Runtime.Admit(ctx, projects)
}

func (r killRuntime) Create(ctx context.Context, p *workload.Project, c workload.Container) error {
	return r.k.around("create", func() error { return r.Runtime.Create(ctx, p, c) })
}

func (r killRuntime) PrepareStart(ctx context.Context, p *workload.Project, c workload.Container) error {
	return r.k.around("prepare start", func() error { return r.Runtime.PrepareStart(ctx, p, c) })
}

func (r killRuntime) Start(ctx context.Context, p *workload.Project, c workload.Container) error {
	return r.k.around("start", func() error { return r.Runtime.Start(ctx, p, c) })
}

func (r killRuntime) Activate(ctx context.Context, project, service, id string) error {
	return r.k.around("activate", func() error { return r.Runtime.Activate(ctx, project, service, id) })
}

func (r killRuntime) Deactivate(ctx context.Context, id string) error {
	return r.k.around("deactivate", func() error { return r.Runtime.Deactivate(ctx, id) })
}

func (r killRuntime) Stop(ctx context.Context, id string) error {
	return r.k.around("stop", func() error { return r.Runtime.Stop(ctx, id) })
}

func (r killRuntime) Remove(ctx context.Context, id string) error {
	return r.k.around("remove", func() error { return r.Runtime.Remove(ctx, id) })
}

func (r killRuntime) Teardown(ctx context.Context, project string) error {
	return r.k.around("teardown", func() error { return r.Runtime.Teardown(ctx, project) })
}

func (r killRuntime) Probe(ctx context.Context, id string, p workload.Probe) error {
	if err := r.k.alive(); err != nil {
		return err
	}
	return r.Runtime.Probe(ctx, id, p)
}

func (r killRuntime) Events(ctx context.Context) (<-chan workload.Event, error) {
	if err := r.k.alive(); err != nil {
		return nil, err
	}
	return r.Runtime.Events(ctx)
}

func (r killRuntime) Collect(ctx context.Context, keep []workload.Image) error {
	return r.k.around("collect", func() error { return r.Runtime.Collect(ctx, keep) })
}
