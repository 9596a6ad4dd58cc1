package main

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry"
)

var appPushCommand = command{
	name: "push", args: "DIRECTORY HOST/PATH[:VERSION]", min: 2, max: 2,
	usage: "push an application package",
	about: "Checks margo.yaml, packs it with the icon and the documents that it names by relative paths, and pushes it under its " +
		"version. The same input gives the same digest. Push components separately, and first: a parameter that no component takes is " +
		"rejected, and a note names components that are not in their registry yet. --channel moves a channel to this version, " +
		"as app channel set does; if another publisher moves it at the same time, the exit code is 6.",
	examples: []string{
		"./line harbor.acme.example/plant/apps/line",
		"--key release.key --channel stable ./line harbor.acme.example/plant/apps/line:1.4.0",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "channel", Value: []string(nil), Usage: "`CHANNEL` to move to this version; may be repeated"},
		overwriteFlag, dirtyFlag, dryRunFlag, annotationFlag,
	}, attachFlags, signFlags, registryFlags),
	run: (*call).appPush,
}

type appResult struct {
	pushed
	ID        string   `json:"id"`
	Version   string   `json:"version"`
	Resources []string `json:"resources"`
	Channels  []string `json:"channels,omitempty"`

	Attached []attachedInfo `json:"attached,omitempty"`
}

func (r appResult) text(w io.Writer) {
	row(w, "packed", "%s %s (%s)", r.ID, r.Version, strings.Join(append([]string{artifacts.DescriptionFile}, r.Resources...), ", "))
	rows(w, "channel", r.Channels)
	rows(w, "attached", r.Attached)
	r.pushed.text(w)
}

func (c *call) appPush(args []string) error {
	if err := c.notVersion(c.StringSlice("channel")...); err != nil {
		return err
	}
	created, err := c.created()
	if err != nil {
		return err
	}
	o := artifacts.PackageOptions{Annotations: c.annotations, Created: created}
	dir, err := openDirectory(args[0])
	if err != nil {
		return err
	}
	defer dir.Close()
	a, d, err := artifacts.PackPackage(dir.FS(), o)
	if err != nil {
		return err
	}
	if o.Annotations, err = c.origin(false, sources{dir: args[0], files: parts(a)}); err != nil {
		return err
	}
	if a, _, err = artifacts.PackPackage(dir.FS(), o); err != nil {
		return err
	}
	ref, err := registry.ParseReference(args[1])
	if err != nil {
		return err
	}
	if ref.Digest != "" || ref.Tag != "" && ref.Tag != d.Metadata.Version {
		return c.misused("%s: the tag must be the package's version, %s", args[1], d.Metadata.Version)
	}
	ref = ref.WithTag(d.Metadata.Version)
	attached, err := c.newAttacher()
	if err != nil {
		return err
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	if err := c.checkParameters(packageParameters(artifacts.DescriptionFile, description(a), d)); err != nil {
		return inDirectory(args[0], err)
	}
	r := appResult{ID: d.ID, Version: d.Metadata.Version, Resources: []string{}, Channels: c.StringSlice("channel")}
	for _, b := range a.Blobs {
		if b.Descriptor.Annotations[artifacts.AnnotationResource] != "" {
			r.Resources = append(r.Resources, b.Descriptor.Annotations[ocispec.AnnotationTitle])
		}
	}
	move, err := mover(c.Context, repo, r.Channels)
	if err != nil {
		return err
	}
	if r.pushed, r.Attached, err = attached.publish(repo, a, c.once(ref.Tag)); err != nil {
		return err
	}
	if !r.DryRun {
		if err := move(r.Digest); err != nil {
			return err
		}
	}
	return c.show(r)
}

var appListCommand = command{
	name: "list", args: "HOST/PATH", min: 1, max: 1,
	usage: "list the versions of an application or a component",
	about: "Lists the tags of a repository with their digests, versions first, the newest at the top. --range selects a SemVer " +
		"range. Tags of signatures are left out.",
	examples: []string{"harbor.acme.example/plant/apps/line", "--range ~1.4 -o json harbor.acme.example/plant/components/line-monitor"},
	flags:    slices.Concat([]cmdline.Flag{{Name: "range", Usage: "SemVer `RANGE`: ~1.4, ^1, >=1.2 <2"}}, registryFlags),
	run:      (*call).appList,
}

type appVersions struct {
	Repository string       `json:"repository"`
	Versions   []appVersion `json:"versions"`
}

type appVersion struct {
	Tag    string        `json:"tag"`
	Digest digest.Digest `json:"digest"`
}

func (r appVersions) text(w io.Writer) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "TAG\tDIGEST")
	for _, v := range r.Versions {
		fmt.Fprintf(t, "%s\t%s\n", v.Tag, v.Digest)
	}
	_ = t.Flush() // into memory
}

func (c *call) appList(args []string) error {
	ref, err := c.repositoryOnly(args[0])
	if err != nil {
		return err
	}
	var within *semver.Constraints
	if s := c.String("range"); s != "" {
		if within, err = semver.NewConstraint(s); err != nil {
			return c.misused("--range %q: %v", s, err)
		}
	}
	repo, err := c.open(ref)
	if err != nil {
		return err
	}
	tags, err := repo.Tags(c.Context)
	if err != nil {
		return err
	}
	r := appVersions{Repository: ref.Place(), Versions: []appVersion{}}
	for _, t := range newestFirst(tags, within) {
		d, err := repo.Resolve(c.Context, t)
		if err != nil {
			return err
		}
		r.Versions = append(r.Versions, appVersion{t, d.Digest})
	}
	return c.show(r)
}

