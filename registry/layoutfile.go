package registry

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// blobFolders are the folders of blobs in a layout.
var blobFolders = []string{filepath.Join(ocispec.ImageBlobsDir, digest.SHA256.String()), filepath.Join(ocispec.ImageBlobsDir, digest.SHA512.String())}

// checkNames rejects a prepared layout with a pipe in place of its own files and folders, because its reader waits
// for a writer, and, before a write, one with a link, which may lead to any file of this machine.
func checkNames(path string, write bool) error {
	documents := []string{ocispec.ImageIndexFile, ocispec.ImageLayoutFile}
	for _, name := range documents {
		info, err := os.Stat(filepath.Join(path, name))
		if err == nil {
			err = bounded.Regular(name, info)
		}
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return onDisk(err)
		}
	}
	if !write {
		return nil
	}
	for _, name := range append(append(documents, ingestFolder, ocispec.ImageBlobsDir), blobFolders...) {
		if info, err := os.Lstat(filepath.Join(path, name)); err == nil && info.Mode()&fs.ModeSymlink != 0 {
			return fault.WithHint(fmt.Errorf("%s is a link, and no link is followed to write: %w", name, fault.ErrInvalid), "remove it, or name another folder")
		}
	}
	return nil
}

// checkBlobs rejects pipes and devices among the blobs: oras-go opens every blob that the index leads to.
func checkBlobs(path string) error {
	for _, folder := range blobFolders {
		entries, err := os.ReadDir(filepath.Join(path, folder))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return onDisk(err)
		}
		for _, e := range entries {
			if e.Type().IsRegular() || e.IsDir() {
				continue
			}
			info, err := os.Stat(filepath.Join(path, folder, e.Name())) // the target of a link
			if err == nil && !info.IsDir() {
				err = bounded.Regular(filepath.Join(folder, e.Name()), info)
			}
			if err != nil && !errors.Is(err, fs.ErrNotExist) {
				return onDisk(err)
			}
		}
	}
	return nil
}

// openRegular opens a regular file only. It does not block on a pipe.
func openRegular(name string, flag int, mode fs.FileMode) (*os.File, error) {
	f, err := os.OpenFile(name, flag|syscall.O_NONBLOCK, mode)
	if err != nil {
		return nil, err
	}
	info, err := f.Stat()
	if err == nil {
		err = bounded.Regular(filepath.Base(name), info)
	}
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return f, nil
}
