package testenv

import (
	"bytes"
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// module is the path in the go.mod at the root of this repository; [Root] looks for it.
const module = "github.com/longshore-dev/longshore"

// cacheVariable overrides where programs, images and Debian packages are kept between runs.
const cacheVariable = "LONGSHORE_TESTENV_CACHE"

// program says how one binary is made.
type program struct {
	name   string   // how tests ask for it
	pkg    string   // main package, in the module of testenv/tools
	module string   // module whose version is linked in by variable, "" when the program knows its own
	ldvar  string   // variable for the version
	cgo    bool     // needs a C compiler and the Debian packages below
	tags   string   // build tags
	debian []string // Debian packages that must be installed to build it
	pins   string   // folder below testenv/tools that pins it; "": that folder itself
	file   string   // name of the binary; "": name
	peer   bool     // benchmarks measure beside it; nothing else needs it
	rare   bool     // only tests of a nightly run need it
}

// Folders below testenv/tools that pin programs.
const (
	appsPins         = "apps"         // they go into images and never run here
	containerd17Pins = "containerd17" // an older containerd, beside the one that devices should have
	cniPins          = "cni"          // plugins of networks that a site declares
	sigstorePins     = "sigstore"     // the servers of an instance of sigstore
	helmPins         = "helm"         // helm, which pulls and pushes charts
	nerdctlPins      = "nerdctl"      // nerdctl and the plugins that it needs
	orasPins         = "oras"         // oras, which copies from registry to registry
	spirePins        = "spire"        // SPIRE, which gives programs SPIFFE identities
)

// programs are all that tests run. Order is the order of building: what most tests need comes first.
func programs() []program {
	const (
		containerd = "github.com/containerd/containerd/v2"
		older      = "github.com/containerd/containerd"
		plugins    = "github.com/containernetworking/plugins/plugins"
		shim       = "containerd-shim-runc-v2"
		nerdctl    = "github.com/containerd/nerdctl/v2"
	)
	return []program{
		{name: "gofumpt", pkg: "mvdan.cc/gofumpt"},
		{name: "staticcheck", pkg: "honnef.co/go/tools/cmd/staticcheck"},
		{name: "containerd", pkg: containerd + "/cmd/containerd", module: containerd, ldvar: containerd + "/version.Version"},
		{name: "containerd-shim-runc-v2", pkg: containerd + "/cmd/containerd-shim-runc-v2", module: containerd, ldvar: containerd + "/version.Version"},
		{name: "ctr", pkg: containerd + "/cmd/ctr", module: containerd, ldvar: containerd + "/version.Version"},
		// Without libseccomp runc refuses every container that has a seccomp profile.
		{name: "runc", pkg: "github.com/opencontainers/runc", cgo: true, tags: "seccomp", debian: []string{"gcc", "libseccomp-dev", "pkg-config"}},
		{name: "containerd17", pkg: older + "/cmd/containerd", module: older, ldvar: older + "/version.Version", pins: containerd17Pins, file: "containerd"},
		{name: "containerd17-shim", pkg: older + "/cmd/" + shim, module: older, ldvar: older + "/version.Version", pins: containerd17Pins, file: shim},
		{name: "containerd17-ctr", pkg: older + "/cmd/ctr", module: older, ldvar: older + "/version.Version", pins: containerd17Pins, file: "ctr"},
		{name: "cni-bridge", pkg: plugins + "/main/bridge", pins: cniPins, file: "bridge"},
		{name: "cni-host-local", pkg: plugins + "/ipam/host-local", pins: cniPins, file: "host-local"},
		{name: "nats-server", pkg: "github.com/nats-io/nats-server/v2", pins: appsPins},
		{name: "caddy", pkg: "github.com/caddyserver/caddy/v2/cmd/caddy", pins: appsPins},
		{name: "cosign3", pkg: "github.com/sigstore/cosign/v3/cmd/cosign"},
		{name: "cosign2", pkg: "github.com/sigstore/cosign/v2/cmd/cosign"},
		{name: "helm", pkg: "helm.sh/helm/v3/cmd/helm", pins: helmPins},
		{name: "fulcio", pkg: "github.com/sigstore/fulcio", pins: sigstorePins},
		{name: "timestamp-server", pkg: "github.com/sigstore/timestamp-authority/v2/cmd/timestamp-server", pins: sigstorePins},
		{name: "rekor-server", pkg: "github.com/sigstore/rekor-tiles/v2/cmd/rekor-server/posix", pins: sigstorePins},
		{name: "nerdctl", pkg: nerdctl + "/cmd/nerdctl", module: nerdctl, ldvar: nerdctl + "/pkg/version.Version", pins: nerdctlPins, peer: true},
		{name: "nerdctl-bridge", pkg: plugins + "/main/bridge", pins: nerdctlPins, file: "bridge", peer: true},
		{name: "nerdctl-host-local", pkg: plugins + "/ipam/host-local", pins: nerdctlPins, file: "host-local", peer: true},
		{name: "nerdctl-portmap", pkg: plugins + "/meta/portmap", pins: nerdctlPins, file: "portmap", peer: true},
		{
			name: "nerdctl-firewall", pkg: plugins + "/meta/firewall", module: "github.com/containernetworking/plugins",
			ldvar: "github.com/containernetworking/plugins/pkg/utils/buildversion.BuildVersion", pins: nerdctlPins, file: "firewall", peer: true,
		},
		{name: "nerdctl-tuning", pkg: plugins + "/meta/tuning", pins: nerdctlPins, file: "tuning", peer: true},
		{name: "oras", pkg: "oras.land/oras/cmd/oras", pins: orasPins, peer: true},
		{name: "spire-server", pkg: "github.com/spiffe/spire/cmd/spire-server", cgo: true, debian: []string{"gcc"}, pins: spirePins, rare: true}, // cgo: SQLite
		{name: "spire-agent", pkg: "github.com/spiffe/spire/cmd/spire-agent", cgo: true, debian: []string{"gcc"}, pins: spirePins, rare: true},   // as the server, with which it shares most packages
	}
}

// peerNames lists the programs that only benchmarks need.
func peerNames() (names []string) {
	for _, p := range programs() {
		if p.peer {
			names = append(names, p.name)
		}
	}
	return names
}

// ProgramNames lists what [Program] and [Prepare] know, in the order of building.
func ProgramNames() []string {
	var names []string
	for _, p := range programs() {
		names = append(names, p.name)
	}
	return names
}

// started is the working directory of a test before it goes elsewhere.
var started, _ = os.Getwd()

// Root is the top folder of this repository: the first folder at or above the working directory whose go.mod names it, else at
// or above the directory in which this process started.
func Root() (string, error) {
	wd, err := os.Getwd()
	if err != nil {
		return "", err
	}
	for _, dir := range []string{wd, started} {
		for ; ; dir = filepath.Dir(dir) {
			data, err := os.ReadFile(filepath.Join(dir, "go.mod"))
			if line, _, _ := bytes.Cut(data, []byte("\n")); err == nil && string(line) == "module "+module {
				return dir, nil
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return "", fmt.Errorf("%s is not inside a clone of %s", wd, module)
}

// CacheDir is where everything is kept that is worth keeping between runs: ${LONGSHORE_TESTENV_CACHE}, else
// longshore/testenv below the user's cache folder. It may be deleted at any time when no test runs.
func CacheDir() (string, error) {
	if dir := os.Getenv(cacheVariable); dir != "" {
		return filepath.Abs(dir)
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		return "", fmt.Errorf("find a cache folder: %w (set %s)", err, cacheVariable)
	}
	return filepath.Join(dir, "longshore", "testenv"), nil
}

// Unavailable ends a test that the machine cannot run: skipped, or failed with TESTENV_REQUIRE=1.
func Unavailable(t testing.TB, format string, args ...any) {
	t.Helper()
	if os.Getenv("TESTENV_REQUIRE") == "1" {
		t.Fatalf("TESTENV_REQUIRE=1: "+format, args...)
	}
	t.Skipf(format, args...)
}

// Program returns the path of a pinned program, built into the cache when it is not there yet.
func Program(t testing.TB, name string) string {
	t.Helper()
	path, err := BuildProgram(t.Context(), os.Stderr, name)
	if err != nil {
		Unavailable(t, "%v", err)
	}
	return path
}

// Prepare builds the named programs; without names all but those that only benchmarks or nightly runs need. It says on out what it is going to build and install
// before it does, and nothing when all is there.
func Prepare(ctx context.Context, out io.Writer, names ...string) error {
	if len(names) == 0 {
		for _, p := range programs() {
			if !p.peer && !p.rare {
				names = append(names, p.name)
			}
		}
	}
	for _, name := range names {
		if _, err := BuildProgram(ctx, out, name); err != nil {
			return err
		}
	}
	return nil
}

// BuildProgram is the context form of [Program]. Several processes may ask for the same program at once: one builds, the
// others wait for it.
func BuildProgram(ctx context.Context, out io.Writer, name string) (string, error) {
	path, err := cachedProgram(name)
	if !errors.Is(err, os.ErrNotExist) {
		return path, err
	}
	p := programs()[slices.Index(ProgramNames(), name)]
	tools, err := p.tools()
	if err != nil {
		return "", err
	}
	dir := filepath.Dir(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return "", fmt.Errorf("make the program cache: %w", err)
	}
	unlock, err := lockFile(ctx, path+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	if _, err := os.Stat(path); err == nil {
		return path, nil // built while we waited
	}
	if err := InstallDebian(ctx, out, p.debian...); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	version, err := moduleVersion(tools, p.module)
	if err != nil {
		return "", err
	}
	if err := p.build(ctx, out, tools, path, version); err != nil {
		return "", err
	}
	return path, nil
}

// tools is the folder of the module that pins the program.
func (p program) tools() (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	return filepath.Join(root, "testenv", "tools", p.pins), nil
}

// cachedProgram returns where a program is; with os.ErrNotExist, where it will be.
func cachedProgram(name string) (string, error) {
	i := slices.Index(ProgramNames(), name)
	if i < 0 {
		return "", fmt.Errorf("program %q is not one of %s", name, strings.Join(ProgramNames(), ", "))
	}
	p := programs()[i]
	tools, err := p.tools()
	if err != nil {
		return "", err
	}
	dir, err := programDir(tools, p.pins)
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, cmp.Or(p.file, name))
	_, err = os.Stat(path)
	return path, err
}

// programDir is the cache folder for the current pins: everything that shapes the binaries is in its name.
func programDir(tools, pins string) (string, error) {
	h := sha256.New()
	for _, name := range []string{"go.mod", "go.sum"} {
		data, err := os.ReadFile(filepath.Join(tools, name))
		if err != nil {
			return "", fmt.Errorf("read the pinned versions: %w", err)
		}
		fmt.Fprintf(h, "%s %d\n", name, len(data))
		h.Write(data)
	}
	fmt.Fprintf(h, "%s %s %s %s\n", runtime.Version(), runtime.GOOS, runtime.GOARCH, buildFlags)
	for _, p := range programs() {
		if p.pins == pins {
			fmt.Fprintln(h, p.name, p.pkg, p.ldvar, p.cgo, p.tags)
		}
	}
	cache, err := CacheDir()
	if err != nil {
		return "", err
	}
	return filepath.Join(cache, "programs-"+hex.EncodeToString(h.Sum(nil))[:16]), nil
}

// buildFlags are common to all programs; part of the cache key.
const buildFlags = "-trimpath -mod=readonly -buildvcs=false"

func (p program) build(ctx context.Context, out io.Writer, tools, path, version string) error {
	ldflags := "-s -w"
	if p.ldvar != "" {
		ldflags += " -X " + p.ldvar + "=" + version
	}
	args := append([]string{"build"}, strings.Fields(buildFlags)...)
	args = append(args, "-ldflags", ldflags)
	if p.tags != "" {
		args = append(args, "-tags", p.tags)
	}
	tmp := path + ".new"
	args = append(args, "-o", tmp, p.pkg)
	fmt.Fprintf(out, "testenv: building %s (%s) into %s\n", p.name, p.pkg, filepath.Dir(path))
	cgo := "CGO_ENABLED=0"
	if p.cgo {
		cgo = "CGO_ENABLED=1"
	}
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = tools
	cmd.Env = append(goEnv(), cgo)
	text, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("build %s: %w\n%s", p.name, err, tail(text, 40))
	}
	if err := os.Rename(tmp, path); err != nil {
		return fmt.Errorf("keep %s: %w", p.name, err)
	}
	return nil
}

// goEnv is our environment without what would change how tools are built.
func goEnv() []string {
	return slices.DeleteFunc(os.Environ(), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains([]string{"GOFLAGS", "GOOS", "GOARCH", "CGO_ENABLED", "GOWORK"}, name)
	})
}

// moduleVersion finds a required module's version in the tools' go.mod; "" for "".
func moduleVersion(tools, path string) (string, error) {
	if path == "" {
		return "", nil
	}
	data, err := os.ReadFile(filepath.Join(tools, "go.mod"))
	if err != nil {
		return "", fmt.Errorf("read the pinned versions: %w", err)
	}
	for line := range strings.Lines(string(data)) {
		if f := strings.Fields(line); len(f) >= 2 && f[0] == path {
			return f[1], nil
		}
	}
	return "", fmt.Errorf("%s is not required by %s/go.mod", path, tools)
}

// lockFile takes an exclusive lock that dies with the process, waiting until ctx ends.
func lockFile(ctx context.Context, path string) (unlock func(), err error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	err = poll(ctx, func() error { return unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) })
	if err != nil {
		return nil, errors.Join(fmt.Errorf("wait for %s: %w", path, err), f.Close())
	}
	return func() { _ = f.Close() }, nil
}

// tail returns the last n lines of text.
func tail(text []byte, n int) string {
	lines := strings.SplitAfter(strings.TrimRight(string(text), "\n"), "\n")
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	return strings.Join(lines, "")
}
