package fleet

import (
	"context"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// resign plans to sign what a device has, if no trusted key has signed it: unchanged, because devices have it already. It must be
// what the files make now, but for when it was made and the commit that it says it is from; nothing else is signed.
func (p *planner) resign(ctx context.Context, d *DevicePlan, a *Assignment, s *published, documents [][]byte) error {
	if !p.o.Resign {
		return nil
	}
	err := p.trusted(ctx, a, s.digest)
	if !fault.Distrusted(err) {
		return err
	}
	o := p.o
	if !o.Expires.IsZero() {
		o.Expires = s.index.Expires // it lasts long enough
	}
	o.Created, _ = time.Parse(time.RFC3339, s.index.Annotations[ocispec.AnnotationCreated]) // zero: it does not say
	so := stateOptions(o, p.compressors, a, s.index.Generation, s.index.Previous, documents)
	for name, v := range so.Applications {
		if s.index.Applications[name].Repository == "" { // it was published before states said where packages are
			v.Repository = ""
			so.Applications[name] = v
		}
	}
	again, packErr := artifacts.PackState(so)
	if packErr != nil {
		return packErr
	}
	d.TaggedGeneration, d.Previous = s.index.Generation, s.index.Previous
	if artifacts.WithoutOrigin(again.Manifest) != d.Content {
		d.Action, d.err = Cannot, err
		d.Reasons = append(d.Reasons, "what it has is not what the files make, so it is not signed again: "+err.Error())
		return nil
	}
	d.Action, d.resigned = Publish, s.manifest
	d.Reasons = append(d.Reasons, "only a signature is missing that counts here: what it has is signed again")
	return nil
}

// Resigned reports whether only a signature is published, and the state stays.
func (d *DevicePlan) Resigned() bool { return d.resigned != nil }

// there is the state that gets another signature; a has the same blobs.
func (d *DevicePlan) there(a *artifacts.Artifact) *artifacts.Artifact {
	out := *a
	out.Manifest = d.resigned
	out.Descriptor.Digest, out.Descriptor.Size = digest.FromBytes(d.resigned), int64(len(d.resigned))
	return &out
}
