package containerd

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"

	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/snapshots"
	"github.com/containerd/errdefs"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// hashChunk is how much of a blob is read through containerd's socket at a time.
const hashChunk = 1 << 20

// trust holds what this process itself wrote or verified: a power cut that spoils it ends the process too.
type trust struct {
	mu sync.Mutex
	m  map[string]struct{}
}

func newTrust() *trust { return &trust{m: map[string]struct{}{}} }

func (t *trust) add(name string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.m[name] = struct{}{}
}

func (t *trust) has(name string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	_, ok := t.m[name]
	return ok
}

func (t *trust) clear() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.m)
}

// discardBad removes a blob whose bytes are not what its name says, and everything right after that may come again.
func (r *Runtime) discardBad(ctx context.Context, d digest.Digest) error {
	if r.trust.has(d.String()) {
		return nil
	}
	store := r.client.ContentStore()
	info, err := store.Info(ctx, d)
	if errdefs.IsNotFound(err) {
		return nil
	}
	if err != nil {
		return classify(err)
	}
	good, err := r.hashes(ctx, info)
	if err != nil {
		return fmt.Errorf("verify blob %s: %w", d, classify(err))
	}
	if good {
		r.trust.add(d.String())
		return nil
	}
	r.log.Warn("a damaged blob is dropped", "blob", d)
	if err := store.Delete(ctx, d); err != nil && !errdefs.IsNotFound(err) {
		return classify(err)
	}
	// The file goes when containerd collects. Until then a new copy would be taken for a duplicate of the bad one.
	return r.collectNow(ctx)
}

func (r *Runtime) hashes(ctx context.Context, info content.Info) (bool, error) {
	if !info.Digest.Algorithm().Available() {
		return false, fmt.Errorf("algorithm of %s: %w", info.Digest, fault.ErrUnsupported)
	}
	ra, err := r.client.ContentStore().ReaderAt(ctx, ocispec.Descriptor{Digest: info.Digest, Size: info.Size})
	if errdefs.IsNotFound(err) {
		return false, nil // named, and its file is gone
	}
	if err != nil {
		return false, err
	}
	defer ra.Close()
	v := info.Digest.Verifier()
	_, err = io.CopyBuffer(v, io.NewSectionReader(ra, 0, ra.Size()), make([]byte, hashChunk))
	if errdefs.IsNotFound(err) {
		return false, nil // containerd 1.6 looks for the file only now, and does not sync its folder
	}
	if err != nil {
		return false, err
	}
	return v.Verified(), nil
}

// distrust verifies the layers of an image that the journal does not vouch for, and removes their unpacked snapshots,
// but for those that a durable image or this process vouches for.
func (r *Runtime) distrust(ctx context.Context, i workload.Image, img *image) error {
	for _, l := range img.manifest.Layers {
		if err := r.discardBad(ctx, l.Digest); err != nil {
			return err
		}
	}
	suspect := map[string]bool{}
	for _, id := range img.chain {
		if r.trust.has(id.String()) {
			continue
		}
		_, err := r.snapshots().Stat(ctx, id.String())
		if errdefs.IsNotFound(err) {
			continue
		}
		if err != nil {
			return classify(err)
		}
		suspect[id.String()] = true
	}
	if len(suspect) > 0 {
		sound, err := r.durableChains(ctx, i)
		if err != nil {
			return err
		}
		for id := range sound {
			delete(suspect, id)
		}
		if err := r.dropSnapshots(ctx, suspect, sound); err != nil {
			return err
		}
	}
	for _, id := range img.chain {
		r.trust.add(id.String()) // what is there from now on is this process's work
	}
	return nil
}

// durableChains are the snapshots of all durable images but one.
func (r *Runtime) durableChains(ctx context.Context, but workload.Image) (map[string]bool, error) {
	sound := map[string]bool{}
	have, err := r.client.ImageService().List(ctx, r.filter())
	if err != nil {
		return nil, classify(err)
	}
	for _, h := range have {
		repository, _, ok := strings.Cut(h.Name, "@")
		if !ok {
			continue
		}
		for _, platform := range slices.Compact([]string{"", but.Platform}) {
			other := workload.Image{Repository: repository, Digest: h.Target.Digest, Platform: platform}
			durable, err := r.o.Journal.IsDurable(entryOf(other))
			if err != nil {
				return nil, err
			}
			if !durable || entryOf(other) == entryOf(but) {
				continue
			}
			img, err := r.local(ctx, other)
			if err != nil {
				r.log.Warn("a durable image cannot be read", "image", h.Name, "error", err)
				continue
			}
			for _, id := range img.chain {
				sound[id.String()] = true
			}
		}
	}
	return sound, nil
}

// dropSnapshots removes the suspect snapshots and what was unpacked on top of them. A snapshot that a container stands
// on cannot go; it stays, with a warning: a container that runs proves more than we could.
func (r *Runtime) dropSnapshots(ctx context.Context, suspect, sound map[string]bool) error {
	children := map[string][]snapshots.Info{}
	kinds := map[string]snapshots.Info{}
	err := r.snapshots().Walk(ctx, func(_ context.Context, s snapshots.Info) error {
		children[s.Parent] = append(children[s.Parent], s)
		kinds[s.Name] = s
		return nil
	})
	if err != nil {
		return classify(err)
	}
	gone := map[string]bool{}
	var drop func(s snapshots.Info) (bool, error)
	drop = func(s snapshots.Info) (bool, error) {
		if gone[s.Name] {
			return true, nil
		}
		half := strings.HasPrefix(s.Name, snapshots.UnpackKeyPrefix+"-") && strings.Contains(s.Name, " ") // a layer that an earlier process was unpacking
		if sound[s.Name] || s.Kind != snapshots.KindCommitted && !half {
			return false, nil
		}
		free := true
		for _, c := range children[s.Name] {
			ok, err := drop(c)
			if err != nil {
				return false, err
			}
			free = free && ok
		}
		if !free {
			r.log.Warn("an unpacked layer is in use and cannot be unpacked again", "snapshot", s.Name)
			return false, nil
		}
		if err := r.snapshots().Remove(ctx, s.Name); err != nil && !errdefs.IsNotFound(err) {
			return false, classify(err)
		}
		gone[s.Name] = true
		return true, nil
	}
	for name := range suspect {
		if _, err := drop(kinds[name]); err != nil {
			return fmt.Errorf("remove snapshot %s: %w", name, err)
		}
	}
	if len(gone) == 0 {
		return nil
	}
	return r.collectNow(ctx) // gives the space back before it is needed again
}
