package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
)

func (p *program) signCommand() *cli.Command {
	return p.command("", command{
		name: "sign", args: "HOST/PATH[:TAG|@DIGEST]", min: 1, max: 1,
		usage: "sign what is in a registry",
		about: "Signs the digest that the reference has now, as cosign does, without any service but the registry. A signature " +
			"by the same key with the same annotations is not repeated. cosign 3 verifies it with --key and --insecure-ignore-tlog.",
		examples: []string{
			"--key release.key harbor.acme.example/plant/components/web:2.0.1",
			"--key vendor.key --signature-format both -a approved=yes harbor.acme.example/plant/images/web@sha256:…",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringSliceFlag{Name: "annotation", Aliases: []string{"a"}, Usage: "`KEY=VALUE` to sign with the digest; may be repeated"},
		}, signFlags(), registryFlags()),
		run: p.sign,
	})
}

// verdict is who signed something.
type verdict struct {
	Reference  string          `json:"reference"`
	Digest     digest.Digest   `json:"digest"`
	Insecure   bool            `json:"insecure"` // a policy lets it pass although nobody signed
	Signatures []signatureInfo `json:"signatures"`
	Note       string          `json:"note,omitempty"`
}

func (r verdict) essence() string { return r.Digest.String() }

func (r verdict) text(w io.Writer) {
	for _, s := range r.Signatures {
		s.text(w)
	}
	if r.Note != "" {
		row(w, "note", "%s", r.Note)
	}
	row(w, "reference", "%s", r.Reference)
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (p *program) sign(c *cli.Context, args []string) error {
	claims, err := pairs("annotation", c.StringSlice("annotation"))
	if err != nil {
		return err
	}
	signer, err := p.newSigner(c, claims, true)
	if err != nil {
		return err
	}
	if signer == nil {
		return outcome.Usagef("sign", "sign: with which key? use --key")
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	repo, target, err := openTarget(c, client, args[0])
	if err != nil {
		return err
	}
	subject, err := repo.Resolve(c.Context, target)
	if err != nil {
		return err
	}
	// The bytes decide what the digest is of; a lie about the type or size would be signed into the referrer.
	subject, _, err = repo.ManifestLimit(c.Context, subject.Digest, maxSubject)
	if err != nil {
		return err
	}
	if err := signer.Sign(c.Context, repo, subject); err != nil {
		return err
	}
	return p.show(c, verdict{Reference: args[0], Digest: subject.Digest, Signatures: signatureInfos(signer.made)})
}

// maxSubject is how large the manifest of something to be signed may be: what registries take.
const maxSubject = 4 << 20

func (p *program) verifyCommand() *cli.Command {
	return p.command("", command{
		name: "verify", args: "HOST/PATH[:TAG|@DIGEST]", min: 1, max: 1,
		usage: "check who signed what is in a registry",
		about: "Passes when one of the given keys signed the digest that the reference has now, or when a device's trust policy " +
			"would let it pass. Bundles and cosign's older signatures are read. No connection is opened but to the registry.",
		examples: []string{
			"--key release.pub harbor.acme.example/plant/state:press-07",
			"--policy /etc/longshore/trust.yaml --kind component harbor.acme.example/plant/components/web@sha256:…",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringSliceFlag{Name: "key", Usage: "public key `FILE`; may be repeated, one signature suffices"},
			&cli.StringFlag{Name: "policy", Usage: "trust.yaml `FILE` to decide by instead of keys"},
			&cli.StringFlag{Name: "kind", Value: signing.KindState, Usage: "`KIND` of artifact to the policy: state, component or image"},
			&cli.StringSliceFlag{Name: "annotation", Aliases: []string{"a"}, Usage: "`KEY=VALUE` that must be signed with the digest; may be repeated"},
		}, registryFlags()),
		run: p.verify,
	})
}

func (p *program) verify(c *cli.Context, args []string) error {
	files, policyFile := c.StringSlice("key"), c.String("policy")
	if (len(files) == 0) == (policyFile == "") {
		return outcome.Usagef("verify", "verify: give one of --key and --policy")
	}
	claims, err := pairs("annotation", c.StringSlice("annotation"))
	if err != nil {
		return err
	}
	if claims != nil && policyFile != "" {
		return outcome.Usagef("verify", "verify: --annotation goes with --key, policies do not know annotations")
	}
	keys, err := publicKeys(files)
	if err != nil {
		return err
	}
	policy, err := p.policy(c)
	if err != nil {
		return err
	}
	client, err := p.client(c)
	if err != nil {
		return err
	}
	defer client.Close()
	repo, target, err := openTarget(c, client, args[0])
	if err != nil {
		return err
	}
	if policy != nil && repo.Reference().Scheme == registry.SchemeLayout {
		return outcome.Usagef("verify", "verify: %s is on disk, and policies speak about repositories of registries: use --key", args[0])
	}
	subject, err := repo.Resolve(c.Context, target)
	if err != nil {
		return err
	}
	r := verdict{Reference: args[0], Digest: subject.Digest, Signatures: []signatureInfo{}}
	if policy != nil {
		by, insecure, err := policy.Verify(c.Context, repo, c.String("kind"), subject)
		if err != nil {
			return err
		}
		for _, name := range by {
			r.Signatures = append(r.Signatures, signatureInfo{Key: name})
		}
		if r.Insecure = insecure; insecure {
			r.Note = "not secure: nobody signed it, and the policy says allowUnsigned"
		} else if len(by) == 0 {
			r.Note = "the policy asks for no signature of a " + c.String("kind") + " there"
		}
		return p.show(c, r)
	}
	found, err := signing.Verify(c.Context, repo, subject, keys)
	if err != nil {
		return err
	}
	if r.Signatures = signatureInfos(claiming(found, claims)); len(r.Signatures) == 0 {
		return fmt.Errorf("verify %s: %w: nobody signed it with %s", args[0], fault.ErrBadSignature, spelled(claims))
	}
	return p.show(c, r)
}

// spelled writes claims as --annotation takes them.
func spelled(claims map[string]string) string {
	var out []string
	for _, k := range slices.Sorted(maps.Keys(claims)) {
		out = append(out, k+"="+claims[k])
	}
	return strings.Join(out, ", ")
}

// claiming keeps the signatures that say all of claims.
func claiming(all []signing.Signature, claims map[string]string) []signing.Signature {
	return slices.DeleteFunc(all, func(s signing.Signature) bool {
		for k, v := range claims {
			if have, ok := s.Annotations[k]; !ok || have != v {
				return true
			}
		}
		return false
	})
}
