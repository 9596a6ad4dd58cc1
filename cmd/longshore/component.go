package main

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
)

var componentPushCommand = command{
	name: "push", args: "DIRECTORY|CHART.tgz|oci://PROJECT HOST/PATH:VERSION", min: 2, max: 2,
	usage: "pack a Compose project or a Helm chart and push it",
	about: "Reads compose.yaml (or compose.yml, docker-compose.yml, docker-compose.yaml) and its override as docker compose does, and " +
		"checks that devices support the project. Then it resolves extends and include, writes the digest of every image into a " +
		"lock, packs one compose.yaml with the files that it names, and pushes the archive. The same input gives the same " +
		"digest. Push the images first. Instead of a directory, oci://HOST/PATH:TAG names a project from docker compose " +
		"publish.\n\nA directory with Chart.yaml, or a .tgz of helm package with its .prov file, is pushed as helm push does: " +
		"the tag is the chart's version, and its name is the repository's last element. --sbom and --provenance are attached " +
		"before the tag is set: with --key as signed attestations for longshore verify --attestation and cosign " +
		"verify-attestation, otherwise as unsigned referrers.",
	examples: []string{
		"./line-monitor harbor.acme.example/plant/components/line-monitor:1.4.0",
		"--key release.key --env TAG=2.10 ./web harbor.acme.example/plant/components/web:2.0.1",
		"oci://docker.io/acme/line:1 harbor.acme.example/plant/components/line:1.0.0",
		"--key ci.key --sbom sbom.spdx.json --provenance provenance.json ./chart harbor.acme.example/plant/charts/line",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "name", Usage: "`NAME` of the component; default: the repository's last element"},
		fileFlag,
		{Name: "env", Value: []string(nil), Usage: "`KEY=VALUE` for variables in image references of compose.yaml; may be repeated"},
		{Name: "platform", Value: []string(nil), Usage: "`PLATFORM` of devices, such as linux/arm64: every image must support it; other platforms are left out of the lock; may be repeated"},
		overwriteFlag, dirtyFlag, dryRunFlag, annotationFlag,
	}, attachFlags, signFlags, registryFlags),
	run: (*call).componentPush,
}

type componentResult struct {
	pushed
	Name    string        `json:"name"`
	Version string        `json:"version"`
	Files   []string      `json:"files"`
	Bytes   int64         `json:"bytes"` // of the archive
	Images  []lockedImage `json:"images"`

	Attached []attachedInfo `json:"attached,omitempty"`
}

type lockedImage struct {
	Reference string        `json:"reference"`
	Digest    digest.Digest `json:"digest"`
	Platforms []string      `json:"platforms"`
}

func (r componentResult) text(w io.Writer) {
	row(w, "packed", "%s (%s, %s)", topLevel(r.Files), printable.Counted(len(r.Files), "file"), printable.Bytes(r.Bytes))
	width := 0
	for _, i := range r.Images {
		width = max(width, len(i.Reference))
	}
	label := "locked"
	for _, i := range r.Images {
		row(w, label, "%-*s  %s  %s", width, i.Reference, printable.Digest(i.Digest), strings.Join(i.Platforms, ", "))
		label = ""
	}
	rows(w, "attached", r.Attached)
	r.pushed.text(w)
}

func (c *call) componentPush(args []string) error {
	if chartSource(args[0]) {
		return c.chartPush(args)
	}
	ref, err := tagged(args[1], "component")
	if err != nil {
		return err
	}
	env, err := c.pairs("env")
	if err != nil {
		return err
	}
	annotations := c.annotations
	created, err := c.created()
	if err != nil {
		return err
	}
	packed, err := c.packFrom(args[0])
	if err != nil {
		return err
	}
	images, err := packed.Images(env)
	if err != nil {
		return err
	}
	if isDirectory(args[0]) {
		used, err := filesOf(packed.Files)
		if err != nil {
			return err
		}
		if annotations, err = c.origin(false, sources{dir: args[0], files: used}); err != nil {
			return err
		}
	}
	attached, err := c.newAttacher()
	if err != nil {
		return err
	}
	name := cmp.Or(c.String("name"), lastElement(ref))
	a, lock, err := release.Pack(c.Context, c.registry, packed.Files, images, artifacts.ComponentOptions{
		Name: name, Version: ref.Tag, Created: created, Annotations: annotations,
	}, c.StringSlice("platform")...)
	if err != nil {
		return err
	}
	repo, err := c.registry.Open(c.Context, ref)
	if err != nil {
		return err
	}
	r := componentResult{Name: name, Version: ref.Tag, Images: []lockedImage{}}
	if err := r.describe(a, lock); err != nil {
		return err
	}
	if r.pushed, r.Attached, err = attached.publish(repo, a, c.once(ref.Tag)); err != nil {
		return err
	}
	return c.show(r)
}

// isDirectory reports whether the user named a directory, and not a reference.
func isDirectory(from string) bool {
	return !strings.HasPrefix(from, "oci://") && !strings.HasPrefix(from, "oci-layout:")
}

