// Package packaging builds a release of our own programs: archives, SBOMs, provenance, a changelog, checksums and the signature
// of those. The same commit, version and Go toolchain give the same bytes, except for signatures.
package packaging

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/testenv"
)

// Checksums is the file that names every other file of a release with its SHA-256, in the format of sha256sum. It is what is
// signed, and what the provenance is about.
const Checksums = "checksums.txt"

// module is the path of our programs' module.
const module = "github.com/longshore-dev/longshore"

// Options of a release.
type Options struct {
	Out       io.Writer // progress
	Source    string    // folder of the repository, without uncommitted changes
	Dir       string    // where the files go; must be empty or missing
	Version   string    // SemVer without v
	Platforms []string  // "linux/arm/v7"; nil: Platforms()
	Key       string    // what longshore sign and attest take as --key; "": the release is not signed
}

// Platforms are those that a release is for. Devices run Linux; the other systems get the programs of people.
func Platforms() []string {
	return []string{"linux/amd64", "linux/arm64", "linux/arm/v7", "linux/riscv64", "darwin/amd64", "darwin/arm64"}
}

// Build makes a release.
func Build(ctx context.Context, o Options) error {
	if v, err := semver.StrictNewVersion(o.Version); err != nil || v.Metadata() != "" {
		return fmt.Errorf("version %q is not SemVer without v and without build metadata: 1.4.0, 1.4.0-rc.1", o.Version)
	}
	if entries, err := os.ReadDir(o.Dir); err == nil && len(entries) > 0 {
		return fmt.Errorf("%s is not empty: it has %s", o.Dir, entries[0].Name())
	}
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	if o.Platforms == nil {
		o.Platforms = Platforms()
	}
	r := release{Options: o}
	if err := r.readCommit(ctx); err != nil {
		return err
	}
	work, err := os.MkdirTemp("", "longshore-release-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(work)
	for _, platform := range o.Platforms {
		if err := r.platform(ctx, work, platform); err != nil {
			return fmt.Errorf("%s: %w", platform, err)
		}
	}
	if err := r.changelog(ctx); err != nil {
		return err
	}
	if err := r.provenance(); err != nil {
		return err
	}
	if err := r.checksums(); err != nil {
		return err
	}
	return r.sign(ctx, work)
}

type release struct {
	Options
	commit string
	at     time.Time // of the commit
}

func (r *release) say(format string, args ...any) { fmt.Fprintf(r.Out, "  "+format+"\n", args...) }

// git runs a git command in the sources and returns its output without the last line's end.
func (r *release) git(ctx context.Context, args ...string) (string, error) {
	out, err := exec.CommandContext(ctx, "git", append([]string{"-C", r.Source}, args...)...).Output()
	if failed, ok := errors.AsType[*exec.ExitError](err); ok {
		err = fmt.Errorf("git %s: %w: %s", args[0], err, strings.TrimSpace(string(failed.Stderr)))
	}
	return strings.TrimSuffix(string(out), "\n"), err
}

func (r *release) readCommit(ctx context.Context) error {
	changed, err := r.git(ctx, "status", "--porcelain")
	if err != nil {
		return err
	}
	if changed != "" {
		return fmt.Errorf("%s has uncommitted changes, and a release is made of a commit:\n%s", r.Source, changed)
	}
	line, err := r.git(ctx, "log", "-1", "--format=%H %cI")
	if err != nil {
		return err
	}
	commit, at, _ := strings.Cut(line, " ")
	r.commit = commit
	if r.at, err = time.Parse(time.RFC3339, at); err == nil {
		r.at = r.at.UTC()
	}
	return err
}

// name is how the archive of a platform is called, without its ending.
func (r *release) name(platform string) string {
	return "longshore_" + r.Version + "_" + strings.ReplaceAll(strings.ReplaceAll(platform, "/v", "v"), "/", "_")
}

// platform builds the programs of a platform, and writes their archive and SBOM.
func (r *release) platform(ctx context.Context, work, platform string) error {
	dir := filepath.Join(work, r.name(platform))
	programs := testenv.OwnPrograms()
	if !strings.HasPrefix(platform, "linux/") {
		programs = slices.DeleteFunc(slices.Clone(programs), func(p string) bool { return p == "longshore-agent" })
	}
	if err := r.build(ctx, dir, platform, programs); err != nil {
		return err
	}
	sbom, err := sbomOf(r.name(platform), r.Version, r.at, dir, programs)
	if err != nil {
		return err
	}
	if err := r.write(r.name(platform)+".cdx.json", sbom); err != nil {
		return err
	}
	for _, more := range []string{"LICENSE", "README.md", "cmd/longshore-agent/longshore-agent.service"} {
		if strings.HasSuffix(more, ".service") && !slices.Contains(programs, "longshore-agent") {
			continue
		}
		data, err := os.ReadFile(filepath.Join(r.Source, more))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(dir, filepath.Base(more)), data, 0o644); err != nil {
			return err
		}
	}
	archive, err := archiveOf(dir, r.at)
	if err != nil {
		return err
	}
	return r.write(r.name(platform)+".tar.gz", archive)
}

