package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/signing"
)

func (p *program) attestCommand() *cli.Command {
	return p.command("", command{
		name: "attest", args: "HOST/PATH[:TAG|@DIGEST]", min: 1, max: 1,
		usage: "sign a statement about what is in a registry: an SBOM, provenance",
		about: "Signs what a file says about the digest that the reference has now, as an in-toto statement in a sigstore bundle " +
			"beside it, as cosign 3 attest does. An attestation is no signature: it says something, and a policy can ask for it. " +
			"Use another key than the one that releases. Pushed again, it is there twice.",
		examples: []string{
			"--key ci.key --type spdxjson --predicate sbom.spdx.json harbor.acme.example/plant/components/web:2.0.1",
			"--key ci.key --type https://slsa.dev/provenance/v1 --predicate provenance.json harbor.acme.example/plant/images/web@sha256:…",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "predicate", Usage: "`FILE` with what is said, - is stdin"},
			&cli.StringFlag{Name: "type", Usage: "`TYPE` of it: " + strings.Join(signing.PredicateNames(), ", ") + " or a URI"},
			claimFlag(),
		}, keyFlags(), keylessFlags(), registryFlags()), // an attestation is a bundle
		run: p.attest,
	})
}

type attestResult struct {
	Reference     string        `json:"reference"`
	Digest        digest.Digest `json:"digest"` // of what it is about
	PredicateType string        `json:"predicateType"`
	Attestation   digest.Digest `json:"attestation"` // the referrer
	Key           string        `json:"key"`
	Fingerprint   digest.Digest `json:"fingerprint,omitempty"`
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
	predicateType, err := signing.PredicateType(c.String("type"))
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
	statement, err := signing.NewStatement(predicateType, file, at)
	if err != nil {
		return named(c.String("predicate"), err)
	}
	statement.Annotations = claims
	repo, subject, err := openSubject(c, s.Client, args[0])
	if err != nil {
		return err
	}
	d, err := s.signer.Attest(c.Context, repo, subject, statement)
	if err != nil {
		return err
	}
	return p.show(c, attestResult{
		Reference: args[0], Digest: subject.Digest, PredicateType: predicateType, Attestation: d,
		Key: s.signer.Name(), Fingerprint: s.signer.Key().Fingerprint,
	})
}

// readPredicate reads a file, or stdin for "-". SBOMs are larger than our own documents.
func (p *program) readPredicate(file string) ([]byte, error) {
	if file == "-" {
		return p.readDocument(file)
	}
	return readBounded(file, signing.MaxStatementBytes/2)
}
