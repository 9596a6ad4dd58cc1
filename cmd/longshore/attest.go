package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

func (p *program) attestCommand() *cli.Command {
	return p.command("", command{
		name: "attest", args: "HOST/PATH[:TAG|@DIGEST]|FILE", min: 1, max: 1,
		usage: "sign an attestation about an artifact or a file: an SBOM, provenance",
		about: "Signs the content of a file about the current digest of the reference, as an in-toto statement in a sigstore bundle " +
			"beside the artifact, like cosign 3 attest. If the artifact has only signatures of cosign 2 (sha256-….sig), the " +
			"attestation is stored under cosign 2's tag sha256-….att, so that both versions can still verify the artifact. An " +
			"attestation does not count as a signature; a policy can require it. Use another key than the release key. Running the " +
			"command again adds a second attestation. The attestation of a file is written beside it as FILE.attestation.sigstore.json.",
		examples: []string{
			"--key ci.key --type spdxjson --predicate sbom.spdx.json harbor.acme.example/plant/components/web:2.0.1",
			"--key ci.key --type https://slsa.dev/provenance/v1 --predicate provenance.json harbor.acme.example/plant/images/web@sha256:…",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "predicate", Usage: "`FILE` with the predicate, - is stdin"},
			&cli.StringFlag{Name: "type", Usage: "predicate `TYPE`: " + strings.Join(sign.PredicateNames(), ", ") + " or a URI"},
			claimFlag(),
		}, keyFlags(), keylessFlags(), registryFlags()), // the format is the artifact's
		run: p.attest,
	})
}

type attestResult struct {
	Reference     string         `json:"reference"`
	Digest        digest.Digest  `json:"digest"` // of what it is about
	PredicateType string         `json:"predicateType"`
	Attestation   digest.Digest  `json:"attestation"` // the referrer; of format legacy the envelope
	Format        signing.Format `json:"format"`
	Key           string         `json:"key"`
	Fingerprint   digest.Digest  `json:"fingerprint,omitempty"`
}

func (r attestResult) essence() string { return r.Attestation.String() }

func (r attestResult) text(w io.Writer) {
	row(w, "attested", "%s by %s (%s)", r.PredicateType, r.Key, short(r.Fingerprint))
	row(w, "reference", "%s@%s", strings.TrimSuffix(r.Reference, "@"+r.Digest.String()), short(r.Digest))
	fmt.Fprintf(w, "  Digest: %s\n", r.Attestation)
}

func (p *program) attest(c *cli.Context, args []string) error {
	switch {
	case c.String("type") == "":
		return misused(c, "which kind of statement? use --type")
	case c.String("predicate") == "":
		return misused(c, "what does it say? use --predicate")
	}
	predicateType, err := sign.PredicateType(c.String("type"))
	if err != nil {
		return err
	}
	claims, err := pairs("annotation", c.StringSlice("annotation"))
	if err != nil {
		return err
	}
	s, err := p.session(c, nil, false)
	if err != nil {
		return err
	}
	defer s.Close()
	if s.signer == nil {
		return misused(c, "with which key? use --key, or --keyless")
	}
	file, err := p.readPredicate(c.String("predicate"))
	if err != nil {
		return err
	}
	at, err := p.signingTime()
	if err != nil {
		return err
	}
	statement, err := sign.NewStatement(predicateType, file, at)
	if err != nil {
		return named(c.String("predicate"), err)
	}
	statement.Annotations = claims
	repo, subject, err := openSubject(c, s.Client, args[0])
	if err != nil {
		return err
	}
	made, err := s.signer.Attest(c.Context, repo, subject, statement)
	if err != nil {
		return err
	}
	p.noteLayout(c.Context, repo, subject, made.Format)
	return p.show(c, attestResult{
		Reference: args[0], Digest: subject.Digest, PredicateType: predicateType, Attestation: made.Digest, Format: made.Format,
		Key: s.signer.Name(), Fingerprint: s.signer.Key().Fingerprint,
	})
}

// noteLayout warns when cosign no longer finds signatures of an artifact after something in a format was added. Where the registry
// cannot be asked there is no warning: what was signed is there.
func (p *program) noteLayout(ctx context.Context, store signing.Store, subject ocispec.Descriptor, added signing.Format) {
	repo, ok := store.(*registry.Repository)
	if !ok {
		return
	}
	at, err := p.signedAt(ctx, repo)
	if err != nil {
		return
	}
	if found, err := signing.Layout(ctx, at, subject); err != nil || found != signing.FormatBoth {
		return
	}
	what := "cosign looks for signatures in bundles alone where there is one"
	if added == signing.FormatBundle {
		fmt.Fprintf(p.stderr, "notice: %s, and so not under %s: sign it with --signature-format bundle too\n", what, signing.LegacyTag(subject.Digest))
	} else {
		fmt.Fprintf(p.stderr, "notice: %s, and there is one: sign it with --signature-format bundle too\n", what)
	}
}

// readPredicate reads a file, or stdin for "-". SBOMs are larger than our own documents.
func (p *program) readPredicate(file string) ([]byte, error) {
	if file == "-" {
		return p.readDocument(file)
	}
	return bounded.File(os.Open, file, signing.MaxStatementBytes/2)
}
