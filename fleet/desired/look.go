package desired

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/store"
)

// look reads the states of a client's devices from the registry, unless that was done within the interval.
func (v *View) look(ctx context.Context, x *client) error {
	leave, err := x.enter(ctx)
	if err != nil {
		return err
	}
	defer leave()
	x.mu.Lock()
	recent := v.o.Now().Before(x.due)
	devices, damaged, adopted := x.devices, x.damaged, x.adopted
	x.mu.Unlock()
	if recent {
		return nil
	}
	select {
	case v.looks <- struct{}{}:
		defer func() { <-v.looks }()
	case <-ctx.Done():
		return fmt.Errorf("wait for the registry: %w: %w", context.Cause(ctx), fault.ErrTemporary)
	}
	s, err := v.recall(ctx, x)
	var next *served
	if err == nil {
		devices, err = v.withChildren(ctx, devices)
	}
	if err == nil {
		next, err = v.next(ctx, x, devices, s, damaged || s != nil && s.version < adopted)
	}
	v.looked(x, next, err)
	v.reached(err)
	v.metrics.look(next != nil, err)
	return err
}

// withChildren adds the children that the client's devices have registered as their gateways.
func (v *View) withChildren(ctx context.Context, devices []string) ([]string, error) {
	out := slices.Clone(devices)
	for _, d := range devices {
		children, err := v.o.Manifests.Children(ctx, d)
		if err != nil {
			return nil, err
		}
		for _, child := range children {
			if !slices.Contains(devices, child) {
				out = append(out, child)
			}
		}
	}
	return out, nil
}

// looked records the result of a look.
func (v *View) looked(x *client, next *served, err error) {
	now := v.o.Now()
	x.mu.Lock()
	defer x.mu.Unlock()
	x.due = now.Add(v.jitter(1))
	switch {
	case err != nil:
		x.failed = min(x.failed+1, maxBackOff)
		x.due = now.Add(v.jitter(x.failed))
		if !errors.Is(err, fault.ErrTemporary) && (x.err == nil || x.err.Error() != err.Error()) {
			v.o.Logger.Error("a state is not served; the one before it is, if there was one", "client", x.id, "error", err, "hint", fault.Hint(err))
		}
	case next != nil:
		if x.served != nil {
			before := *x.served // others read the served one
			before.before = nil
			next.before = &before
		}
		x.served, x.damaged = next, false
		v.o.Logger.Info("serving", "client", x.id, "manifestVersion", next.version, "digest", next.manifest, "deployments", len(next.deployments))
	}
	if err == nil {
		x.looked, x.failed = now, 0
	}
	x.err = err
}

// reached logs when a registry becomes unreachable and when it is reachable again.
func (v *View) reached(err error) {
	away := errors.Is(err, fault.ErrTemporary)
	v.mu.Lock()
	changed := v.away != away
	v.away = away
	v.mu.Unlock()
	switch {
	case changed && away:
		v.o.Logger.Warn("the registry does not answer; what is here is served on", "error", err)
	case changed:
		v.o.Logger.Info("the registry answers again")
	}
}

// next is the content that replaces s for a client; nil: s is still current and valid.
func (v *View) next(ctx context.Context, x *client, devices []string, s *served, wrong bool) (*served, error) {
	now, err := v.find(ctx, x, devices, s)
	if err != nil {
		return nil, err
	}
	if s != nil && !wrong && slices.EqualFunc(now, s.Artifacts, func(a found, b artifact) bool { return a.Device == b.Device && a.Digest == b.Digest }) {
		return nil, nil
	}
	v.loading.RLock()
	defer v.loading.RUnlock()
	var states []*artifacts.State
	next := &served{}
	for _, f := range now {
		index, state, err := v.read(ctx, &f)
		if err != nil {
			return nil, fmt.Errorf("%s@%s: %w", f.Repository, f.Digest, err)
		}
		if old, had := s.artifact(f.Device); had && old.Digest != f.Digest && old.Generation >= f.Generation {
			return nil, fmt.Errorf("%s:%s is generation %d now, and was %d: %w", f.Repository, f.Device.Tag(), f.Generation, old.Generation, fault.ErrRollback)
		}
		states = append(states, state)
		next.Artifacts = append(next.Artifacts, f.artifact)
		next.keep = append(next.keep, layersOf(f.Digest, index)...)
	}
	head, err := v.o.Manifests.Manifest(ctx, x.id)
	if err != nil && !errors.Is(err, fault.ErrNotFound) {
		return nil, err
	}
	x.mu.Lock()
	if alone := len(states) == 1 && states[0].Manifest.ManifestVersion >= x.adopted; x.adopted > head.Version && !alone {
		head = store.Manifest{Client: x.id, Version: x.adopted} // the database was lost
	}
	x.mu.Unlock()
	m, data, archive, err := manifestOf(states, next.Artifacts, head)
	if err != nil {
		return nil, err
	}
	if err := errors.Join(v.put(ctx, data), v.put(ctx, archive)); err != nil {
		return nil, err
	}
	if err := next.of(m, data); err != nil {
		return nil, err
	}
	text, err := json.Marshal(next.made)
	if err != nil {
		return nil, err
	}
	return next, v.o.Manifests.PutManifest(ctx, store.Manifest{Client: x.id, Version: next.version, Digest: next.manifest.String(), Made: string(text)})
}

