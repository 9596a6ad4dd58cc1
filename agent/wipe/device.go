package wipe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	marker = "wipe" // in the data directory: a wipe has begun, and goes on after a power cut
	retry  = 10 * time.Second
)

// Device is what of a device is deleted besides its applications.
type Device struct {
	Credentials   []string // files that are deleted first: nobody can speak for the device any more
	RunDir        string
	DataDir       string
	Configuration []string // files that are deleted last, in this order: until then the agent starts, and goes on with the wipe
}

// Begun reports whether a wipe of the device with this data directory has begun and not ended.
func Begun(dataDir string) bool {
	_, err := os.Lstat(filepath.Join(dataDir, marker))
	return err == nil
}

// Forget ends a wipe that has begun: the device gets a new configuration, which the rest of a wipe must not delete.
func Forget(dataDir string) error {
	if !Begun(dataDir) {
		return nil // also for who may not look into the directory
	}
	return files(filepath.Join(dataDir, marker))
}

// Begin notes durably that the device is to be wiped.
func Begin(dataDir string) error {
	f, err := os.OpenFile(filepath.Join(dataDir, marker), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	if err := errors.Join(f.Sync(), f.Close()); err != nil {
		return err
	}
	dir, err := os.Open(dataDir)
	if err != nil {
		return err
	}
	return errors.Join(dir.Sync(), dir.Close())
}

// Wipe deletes credentials, applications, data and configuration of a device for which [Begin] was called. What fails while there are
// applications is tried again until ctx ends. release closes what has files of the device open; it is called once applications are gone.
// Wipe may be repeated after it was interrupted anywhere.
func (d Device) Wipe(ctx context.Context, r Runtime, release func() error, log *slog.Logger) error {
	for {
		err := errors.Join(files(d.Credentials...), Applications(ctx, r))
		if err == nil {
			break
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		log.Error("the device is not wiped yet; trying again", "error", err, "hint", fault.Hint(err))
		if err := delay.For(ctx, retry); err != nil {
			return err
		}
	}
	if err := release(); err != nil {
		log.Warn("wipe", "error", err)
	}
	// Once more: something may have written credentials meanwhile.
	if err := errors.Join(files(d.Credentials...), unmount(d.RunDir)); err != nil {
		return fmt.Errorf("wipe: %w", err)
	}
	if err := errors.Join(empty(d.RunDir), empty(d.DataDir)); err != nil {
		return fmt.Errorf("wipe: %w", err)
	}
	for _, f := range d.Configuration {
		if err := files(f); err != nil {
			return fmt.Errorf("wipe: %w", err)
		}
	}
	return Forget(d.DataDir)
}

// files deletes files. Those that are not there, and "", are no errors. A link is deleted, and not what it leads to.
func files(names ...string) error {
	var errs []error
	for _, f := range names {
		if f != "" {
			errs = append(errs, gone(os.Remove(f)))
		}
	}
	return errors.Join(errs...)
}

// empty deletes what is in a directory but the marker, and follows no links.
func empty(dir string) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return gone(err)
	}
	for _, e := range entries {
		if e.Name() != marker {
			err = errors.Join(err, os.RemoveAll(filepath.Join(dir, e.Name())))
		}
	}
	return err
}

func gone(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
