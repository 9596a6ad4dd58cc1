package main

import (
	"context"
	"fmt"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

// attachFlags name documents to attach to the artifact.
var attachFlags = []cmdline.Flag{
	{Name: "sbom", Value: []string(nil), Usage: "attach an SBOM, a `FILE` of SPDX or CycloneDX in JSON; with --key signed like cosign attest; may be repeated"},
	{Name: "provenance", Value: []string(nil), Usage: "attach a provenance, a `FILE` with a SLSA predicate in JSON; with --key signed; may be repeated"},
}

// attachedInfo describes an attached document.
type attachedInfo struct {
	File          string        `json:"file"`
	PredicateType string        `json:"predicateType"`
	MediaType     string        `json:"mediaType"` // of the referrer
	Digest        digest.Digest `json:"digest"`    // of the referrer
	Signed        bool          `json:"signed"`
}

// String describes it for people.
func (a attachedInfo) String() string {
	signed := "signed"
	if !a.Signed {
		signed = "unsigned"
	}
	return fmt.Sprintf("%s  %s, %s  %s", a.File, a.PredicateType, signed, printable.Digest(a.Digest))
}

// attacher signs an artifact and attaches documents to it, before any tag names it.
type attacher struct {
	*call
	sayings []sayingToSign
	made    []attachedInfo
}

type sayingToSign struct {
	*artifacts.Saying
	statement sign.Statement
}

var _ release.Signer = (*attacher)(nil)

// newAttacher opens the signer, and reads the documents.
func (c *call) newAttacher() (*attacher, error) {
	if err := c.openSigner(false); err != nil {
		return nil, err
	}
	a := &attacher{call: c}
	for _, kind := range []struct {
		flag string
		read func(string, []byte) (*artifacts.Saying, error)
	}{{"sbom", artifacts.ReadSBOM}, {"provenance", artifacts.ReadProvenance}} {
		for _, file := range c.StringSlice(kind.flag) {
			data, err := c.readPredicate(file)
			if err != nil {
				return nil, err
			}
			said, err := kind.read(file, data)
			if err != nil {
				return nil, err
			}
			at, err := c.signingTime()
			if err != nil {
				return nil, err
			}
			statement, err := sign.NewStatement(said.PredicateType, data, at)
			if err != nil {
				return nil, named(file, err)
			}
			a.sayings = append(a.sayings, sayingToSign{said, statement})
		}
	}
	return a, nil
}

// Sign implements release.Signer.
func (a *attacher) Sign(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor) error {
	if a.signer != nil {
		if err := a.signer.Sign(ctx, repo, subject); err != nil {
			return err
		}
	}
	for _, s := range a.sayings {
		made := attachedInfo{File: s.File, PredicateType: s.PredicateType, MediaType: s.MediaType, Signed: a.signer != nil}
		var err error
		if a.signer != nil {
			var x signing.Signature
			x, err = a.signer.Attest(ctx, repo, subject, s.statement)
			if made.MediaType, made.Digest = signing.MediaTypeBundle, x.Digest; x.Format == signing.FormatLegacy {
				made.MediaType = signing.MediaTypeEnvelope
			}
		} else {
			made.Digest, err = attachPlain(ctx, repo, subject, s.Saying)
		}
		if err != nil {
			return fmt.Errorf("attach %s: %w", s.File, err)
		}
		a.made = append(a.made, made)
	}
	return nil
}

// attachPlain pushes a document as an unsigned referrer with the document's type, as oras attach does.
func attachPlain(ctx context.Context, repo *registry.Repository, subject ocispec.Descriptor, s *artifacts.Saying) (digest.Digest, error) {
	a, err := s.Attach(repo.Name(), subject)
	if err != nil {
		return "", err
	}
	for _, b := range a.Blobs {
		if err := repo.PushBlob(ctx, b.Descriptor, b.Data); err != nil {
			return "", err
		}
	}
	return a.Descriptor.Digest, repo.PushReferrer(ctx, a.Descriptor, a.Manifest)
}

// publish is the method publish of call, which also attaches and describes the documents.
func (a *attacher) publish(repo *registry.Repository, to *artifacts.Artifact, o release.PublishOptions) (pushed, []attachedInfo, error) {
	if len(a.sayings) > 0 {
		o.Signer = a
	}
	r, err := a.call.publish(repo, to, o)
	return r, a.made, err
}
