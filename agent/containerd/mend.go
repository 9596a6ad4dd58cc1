package containerd

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/mount"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/containerd/v2/pkg/archive/compression"
	rootfs "github.com/containerd/continuity/fs"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// verifyDelay is how long after the start the images of containers are looked at: a boot has better things to do first.
	verifyDelay = 10 * time.Second
	// verifyRetry is the pause before containerd is asked again when it was away.
	verifyRetry = 30 * time.Second
	// whiteout marks what a layer hides; overlays keep it in another form.
	whiteout = ".wh."
	// mendName is the file that a repair writes before it takes its place.
	mendName = ".longshore-mend"
	// mendView starts the names of the views that a repair looks through.
	mendView = "longshore-mend-"
)

// Mend holds an image's unpacked files against its layers, byte by byte, and writes those anew that differ or are missing,
// under the containers that stand on them: a running process keeps the file that it has open. It needs no registry
// unless a layer itself is damaged, which fault.ErrNotFound tells: the image is then pulled again. It returns how many
// files it wrote. Snapshotters other than overlayfs are only looked at.
func (r *Runtime) Mend(ctx context.Context, i workload.Image) (int, error) {
	n, err := r.mend(r.in(ctx), i)
	if err != nil {
		return n, fmt.Errorf("mend image %s: %w", i.Name(), classify(err))
	}
	return n, nil
}

func (r *Runtime) mend(ctx context.Context, i workload.Image) (int, error) {
	img, err := r.local(ctx, i)
	if err != nil {
		return 0, errors.Join(err, r.o.Journal.Forget(entryOf(i)))
	}
	ctx, done, err := r.client.WithLease(ctx)
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := after(ctx)
		defer cancel()
		_ = done(ctx) // it expires
	}()
	sum := 0
	for n, l := range img.manifest.Layers {
		begin := r.o.Now()
		written, err := r.mendLayer(ctx, img.chain[n], l)
		sum += written
		if err != nil {
			// What is not as it should be is not to be trusted: the next use unpacks it again, or has it pulled.
			return sum, errors.Join(fmt.Errorf("layer %s: %w", l.Digest, err), r.o.Journal.Forget(entryOf(i)))
		}
		if err := rest(ctx, r.o.Now().Sub(begin)); err != nil { // half of one core at most
			return sum, err
		}
	}
	return sum, nil
}

// mendLayer returns how many files it wrote.
func (r *Runtime) mendLayer(ctx context.Context, chain digest.Digest, l ocispec.Descriptor) (written int, err error) {
	select { // pulls and repairs come in between layers
	case r.pulling <- struct{}{}:
		defer func() { <-r.pulling }()
	case <-ctx.Done():
		return 0, ctx.Err()
	}
	if err := r.discardBad(ctx, l.Digest); err != nil {
		return 0, err
	}
	sn, key := r.snapshots(), mendView+chain.Encoded()
	mounts, err := sn.View(ctx, key, chain.String(), snapshots.WithLabels(map[string]string{labelDevice: r.o.Device}))
	if errdefs.IsAlreadyExists(err) { // of a process that was killed
		if err := sn.Remove(ctx, key); err != nil {
			return 0, err
		}
		mounts, err = sn.View(ctx, key, chain.String(), snapshots.WithLabels(map[string]string{labelDevice: r.o.Device}))
	}
	if err != nil {
		return 0, err
	}
	defer func() {
		ctx, cancel := after(ctx)
		defer cancel()
		err = errors.Join(err, sn.Remove(ctx, key))
	}()
	upper := upperOf(mounts)
	if upper != "" { // a folder that is gone cannot even be mounted
		if merr := os.Mkdir(upper, 0o755); merr != nil && !errors.Is(merr, fs.ErrExist) {
			return 0, merr
		}
	}
	bad := map[string]string{}
	dir, err := os.MkdirTemp(r.o.RunDir, "mend-")
	if err != nil {
		return 0, err
	}
	defer os.Remove(dir) // empty once it is unmounted
	if err := mount.All(mounts, dir); err != nil {
		return 0, err
	}
	err = r.eachEntry(ctx, l, func(h *tar.Header, body io.Reader) error {
		at, same, err := sameEntry(dir, h, body)
		if name := filepath.Clean(h.Name); same {
			delete(bad, name) // an entry that comes twice: the last one counts
		} else if err == nil {
			bad[name] = at
		}
		return err
	})
	if err = errors.Join(err, mount.UnmountAll(dir, unix.MNT_DETACH)); err != nil || len(bad) == 0 {
		return 0, err
	}
	if upper == "" {
		return 0, fmt.Errorf("%d files differ from their layer: %w", len(bad), fault.ErrDigestMismatch)
	}
	r.log.Warn("unpacked files differ from their layer and are written again", "layer", l.Digest, "files", len(bad))
	return r.rewrite(ctx, upper, l, bad)
}

