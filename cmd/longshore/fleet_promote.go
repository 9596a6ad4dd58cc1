package main

import (
	"cmp"
	"context"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/registry"
)

var fleetPromoteCommand = command{
	name: "promote", args: "FROM TO", min: 2, max: 2,
	usage: "promote applications from one environment to another, by digest",
	about: "FROM and TO are directories of fleets, such as staging and production. The command finds the version of every application " +
		"that is published for the devices of FROM, whatever tags name now, and writes the version, its digest and those of its " +
		"components to TO/fleet.lock. If TO has another registry, packages and components are copied there with their " +
		"signatures; images are not copied. fleet plan and fleet publish of TO use the lock; promote publishes nothing. The " +
		"exit code is 6 if devices of FROM have different versions, or versions that its files do not define, or if a device " +
		"of TO would get a profile that no device of FROM has. With a fleet endpoint of FROM, every device must also report that " +
		"it runs its published state. Repeat an interrupted run.",
	examples: []string{
		"--verify-key release.pub --dry-run staging production",
		"--verify-key release.pub --endpoint https://fleet.acme.example staging production",
		"--application line --select device=canary-* staging production",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "application", Value: []string(nil), Usage: "`NAME` of an application to promote; may be repeated; default: all that both fleets have"},
		{Name: "select", Usage: "`SELECTOR` of devices of FROM that count, as in fleet.yaml; default: all", Offer: offerSelectors},
		{Name: "verify-key", Value: []string(nil), Usage: "public key `FILE` that must have signed the published states of FROM; may be repeated"},
		{Name: "policy", Usage: "trust.yaml `FILE` that must accept their signatures"},
		{Name: "dry-run", Value: false, Usage: "print what would be promoted, without copying or writing"},
		parallelFlag,
	}, endpointFlags, registryFlags),
	run: (*call).fleetPromote,
}

type promoteResult struct {
	From         string                `json:"from"`
	To           string                `json:"to"`
	Lock         string                `json:"lock"` // the file
	Applications []promotedApplication `json:"applications"`
	DryRun       bool                  `json:"dryRun"`
	Copied       registry.Copied       `json:"copied"`
}

type promotedApplication struct {
	Name       string              `json:"name"`
	Repository string              `json:"repository"`
	To         string              `json:"to"`
	Version    string              `json:"version"`
	Was        string              `json:"was,omitempty"` // in the lock
	Digest     digest.Digest       `json:"digest"`
	Components []promotedComponent `json:"components"`
	Devices    int                 `json:"devices"` // that have it
	Same       bool                `json:"same"`    // the lock is unchanged
}

type promotedComponent struct {
	Reference  string        `json:"reference"` // as the package names it
	Digest     digest.Digest `json:"digest"`
	Repository string        `json:"repository,omitempty"` // where devices get it; "": from there
}

func (r promoteResult) text(w io.Writer) {
	changed := 0
	for _, a := range r.Applications {
		was := ""
		switch {
		case a.Same:
			was = ", as before"
		case a.Was != "":
			was = ", was " + a.Was
		}
		if !a.Same {
			changed++
		}
		row(w, "promote", "%s %s  %s  (%s%s)", a.Name, a.Version, printable.Digest(a.Digest), printable.Counted(a.Devices, "device"), was)
		for _, c := range a.Components {
			row(w, "", "  %s  %s", c.Reference, printable.Digest(c.Digest))
		}
	}
	if r.Copied.Manifests > 0 {
		row(w, "copied", "%d manifests, %d of them signatures and statements; %d blobs shared, %d sent (%s)", r.Copied.Manifests, r.Copied.Referrers, r.Copied.Mounted, r.Copied.Sent, printable.Bytes(r.Copied.Bytes))
	}
	switch {
	case r.DryRun:
		row(w, "done", "%s would change in %s; nothing was written", printable.Counted(changed, "application"), r.Lock)
	case changed == 0:
		row(w, "done", "%s is up to date", r.Lock)
	default:
		row(w, "wrote", "%s", r.Lock)
		row(w, "next", "longshore fleet plan %s", r.To)
	}
}

// carrier copies artifacts from one repository to another.
type carrier struct {
	client *registry.Client
	copied *registry.Copied
}

// Carry implements [fleet.Carrier].
func (c carrier) Carry(ctx context.Context, from, to string, d digest.Digest, tag string) error {
	source, err := c.client.OpenName(ctx, from)
	if err != nil {
		return err
	}
	target, err := c.client.OpenName(ctx, to)
	if err != nil {
		return err
	}
	made, err := target.CopyFrom(ctx, source, d, tag)
	c.copied.Add(made)
	return err
}

func sameDirectory(a, b string) (bool, error) {
	one, err := os.Stat(a)
	if err != nil {
		return false, err
	}
	other, err := os.Stat(b)
	return err == nil && os.SameFile(one, other), err
}

func (c *call) fleetPromote(args []string) error {
	source, err := readFleet(args[0])
	if err != nil {
		return err
	}
	target, err := readFleet(args[1])
	if err != nil {
		return err
	}
	if same, err := sameDirectory(args[0], args[1]); err != nil || same {
		return cmp.Or(err, c.misused("FROM and TO are both %s", args[0]))
	}
	versions, err := c.publishedVersions(args[0], source)
	if err != nil {
		return err
	}
	all, err := target.Promote(source, versions, c.StringSlice("application"))
	if err != nil {
		return err
	}
	r := promoteResult{From: args[0], To: args[1], Lock: filepath.Join(args[1], fleet.LockFile), Applications: []promotedApplication{}, DryRun: c.Bool("dry-run")}
	same := true
	for _, x := range all {
		r.Applications = append(r.Applications, describePromotion(x))
		same = same && x.Same
		if r.DryRun {
			continue
		}
		if err := x.Carry(c.Context, carrier{c.registry, &r.Copied}); err != nil {
			return err
		}
	}
	if !same && !r.DryRun {
		if err := files.Write(r.Lock, target.Locks(all).Encode(), 0o644); err != nil {
			return err
		}
	}
	return c.show(r)
}

// publishedVersions are the versions that are published for the devices of a fleet, and that run, if devices report.
func (c *call) publishedVersions(dir string, f *fleet.Fleet) ([]*fleet.Promoted, error) {
	compiled, o, err := c.ready(f, dir, nil)
	if err != nil {
		return nil, err
	}
	seen, err := c.deviceReports(f, o.Devices)
	if err != nil {
		return nil, err
	}
	var runs func(artifacts.RolloutTarget, string) string
	if seen != nil {
		runs = func(t artifacts.RolloutTarget, deployment string) string { return seen[t.Device].Lacks(t, deployment) }
	}
	return compiled.Published(c.Context, registry.Upstream{Client: c.registry}, o, c.StringSlice("application"), runs)
}

func describePromotion(x *fleet.Promotion) promotedApplication {
	a := promotedApplication{
		Name: x.Application, Repository: x.Repository, To: x.To, Version: x.Version, Was: x.Was, Digest: x.Digest, Components: []promotedComponent{},
		Devices: x.Devices, Same: x.Same,
	}
	for reference, c := range x.Now.Components {
		a.Components = append(a.Components, promotedComponent{reference, c.Digest, c.Repository})
	}
	slices.SortFunc(a.Components, func(a, b promotedComponent) int { return strings.Compare(a.Reference, b.Reference) })
	return a
}