// packFrom makes of a directory, or of what docker compose publish has pushed, what a device takes.
func (c *call) packFrom(from string) (*composefile.Packed, error) {
	if isDirectory(from) {
		return c.packProject(from)
	}
	ref, err := registry.ParseReference(from)
	if err != nil {
		return nil, err
	}
	repo, err := c.upstream(ref)
	if err != nil {
		return nil, err
	}
	desc, err := repo.Resolve(c.Context, cmp.Or(ref.Digest.String(), ref.Tag, "latest"))
	if err != nil {
		return nil, err
	}
	_, manifest, err := repo.ManifestLimit(c.Context, desc.Digest, artifacts.MaxPublished)
	if err != nil {
		return nil, err
	}
	name := strings.TrimPrefix(from, "oci://")
	published, err := artifacts.OpenPublished(name, manifest)
	if err != nil {
		return nil, err
	}
	files, names, err := published.Files(func(d ocispec.Descriptor) ([]byte, error) {
		d.Data = nil // what the manifest holds inline is fetched and checked like everything else
		return repo.Blob(c.Context, d, artifacts.MaxDocument)
	})
	if err != nil {
		return nil, err
	}
	packed, err := composefile.Pack(name, files, names...)
	if err != nil {
		return nil, err
	}
	return packed, c.checkPacked(name, packed)
}

// openDirectory opens a directory; links that leave it are not followed.
func openDirectory(name string) (*os.Root, error) {
	if info, err := os.Stat(name); err == nil && !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: name, Err: syscall.ENOTDIR}
	}
	return os.OpenRoot(name)
}

// packProject makes of a directory what a device takes, and tells its notices. Nothing outside the directory is read,
// whatever links there are in it.
func (c *call) packProject(name string) (*composefile.Packed, error) {
	dir, err := openDirectory(name)
	if err != nil {
		return nil, fault.WithHint(fmt.Errorf("read project %s: %w", name, errors.Unwrap(err)), projectHint)
	}
	defer dir.Close()
	names := c.StringSlice("file")
	for i, file := range names {
		if names[i] = path.Clean(filepath.ToSlash(file)); !fs.ValidPath(names[i]) || strings.Contains(names[i], "/") {
			return nil, c.misused("--file %s is not a file in the directory %s itself", file, name)
		}
	}
	if len(names) == 0 {
		if names = composefile.ProjectFiles(dir.FS()); names == nil {
			return nil, fault.WithHint(fmt.Errorf("read %s: %w: there is no %s in it", name, fault.ErrNotFound, composefile.Name), projectHint)
		}
	}
	packed, err := composefile.Pack(filepath.ToSlash(name), dir.FS(), c.StringSlice("file")...)
	if err != nil {
		return nil, err
	}
	return packed, c.checkPacked(path.Join(filepath.ToSlash(name), names[0]), packed)
}

// checkPacked checks what was packed as a device will, with the packed files and nothing else, and shows its notices.
func (c *call) checkPacked(file string, packed *composefile.Packed) error {
	notices, err := compose.Check(c.Context, packed.Project, packed.Files)
	if err != nil {
		return err
	}
	c.printNotices(file, notices)
	return nil
}

const projectHint = "give the directory that holds compose.yaml or docker-compose.yml, or name its files with --file"

var fileFlag = cmdline.Flag{Name: "file", Value: []string(nil), Alias: "f", Usage: "Compose `FILE` in the directory, each merged over the one before; default: compose.yaml or docker-compose.yml, with its override; may be repeated"}

// describe reads the packed artifact as a device does.
func (r *componentResult) describe(a *artifacts.Artifact, lock *artifacts.Lock) error {
	x, err := artifacts.OpenComponent(a.Manifest)
	if err != nil {
		return err
	}
	for _, b := range a.Blobs {
		if b.Descriptor.Digest != x.Archive.Digest {
			continue
		}
		archive, err := artifacts.ReadArchive(b.Data)
		if err != nil {
			return err
		}
		if r.Files, err = filesOf(archive.FS); err != nil {
			return err
		}
		r.Bytes = int64(len(b.Data))
	}
	for _, i := range lock.Images {
		l := lockedImage{Reference: i.Reference, Digest: i.Digest, Platforms: []string{}}
		for _, p := range i.Platforms {
			l.Platforms = append(l.Platforms, p.Platform)
		}
		r.Images = append(r.Images, l)
	}
	return nil
}

func filesOf(fsys fs.FS) ([]string, error) {
	var out []string
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, name)
		}
		return err
	})
	return out, err
}

// topLevel lists the files and directories at the top of a list of files.
func topLevel(files []string) string {
	var out []string
	for _, f := range files {
		top, _, below := strings.Cut(f, "/")
		if below {
			top += "/"
		}
		if !slices.Contains(out, top) {
			out = append(out, top)
		}
	}
	return strings.Join(out, ", ")
}
