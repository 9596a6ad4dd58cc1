package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

// publicKeys reads public key files.
func publicKeys(files []string) ([]signing.Key, error) {
	var keys []signing.Key
	for _, file := range files {
		data, err := bounded.File(os.Open, file, signing.MaxKeyBytes)
		if err != nil {
			return nil, err
		}
		key, err := signing.ParsePublicKey(keyName(file), data)
		if err != nil {
			return nil, err
		}
		keys = append(keys, key)
	}
	return keys, nil
}

// openPolicy reads c.policy, the trust policy of --policy; stdin only once. Not with --offline and --reports, which verify no signatures by it:
// LONGSHORE_POLICY may name it for other commands.
func (c *call) openPolicy() error {
	file := c.String("policy")
	if file == "" || c.Bool("offline") || c.Bool("reports") || file == "-" && c.policy != nil {
		return nil
	}
	data, err := c.readDocument(file)
	if err == nil {
		c.policy, err = readPolicy(file, data)
	}
	return err
}

// readPolicy reads a trust policy and its key files.
func readPolicy(file string, data []byte) (*trust.Policy, error) {
	return trust.Parse(file, data, policyFile)
}

// policyFile reads a file that a trust policy names.
func policyFile(path string) ([]byte, error) {
	return bounded.File(os.Open, filepath.Clean(path), trust.MaxFileBytes)
}

// verifyState returns an error if a new state may not follow a state of a repository. It is nil if signatures are not required.
type verifyState func(ctx context.Context, repo *registry.Repository, state ocispec.Descriptor) error

// of is v for the states of one repository.
func (v verifyState) of(repo *registry.Repository) func(context.Context, ocispec.Descriptor) error {
	if v == nil {
		return nil
	}
	return func(ctx context.Context, state ocispec.Descriptor) error { return v(ctx, repo, state) }
}

// stateVerifier lets a new state follow states that s or a --verify-key signed, or whose signature --policy accepts.
func (c *call) stateVerifier(s *signer) (verifyState, error) {
	verifiers, err := c.verifiers(s)
	if err != nil {
		return nil, err
	}
	if s != nil && len(verifiers) == 0 && c.policy == nil {
		return nil, outcome.Usagef("", "--keyless needs --trusted-root, --verify-key or --policy, to verify the earlier states")
	}
	if len(verifiers) == 0 && c.policy == nil {
		return nil, nil
	}
	return func(ctx context.Context, repo *registry.Repository, state ocispec.Descriptor) error {
		var byKey error
		if len(verifiers) > 0 {
			signed, err := c.signaturesOf(ctx, repo)
			if err != nil {
				return err
			}
			if _, byKey = signing.Verify(ctx, signed, state, verifiers); byKey == nil {
				return nil
			}
		}
		if c.policy == nil {
			return byKey
		}
		byPolicy := c.accepts(ctx, repo, state)
		if byPolicy != nil && byKey != nil && !errors.Is(byPolicy, fault.ErrTemporary) {
			return byKey
		}
		return byPolicy
	}, nil
}

// decide decides by the policy as a device does.
func (c *call) decide(ctx context.Context, repo *registry.Repository, kind string, subject ocispec.Descriptor) *trust.Decision {
	return c.policy.Decide(ctx, trust.VerifyRequest{Source: repo, Kind: kind, Subject: subject, Now: c.now(), Elsewhere: c.places().Place})
}

// accepts returns an error if the policy does not accept the signatures of a state.
func (c *call) accepts(ctx context.Context, repo *registry.Repository, state ocispec.Descriptor) error {
	answer := c.decide(ctx, repo, trust.KindState, state)
	if answer.Insecure {
		return fmt.Errorf("%s@%s: %w: the policy accepts it without a signature", repo.Name(), state.Digest, fault.ErrUnsigned)
	}
	return answer.Err
}

// publishedNow are the current states of a fleet's devices.
const publishedNow = "the published states"

// signedByFlags name further keys that may have signed states. more is what else --policy does.
func signedByFlags(states, more string) []cmdline.Flag {
	return []cmdline.Flag{
		{Name: "verify-key", Value: []string(nil), Usage: "public key `FILE` that may have signed " + states + ", in addition to --key; may be repeated"},
		{Name: "policy", Usage: "trust.yaml `FILE` that may accept the signatures of " + states + ", in addition to --key" + more},
	}
}

// verifiers are the keys of --verify-key, and that of s.
func (c *call) verifiers(s *signer) ([]signing.Verifier, error) {
	keys, err := publicKeys(c.StringSlice("verify-key"))
	out := signing.Verifiers(keys...)
	if s != nil && s.Self() != nil {
		out = append(out, s.Self())
	}
	return out, err
}
