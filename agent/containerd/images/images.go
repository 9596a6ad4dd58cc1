// Package images manages the images of a device in containerd: it pulls them from the registry's endpoints and continues after
// restarts, unpacks layers durably, unpacks layers again that a power cut damaged, and collects unused images.
//
// Start at [Store.Pull] and [Store.Ready]. Pulls are ours (core/unpack over a fetch of our own), not containerd's transfer service:
// they need the registry client's credentials and mirrors, a lease that keeps half a layer for the next attempt, and a journal entry
// after one syncfs, because containerd also uses an unpacked snapshot whose files a power cut has emptied.
package images

import (
	"context"
	"log/slog"
	"sync"
	"time"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/snapshots"
	"golang.org/x/sync/singleflight"

	"github.com/longshore-dev/longshore/artifacts/locks"
)

// Journal records durably which images are safe to use after a power cut. The agent's store implements it. Calls return when the entry
// is on the disk.
type Journal interface {
	Unpacking(image string) error
	Durable(image string) error
	IsDurable(image string) (bool, error)
	Forget(image string) error // with entries that begin with it and a space
}

// Host provides facts about containerd.
type Host interface {
	// Capabilities are those of the snapshotter.
	Capabilities(ctx context.Context) ([]string, error)
	// Roots are the folders of the content store and of the snapshotter.
	Roots(ctx context.Context) (blobs, files string, err error)
}

const (
	maxDownloads = 3 // layers in flight: few, so that on a slow link some layers complete
	maxUnpacks   = 4 // layers unpacked in parallel, if the snapshotter supports it
)

// Options of a store. All except MinFree are needed, Endpoints for Pull.
type Options struct {
	Device      string
	Snapshotter string
	DataDir     string // also needs free space
	Endpoints   func(repository string) ([]Endpoint, error)
	Journal     Journal
	Host        Host
	MinFree     Space
	Now         func() time.Time
	Logger      *slog.Logger
}

// Store is the images of a device in containerd. Its methods may be called from several goroutines, with containerd's namespace in
// their contexts.
type Store struct {
	o      Options
	client *client.Client
	log    *slog.Logger

	inProgress locks.Table // by name: images that are being pulled or repaired
	blobs      locks.Table // by digest: blobs that are being verified
	layers     locks.Table // layers that are being fetched or unpacked
	turn       locks.Table // of one name, see exclusively
	verified   sync.Map    // digests that this process wrote or verified: a power cut that damages their files ends the process too
	syncs      syncFaults
	repairs    singleflight.Group // those in progress, by entry of the journal
	cache      sync.Map           // images that were read, by name and platform: the content of a digest does not change
	keep       keepList

	failed failedImages

	life       context.Context //nolint:containedctx // of repairs, which continue when their caller stops waiting
	background sync.WaitGroup  // repairs
}

// New creates a store. Its repairs end with life, see [Store.Wait].
func New(life context.Context, c *client.Client, o Options) *Store {
	return &Store{o: o, client: c, log: o.Logger, life: life}
}

// Wait waits for repairs to end: they need the connection to clean up.
func (r *Store) Wait() { r.background.Wait() }

func (r *Store) snapshots() snapshots.Snapshotter { return r.client.SnapshotService(r.o.Snapshotter) }