func (s *served) artifact(device artifacts.DeviceID) (artifact, bool) {
	if s == nil {
		return artifact{}, false
	}
	i := slices.IndexFunc(s.Artifacts, func(a artifact) bool { return a.Device == device })
	if i < 0 {
		return artifact{}, false
	}
	return s.Artifacts[i], true
}

// found is a device's state and its source.
type found struct {
	artifact
	source Source // nil: its tag was deleted, and its content is on disk
}

// find reads the current states of devices from the sources. A device whose tag was deleted keeps its state: to remove
// everything, publish a state without deployments.
func (v *View) find(ctx context.Context, x *client, devices []string, s *served) ([]found, error) {
	var out []found
	var gone []string
	for _, device := range devices {
		id, err := artifacts.ParseDeviceID(device)
		if err != nil {
			return nil, err
		}
		f, err := v.findOne(ctx, id)
		old, had := s.artifact(id)
		switch {
		case errors.Is(err, fault.ErrNotFound) && had:
			gone = append(gone, device)
			f = found{artifact: old}
		case errors.Is(err, fault.ErrNotFound):
			continue
		case err != nil:
			return nil, err
		case had && old.Digest == f.Digest:
			f.artifact = old
		}
		out = append(out, f)
	}
	x.mu.Lock()
	defer x.mu.Unlock()
	if !slices.Equal(gone, x.gone) && len(gone) > 0 {
		v.o.Logger.Warn("the tags of these devices' states are gone; the states are served on", "client", x.id, "devices", gone)
	}
	x.gone = gone
	return out, nil
}

func (v *View) findOne(ctx context.Context, id artifacts.DeviceID) (found, error) {
	var none error
	for _, source := range v.o.Sources {
		desc, err := source.Resolve(ctx, id.Tag())
		if err == nil {
			return found{artifact{Device: id, Repository: source.Name(), Digest: desc.Digest}, source}, nil
		}
		if none = err; !errors.Is(err, fault.ErrNotFound) {
			break
		}
	}
	return found{}, none
}

// read reads a state, from disk if possible, and stores its served content on disk. It sets size and generation of f.
func (v *View) read(ctx context.Context, f *found) (*artifacts.StateIndex, *artifacts.State, error) {
	manifest, err := v.manifest(ctx, f)
	if err != nil {
		return nil, nil, err
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil {
		return nil, nil, err
	}
	if x.Device != f.Device {
		return nil, nil, fmt.Errorf("it is the state of %s, not of %s: %w", x.Device, f.Device, fault.ErrInvalid)
	}
	f.Size, f.Generation = int64(len(manifest)), x.Generation
	state, err := x.ReadBundle(func(d ocispec.Descriptor) ([]byte, error) { return v.blob(ctx, f.source, d) })
	if err != nil {
		return nil, nil, err
	}
	for _, d := range state.Deployments {
		if to := d.Document.Metadata.DeviceID; !f.Device.Covers(to) {
			return nil, nil, fmt.Errorf("deployment %s is for %s, not for %s: %w", d.Document.ID, to, f.Device, fault.ErrInvalid)
		}
		if err := v.put(ctx, d.Bytes); err != nil {
			return nil, nil, err
		}
	}
	return x, state, nil
}

// manifest is the manifest of a state.
func (v *View) manifest(ctx context.Context, f *found) ([]byte, error) {
	if f.Size > 0 {
		data, err := v.o.Content.Get(ctx, f.Digest)
		if err == nil || f.source == nil || !errors.Is(err, fault.ErrNotFound) {
			return data, err
		}
	}
	_, data, err := f.source.Manifest(ctx, f.Digest)
	if err != nil {
		return nil, err
	}
	return data, v.put(ctx, data)
}

func (v *View) blob(ctx context.Context, from Source, d ocispec.Descriptor) ([]byte, error) {
	data, err := v.o.Content.Get(ctx, d.Digest)
	if err == nil || from == nil || !errors.Is(err, fault.ErrNotFound) {
		return data, err
	}
	if data, err = from.Blob(ctx, d, artifacts.MaxArchive); err != nil {
		return nil, err
	}
	return data, v.o.Content.Put(ctx, d, data)
}

func (v *View) put(ctx context.Context, data []byte) error {
	if data == nil {
		return nil
	}
	return v.o.Content.Put(ctx, ocispec.Descriptor{Digest: digest.FromBytes(data), Size: int64(len(data))}, data)
}
