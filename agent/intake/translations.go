package intake

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"sync"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/workload"
)

// translations remembers what Compose files became, so that an update costs nothing for the components that it leaves alone.
// It keeps what the newest two readings of states used, which is what the device is kept at and what it is going to be.
type translations struct {
	mu         sync.Mutex
	last, this map[digest.Digest]*workload.Project
}

// load gives a project of o.Generation: one that was read before, or what read gives for an archive. Projects share what is
// in them and must not be changed.
func (t *translations) load(ctx context.Context, archive digest.Digest, o compose.Options, read func(context.Context, compose.Options) (*workload.Project, error)) (*workload.Project, error) {
	key, err := translationOf(archive, o)
	if err != nil {
		return nil, err
	}
	p := t.find(key)
	if p == nil {
		if p, err = read(ctx, o); err != nil {
			return nil, err
		}
		if !pinned(p.Services) { // what the reader finds out about its images goes into it
			return p, nil
		}
		t.mu.Lock()
		t.this[key] = p
		t.mu.Unlock()
	}
	own := *p
	own.Generation = o.Generation
	return &own, nil
}

func (t *translations) find(key digest.Digest) *workload.Project {
	t.mu.Lock()
	defer t.mu.Unlock()
	p := cmp.Or(t.this[key], t.last[key])
	if p != nil {
		t.this[key] = p
	}
	return p
}

// turn ends one reading of a state: what neither it nor the one before has used is forgotten.
func (t *translations) turn() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.last, t.this = t.this, map[digest.Digest]*workload.Project{}
}

// translationOf names all that a project is made of, but the generation.
func translationOf(archive digest.Digest, o compose.Options) (digest.Digest, error) {
	o.Generation = 0
	data, err := json.Marshal(o)
	if err != nil {
		return "", fmt.Errorf("component %s: %w", o.Component, err)
	}
	return digest.FromString(archive.String() + " " + string(data)), nil
}

// pinned reports whether every image of services is named by its digest.
func pinned(services []workload.Service) bool {
	for i := range services {
		s := &services[i]
		if s.Image.Digest == "" {
			return false
		}
		for j := range s.Mounts {
			if img := s.Mounts[j].Image; img != nil && img.Digest == "" {
				return false
			}
		}
		for j := range s.PreStart {
			if !pinned([]workload.Service{s.PreStart[j].Service}) {
				return false
			}
		}
	}
	return true
}