// sweepViews removes the views that repairs left which were killed. The caller has the turn to pull: none is under way.
func (r *Runtime) sweepViews(ctx context.Context) error {
	var left []string
	err := r.snapshots().Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		if s.Kind == snapshots.KindView && strings.HasPrefix(s.Name, mendView) {
			left = append(left, s.Name)
		}
		return nil
	}, r.filter())
	for _, name := range left {
		if rerr := r.snapshots().Remove(ctx, name); rerr != nil && !errdefs.IsNotFound(rerr) {
			err = errors.Join(err, rerr)
		}
	}
	return classify(err)
}

// upperOf is the folder of the topmost layer of a view; "": this is no overlay.
func upperOf(mounts []mount.Mount) string {
	if len(mounts) != 1 {
		return ""
	}
	switch m := mounts[0]; m.Type {
	case "bind":
		return m.Source
	case "overlay":
		for _, o := range m.Options {
			if dirs, ok := strings.CutPrefix(o, "lowerdir="); ok {
				top, _, _ := strings.Cut(dirs, ":")
				return top
			}
		}
	}
	return ""
}

// eachEntry reads a layer.
func (r *Runtime) eachEntry(ctx context.Context, l ocispec.Descriptor, see func(*tar.Header, io.Reader) error) (err error) {
	ra, err := r.client.ContentStore().ReaderAt(ctx, l)
	if err != nil {
		return err
	}
	defer ra.Close()
	plain, err := compression.DecompressStream(io.NewSectionReader(ra, 0, ra.Size()))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, plain.Close()) }()
	for t := tar.NewReader(plain); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err == nil {
			err = ctx.Err()
		}
		if err == nil && !strings.HasPrefix(filepath.Base(h.Name), whiteout) {
			err = see(h, t)
		}
		if err != nil {
			return err
		}
	}
}

// sameEntry compares a file with its entry in the layer. at is where it is in the layer's own folder: links of layers below
// may lead there. Only what a power cut or a bad disk spoils counts: content, and being there.
func sameEntry(root string, h *tar.Header, body io.Reader) (at string, same bool, err error) {
	name := filepath.Clean("/" + h.Name)
	dir, err := rootfs.RootPath(root, filepath.Dir(name))
	if err != nil {
		return "", true, nil // nobody can say where it is
	}
	path := filepath.Join(dir, filepath.Base(name))
	at, err = filepath.Rel(root, path)
	if err != nil {
		return "", false, err
	}
	st, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return at, h.Typeflag != tar.TypeReg && h.Typeflag != tar.TypeLink && h.Typeflag != tar.TypeSymlink, nil
	}
	if err != nil {
		return "", false, err
	}
	switch h.Typeflag {
	case tar.TypeReg:
		if !st.Mode().IsRegular() || st.Size() != h.Size {
			return at, false, nil
		}
		f, err := os.Open(path)
		if err != nil {
			return "", false, err
		}
		defer f.Close()
		same, err = equal(f, body)
		if errors.Is(err, unix.EIO) { // the disk cannot read it any more
			same, err = false, nil
		}
		return at, same, err
	case tar.TypeSymlink:
		to, err := os.Readlink(path)
		return at, err == nil && to == h.Linkname, nil
	case tar.TypeLink:
		target, err := rootfs.RootPath(root, h.Linkname)
		if err != nil {
			return "", true, nil
		}
		other, err := os.Lstat(target)
		return at, err == nil && os.SameFile(st, other), nil
	}
	return at, true, nil
}

// equal compares two streams.
func equal(a, b io.Reader) (bool, error) {
	x, y := make([]byte, 64<<10), make([]byte, 64<<10)
	for {
		n, aerr := io.ReadFull(a, x)
		m, berr := io.ReadFull(b, y)
		if !bytes.Equal(x[:n], y[:m]) {
			return false, nil
		}
		end := func(err error) bool { return errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) }
		switch {
		case end(aerr) && end(berr):
			return true, nil
		case aerr != nil && !end(aerr):
			return false, aerr
		case berr != nil && !end(berr):
			return false, berr
		case end(aerr) || end(berr):
			return false, nil
		}
	}
}

