package packaging_test

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/packaging"
)

// commit makes a repository of the tree's files as they are now, with one commit that is always the same.
func commit(t *testing.T) string {
	t.Helper()
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	dir := filepath.Join(t.TempDir(), "longshore")
	list := run(t, nil, "git", "-C", root, "ls-files", "-z", "--cached", "--others", "--exclude-standard")
	for _, name := range strings.Split(strings.TrimSuffix(list, "\x00"), "\x00") {
		data, err := os.ReadFile(filepath.Join(root, name))
		if os.IsNotExist(err) { // removed, and not committed
			continue
		}
		if err == nil {
			err = os.MkdirAll(filepath.Join(dir, filepath.Dir(name)), 0o755)
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(dir, name), data, 0o644)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	when := "2026-11-23T12:00:00Z"
	env := []string{
		"GIT_AUTHOR_DATE=" + when, "GIT_COMMITTER_DATE=" + when, "GIT_AUTHOR_NAME=a", "GIT_COMMITTER_NAME=a", "GIT_AUTHOR_EMAIL=a@acme.example",
		"GIT_COMMITTER_EMAIL=a@acme.example", "GIT_CONFIG_GLOBAL=/dev/null",
	}
	run(t, env, "git", "-C", dir, "init", "--quiet")
	run(t, env, "git", "-C", dir, "add", "--all")
	run(t, env, "git", "-C", dir, "commit", "--quiet", "--message", "all: everything")
	return dir
}

func run(t *testing.T, env []string, name string, args ...string) string {
	t.Helper()
	out, err := try(t.Context(), env, name, args...)
	if err != nil {
		t.Fatalf("%s %v: %v\n%s", name, args, err, out)
	}
	return out
}

func try(ctx context.Context, env []string, name string, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Env = append(os.Environ(), env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// Two releases of one commit, from two folders, are the same bytes; the program verifies its own release, so does cosign, and
// both refuse changed checksums.
func TestRelease(t *testing.T) {
	t.Setenv("LONGSHORE_KEY_PASSWORD", "plant")
	host := runtime.GOOS + "/" + runtime.GOARCH
	build := func(source, dir, key string) (log string) {
		var out bytes.Buffer
		err := packaging.Build(t.Context(), packaging.Options{
			Out: &out, Source: source, Dir: dir, Version: "1.2.3", Platforms: []string{host}, Key: key,
		})
		if err != nil {
			t.Fatalf("%v\n%s", err, out.String())
		}
		return out.String()
	}
	work := t.TempDir()
	one, two, first := filepath.Join(work, "one"), filepath.Join(work, "two"), commit(t)
	build(first, one, "")
	name := "longshore_1.2.3_" + runtime.GOOS + "_" + runtime.GOARCH
	run(t, nil, "tar", "-C", work, "-xzf", filepath.Join(one, name+".tar.gz"))
	longshore := filepath.Join(work, name, "longshore")
	id := strings.TrimSpace(run(t, nil, "git", "-C", first, "rev-parse", "HEAD"))[:12]
	for _, program := range testenv.OwnPrograms() {
		if program == "longshore-agent" && runtime.GOOS != "linux" {
			continue
		}
		want := program + " 1.2.3 (commit " + id + ", 2026-11-23T12:00:00Z) "
		if got := run(t, nil, filepath.Join(work, name, program), "version"); !strings.HasPrefix(got, want) {
			t.Errorf("%s prints %q, want %q", program, got, want)
		}
	}
	key := filepath.Join(work, "release")
	run(t, nil, longshore, "key", "generate", key)
	t.Setenv("GOAMD64", "v2") // of the machine that builds: it must not change the bytes
	t.Setenv("GOARM64", "v8.1")
	build(commit(t), two, key+".key")
	for _, file := range list(t, one) {
		a, b := read(t, filepath.Join(one, file)), read(t, filepath.Join(two, file))
		if !bytes.Equal(a, b) {
			t.Errorf("%s is %d bytes and %d bytes, or differs: a release must be reproducible", file, len(a), len(b))
		}
	}
	signed := []string{"checksums.txt.attestation.sigstore.json", "checksums.txt.sigstore.json", "longshore.pub"}
	want := slices.Sorted(slices.Values(append(signed, "CHANGELOG.md", "checksums.txt", "provenance.json", name+".cdx.json", name+".tar.gz")))
	if got := list(t, two); !slices.Equal(got, want) {
		t.Errorf("a signed release has %v, want %v", got, want)
	}
	if sbom := read(t, filepath.Join(two, name+".cdx.json")); !bytes.Contains(sbom, []byte("pkg:golang/oras.land/oras-go/v2@v2")) {
		t.Errorf("the SBOM does not name oras-go:\n%.1000s", sbom)
	}
	run(t, nil, "sh", "-c", "cd "+two+" && sha256sum --check --quiet checksums.txt")

	sums, public := filepath.Join(two, "checksums.txt"), filepath.Join(two, "longshore.pub")
	verifiers := map[string][]string{
		"longshore": {longshore, "verify", "--key", public, sums},
		"attested":  {longshore, "verify", "--key", public, "--attestation", "slsaprovenance1", sums},
		"cosign3": {
			testenv.Program(t, "cosign3"), "verify-blob", "--key", public, "--bundle", sums + ".sigstore.json", "--insecure-ignore-tlog=true", sums,
		},
	}
	for who, args := range verifiers {
		if out, err := try(t.Context(), nil, args[0], args[1:]...); err != nil {
			t.Errorf("%s: %v\n%s", who, err, out)
		}
	}
	if err := os.WriteFile(sums, append(read(t, sums), "0  other\n"...), 0o644); err != nil {
		t.Fatal(err)
	}
	for who, args := range verifiers {
		if out, err := try(t.Context(), nil, args[0], args[1:]...); err == nil {
			t.Errorf("%s takes changed checksums:\n%s", who, out)
		}
	}
}

// What is no release is not begun.
func TestReleaseRefuses(t *testing.T) {
	full := t.TempDir()
	if err := os.WriteFile(filepath.Join(full, "old.tar.gz"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	changed := t.TempDir()
	run(t, nil, "git", "-C", changed, "init", "--quiet")
	if err := os.WriteFile(filepath.Join(changed, "new.go"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	for want, o := range map[string]packaging.Options{
		"is not SemVer":           {Version: "v1.2.3", Dir: t.TempDir()},
		"is not empty":            {Version: "1.2.3", Dir: full},
		"has uncommitted changes": {Version: "1.2.3", Dir: t.TempDir(), Source: changed},
	} {
		o.Out = new(bytes.Buffer)
		if err := packaging.Build(t.Context(), o); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
}

func list(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func read(t *testing.T, file string) []byte {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// The changelog lists what was committed since the release before, by folder; tags that are no release do not count.
func TestChangelog(t *testing.T) {
	dir := t.TempDir()
	env := []string{"GIT_CONFIG_GLOBAL=/dev/null", "GIT_AUTHOR_NAME=a", "GIT_COMMITTER_NAME=a", "GIT_AUTHOR_EMAIL=a@acme.example", "GIT_COMMITTER_EMAIL=a@acme.example"}
	git := func(args ...string) { t.Helper(); run(t, env, "git", append([]string{"-C", dir}, args...)...) }
	changelog := func(version string) string {
		t.Helper()
		out := filepath.Join(t.TempDir(), "dist")
		if err := packaging.Build(t.Context(), packaging.Options{Out: new(bytes.Buffer), Source: dir, Dir: out, Version: version, Platforms: []string{}}); err != nil {
			t.Fatal(err)
		}
		_, changes, _ := strings.Cut(string(read(t, filepath.Join(out, "CHANGELOG.md"))), ".\n\n") // after the commit and its date
		return changes
	}
	git("init", "--quiet")
	git("commit", "--quiet", "--allow-empty", "--message", "all: everything")
	if got, want := changelog("1.0.0"), "The first release.\n"; got != want {
		t.Errorf("changelog %q, want %q", got, want)
	}
	git("tag", "v1.0.0")
	for _, message := range []string{"registry: retry", "agent: stop", "registry: resume\n\nIt was cut off.", "no folder"} {
		git("commit", "--quiet", "--allow-empty", "--message", message)
	}
	git("tag", "latest")
	git("tag", "v1.1.0") // of the release that is built
	if got, want := changelog("1.1.0"), "Changes since 1.0.0:\n\n## agent\n\n- stop\n\n## other\n\n- no folder\n\n## registry\n\n- resume\n- retry\n"; got != want {
		t.Errorf("changelog\n%s\nwant\n%s", got, want)
	}
}

// The programs for every platform are the same bytes when they are built twice, from two folders; TestRelease does it for this platform.
func TestReleaseForEveryPlatform(t *testing.T) {
	if !testenv.Nightly() {
		t.Skip("six platforms take minutes each: LONGSHORE_NIGHTLY=1 builds them")
	}
	platforms := packaging.Platforms()
	work := t.TempDir()
	one, two := filepath.Join(work, "one"), filepath.Join(work, "two")
	for _, dir := range []string{one, two} {
		if err := packaging.Build(t.Context(), packaging.Options{Out: new(bytes.Buffer), Source: commit(t), Dir: dir, Version: "1.2.3", Platforms: platforms}); err != nil {
			t.Fatal(err)
		}
		t.Setenv("GOARM64", "v8.1") // of the machine that builds: it must not change the bytes
		t.Setenv("GOAMD64", "v2")
	}
	files := list(t, one)
	if got, want := len(files), 2*len(platforms)+3; got != want {
		t.Errorf("%d files, want an archive and an SBOM of each platform, checksums, provenance and changelog: %v", got, files)
	}
	for _, file := range files {
		if !bytes.Equal(read(t, filepath.Join(one, file)), read(t, filepath.Join(two, file))) {
			t.Errorf("%s differs: a release must be reproducible", file)
		}
	}
	members := run(t, nil, "tar", "-tzf", filepath.Join(one, "longshore_1.2.3_linux_arm64.tar.gz"))
	for _, program := range testenv.OwnPrograms() {
		if !strings.Contains(members, "/"+program+"\n") {
			t.Errorf("the archive has no %s: %s", program, members)
		}
	}
}
