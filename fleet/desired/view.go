// Package desired is a read-only view of the states in a registry, as the Margo management API serves them to clients: State
// Manifests, bundles and single deployments, with the bytes and digests that were pushed.
//
// [New] creates a [View]; [View.Run] looks for new states, with one request per device, and [View.Manifest] answers from memory. A
// new state is served when everything that it names is verified and on disk, and until then the previous one: an unavailable or incomplete
// registry changes nothing for clients. After a restart the same content is served, also without the registry.
//
// # Versions
//
// manifestVersion rises with each manifest of a client. If a client has a single state, its State Manifest is served
// unchanged, and the version is its generation. The manifest of a client of several devices is composed here; the one of a client
// whose devices have no state yet is empty, and has version 1. Each new manifest has a higher version than the previous one,
// which is in [store.Manifests].
package desired

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
)

const (
	defaultEvery = 30 * time.Second
	lookTimeout  = 10 * time.Second // of a look that a client waits for; fetched content is kept
	looksAtOnce  = 16               // at the registry
	maxBackOff   = 16               // times Every, for a client whose states cannot be read
	stale        = 4                // times Every after which a client waits for a look
	maxRaise     = 1 << 32          // versions above the known one that a client may report, so that higher ones are left
)

// Source is a repository of states. [registry.Repository] is one.
type Source interface {
	Name() string // "host/path"
	Resolve(ctx context.Context, tag string) (ocispec.Descriptor, error)
	Manifest(ctx context.Context, d digest.Digest) (ocispec.Descriptor, []byte, error)
	Blob(ctx context.Context, d ocispec.Descriptor, limit int64) ([]byte, error)
}

// Content is a store of content by digest. [registry.Layout] is one. Its content is verified and durable.
type Content interface {
	Put(ctx context.Context, desc ocispec.Descriptor, data []byte) error
	Get(ctx context.Context, d digest.Digest) ([]byte, error)
	// Open verifies content and opens it. fault.ErrNotFound: it is missing or damaged.
	Open(ctx context.Context, d digest.Digest) (io.ReadSeekCloser, error)
	Retain(ctx context.Context, keep []digest.Digest) error
}

// Options make a [View]. Sources, Content, Manifests, Now and Logger must be set.
type Options struct {
	Sources   []Source // the first that has a device's state is used
	Content   Content  // used by this view only
	Manifests store.Manifests
	Every     time.Duration // between looks for a device's state; 0: 30 s
	Now       func() time.Time
	Logger    *slog.Logger
	Metrics   prometheus.Registerer // nil: no metrics
}

// View serves desired state. It implements [status.Desired].
type View struct {
	o       Options
	looks   chan struct{}
	metrics *metrics

	loading sync.RWMutex // held for reading while content is stored that is not referenced yet

	mu      sync.Mutex
	clients map[string]*client
	away    bool // the last look did not reach a registry
}

var _ status.Desired = (*View)(nil)

// New creates a view. It opens no connection.
func New(o Options) *View {
	if o.Every <= 0 {
		o.Every = defaultEvery
	}
	v := &View{o: o, looks: make(chan struct{}, looksAtOnce), clients: map[string]*client{}}
	v.metrics = newMetrics(o.Metrics, v)
	return v
}

// client is the state of one client.
type client struct {
	id   string
	busy chan struct{} // has a value while a goroutine checks or loads

	mu      sync.Mutex
	devices []string
	served  *served   // nil: nothing yet
	loaded  bool      // the content from before a restart was looked up
	looked  time.Time // the last time that the registry answered
	due     time.Time // when to look again
	failed  int       // consecutive failed looks
	err     error     // of the last look; nil: served is current
	damaged bool      // the disk has lost something of served
	gone    []string  // devices whose tag was deleted
	adopted uint64    // highest manifestVersion that the client has reported; 0: none
}

// known finds a client, and updates its list of devices.
func (v *View) known(c status.Client) *client {
	v.mu.Lock()
	x := v.clients[c.ID]
	if x == nil {
		x = &client{id: c.ID, busy: make(chan struct{}, 1)}
		v.clients[c.ID] = x
	}
	v.mu.Unlock()
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Equal(x.devices, c.Devices) {
		x.devices, x.looked, x.due = slices.Clone(c.Devices), time.Time{}, time.Time{}
	}
	return x
}

