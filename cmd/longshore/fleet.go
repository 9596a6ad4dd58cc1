package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/registry"
)

var fleetCommands = group("fleet", "manage a fleet of devices from files",
	fleetInitCommand, fleetCheckCommand, fleetPlanCommand, fleetPublishCommand, fleetStatusCommand, fleetDiffCommand,
	fleetHistoryCommand, fleetRolloutCommands, fleetWatchCommand, fleetRollbackCommand, fleetPruneCommand, fleetPromoteCommand)

// fleetDirectory is the directory of a fleet in the command line.
func fleetDirectory(args []string) string {
	if len(args) == 0 {
		return "."
	}
	return args[0]
}

// readFleet reads a fleet; errors name the files with their directory.
func readFleet(dir string) (*fleet.Fleet, error) { return readFleetAs(dir, dir) }

// readFleetAs reads a fleet; errors use another name for its directory.
func readFleetAs(dir, name string) (*fleet.Fleet, error) {
	root, err := openDirectory(dir)
	switch {
	case errors.Is(err, syscall.ENOTDIR):
		return nil, fault.WithHint(fmt.Errorf("read fleet %s: %w", name, syscall.ENOTDIR), "name the directory that holds fleet.yaml")
	case errors.Is(err, fs.ErrNotExist):
		return nil, fault.WithHint(fmt.Errorf("read fleet %s: there is no such directory: %w", name, fault.ErrNotFound),
			"name the directory of a fleet, or create one: longshore fleet init")
	case err != nil:
		return nil, err
	}
	defer root.Close()
	f, err := fleet.Read(root.FS())
	if errors.Is(err, fault.ErrNotFound) {
		err = fmt.Errorf("read fleet %s: %w", name, err)
	}
	return f, inDirectory(name, err)
}

var fleetCheckCommand = command{
	name: "check", args: "[DIRECTORY]", max: 1,
	usage: "check the files of a fleet",
	about: "Reads fleet.yaml and the files that it includes, resolves the versions of applications, validates every parameter, and " +
		"assigns deployments to devices. Then it checks for every device that all components, images and layers are in their " +
		"registries and in the mirrors of --mirror, that --policy accepts the signatures, and that no two deployments use the " +
		"same port, serial port or network. One run reports all errors, with their position or their devices; exit code 6 means " +
		"that a device cannot get its deployments. --offline sends no requests, and does not check parameters and assignments.",
	examples: []string{"", "--offline plants/graz", "--policy trust.yaml --mirror harbor.acme.example=https://mirror.graz.example plant"},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "offline", Value: false, Usage: "send no requests to registries"},
		{Name: "policy", Usage: "trust.yaml `FILE` that must accept components and images"},
	}, contentFlags, endpointFlags, registryFlags),
	run: (*call).fleetCheck,
}

type fleetInfo struct {
	Fleet        string            `json:"fleet"`
	Devices      int               `json:"devices"`
	Groups       int               `json:"groups"`
	Deployments  int               `json:"deployments"`
	Placements   int               `json:"placements"` // of a deployment on a device
	Applications []fleetAppVersion `json:"applications"`
	Notes        []string          `json:"notes,omitempty"` // what could not be checked
}

type fleetAppVersion struct {
	Name       string        `json:"name"`
	Repository string        `json:"repository"`
	Version    string        `json:"version,omitempty"` // "": offline
	Digest     digest.Digest `json:"digest,omitempty"`
}

func (r fleetInfo) text(w io.Writer) {
	row(w, "valid", "fleet %s: %s, %s, %s", r.Fleet, printable.Counted(r.Devices, "device"), printable.Counted(r.Groups, "group"), printable.Counted(r.Deployments, "deployment"))
	for _, a := range r.Applications {
		if a.Version != "" {
			row(w, "found", "%s %s  %s  %s", a.Name, a.Version, a.Repository, printable.Digest(a.Digest))
		}
	}
	if r.Placements > 0 {
		row(w, "placed", "%s on devices", printable.Counted(r.Placements, "deployment"))
	}
	rows(w, "note", r.Notes)
}

func (c *call) fleetCheck(args []string) error {
	dir := fleetDirectory(args)
	f, err := readFleet(dir)
	if err != nil {
		return err
	}
	r := fleetInfo{Fleet: f.Name, Devices: len(f.Devices), Groups: len(f.Groups), Deployments: len(f.Deployments), Applications: []fleetAppVersion{}}
	if c.Bool("offline") {
		for _, a := range f.Applications {
			r.Applications = append(r.Applications, fleetAppVersion{Name: a.Name, Repository: fleet.Absolute(f.Registry, a.Package+a.Component)})
		}
		return c.show(r)
	}
	compiled, err := c.compile(dir, f)
	if err != nil {
		return err
	}
	for _, a := range f.Applications {
		found := compiled.Releases[a.Name]
		r.Applications = append(r.Applications, fleetAppVersion{a.Name, found.Repository, found.Version(), found.Digest})
	}
	for _, a := range compiled.Assignments {
		r.Placements += len(a.Placements)
	}
	var o fleet.Options
	if err := c.contentOptions(&o); err != nil {
		return err
	}
	if r.Notes, err = compiled.Check(c.Context, registry.Upstream{Client: c.registry}, o); err != nil {
		return err
	}
	return c.show(r)
}

