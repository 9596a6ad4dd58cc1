package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing/trust"
)

// contentFlags say what has to hold before anything is published.
func contentFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringSliceFlag{Name: "mirror", Usage: "`HOST=ENDPOINT` of a mirror that must also have what devices load from HOST; HOST alone: its mirrors in --certs-dir; may be repeated"},
		&cli.BoolFlag{Name: "no-content", Usage: "do not check whether components and images are in their registries"},
	}
}

// looking sets what a plan finds out about the content that devices would load.
func (p *program) looking(c *cli.Context, client *registry.Client, o *fleet.Options) error {
	o.Services, o.Unused, o.Layers, o.Concurrency = fleetServices, composefile.Unused, client.ImageLayers, c.Int("parallel")
	if c.Value("no-content") == nil { // the command only shows what is there
		return nil
	}
	places := contentPlaces{client: client, mirrors: map[string][]string{}}
	for _, text := range c.StringSlice("mirror") {
		host, address, _ := strings.Cut(text, "=")
		if host == "" || strings.Contains(host, "/") {
			return outcome.Usagef("", "--mirror %q is not HOST=ENDPOINT", text)
		}
		places.mirrors[host] = append(places.mirrors[host], address)
	}
	if c.Bool("no-content") && len(places.mirrors) > 0 {
		return outcome.Usagef("", "--mirror and --no-content exclude each other")
	}
	if !c.Bool("no-content") {
		o.Content = places.look
	}
	policy, err := p.policy(c)
	if err != nil || policy == nil {
		return err
	}
	o.Trusted = places.vouched(policy, p.now())
	return nil
}

// contentPlaces are where content has to be.
type contentPlaces struct {
	client  *registry.Client
	mirrors map[string][]string // by host: addresses; "" stands for those of hosts.toml
}

// open gives the repository of content.
func (x contentPlaces) open(c fleet.Content) (*registry.Repository, error) {
	parse, name := registry.ParseReference, c.Repository
	if c.Kind == fleet.ContentImage {
		parse, name = registry.ParseImage, c.Reference
	}
	ref, err := parse(name)
	if err != nil {
		return nil, err
	}
	return x.client.OpenNamed(ref)
}

// look tells what of the content is not where it has to be.
func (x contentPlaces) look(ctx context.Context, c fleet.Content) (f fleet.Finding, err error) {
	repo, err := x.open(c)
	if err != nil {
		return f, err
	}
	origin := repo.Upstream()
	missing, err := absent(ctx, origin, c)
	switch {
	case ctx.Err() != nil:
		return f, ctx.Err()
	case err != nil:
		f.Notes = append(f.Notes, fmt.Sprintf("%s could not be looked for: %v", c.Name(), err))
	case missing != "":
		f.Wrong = append(f.Wrong, fmt.Sprintf("%s: %s is not at %s", c.Name(), missing, origin.Where()))
	}
	mirrors, err := x.mirrorsOf(repo)
	if err != nil {
		return f, err
	}
	for _, m := range mirrors {
		missing, err := absent(ctx, m, c)
		if errors.Is(err, fault.ErrTemporary) || ctx.Err() != nil {
			return f, fmt.Errorf("mirror %s: %w", m.Where(), err)
		}
		if err != nil {
			f.Wrong = append(f.Wrong, fmt.Sprintf("%s could not be looked for at the mirror %s: %v", c.Name(), m.Where(), err))
		} else if missing != "" {
			f.Wrong = append(f.Wrong, fmt.Sprintf("%s: %s is not at the mirror %s", c.Name(), missing, m.Where()))
		}
	}
	return f, nil
}

// mirrorsOf opens the mirrors that were named.
func (x contentPlaces) mirrorsOf(repo *registry.Repository) ([]*registry.Repository, error) {
	var out []*registry.Repository
	host := repo.Reference().Registry
	for _, address := range x.mirrors[host] {
		if address != "" {
			m, err := repo.At(address)
			if err != nil {
				return nil, err
			}
			out = append(out, m)
			continue
		}
		all := repo.Mirrors()
		if len(all) == 0 {
			return nil, outcome.Usagef("", "--mirror %s: no hosts.toml names a mirror of it; write --mirror %s=ENDPOINT", host, host)
		}
		out = append(out, all...)
	}
	return out, nil
}

// absent says what of the content a place lacks; "" when it has all.
func absent(ctx context.Context, at *registry.Repository, c fleet.Content) (string, error) {
	for _, d := range []digest.Digest{c.Digest, c.Platform} {
		missing, err := at.Missing(ctx, d)
		if err != nil {
			return "", err
		}
		switch {
		case len(missing) > 0 && missing[0].Digest == c.Digest:
			return "it", nil
		case len(missing) > 0:
			return fmt.Sprintf("%s of it", short(missing[0].Digest)), nil
		case c.Platform == c.Digest:
			return "", nil
		}
	}
	return "", nil
}

// vouched tells whether a device with this policy would take the content.
func (x contentPlaces) vouched(policy *trust.Policy, now time.Time) func(context.Context, fleet.Content) error {
	return func(ctx context.Context, c fleet.Content) error {
		repo, err := x.open(c)
		if err != nil {
			return err
		}
		return policy.Decide(ctx, trust.Question{
			Source: repo, Kind: c.Kind, Subject: ocispec.Descriptor{Digest: c.Digest}, Now: now, Elsewhere: elsewhere(x.client),
		}).Err
	}
}

// claims are what each service has for itself; those of networks go with the first one.
func claims(project *workload.Project) map[string][]fleet.Claim {
	out := map[string][]fleet.Claim{}
	for _, c := range project.Claims() {
		service := c.Service
		if service == "" && len(project.Services) > 0 {
			service = project.Services[0].Name
		}
		out[service] = append(out[service], fleet.Claim{What: c.What, At: c.At})
	}
	return out
}
