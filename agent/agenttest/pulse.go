package agenttest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Pulse holds freshness statements. Its zero value is a policy that asks for none.
type Pulse struct {
	mu      sync.Mutex
	signers []string
	made    map[digest.Digest]intake.Freshness // the newest
	fail    error
	asked   int
}

// Require sets whose statements the policy asks for; none: it asks for none.
func (p *Pulse) Require(signers ...string) { set(&p.mu, &p.signers, signers) }

// Renew makes a statement about a state, in place of the one before.
func (p *Pulse) Renew(d digest.Digest, by string, issued time.Time, life time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.made == nil {
		p.made = map[digest.Digest]intake.Freshness{}
	}
	p.made[d] = intake.Freshness{By: by, IssuedAt: issued, NotAfter: issued.Add(life)}
}

// Withhold takes the statements about a state away.
func (p *Pulse) Withhold(d digest.Digest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.made, d)
}

// Fail sets the answer to every question; nil: all is well.
func (p *Pulse) Fail(err error) { set(&p.mu, &p.fail, err) }

// Asked is how often statements were looked for since it was last called.
func (p *Pulse) Asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := p.asked
	p.asked = 0
	return n
}

func (p *Pulse) Freshness(ctx context.Context, repository string, d ocispec.Descriptor, _ string, _ uint64) (intake.Freshness, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := intake.Freshness{Required: len(p.signers) > 0, Signers: slices.Clone(p.signers)}
	if !out.Required {
		return out, nil
	}
	p.asked++
	if err := ctx.Err(); err != nil {
		return out, fmt.Errorf("%w: %w", fault.ErrTemporary, err)
	}
	if p.fail != nil {
		return out, p.fail
	}
	f, ok := p.made[d.Digest]
	if !ok || !slices.Contains(p.signers, f.By) {
		return out, fmt.Errorf("%s@%s: no freshness statement: %w", repository, d.Digest, fault.ErrUnsigned)
	}
	out.By, out.IssuedAt, out.NotAfter = f.By, f.IssuedAt, f.NotAfter
	return out, nil
}
