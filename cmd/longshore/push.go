package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing/audit"
)

// pushed is the part of a result that all push commands have.
type pushed struct {
	Reference string `json:"reference"`
	digested
	MediaType    string         `json:"mediaType"`
	ArtifactType string         `json:"artifactType"`
	Size         int64          `json:"size"` // of the manifest
	Signatures   []audit.Signed `json:"signatures"`
	DryRun       bool           `json:"dryRun,omitempty"` // nothing was pushed
}

// describePushed describes an artifact under a tag.
func describePushed(repo *registry.Repository, tag string, d ocispec.Descriptor) pushed {
	return pushed{
		Reference: repo.Reference().WithTag(tag).String(), digested: digested{d.Digest}, MediaType: d.MediaType, ArtifactType: d.ArtifactType, Size: d.Size,
		Signatures: []audit.Signed{},
	}
}

func (r pushed) text(w io.Writer) {
	signatureRows(w, r.Signatures)
	if r.DryRun {
		row(w, "would be", "%s (--dry-run: nothing was pushed)", r.Reference)
	} else {
		row(w, "pushed", "%s", r.Reference)
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

// overwriteFlag is for tags that should never move: versions.
var overwriteFlag = cmdline.Flag{Name: "overwrite", Value: false, Usage: "move the version's tag if it already names another digest"}

// once publishes under a version, whose content cannot change without --overwrite.
func (c *call) once(version string) release.PublishOptions {
	if c.Bool("overwrite") {
		return release.PublishOptions{Tags: []string{version}}
	}
	return release.PublishOptions{HistoryTag: version}
}

// publish pushes an artifact, and describes it.
func (c *call) publish(repo *registry.Repository, a *artifacts.Artifact, o release.PublishOptions) (pushed, error) {
	if c.signer != nil && o.Signer == nil {
		o.Signer = c.signer
	}
	var r pushed
	var err error
	if c.Bool("dry-run") {
		r, err = c.previewPublish(repo, a, o)
	} else {
		_, err = release.Publish(c.Context, repo, a, o)
		r = describePushed(repo, lastTag(o), a.Descriptor)
		if c.signer != nil {
			r.Signatures = audit.SignedOf(c.signer.made, "")
		}
	}
	if errors.Is(err, fault.ErrConflict) && o.Tags == nil {
		err = fault.WithHint(err, "push it as a new version, or move the tag with --overwrite; devices keep the content that their state names")
	}
	return r, err
}

// input reads a file of at most limit bytes; "-" is stdin.
func (p *program) input(file string, limit int64) ([]byte, error) {
	if file != "-" {
		return bounded.File(os.Open, file, limit)
	}
	data, err := interruptible(p, func() ([]byte, error) { return bounded.Read(p.stdin, limit) })
	if err != nil {
		err = fmt.Errorf("stdin: %w", err)
	}
	return data, err
}

// readDocument reads one of our own documents.
func (p *program) readDocument(file string) ([]byte, error) {
	return p.input(file, artifacts.MaxDocument)
}
