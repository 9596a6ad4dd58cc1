package soak

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/containerd/containerd/v2/client"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/namespaces"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/identity"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// compare holds every image on the device against what was pushed: each blob by its digest, each unpacked tree file by
// file. It returns how many files were equal. Both images of the newest generation must be there.
func (d *cutDevice) compare(ctx context.Context) (int, error) {
	c, err := client.New(d.Containerd.Address, client.WithDefaultNamespace(d.Containerd.Namespace))
	if err != nil {
		return 0, err
	}
	defer c.Close()
	ctx = namespaces.WithNamespace(ctx, d.Containerd.Namespace)
	err = c.ContentStore().Walk(ctx, func(i content.Info) error { return sameBlob(ctx, c.ContentStore(), i) })
	if err != nil {
		return 0, err
	}
	images, err := c.ImageService().List(ctx)
	if err != nil {
		return 0, err
	}
	total, newest := 0, 0
	for _, i := range images {
		want := d.images[i.Target.Digest.String()]
		if want == nil {
			return total, fmt.Errorf("image %s was never pushed", i.Name)
		}
		n, err := compareImage(ctx, c, want)
		if err != nil {
			return total, fmt.Errorf("image %s: %w", i.Name, err)
		}
		total += n
		newest++
	}
	if newest < len(d.ports) {
		return total, fmt.Errorf("%d images are on the device, want at least %d", newest, len(d.ports))
	}
	return total, nil
}

func sameBlob(ctx context.Context, store content.Store, i content.Info) error {
	ra, err := store.ReaderAt(ctx, ocispec.Descriptor{Digest: i.Digest, Size: i.Size})
	if err != nil {
		return fmt.Errorf("blob %s: %w", i.Digest, err)
	}
	defer ra.Close()
	v := i.Digest.Verifier()
	if _, err := io.CopyBuffer(v, io.NewSectionReader(ra, 0, ra.Size()), make([]byte, 1<<20)); err != nil {
		return fmt.Errorf("blob %s: %w", i.Digest, err)
	}
	if !v.Verified() {
		return fmt.Errorf("blob %s on the device has other bytes", i.Digest)
	}
	return nil
}

// compareImage mounts an image's unpacked layers and holds them against the image.
func compareImage(ctx context.Context, c *client.Client, want v1.Image) (n int, err error) {
	config, err := want.ConfigFile()
	if err != nil {
		return 0, err
	}
	var ids []digest.Digest
	for _, id := range config.RootFS.DiffIDs {
		ids = append(ids, digest.Digest(id.String()))
	}
	const view = "longshore-soak-compare"
	sn := c.SnapshotService("overlayfs")
	mounts, err := sn.View(ctx, view, identity.ChainID(ids).String(),
		snapshots.WithLabels(map[string]string{"containerd.io/gc.root": "compare"}))
	if err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, sn.Remove(ctx, view)) }()
	err = mount.WithTempMount(ctx, mounts, func(root string) error {
		n, err = compareTree(root, want)
		return err
	})
	return n, err
}

// compareTree wants exactly an image's files below root.
func compareTree(root string, want v1.Image) (int, error) {
	flat := mutate.Extract(want)
	defer flat.Close()
	seen := map[string]bool{".": true}
	for r := tar.NewReader(flat); ; {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return len(seen), err
		}
		name := filepath.Clean(h.Name)
		if err := sameFile(filepath.Join(root, name), h, r); err != nil {
			return len(seen), fmt.Errorf("%s: %w", name, err)
		}
		for ; !seen[name]; name = filepath.Dir(name) { // folders need no entry of their own
			seen[name] = true
		}
	}
	err := filepath.WalkDir(root, func(path string, _ fs.DirEntry, err error) error {
		if name, rerr := filepath.Rel(root, path); err == nil && (rerr != nil || !seen[name]) {
			err = fmt.Errorf("%s is in no layer", name)
		}
		return err
	})
	return len(seen), err
}

func sameFile(path string, h *tar.Header, r io.Reader) error {
	info, err := os.Lstat(path)
	if err != nil {
		return err
	}
	st := info.Sys().(*syscall.Stat_t)
	if int(st.Uid) != h.Uid || int(st.Gid) != h.Gid {
		return fmt.Errorf("belongs to %d:%d, want %d:%d", st.Uid, st.Gid, h.Uid, h.Gid)
	}
	if want := h.FileInfo().Mode(); info.Mode() != want && h.Typeflag != tar.TypeSymlink {
		return fmt.Errorf("mode is %v, want %v", info.Mode(), want)
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		if to, err := os.Readlink(path); err != nil || to != h.Linkname {
			return fmt.Errorf("leads to %q, %w, want %q", to, err, h.Linkname)
		}
	case tar.TypeReg:
		f, err := os.Open(path)
		if err != nil {
			return err
		}
		defer f.Close()
		got, want := sha256.New(), sha256.New()
		if _, err := io.Copy(got, f); err != nil {
			return err
		}
		if _, err := io.Copy(want, r); err != nil {
			return err
		}
		if string(got.Sum(nil)) != string(want.Sum(nil)) {
			return fmt.Errorf("has %d bytes that are not the %d of the layer", info.Size(), h.Size)
		}
	case tar.TypeDir:
	default:
		return fmt.Errorf("is a %q, which this comparison does not know", strings.TrimSpace(string(h.Typeflag)))
	}
	return nil
}
