package site

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// Plan lists the content that copying a closure would transfer.
type Plan struct {
	*Closure
	Artifacts []Planned `json:"artifacts"` // one for each need, in its order
	Bytes     int64     `json:"bytes"`     // of everything, each blob counted once
	Lacks     int64     `json:"lacks"`     // of these, what the site does not have
}

// Planned counts the content of one artifact.
type Planned struct {
	*Need
	Bytes     int64 `json:"bytes"`     // of its manifests and blobs, with its referrers
	Lacks     int64 `json:"lacks"`     // of these, what the site does not have
	Referrers int   `json:"referrers"` // manifests that refer to it: signatures, attestations, SBOMs
}

// Plan finds the content that the site lacks. Content that a closure names and its registry does not have becomes a problem of the plan.
func (m *Mirror) Plan(ctx context.Context, c *Closure) (*Plan, error) {
	p := &Plan{Closure: c, Artifacts: make([]Planned, len(c.Needs))}
	var mu sync.Mutex
	sizes := map[digest.Digest]int64{} // bytes
	lacks := map[digest.Digest]bool{}
	g, inner := errgroup.WithContext(ctx)
	g.SetLimit(8)
	for i, n := range c.Needs {
		p.Artifacts[i].Need = n
		g.Go(func() error {
			from, err := m.From.OpenName(inner, n.Repository)
			if err != nil {
				return err
			}
			content, err := from.Upstream().Content(inner, n.Digest, m.only(n)...)
			if !errors.Is(err, fault.ErrTemporary) && (errors.Is(err, fault.ErrNotFound) || errors.Is(err, fault.ErrUnfit)) {
				mu.Lock()
				defer mu.Unlock()
				problem := fmt.Sprintf("%s %s@%s: %s", n.Kind, n.Repository, n.Digest, fault.Summary(err))
				if insert(&c.Problems, problem); errors.Is(err, fault.ErrNotFound) {
					insert(&c.missing, problem)
				}
				return nil
			}
			var all []ocispec.Descriptor
			if err == nil {
				all, err = from.Upstream().Everything(inner, n.Digest, m.only(n)...)
			}
			if err != nil {
				return err
			}
			to, err := m.To(inner, n.Repository)
			if err != nil {
				return err
			}
			whole, err := to.Exists(inner, content[0])
			if err != nil {
				return err
			}
			whole = whole && (n.Kind != artifacts.KindImage || len(m.Platforms) == 0) // the site may have the index for other platforms
			own := map[digest.Digest]bool{}
			for _, d := range content {
				own[d.Digest] = true
			}
			for _, d := range all {
				there := whole && own[d.Digest]
				if !there {
					if there, err = to.Exists(inner, d); err != nil {
						return err
					}
				}
				mu.Lock()
				p.Artifacts[i].Bytes += d.Size
				sizes[d.Digest] = d.Size
				if !there {
					p.Artifacts[i].Lacks += d.Size
					lacks[d.Digest] = true
				}
				if !own[d.Digest] && registry.IsManifest(d.MediaType) {
					p.Artifacts[i].Referrers++
				}
				mu.Unlock()
			}
			return nil
		})
	}
	if err := errors.Join(g.Wait(), ctx.Err()); err != nil {
		return nil, err
	}
	for d, size := range sizes {
		if p.Bytes += size; lacks[d] {
			p.Lacks += size
		}
	}
	return p, nil
}