// newestFirst sorts tags: versions with the newest first, then other tags by name. within may be nil.
func newestFirst(tags []string, within *semver.Constraints) []string {
	var versions []*semver.Version
	var others []string
	for _, t := range tags {
		v, err := semver.StrictNewVersion(strings.ReplaceAll(t, "_", "+"))
		switch {
		case err == nil && (within == nil || within.Check(v)):
			versions = append(versions, v)
		case err != nil && within == nil && !strings.HasPrefix(t, "sha256-"):
			others = append(others, t)
		}
	}
	slices.SortFunc(versions, func(a, b *semver.Version) int { return b.Compare(a) })
	var out []string
	for _, v := range versions {
		out = append(out, strings.ReplaceAll(v.String(), "+", "_"))
	}
	return append(out, others...)
}

var appShowCommand = command{
	name: "show", args: "HOST/PATH:TAG|@DIGEST", min: 1, max: 1,
	usage: "show the content of an application package",
	about: "Shows a package's profiles with their components and device requirements, and its parameters with defaults and valid " +
		"values.",
	examples: []string{"harbor.acme.example/plant/apps/line:1.4.0", "-o json harbor.acme.example/plant/apps/line:stable"},
	flags:    registryFlags,
	run:      (*call).appShow,
}

type appInfo struct {
	Reference string `json:"reference"`
	digested
	ID          string            `json:"id"`
	Name        string            `json:"name"`
	Description string            `json:"description,omitempty"`
	Version     string            `json:"version"`
	Profiles    []appProfile      `json:"profiles"`
	Parameters  []appParameter    `json:"parameters"`
	Resources   map[string]string `json:"resources,omitempty"` // file names by kind
}

type appProfile struct {
	ID         string   `json:"id"`
	Type       string   `json:"type"`
	Components []string `json:"components"` // references
	Needs      []string `json:"needs,omitempty"`
}

type appParameter struct {
	Name      string `json:"name"`
	Default   any    `json:"default"` // null: no default
	Values    string `json:"values,omitempty"`
	Immutable bool   `json:"immutable,omitempty"`
	Text      string `json:"description,omitempty"`
}

func (r appInfo) text(w io.Writer) {
	row(w, "app", "%s %s (%s)", r.ID, r.Version, r.Name)
	for _, x := range r.Profiles {
		needs := ""
		if len(x.Needs) > 0 {
			needs = "  needs " + strings.Join(x.Needs, ", ")
		}
		row(w, "profile", "%s (%s)%s", x.ID, x.Type, needs)
		for _, c := range x.Components {
			row(w, "", "  %s", c)
		}
	}
	width := 0
	for _, x := range r.Parameters {
		width = max(width, len(x.Name))
	}
	for _, x := range r.Parameters {
		value := "no default"
		if x.Default != nil {
			value = fmt.Sprint("default ", x.Default)
		}
		line := fmt.Sprintf("%-*s  %s", width, x.Name, value)
		if x.Values != "" {
			line += ", " + x.Values
		}
		if x.Immutable {
			line += ", cannot be changed once deployed"
		}
		row(w, "parameter", "%s", line)
	}
	fmt.Fprintf(w, "  Digest: %s\n", r.Digest)
}

func (c *call) appShow(args []string) error {
	repo, target, err := c.openTarget(args[0])
	if err != nil {
		return err
	}
	desc, err := repo.Resolve(c.Context, target)
	if err != nil {
		return err
	}
	_, manifest, err := repo.Manifest(c.Context, desc.Digest)
	if err != nil {
		return err
	}
	x, err := artifacts.OpenPackage(manifest)
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	d, err := x.Read(func(l ocispec.Descriptor) ([]byte, error) { return repo.Blob(c.Context, l, artifacts.MaxDocument) })
	if err != nil {
		return fmt.Errorf("%s: %w", args[0], err)
	}
	r := describeApp(d)
	r.Reference, r.Digest = repo.Reference().String(), desc.Digest
	for kind, l := range x.Resources {
		if r.Resources == nil {
			r.Resources = map[string]string{}
		}
		r.Resources[kind] = l.Annotations[ocispec.AnnotationTitle]
	}
	return c.show(r)
}

func describeApp(d *margo.ApplicationDescription) appInfo {
	r := appInfo{ID: d.ID, Name: d.Metadata.Name, Description: d.Metadata.Description, Version: d.Metadata.Version, Profiles: []appProfile{}, Parameters: []appParameter{}}
	for _, p := range d.DeploymentProfiles {
		x := appProfile{ID: p.ID, Type: p.Type, Components: []string{}, Needs: p.DeviceConstraints.Summary()}
		for _, c := range p.Components {
			x.Components = append(x.Components, strings.TrimPrefix(c.Properties.Repository, "oci://")+":"+c.Properties.Revision)
		}
		r.Profiles = append(r.Profiles, x)
	}
	for _, name := range slices.Sorted(maps.Keys(d.Parameters)) {
		x := appParameter{Name: name, Default: d.Parameters[name].Value}
		if set, schema, ok := d.Configuration.Setting(name); ok {
			x.Values, x.Immutable, x.Text = schema.Summary(), set.Immutable, set.Description
		}
		r.Parameters = append(r.Parameters, x)
	}
	return r
}