func (r *release) build(ctx context.Context, dir, platform string, programs []string) error {
	system, arch, _ := strings.Cut(platform, "/")
	arch, variant, _ := strings.Cut(arch, "/")
	args := []string{
		"build", "-trimpath", "-buildvcs=true", "-tags", testenv.ReleaseTags,
		"-ldflags", "-s -w -X " + module + "/cmd/internal/build.version=" + r.Version, "-o", dir + "/",
	}
	for _, p := range programs {
		args = append(args, "./cmd/"+p)
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = r.Source
	// Nothing that the machine sets changes the bytes, or makes them need a newer processor.
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOEXPERIMENT=", "GOAMD64=v1", "GOARM64=v8.0", "GORISCV64=rva20u64",
		"GOOS="+system, "GOARCH="+arch, "GOARM="+strings.TrimPrefix(variant, "v"))
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("go build: %w\n%s", err, text)
	}
	return nil
}

func (r *release) write(name string, data []byte) error {
	r.say("%-42s %9d bytes", name, len(data))
	return os.WriteFile(filepath.Join(r.Dir, name), data, 0o644)
}

// changelog writes what changed since the release before, the subjects of commits by folder.
func (r *release) changelog(ctx context.Context) error {
	text := fmt.Sprintf("# Longshore %s\n\nCommit %s, %s.\n", r.Version, r.commit, r.at.Format(time.DateOnly))
	before, err := r.git(ctx, "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*", "--exclude", "v"+r.Version, "HEAD")
	if err != nil { // there is no tag
		text += "\nThe first release.\n"
		return r.write("CHANGELOG.md", []byte(text))
	}
	log, err := r.git(ctx, "log", "--no-merges", "--format=%s", before+"..HEAD")
	if err != nil {
		return err
	}
	folders := map[string][]string{}
	for line := range strings.Lines(log) {
		folder, what, ok := strings.Cut(strings.TrimSpace(line), ": ")
		if !ok {
			folder, what = "other", folder
		}
		folders[folder] = append(folders[folder], what)
	}
	text += "\nChanges since " + strings.TrimPrefix(before, "v") + ":\n"
	for _, name := range slices.Sorted(maps.Keys(folders)) {
		text += "\n## " + name + "\n\n"
		for _, what := range folders[name] {
			text += "- " + what + "\n"
		}
	}
	return r.write("CHANGELOG.md", []byte(text))
}

// provenance writes a predicate of SLSA provenance v1 (https://slsa.dev/spec/v1.0/provenance). It has no times of its own, so that
// it is reproducible.
func (r *release) provenance() error {
	type m = map[string]any
	data, err := json.MarshalIndent(m{
		"buildDefinition": m{
			"buildType":          "https://" + module + "/testenv/packaging@v1",
			"externalParameters": m{"version": r.Version, "platforms": r.Platforms},
			"internalParameters": m{"go": runtime.Version(), "tags": testenv.ReleaseTags},
			"resolvedDependencies": []m{{
				"uri": "git+https://" + module, "digest": m{"gitCommit": r.commit},
			}},
		},
		"runDetails": m{"builder": m{"id": "https://" + module + "/cmd/testenv"}},
	}, "", "  ")
	if err != nil {
		return err
	}
	return r.write("provenance.json", append(data, '\n'))
}

// checksums writes the sums of everything that is there.
func (r *release) checksums() error {
	entries, err := os.ReadDir(r.Dir)
	if err != nil {
		return err
	}
	text := ""
	for _, e := range entries {
		data, err := os.ReadFile(filepath.Join(r.Dir, e.Name()))
		if err != nil {
			return err
		}
		text += digest.FromBytes(data).Encoded() + "  " + e.Name() + "\n"
	}
	return r.write(Checksums, []byte(text))
}

// sign signs the checksums and attests their provenance with the program of this release for this machine, and verifies both
// with it.
func (r *release) sign(ctx context.Context, work string) error {
	if r.Key == "" {
		r.say("not signed")
		return nil
	}
	host := runtime.GOOS + "/" + runtime.GOARCH
	own := filepath.Join(work, r.name(host))
	if !slices.Contains(r.Platforms, host) {
		if err := r.build(ctx, own, host, []string{"longshore"}); err != nil {
			return err
		}
	}
	file, public := filepath.Join(r.Dir, Checksums), filepath.Join(r.Dir, "longshore.pub")
	predicate := []string{"--type", "slsaprovenance1", "--predicate", filepath.Join(r.Dir, "provenance.json")}
	for _, args := range [][]string{
		{"key", "public", "--key", r.Key, "--out", public},
		{"sign", "--quiet", "--key", r.Key, file},
		append(append([]string{"attest", "--quiet", "--key", r.Key}, predicate...), file),
		{"verify", "--key", public, file},
		{"verify", "--key", public, "--attestation", "slsaprovenance1", file},
	} {
		cmd := exec.CommandContext(ctx, filepath.Join(own, "longshore"), args...)
		cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, r.Out, r.Out
		if err := cmd.Run(); err != nil {
			return fmt.Errorf("longshore %s: %w", args[0], err)
		}
	}
	return nil
}
