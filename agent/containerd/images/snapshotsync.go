package images

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// syncStep is how many bytes arrive between two syncs of a pull in progress.
	syncStep = 24 << 20
	// syncEvery is how often they are counted.
	syncEvery = 20 * time.Millisecond
)

// snapshotSync syncs unpacked files to the disk: containerd syncs blobs, but not the files that it unpacks from them. The kernel reports
// a write-back error once to each descriptor that was open when it happened (syncfs(2)), so one descriptor stays open from
// before the unpack to the end, and an error that it reported once stays.
type snapshotSync struct {
	r      *Store
	dir    string
	fd     int   // -1: the snapshotter's folder is unknown
	failed int64 // count of r.syncs at the beginning

	mu  sync.Mutex
	err error
}

// syncFaults counts write-back errors. An error while one pull unpacked a layer also invalidates the image of another pull that found
// this layer.
type syncFaults struct {
	turn sync.Mutex // held until an error is counted: the kernel does not report it to a later sync
	n    atomic.Int64
}

// openSnapshotSync opens the file system before anything is unpacked. The caller closes it.
func (r *Store) openSnapshotSync(ctx context.Context) (*snapshotSync, error) {
	_, dir, err := r.o.Host.Roots(ctx)
	if err != nil {
		return nil, err
	}
	s := &snapshotSync{r: r, dir: dir, fd: -1, failed: r.syncs.n.Load()} // an error that is counted from now on makes it fail
	if dir == "" {
		return s, nil
	}
	if s.fd, err = unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0); err != nil {
		return nil, fmt.Errorf("open %s to sync it: %w", dir, err)
	}
	return s, nil
}

func (s *snapshotSync) close() {
	if s.fd >= 0 {
		_ = unix.Close(s.fd) // nothing is written through it
	}
}

// sync returns when all files unpacked so far are on the disk. An error means that some of it may be lost: it is unpacked again at
// the next attempt.
func (s *snapshotSync) sync() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err != nil {
		return s.err
	}
	faults := &s.r.syncs
	faults.turn.Lock()
	defer faults.turn.Unlock()
	var err error
	if s.fd < 0 {
		unix.Sync()
	} else if err = unix.Syncfs(s.fd); err != nil {
		s.r.verified.Clear() // no layer is known to be on the disk; before it is counted, so that a pull that starts then relies on none
		faults.n.Add(1)
	}
	switch {
	case err != nil:
		s.err = fmt.Errorf("sync the filesystem of %s: %w", s.dir, failure.As(fault.ErrTemporary, err))
	case faults.n.Load() != s.failed:
		s.r.verified.Clear() // it may have relied on lost files
		s.err = fmt.Errorf("the filesystem of %s lost what another pull wrote: %w", s.dir, fault.ErrTemporary)
	default:
		return nil
	}
	s.err = fault.WithHint(s.err, "look at the kernel's log (dmesg) for errors of the disk")
	return s.err
}

// syncInBackground syncs while an image is downloaded and unpacked, so that the last sync is short. It syncs once for every syncStep
// bytes. The returned function ends it.
func syncInBackground(ctx context.Context, f *fetcher, disk *snapshotSync) (stop func()) {
	var wg sync.WaitGroup
	done := make(chan struct{})
	wg.Go(func() {
		tick := time.NewTicker(syncEvery)
		defer tick.Stop()
		for last := int64(0); ; {
			select {
			case <-tick.C:
			case <-done:
				return
			case <-ctx.Done():
				return
			}
			if now := f.arrived(); now-last >= syncStep {
				last = now
				if disk.sync() != nil {
					return // the last call returns it again
				}
			}
		}
	})
	return func() { close(done); wg.Wait() }
}
