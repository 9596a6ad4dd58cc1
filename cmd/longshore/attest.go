package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

var attestCommand = command{
	name: "attest", args: "HOST/PATH[:TAG|@DIGEST]|FILE", min: 1, max: 1,
	usage: "sign an attestation about an artifact or a file, such as an SBOM",
	about: "Signs the predicate in a file as an in-toto statement about the current digest of the reference, and stores it in a " +
		"sigstore bundle beside the artifact, like cosign 3 attest. If the artifact has only signatures of cosign 2 " +
		"(sha256-….sig), the attestation is stored under cosign 2's tag sha256-….att, so that both versions can still verify " +
		"the artifact. An attestation does not count as a signature; a policy can require it. Use another key than the release " +
		"key. Running the command again adds a second attestation. The attestation of a file is written to " +
		"FILE.attestation.sigstore.json.",
	examples: []string{
		"--key ci.key --type spdxjson --predicate sbom.spdx.json harbor.acme.example/plant/components/web:2.0.1",
		"--key ci.key --type https://slsa.dev/provenance/v1 --predicate provenance.json harbor.acme.example/plant/images/web@sha256:…",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "predicate", Usage: "`FILE` with the predicate, - is stdin"},
		{Name: "type", Usage: "predicate `TYPE`: " + strings.Join(sign.PredicateNames(), ", ") + " or a URI", Offer: offerPredicates},
		claimFlag,
	}, keyFlags, keylessFlags, registryFlags), // the format is the artifact's
	run: (*call).attest,
}

type attestResult struct {
	Reference     string         `json:"reference"`
	Digest        digest.Digest  `json:"digest"` // of the subject
	PredicateType string         `json:"predicateType"`
	Attestation   digest.Digest  `json:"attestation"` // the referrer; of format legacy the envelope
	Format        signing.Format `json:"format"`
	Key           string         `json:"key"`
	Fingerprint   digest.Digest  `json:"fingerprint,omitempty"`
}

func (r attestResult) quietText() string { return r.Attestation.String() }

func (r attestResult) text(w io.Writer) {
	row(w, "attested", "%s by %s (%s)", r.PredicateType, r.Key, printable.Digest(r.Fingerprint))
	row(w, "reference", "%s@%s", strings.TrimSuffix(r.Reference, "@"+r.Digest.String()), printable.Digest(r.Digest))
	fmt.Fprintf(w, "  Digest: %s\n", r.Attestation)
}

func (c *call) attest(args []string) error {
	switch {
	case c.String("type") == "":
		return c.misused("use --type")
	case c.String("predicate") == "":
		return c.misused("use --predicate")
	}
	predicateType, err := sign.PredicateType(c.String("type"))
	if err != nil {
		return err
	}
	if err := c.mustSign(false); err != nil {
		return err
	}
	file, err := c.readPredicate(c.String("predicate"))
	if err != nil {
		return err
	}
	at, err := c.signingTime()
	if err != nil {
		return err
	}
	statement, err := sign.NewStatement(predicateType, file, at)
	if err != nil {
		return named(c.String("predicate"), err)
	}
	statement.Annotations = c.annotations
	repo, subject, err := c.openSubject(args[0])
	if err != nil {
		return err
	}
	made, err := c.signer.Attest(c.Context, repo, subject, statement)
	if err != nil {
		return err
	}
	c.noteLayout(c.Context, repo, subject, made.Format)
	return c.show(attestResult{
		Reference: args[0], Digest: subject.Digest, PredicateType: predicateType, Attestation: made.Digest, Format: made.Format,
		Key: c.signer.Name(), Fingerprint: c.signer.Key().Fingerprint,
	})
}

// noteLayout prints a notice if cosign no longer finds signatures of an artifact, because one in another format was added. If
// the registry does not answer, there is no notice: the signature itself was stored.
func (p *program) noteLayout(ctx context.Context, store signing.Store, subject ocispec.Descriptor, added signing.Format) {
	repo, ok := store.(*registry.Repository)
	if !ok {
		return
	}
	at, err := p.signaturesOf(ctx, repo)
	if err != nil {
		return
	}
	if found, err := signing.Layout(ctx, at, subject); err != nil || found != signing.FormatBoth {
		return
	}
	what := "if an artifact has a bundle, cosign looks for signatures only in bundles"
	if added == signing.FormatBundle {
		fmt.Fprintf(p.stderr, "notice: %s, and not under %s: also sign it with --signature-format bundle\n", what, signing.LegacyTag(subject.Digest))
	} else {
		fmt.Fprintf(p.stderr, "notice: %s, and this one has a bundle: also sign it with --signature-format bundle\n", what)
	}
}

// readPredicate reads a predicate. SBOMs are larger than our own documents.
func (p *program) readPredicate(file string) ([]byte, error) {
	return p.input(file, signing.MaxStatementBytes/2)
}
