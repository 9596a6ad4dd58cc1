package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/trust"
)

// publicKeys reads the files that a flag names.
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

// policy reads the trust policy that --policy names; nil when it names none.
func (p *program) policy(c *cli.Context) (*trust.Policy, error) {
	file := c.String("policy")
	if file == "" {
		return nil, nil
	}
	data, err := p.readDocument(file)
	if err != nil {
		return nil, err
	}
	return readPolicy(file, data)
}

// readPolicy reads a trust policy and the keys beside it.
func readPolicy(file string, data []byte) (*trust.Policy, error) {
	return trust.Parse(file, data, func(path string) ([]byte, error) {
		return bounded.File(os.Open, filepath.Clean(path), trust.MaxFileBytes)
	})
}

// voucher tells whether a state in a repository may be followed. It is nil when nothing is signed and nothing is asked.
type voucher func(ctx context.Context, repo *registry.Repository, state ocispec.Descriptor) error

// of is for the states of one repository.
func (v voucher) of(repo *registry.Repository) func(context.Context, ocispec.Descriptor) error {
	if v == nil {
		return nil
	}
	return func(ctx context.Context, state ocispec.Descriptor) error { return v(ctx, repo, state) }
}

// vouching lets a new state follow those that its own key signed, or --verify-key, or that --policy lets pass because of a
// signature.
func (p *program) vouching(c *cli.Context, client *registry.Client, s *signer) (voucher, error) {
	policy, err := p.policy(c)
	if err != nil {
		return nil, err
	}
	trustees, err := trustees(c, s)
	if err != nil {
		return nil, err
	}
	if s != nil && len(trustees) == 0 && policy == nil {
		return nil, outcome.Usagef("", "which earlier states may be followed? With --keyless give --trusted-root, --verify-key or --policy")
	}
	if len(trustees) == 0 && policy == nil {
		return nil, nil
	}
	return func(ctx context.Context, repo *registry.Repository, state ocispec.Descriptor) error {
		var byKey error
		if len(trustees) > 0 {
			signed, err := p.signedAt(ctx, repo)
			if err != nil {
				return err
			}
			if _, byKey = signing.Verify(ctx, signed, state, trustees); byKey == nil {
				return nil
			}
		}
		if policy == nil {
			return byKey
		}
		byPolicy := p.accepts(ctx, client, policy, repo, state)
		if byPolicy != nil && byKey != nil && !errors.Is(byPolicy, fault.ErrTemporary) {
			return byKey
		}
		return byPolicy
	}, nil
}

// accepts tells whether a policy lets a state pass because of its signatures.
func (p *program) accepts(ctx context.Context, client *registry.Client, policy *trust.Policy, repo *registry.Repository, state ocispec.Descriptor) error {
	answer := policy.Decide(ctx, trust.Question{Source: repo, Kind: trust.KindState, Subject: state, Now: p.now(), Elsewhere: elsewhere(client)})
	if answer.Insecure {
		return fmt.Errorf("%s@%s: %w: the policy lets it pass without a signature", repo.Name(), state.Digest, fault.ErrUnsigned)
	}
	return answer.Err
}

// publishedNow are the states that a fleet's devices have.
const publishedNow = "the published states"

// vouchFlags say whose signatures on some states count beside those of --key. more is what --policy does as well.
func vouchFlags(states, more string) []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "verify-key", Usage: "public key `FILE` that may have signed " + states + ", in addition to --key; may be repeated"},
		&cli.StringFlag{Name: "policy", Usage: "trust.yaml `FILE` that may accept the signatures of " + states + ", in addition to --key" + more},
	}
}

// trustees are those whose signatures --verify-key and --key know.
func trustees(c *cli.Context, s *signer) ([]signing.Verifier, error) {
	keys, err := publicKeys(c.StringSlice("verify-key"))
	out := signing.Verifiers(keys...)
	if s != nil && s.Self() != nil {
		out = append(out, s.Self())
	}
	return out, err
}

// elsewhere opens the repository in which a policy says that signatures are.
func elsewhere(client *registry.Client) func(context.Context, string) (signing.Source, error) {
	return places{client}.Place
}
