package registry_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/registry"
)

// Of all removals of a manifest with several tags one finds no other tag, and each tag is read once, whatever the registry answers first.
func TestTagListIsReadOnce(t *testing.T) {
	const n = 50
	var tags []string
	for i := range n {
		tags = append(tags, fmt.Sprintf("sha256-%064d.att", i))
	}
	l := registry.NewTagList(append(tags, "gone"))
	one := digest.FromString("an attestation about all")
	var reads, drops, last atomic.Int64
	down := true
	resolve := func(_ context.Context, tag string) (digest.Digest, error) {
		switch {
		case down:
			return "", fault.ErrTemporary
		case tag == "gone":
			return "", fault.ErrNotFound
		}
		reads.Add(1)
		return one, nil
	}
	release := func(tag string) error {
		others, err := l.Release(t.Context(), one, tag, resolve, func() error { drops.Add(1); return nil })
		if err == nil && !others {
			last.Add(1)
		}
		return err
	}
	if err := release(tags[0]); !errors.Is(err, fault.ErrTemporary) || drops.Load() > 0 {
		t.Fatalf("while the registry is down: %v, %d tags removed", err, drops.Load())
	}
	down = false
	var all sync.WaitGroup
	for _, tag := range tags {
		all.Go(func() {
			if err := release(tag); err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
	if reads.Load() != n || drops.Load() != n-1 || last.Load() != 1 {
		t.Errorf("%d tags were read, %d removed alone, %d with the manifest; want %d, %d, 1", reads.Load(), drops.Load(), last.Load(), n, n-1)
	}
}