// Manifest implements [status.Desired].
func (v *View) Manifest(ctx context.Context, c status.Client) (digest.Digest, error) {
	x := v.known(c)
	s, err := v.load(ctx, x)
	if err != nil {
		return "", err
	}
	now := v.o.Now()
	x.mu.Lock()
	wait := now.Sub(x.looked) > stale*v.o.Every && !now.Before(x.due)
	x.mu.Unlock()
	if s != nil && !wait {
		return s.manifest, nil
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	err = v.look(ctx, x)
	x.mu.Lock()
	defer x.mu.Unlock()
	switch {
	case x.served != nil:
		return x.served.manifest, nil
	case err != nil:
		return "", err
	}
	return "", x.err // of a look a moment ago
}

// Deployment implements [status.Desired].
func (v *View) Deployment(ctx context.Context, c status.Client, id string, d digest.Digest) error {
	return v.names(ctx, c, func(s *served) bool { return s.has(id, d) })
}

// Bundle implements [status.Desired].
func (v *View) Bundle(ctx context.Context, c status.Client, d digest.Digest) error {
	return v.names(ctx, c, func(s *served) bool { return s.bundle == d && d != "" })
}

// names reports whether the last manifest of a client, or the one before it, names a digest: the client may still fetch that.
func (v *View) names(ctx context.Context, c status.Client, is func(*served) bool) error {
	s, err := v.load(ctx, v.known(c))
	for range 2 {
		if err != nil || s == nil {
			break
		}
		if is(s) {
			return nil
		}
		s = s.before
	}
	if err == nil {
		err = fmt.Errorf("it is not in the desired state of %s: %w", c.ID, fault.ErrNotFound)
	}
	return err
}

// Open implements [status.Desired].
func (v *View) Open(ctx context.Context, d digest.Digest) (io.ReadSeekCloser, error) {
	f, err := v.o.Content.Open(ctx, d)
	if errors.Is(err, fault.ErrNotFound) { // the disk has lost it, and the next look reads it again
		v.forget(d)
	}
	return f, err
}

// forget marks everything that names lost content to be read again.
func (v *View) forget(d digest.Digest) {
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, x := range v.clients {
		x.mu.Lock()
		if x.served != nil && slices.Contains(x.served.keep, d) {
			x.damaged, x.due = true, time.Time{}
		}
		x.mu.Unlock()
	}
}

// Adopted implements [status.Desired]. A client that has not polled since the start is not in the view.
func (v *View) Adopted(c status.Client, version uint64) {
	v.mu.Lock()
	x := v.clients[c.ID]
	v.mu.Unlock()
	if x == nil {
		return
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.served != nil && version > x.served.version && version > x.adopted && version-x.served.version <= maxRaise {
		x.adopted, x.due = version, time.Time{}
		v.o.Logger.Warn("a client has a later manifest than the database knows of: it gets one above that", "client", x.id, "adopted", version, "served", x.served.version)
	}
}

// load returns the content for a client: after a restart the previous one; nil: none.
func (v *View) load(ctx context.Context, x *client) (*served, error) {
	x.mu.Lock()
	s, loaded := x.served, x.loaded
	x.mu.Unlock()
	if loaded {
		return s, nil
	}
	leave, err := x.enter(ctx)
	if err != nil {
		return nil, err
	}
	defer leave()
	return v.recall(ctx, x)
}

// recall is load for a caller that has entered.
func (v *View) recall(ctx context.Context, x *client) (*served, error) {
	x.mu.Lock()
	s, loaded := x.served, x.loaded
	x.mu.Unlock()
	if loaded {
		return s, nil
	}
	head, err := v.o.Manifests.Manifest(ctx, x.id)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, err
	}
	if err == nil {
		if s, err = v.restore(ctx, head); err != nil {
			v.o.Logger.Warn("what a client was served last is not whole on disk: the registry is asked again", "client", x.id, "error", err)
			s = nil
		}
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	x.served, x.loaded = s, true
	if s != nil {
		x.looked = v.o.Now() // the registry is queried in the background first
	}
	return s, nil
}

// enter waits until no other goroutine checks or loads for the client.
func (x *client) enter(ctx context.Context) (leave func(), err error) {
	select {
	case x.busy <- struct{}{}:
		return func() { <-x.busy }, nil
	case <-ctx.Done():
		return nil, fmt.Errorf("wait for the state of %s: %w: %w", x.id, context.Cause(ctx), fault.ErrTemporary)
	}
}
