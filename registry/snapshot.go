package registry

import (
	"context"
	"errors"
	"maps"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxSnapshot bounds the bytes of manifests and small blobs that a snapshot keeps; others are read again.
const maxSnapshot = 64 << 20

// snapshot is the known content of a repository in one run.
type snapshot struct {
	lacksAPI atomic.Bool // of referrers: the registry answered that it has none
	probe    sync.Mutex  // serializes queries until there is a response
	probed   atomic.Bool // there was a response

	mu        sync.Mutex
	tags      map[string]bool // as listed; nil: they could not be listed
	bytes     int
	manifests map[digest.Digest]kept
	blobs     map[digest.Digest][]byte
	referrers map[digest.Digest][]ocispec.Descriptor
}

type kept struct {
	desc ocispec.Descriptor
	data []byte
}

// Snapshot is the same repository at the registry itself for one run: it lists the tags once, reads each manifest, each small
// blob and each list of referrers once, and does not request tags that are not in the list. Content that others add
// meanwhile may be missing; content that is written through the snapshot is not. A layout is its own snapshot. If the caller may
// not list tags, they are requested one by one.
func (r *Repository) Snapshot(ctx context.Context) (*Repository, error) {
	p, ok := r.place.(*remotePlace)
	if !ok || p.snap != nil {
		return r, nil
	}
	s := &snapshot{manifests: map[digest.Digest]kept{}, blobs: map[digest.Digest][]byte{}, referrers: map[digest.Digest][]ocispec.Descriptor{}}
	list, err := r.Tags(ctx)
	switch {
	case err == nil, errors.Is(err, fault.ErrNotFound) && !fault.Retryable(err):
		s.tags = make(map[string]bool, len(list))
		for _, t := range list {
			s.tags[t] = true
		}
	case ctx.Err() != nil || fault.Retryable(err):
		return nil, err
	}
	return &Repository{ref: r.ref, concurrency: r.concurrency, place: &remotePlace{
		c: p.c, host: p.host, name: p.name, at: p.at[len(p.at)-1:], tagged: map[string]entityTag{}, snap: s,
	}}, nil
}

// listed is the list of tags; ok is false where there is none.
func (s *snapshot) listed() (tags []string, ok bool) {
	if s == nil {
		return nil, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Sorted(maps.Keys(s.tags)), s.tags != nil
}

// hasNoAPI reports whether the registry is known to have no referrers API.
func (s *snapshot) hasNoAPI() bool { return s != nil && s.lacksAPI.Load() }

// noAPI records that, unless the repository may not exist yet.
func (s *snapshot) noAPI() {
	if tags, ok := s.listed(); ok && len(tags) > 0 {
		s.lacksAPI.Store(true)
	}
}

// askAPI queries the referrers API. Until the first response the others wait, so that one request shows that there is no API.
func (s *snapshot) askAPI(ask func() error) error {
	if s != nil && !s.probed.Load() {
		s.probe.Lock()
		defer s.probe.Unlock()
	}
	if s.hasNoAPI() {
		return errNoAPI
	}
	err := ask()
	if s == nil {
		return err
	}
	if errors.Is(err, errNoAPI) {
		s.noAPI()
	}
	if err == nil || s.hasNoAPI() {
		s.probed.Store(true)
	}
	return err
}

// Listed reports whether a tag exists: true only if the list of a snapshot has it.
func (r *Repository) Listed(tag string) bool {
	p, ok := r.place.(*remotePlace)
	if !ok {
		return false
	}
	_, listed := p.snap.listed()
	return listed && p.snap.mayHave(tag)
}

// MayHave reports whether a tag may exist: false only if a snapshot's list does not have it.
func (r *Repository) MayHave(tag string) bool {
	p, ok := r.place.(*remotePlace)
	return !ok || p.snap.mayHave(tag)
}

func (s *snapshot) mayHave(tag string) bool {
	if s == nil {
		return true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tags == nil || s.tags[tag]
}

// set records a tag that was written.
func (s *snapshot) set(tag string) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.tags != nil {
		s.tags[tag] = true
	}
}

// manifest reads a manifest once. read returns bytes whose digest was checked.
func (s *snapshot) manifest(target string, limit int64, read func() (ocispec.Descriptor, []byte, error)) (ocispec.Descriptor, []byte, error) {
	if s == nil {
		return read()
	}
	s.mu.Lock()
	k, ok := s.manifests[digest.Digest(target)]
	s.mu.Unlock()
	if ok && k.desc.Size <= limit {
		return k.desc, k.data, nil
	}
	desc, data, err := read()
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.bytes+len(data) <= maxSnapshot {
			s.manifests[desc.Digest] = kept{desc, data}
			s.bytes += len(data)
		}
	}
	return desc, data, err
}

// blob reads a small blob once.
func (s *snapshot) blob(desc ocispec.Descriptor, read func() ([]byte, error)) ([]byte, error) {
	if s == nil || desc.Size > maxHeld {
		return read()
	}
	s.mu.Lock()
	data, ok := s.blobs[desc.Digest]
	s.mu.Unlock()
	if ok && int64(len(data)) == desc.Size {
		return data, nil
	}
	data, err := read()
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.bytes+len(data) <= maxSnapshot {
			s.blobs[desc.Digest] = data
			s.bytes += len(data)
		}
	}
	return data, err
}

// list reads the referrers of a subject once.
func (s *snapshot) list(subject digest.Digest, read func() ([]ocispec.Descriptor, error)) ([]ocispec.Descriptor, error) {
	if s == nil {
		return read()
	}
	s.mu.Lock()
	list, ok := s.referrers[subject]
	s.mu.Unlock()
	if ok {
		return slices.Clone(list), nil
	}
	list, err := read()
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.referrers[subject] = slices.Clone(list)
	}
	return list, err
}

// forget drops the list of a subject that got a referrer.
func (s *snapshot) forget(subject digest.Digest) {
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.referrers, subject)
	if s.tags != nil {
		s.tags[fallbackTag(subject)] = true
	}
}