// rewrite writes the named entries of a layer into its folder, each whole or not at all, and makes them durable.
func (r *Runtime) rewrite(ctx context.Context, upper string, l ocispec.Descriptor, bad map[string]string) (written int, err error) {
	root, err := os.OpenRoot(upper) // nothing leads out of it
	if err != nil {
		return 0, err
	}
	defer root.Close()
	moved := map[string]bool{} // files that links must find again
	err = r.eachEntry(ctx, l, func(h *tar.Header, body io.Reader) error {
		at, ok := bad[filepath.Clean(h.Name)]
		if h.Typeflag == tar.TypeLink && !ok && moved[filepath.Clean(h.Linkname)] {
			at, ok = filepath.Clean(strings.TrimPrefix(h.Name, "/")), true
		}
		if !ok {
			return nil
		}
		if err := rewriteEntry(root, at, h, body); err != nil {
			return fmt.Errorf("write %s again: %w", at, err)
		}
		moved[filepath.Clean(h.Name)] = true
		written++
		return nil
	})
	return written, errors.Join(err, r.syncSnapshots(ctx))
}

func rewriteEntry(root *os.Root, at string, h *tar.Header, body io.Reader) error {
	if err := root.MkdirAll(filepath.Dir(at), 0o755); err != nil {
		return err
	}
	if err := root.RemoveAll(mendName); err != nil {
		return err
	}
	switch h.Typeflag {
	case tar.TypeSymlink:
		if err := root.Symlink(h.Linkname, mendName); err != nil {
			return err
		}
	case tar.TypeLink:
		if err := root.Link(strings.TrimPrefix(filepath.Clean("/"+h.Linkname), "/"), mendName); err != nil {
			return err
		}
		return root.Rename(mendName, at)
	default:
		f, err := root.OpenFile(mendName, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, io.LimitReader(body, h.Size))
		for key, value := range h.PAXRecords {
			if name, ok := strings.CutPrefix(key, "SCHILY.xattr."); ok && err == nil {
				err = unix.Fsetxattr(int(f.Fd()), name, []byte(value), 0)
			}
		}
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	if err := root.Lchown(mendName, h.Uid, h.Gid); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeReg { // after the owner, which takes set-uid away
		if err := errors.Join(root.Chmod(mendName, h.FileInfo().Mode()), root.Chtimes(mendName, h.AccessTime, h.ModTime)); err != nil {
			return err
		}
	}
	return root.Rename(mendName, at)
}

// mendAfterBoot mends, once a boot, the images of the containers that are here: what a bad disk or a repair of the file
// system did to them shows nowhere else. It ends when all are done.
func (r *Runtime) mendAfterBoot(ctx context.Context) {
	pause := verifyDelay
	for {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		if err := r.mendUsed(r.in(ctx)); err == nil {
			return
		} else if ctx.Err() == nil {
			r.log.Debug("images of containers cannot be verified yet", "error", err)
		}
		pause = verifyRetry
	}
}

// mendUsed does what is not done since the boot. An image that cannot be mended is told once and left alone.
func (r *Runtime) mendUsed(ctx context.Context) error {
	list, err := r.client.ContainerService().List(ctx, r.filter())
	if err != nil {
		return classify(err)
	}
	for _, c := range list {
		_, rec, err := r.own(ctx, c.ID)
		if err != nil {
			continue // not ours to understand
		}
		i := rec.Container.Service.Image
		if r.isVerified(i) {
			continue
		}
		n, err := r.mend(ctx, i)
		switch {
		case errors.Is(err, fault.ErrTemporary), ctx.Err() != nil:
			return err
		case err != nil:
			r.log.Error("an image of a container is damaged and cannot be mended here; it is pulled again when it is needed", "image", i.Name(), "error", err)
		case n > 0:
			r.log.Warn("damaged files of an image were written again", "image", i.Name(), "files", n)
		}
		r.verified(i)
	}
	return nil
}

// verified notes that an image needs no look until the next boot.
func (r *Runtime) verified(i workload.Image) {
	file := r.verifiedFile(i)
	err := os.MkdirAll(filepath.Dir(file), 0o700)
	if err == nil {
		err = os.WriteFile(file, nil, 0o600)
	}
	if err != nil {
		r.log.Debug("note that an image was verified", "image", i.Name(), "error", err)
	}
}

func (r *Runtime) isVerified(i workload.Image) bool {
	_, err := os.Stat(r.verifiedFile(i))
	return err == nil
}

func (r *Runtime) verifiedFile(i workload.Image) string {
	return filepath.Join(r.o.RunDir, "verified", leaseID(r.o.Device, i.Name()))
}

// rest waits as long as the work took.
func rest(ctx context.Context, d time.Duration) error {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
