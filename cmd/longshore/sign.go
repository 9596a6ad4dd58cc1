package main

import (
	"fmt"
	"io"
	"slices"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
	"github.com/longshore-dev/longshore/signing/filebundle"
)

var signCommand = command{
	name: "sign", args: "HOST/PATH[:TAG|@DIGEST]|FILE", min: 1, max: 1,
	usage: "sign an artifact or a file",
	about: "Signs the current digest of the reference in cosign's format; the only service that it uses is the registry. A signature " +
		"by the same key with the same annotations is not repeated. cosign 3 verifies it with --key and --insecure-ignore-tlog. " +
		"The signature of a file is written to FILE.sigstore.json, for longshore verify and cosign verify-blob --bundle.",
	examples: []string{
		"--key release.key harbor.acme.example/plant/components/web:2.0.1",
		"--key vendor.key --signature-format both -a approved=yes harbor.acme.example/plant/images/web@sha256:…",
		"--key release.key dist/checksums.txt",
	},
	flags: slices.Concat([]cmdline.Flag{claimFlag}, signFlags, registryFlags),
	run:   (*call).sign,
}

// signResult lists the signatures that were made.
type signResult struct {
	Reference string `json:"reference"`
	digested
	Signatures []audit.Signed `json:"signatures"`
}

func (r signResult) text(w io.Writer) {
	signatureRows(w, r.Signatures)
	row(w, "reference", "%s", r.Reference)
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (c *call) sign(args []string) error {
	c.claims = c.annotations
	if err := c.mustSign(true); err != nil {
		return err
	}
	store, subject, err := c.openSubject(args[0])
	if err != nil {
		return err
	}
	made, err := c.signer.Signer.Sign(c.Context, store, subject)
	if err != nil {
		return err
	}
	if c.String("signature-format") == string(signing.FormatLegacy) {
		c.noteLayout(c.Context, store, subject, signing.FormatLegacy)
	}
	return c.show(signResult{Reference: args[0], digested: digested{subject.Digest}, Signatures: audit.SignedOf(made, "")})
}

// openSubject opens a file, or the repository of an artifact, to be signed. It describes the artifact by its bytes, because a
// registry could return a wrong type or size, which would become part of the referrer.
func (c *call) openSubject(s string) (signing.Store, ocispec.Descriptor, error) {
	if isFile(s) {
		return filebundle.Open(s)
	}
	repo, target, err := c.openTarget(s)
	if err != nil {
		return nil, ocispec.Descriptor{}, err
	}
	repo = repo.Upstream() // a mirror may show what the tag named before
	subject, err := repo.Resolve(c.Context, target)
	if err != nil {
		return nil, subject, err
	}
	subject, _, err = repo.ManifestLimit(c.Context, subject.Digest, maxSubject)
	return repo, subject, err
}

// maxSubject is the maximal size of a manifest to be signed, which is the limit of registries.
const maxSubject = 4 << 20

func signatureRows(w io.Writer, all []audit.Signed) {
	for _, s := range all {
		if s.Fingerprint == "" {
			row(w, "signed", "%s", s.By)
			continue
		}
		at := ""
		if s.Time != "" {
			at = ", " + s.Time
		}
		row(w, "signed", "%s (%s, %s), %s%s", s.By, s.Algorithm, printable.Digest(s.Fingerprint), s.Format, at)
	}
}
