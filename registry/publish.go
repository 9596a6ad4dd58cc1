package registry

import (
	"context"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
)

// Signer signs what is about to be published. Its signature has to be listed when it returns.
type Signer interface {
	Sign(ctx context.Context, repo *Repository, subject ocispec.Descriptor) error
}

// Progress is one step of a push, for people to look at.
type Progress struct {
	Descriptor ocispec.Descriptor
	Action     string // "pushed", "mounted", "exists", "signed", "tagged"
	Tag        string // of "tagged"
}

// PublishOptions choose what happens around the push.
type PublishOptions struct {
	Signer     Signer         // nil: not signed
	HistoryTag string         // immutable tag, set before Tags; "" for none. Taken by another digest: fault.ErrConflict
	Tags       []string       // moving tags, set last, in this order
	MountFrom  []string       // repositories of the same registry (path without host) that may hold blobs already
	Progress   func(Progress) // nil: silent; never called concurrently
}
