package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
)

// contentFlags control the checks before a publication.
var contentFlags = []cmdline.Flag{
	{Name: "mirror", Value: []string(nil), Usage: "`HOST=ENDPOINT` of a mirror that must also have what devices load from HOST; HOST without ENDPOINT: its mirrors in --certs-dir; may be repeated"},
	{Name: "no-content", Value: false, Usage: "do not check whether components and images are in their registries"},
}

// contentOptions sets how a plan checks the content that devices would load.
func (c *call) contentOptions(o *fleet.Options) error {
	o.Services, o.Unused, o.Layers, o.Concurrency = fleetServices, composefile.Unused, c.registry.ImageLayers, c.Int("parallel")
	if !c.Has("no-content") { // the command has no flags for it: it does not publish
		return nil
	}
	places := contentChecker{call: c, mirrors: map[string][]string{}}
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
	if c.policy != nil {
		o.Trusted = places.verify
	}
	return nil
}

// contentChecker checks that content is in its registry and in mirrors, and that a policy accepts it.
type contentChecker struct {
	*call
	mirrors map[string][]string // addresses by host; "" stands for those of hosts.toml
}

// repository opens the repository of content.
func (x contentChecker) repository(c fleet.Content) (*registry.Repository, error) {
	parse, name := registry.ParseReference, c.Repository
	if c.Kind == fleet.ContentImage {
		parse, name = registry.ParseImage, c.Reference
	}
	ref, err := parse(name)
	if err != nil {
		return nil, err
	}
	return x.registry.OpenNamed(ref)
}

// look returns what is missing at the registry and at the mirrors.
func (x contentChecker) look(ctx context.Context, c fleet.Content) (f fleet.Finding, err error) {
	repo, err := x.repository(c)
	if err != nil {
		return f, err
	}
	origin := repo.Upstream()
	missing, err := absent(ctx, origin, c)
	switch {
	case ctx.Err() != nil:
		return f, ctx.Err()
	case err != nil:
		f.Notes = append(f.Notes, fmt.Sprintf("%s could not be checked: %v", c.Name(), err))
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
			f.Wrong = append(f.Wrong, fmt.Sprintf("%s could not be checked at the mirror %s: %v", c.Name(), m.Where(), err))
		} else if missing != "" {
			f.Wrong = append(f.Wrong, fmt.Sprintf("%s: %s is not at the mirror %s", c.Name(), missing, m.Where()))
		}
	}
	return f, nil
}

// mirrorsOf opens the mirrors of --mirror.
func (x contentChecker) mirrorsOf(repo *registry.Repository) ([]*registry.Repository, error) {
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
			return nil, outcome.Usagef("", "--mirror %s: hosts.toml has no mirror of it; use --mirror %s=ENDPOINT", host, host)
		}
		out = append(out, all...)
	}
	return out, nil
}

// absent returns what is missing of the content; "" if it is complete.
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
			return fmt.Sprintf("%s of it", printable.Digest(missing[0].Digest)), nil
		case c.Platform == c.Digest:
			return "", nil
		}
	}
	return "", nil
}

// verify returns an error if a device with the policy would reject the content.
func (x contentChecker) verify(ctx context.Context, c fleet.Content) error {
	repo, err := x.repository(c)
	if err != nil {
		return err
	}
	return x.decide(ctx, repo, c.Kind, ocispec.Descriptor{Digest: c.Digest}).Err
}

// claims are the exclusive resources of each service; the first service has those of networks.
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