// compile reads the reported capabilities of a fleet's devices, resolves its applications and assigns them to the devices. It returns all
// errors, also if applications are missing.
func (c *call) compile(dir string, f *fleet.Fleet) (*fleet.Compiled, error) {
	if err := c.loadCapabilities(f); err != nil {
		return nil, err
	}
	releases, err := fleet.Resolve(c.Context, f, registry.Upstream{Client: c.registry})
	if _, missing := errors.AsType[*strict.Error](err); err != nil && !missing {
		return nil, err
	}
	compiled, faults := fleet.Compile(f, releases)
	if err := errors.Join(inDirectory(dir, err), inDirectory(dir, faults)); err != nil {
		return nil, err
	}
	return compiled, nil
}

// fleetServices reads a component's project as a device does.
func fleetServices(ctx context.Context, archive *artifacts.Archive, env map[string]string, platform string) ([]fleet.Service, error) {
	project, err := compose.Load(ctx, archive, compose.Options{
		Deployment: "00000000-0000-0000-0000-000000000000", Component: archive.Root, Environment: env, Platform: platform,
	})
	if err != nil {
		return nil, err
	}
	var out []fleet.Service
	claimed := claims(project)
	for _, s := range project.Services {
		image := s.Image.Repository
		if s.Image.Tag != "" {
			image += ":" + s.Image.Tag
		}
		out = append(out, fleet.Service{Name: s.Name, Image: image, Digest: s.Image.Digest, Hash: s.Hash(), Claims: claimed[s.Name]})
	}
	return out, nil
}

var fleetInitCommand = command{
	name: "init", args: "[DIRECTORY]", max: 1,
	usage: "create the files of a fleet",
	about: "Creates a directory with fleet.yaml and its JSON schema for editors. With --component and --device you can publish the " +
		"fleet at once. Existing files are not overwritten.",
	examples: []string{
		"--registry harbor.acme.example/plant --component components/line-monitor:1.4.0 --device press-07 plant",
		"--name graz --registry harbor.acme.example/plant --package apps/line:~1.4 plants/graz",
	},
	flags: []cmdline.Flag{
		{Name: "name", Usage: "`NAME` of the fleet; default: the directory's name"},
		{Name: "registry", Usage: "`HOST/PATH` of all repositories of the fleet"},
		{Name: "component", Usage: "`REPOSITORY:VERSION` of a Compose component to deploy on every device"},
		{Name: "package", Usage: "`REPOSITORY:VERSION` of an application package to deploy on every device"},
		{Name: "device", Value: []string(nil), Alias: "d", Usage: "`ID` of a device; may be repeated", Offer: offerDevices},
	},
	run: (*call).fleetInit,
}

type fleetInitResult struct {
	Directory string   `json:"directory"`
	Files     []string `json:"files"`
}

func (r fleetInitResult) quietText() string { return r.Directory }
func (r fleetInitResult) text(w io.Writer) {
	for _, f := range r.Files {
		row(w, "wrote", "%s", filepath.Join(r.Directory, f))
	}
}

func (c *call) fleetInit(args []string) error {
	dir := fleetDirectory(args)
	o := fleet.Beginning{
		Name: c.String("name"), Registry: c.String("registry"), Component: c.String("component"), Package: c.String("package"), Devices: c.StringSlice("device"),
	}
	if o.Name == "" {
		full, err := filepath.Abs(dir)
		if err != nil {
			return err
		}
		o.Name = filepath.Base(full)
	}
	if o.Component != "" && o.Package != "" {
		return c.misused("--component and --package exclude each other")
	}
	all, err := o.Files()
	if err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	r := fleetInitResult{Directory: dir, Files: []string{}}
	for _, f := range all {
		name := filepath.Join(dir, f.Name)
		if err := files.WriteNew(name, f.Data, 0o644); errors.Is(err, fs.ErrExist) {
			return fault.WithHint(fmt.Errorf("create fleet %s: %s already exists: %w", o.Name, name, fault.ErrConflict),
				"edit that file, or name another directory")
		} else if err != nil {
			return err
		}
		r.Files = append(r.Files, f.Name)
	}
	return c.show(r)
}
