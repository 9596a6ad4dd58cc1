package main

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// unusable stands in for what could not be set up, a registry's CA file that is gone, say. A slip there must not keep
// workloads from starting after a boot: everything asked of it is told to be temporarily unavailable, with the reason.
type unusable struct{ err error }

func (u unusable) told() error { return fmt.Errorf("%w: %w", u.err, fault.ErrTemporary) }

func (u unusable) Resolve(context.Context, string, string) (ocispec.Descriptor, error) {
	return ocispec.Descriptor{}, u.told()
}

func (u unusable) Manifest(context.Context, string, digest.Digest) (ocispec.Descriptor, []byte, error) {
	return ocispec.Descriptor{}, nil, u.told()
}

func (u unusable) Blob(context.Context, string, ocispec.Descriptor, int64) ([]byte, error) {
	return nil, u.told()
}

func (u unusable) Verify(context.Context, agent.Kind, string, ocispec.Descriptor) (agent.Verdict, error) {
	return agent.Verdict{}, u.told()
}

func (u unusable) Deliver(context.Context, agent.Report) error { return u.told() }

var (
	_ agent.Source   = unusable{}
	_ agent.Verifier = unusable{}
	_ agent.Reporter = unusable{}
)
