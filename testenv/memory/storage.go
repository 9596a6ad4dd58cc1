// Package memory is a storage in memory for registries of distribution. It only keeps copies, so that tests need not run it with the
// race detector.
package memory

import (
	"context"
	"errors"

	storagedriver "github.com/distribution/distribution/v3/registry/storage/driver"
	"github.com/distribution/distribution/v3/registry/storage/driver/factory"
	"github.com/distribution/distribution/v3/registry/storage/driver/inmemory"
)

// Driver names the storage in distribution's configuration. It has no parameters.
const Driver = "longshore-memory"

func init() { factory.Register(Driver, creator{}) }

type creator struct{}

func (creator) Create(context.Context, map[string]any) (storagedriver.StorageDriver, error) {
	return storage{inmemory.New()}, nil
}

// storage is distribution's own, which copies all that it has of a blob with each 32 KiB that come. This one hands them on once.
type storage struct{ *inmemory.Driver }

func (s storage) Writer(ctx context.Context, path string, more bool) (storagedriver.FileWriter, error) {
	w, err := s.Driver.Writer(ctx, path, more)
	if err != nil {
		return nil, err
	}
	return &writer{FileWriter: w}, nil
}

// writer keeps what is written until it is closed or committed. Its size is what was there before, as that of inmemory is. The pieces
// are no growing slice: where there is a race detector, the runtime tells it of all that such a slice copies.
type writer struct {
	storagedriver.FileWriter
	pieces [][]byte
}

func (w *writer) Write(p []byte) (int, error) {
	piece := make([]byte, len(p))
	copy(piece, p)
	w.pieces = append(w.pieces, piece)
	return len(p), nil
}

// pass hands on what is kept.
func (w *writer) pass() error {
	if len(w.pieces) == 0 {
		return nil
	}
	size := 0
	for _, p := range w.pieces {
		size += len(p)
	}
	all := make([]byte, size)
	for rest := all; len(w.pieces) > 0; w.pieces = w.pieces[1:] {
		rest = rest[copy(rest, w.pieces[0]):]
	}
	_, err := w.FileWriter.Write(all)
	return err
}

func (w *writer) Commit(ctx context.Context) error {
	if err := w.pass(); err != nil {
		return err
	}
	return w.FileWriter.Commit(ctx)
}

func (w *writer) Cancel(ctx context.Context) error {
	w.pieces = nil
	return w.FileWriter.Cancel(ctx)
}

func (w *writer) Close() error { return errors.Join(w.pass(), w.FileWriter.Close()) }
