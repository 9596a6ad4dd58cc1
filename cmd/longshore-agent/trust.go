package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"sync"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
)

// verifier holds artifacts against trust.yaml as it is on the disk now. A policy that cannot be read lets nothing pass:
// whoever edits it to take a key away must not keep the key because of a typo. What runs goes on running.
type verifier struct {
	file     string
	registry *registry.Client

	mu     sync.Mutex
	print  string
	policy *signing.Policy
	err    error
}

// Fingerprint changes whenever the policy or a key that it names does.
func (v *verifier) Fingerprint() string {
	v.mu.Lock()
	defer v.mu.Unlock()
	v.read()
	return v.print
}

// read loads the policy again; a few small files at every check of a state are cheaper than being wrong.
func (v *verifier) read() {
	sum := sha256.New()
	keep := func(path string, limit int64) ([]byte, error) {
		data, err := readBounded(path, limit)
		fmt.Fprintf(sum, "%s %d %v\n", path, len(data), err != nil)
		sum.Write(data)
		return data, err
	}
	data, err := keep(v.file, maxConfigBytes)
	v.policy, v.err = nil, err
	if err == nil {
		v.policy, v.err = signing.ParsePolicy(v.file, data, func(path string) ([]byte, error) {
			return keep(path, signing.MaxKeyBytes)
		})
	}
	v.print = hex.EncodeToString(sum.Sum(nil))
}

// Verify implements [agent.Verifier].
func (v *verifier) Verify(ctx context.Context, kind agent.Kind, repository string, d ocispec.Descriptor) (agent.Verdict, error) {
	v.mu.Lock()
	v.read()
	policy, err := v.policy, v.err
	v.mu.Unlock()
	if err != nil {
		return agent.Verdict{}, fault.WithHint(fmt.Errorf("trust policy: %w: %w", err, fault.ErrRejected), "longshore-agent check-config tells what is wrong")
	}
	repo, err := v.registry.OpenName(ctx, repository)
	if err != nil {
		return agent.Verdict{}, err
	}
	signedBy, insecure, err := policy.Verify(ctx, repo, string(kind), d)
	return agent.Verdict{SignedBy: signedBy, Insecure: insecure}, err
}
