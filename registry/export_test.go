package registry

import (
	"context"
	"net/url"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Classify gives an error its kind.
var Classify = classify

// NewError is an error of an operation on a reference.
var NewError = newError

// Mount makes a blob of another repository available, and reports whether no bytes were sent.
func (r *Repository) Mount(ctx context.Context, desc ocispec.Descriptor, from string, data []byte) (bool, error) {
	return r.place.(*remotePlace).mount(ctx, desc, from, func() ([]byte, error) { return data, nil })
}

// Sizes of uploads.
const (
	ChunkSize = chunkSize
	MarkEvery = chunkSize / marks
	Growth    = growth
)

// HashState is what is remembered of a hash.
var HashState = state

// Received reads the header Range of an upload.
var Received = received

// ParseSession reads what is remembered of an upload.
func ParseSession(data []byte, at *url.URL, d digest.Digest, size int64) (location *url.URL, first, last int64, err error) {
	location, states, err := parseSession(data, at, d, size)
	if err != nil {
		return nil, 0, 0, err
	}
	return location, states[0].Hashed, states[len(states)-1].Hashed, nil
}

// Release ends that a tag names a manifest.
func (l *TagList) Release(ctx context.Context, d digest.Digest, tag string, resolve func(context.Context, string) (digest.Digest, error), drop func() error) (bool, error) {
	return l.release(ctx, d, tag, resolve, drop)
}
