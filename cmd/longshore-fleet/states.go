package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"golang.org/x/sync/errgroup"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet/desired"
	"github.com/longshore-dev/longshore/fleet/status"
	"github.com/longshore-dev/longshore/fleet/store"
	"github.com/longshore-dev/longshore/registry"
)

const (
	stateInterval = 30 * time.Second
	maxIndex      = 64 << 10 // bytes of the index of a cache, which names nothing
)

// states is the desired state that the endpoint serves. Without --state it serves none.
type states struct {
	tokens *status.TokenCache
	client *registry.Client
	o      desired.Options
	view   *desired.View
}

func newStates(c *cmdline.Context, db *store.SQLite, log *slog.Logger) (*states, error) {
	s := &states{tokens: status.NewTokenCache(db, time.Now)}
	from, dir := c.StringSlice("state"), c.String("state-cache")
	switch {
	case len(from) == 0 && dir != "":
		return nil, outcome.Usagef("serve", "--state-cache is for desired state: give --state, too")
	case len(from) == 0:
		return s, nil
	case c.Duration("state-interval") < time.Second:
		return nil, outcome.Usagef("serve", "--state-interval must be at least 1s")
	}
	client, err := registryOf(c, "registry-plain-http", log)
	if err != nil {
		return nil, err
	}
	s.client = client
	s.o = desired.Options{Manifests: db, Every: c.Duration("state-interval"), Now: time.Now, Logger: log}
	for _, name := range from {
		repo, err := openStates(c.Context, client, name)
		if err != nil {
			client.Close()
			return nil, err
		}
		s.o.Sources = append(s.o.Sources, repo)
	}
	if s.o.Content, err = openCache(cmp.Or(dir, filepath.Join(filepath.Dir(c.String("database")), "states"))); err != nil {
		client.Close()
		return nil, err
	}
	return s, nil
}

// openCache opens the directory of what is served. What it does not need there it removes: it takes no directory of somebody else.
func openCache(dir string) (*registry.Layout, error) {
	entries, err := os.ReadDir(dir)
	if err == nil && len(entries) > 0 {
		var index ocispec.Index
		data, err := bounded.File(os.Open, filepath.Join(dir, ocispec.ImageIndexFile), maxIndex)
		if err != nil || json.Unmarshal(data, &index) != nil || len(index.Manifests) > 0 {
			return nil, outcome.Usagef("serve", "--state-cache %s: name a new directory, or the one of an earlier run: this one has other content", dir)
		}
	}
	return registry.OpenLayout(dir)
}

// openStates opens a repository of states at the registry itself: what a mirror shows may be older.
func openStates(ctx context.Context, client *registry.Client, name string) (*registry.Repository, error) {
	ref, err := registry.ParseReference(name)
	switch {
	case err != nil:
		return nil, outcome.Usagef("serve", "--state %s: %v", name, err)
	case ref.Target() != "":
		return nil, outcome.Usagef("serve", "--state %s: name the repository without a tag: each device has one", name)
	}
	repo, err := client.OpenName(ctx, strings.TrimPrefix(name, "oci://"))
	if err != nil {
		return nil, err
	}
	return repo.Upstream(), nil
}

// serve adds the desired state to what the API serves.
func (s *states) serve(o *status.Options) {
	o.Identify = s.tokens.Identify
	if s.client == nil {
		return
	}
	s.o.Metrics = o.Metrics
	s.view = desired.New(s.o)
	o.Desired = s.view
}

// during runs what works in the background while do runs.
func (s *states) during(ctx context.Context, do func(context.Context) error) error {
	if s.view == nil {
		return do(ctx)
	}
	ctx, cancel := context.WithCancel(ctx)
	var g errgroup.Group
	g.Go(func() error { return s.tokens.Run(ctx) })
	g.Go(func() error { return s.view.Run(ctx) })
	err := do(ctx)
	cancel()
	return errors.Join(err, g.Wait())
}

func (s *states) close() {
	if s.client != nil {
		s.client.Close()
	}
}
