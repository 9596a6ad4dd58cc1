package testenv

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"golang.org/x/sys/unix"
)

// Peer is another engine that benchmarks measure beside ours. It runs in a network namespace, so that the bridges and
// rules that it makes are gone with the box.
type Peer struct {
	Network string // path of its network namespace
	Image   string // the image that it has loaded

	box  *Box
	env  []string
	argv []string // program and flags that every call has
}

// Run runs one command of the engine and returns what it prints.
func (p *Peer) Run(ctx context.Context, args ...string) (string, error) {
	argv := append([]string{"nsenter", "--net=" + p.Network}, p.argv...)
	return p.box.Output(ctx, p.env, append(argv, args...)...)
}

// load gives the engine an image without a registry.
func (p *Peer) load(ctx context.Context, img v1.Image) error {
	p.Image = "registry.example/plant/toolbox:1"
	tag, err := name.NewTag(p.Image)
	if err != nil {
		return err
	}
	file := filepath.Join(filepath.Dir(p.Network), "image.tar")
	if err := tarball.WriteToFile(file, tag, img); err != nil {
		return fmt.Errorf("write %s: %w", file, err)
	}
	_, err = p.Run(ctx, "load", "-i", file)
	return errors.Join(err, os.Remove(file))
}

// Nerdctl is nerdctl with a containerd of its own.
type Nerdctl struct {
	Peer
	Daemon *Daemon
	// Bin is the folder of nerdctl, which also is the program of its log processes, and of its network plugins.
	Bin string
}

// StartNerdctl starts a containerd of the newest release and gives it an image through nerdctl.
func StartNerdctl(ctx context.Context, o DaemonOptions, img v1.Image) (*Nerdctl, error) {
	if err := errors.Join(InstallDebian(ctx, o.Out, "iptables", "iproute2"), Prepare(ctx, o.Out, peerNames()...)); err != nil {
		return nil, err
	}
	program, err := cachedProgram("nerdctl")
	if err != nil {
		return nil, err
	}
	n := &Nerdctl{Peer: Peer{box: o.Box}, Bin: filepath.Dir(program)}
	if n.Network, err = o.Box.Network(ctx); err != nil {
		return nil, err
	}
	o.Network = n.Network
	if n.Daemon, err = StartContainerd(ctx, o); err != nil {
		return nil, err
	}
	dir := filepath.Dir(n.Network)
	text := fmt.Sprintf("address = %q\nnamespace = %q\ndata_root = %q\ncni_path = %q\ncni_netconfpath = %q\ncgroup_manager = \"cgroupfs\"\n",
		n.Daemon.Address, n.Daemon.Namespace, filepath.Join(dir, "data"), n.Bin, filepath.Join(dir, "cni"))
	file := filepath.Join(dir, "nerdctl.toml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		return nil, err
	}
	// Its hooks are run by runc, with containerd's environment and without: the programs are found by their paths.
	n.env = []string{"NERDCTL_TOML=" + file, "PATH=" + n.Bin + ":" + n.Daemon.path + ":" + os.Getenv("PATH")}
	n.argv = []string{"nsenter", fmt.Sprintf("--mount=/proc/%d/ns/mnt", n.Daemon.PID()), program}
	return n, n.load(ctx, img)
}

// Podman is Debian's podman, with its images and containers in a box.
type Podman struct{ Peer }

// podmanConfig is for machines without systemd and where rlimits cannot be raised.
const podmanConfig = `[containers]
default_ulimits = ["nofile=%[1]d:%[1]d", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
runtime = "testenv"
cgroup_manager = "cgroupfs"
events_logger = "file"
[engine.runtimes]
testenv = [%[2]q]
`

// StartPodman installs Debian's podman, when it is not there, and gives it an image.
func StartPodman(ctx context.Context, o DaemonOptions, img v1.Image) (*Podman, error) {
	if err := InstallDebian(ctx, o.Out, "podman", "catatonit", "netavark", "aardvark-dns", "iptables", "iproute2"); err != nil {
		return nil, err
	}
	runc, err := BuildProgram(ctx, o.Out, "runc")
	if err != nil {
		return nil, err
	}
	p := &Podman{Peer{box: o.Box}}
	if p.Network, err = o.Box.Network(ctx); err != nil {
		return nil, err
	}
	var limit unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &limit); err != nil {
		return nil, err
	}
	dir := filepath.Dir(p.Network)
	config := filepath.Join(dir, "containers.conf")
	if err := os.WriteFile(config, fmt.Appendf(nil, podmanConfig, min(limit.Max, 20000), runc), 0o644); err != nil {
		return nil, err
	}
	p.env = []string{"CONTAINERS_CONF=" + config, "HOME=" + dir, "PATH=" + filepath.Dir(runc) + ":" + os.Getenv("PATH")}
	p.argv = []string{
		"podman", "--root", filepath.Join(dir, "root"), "--runroot", filepath.Join(dir, "run"), "--tmpdir", filepath.Join(dir, "tmp"),
		"--network-config-dir", filepath.Join(dir, "networks"), "--storage-driver", "overlay",
	}
	o.Box.Add("podman", func() error {
		ctx, cancel := context.WithTimeout(context.Background(), 2*sweepLimit)
		defer cancel()
		_, err := p.Run(ctx, "pod", "rm", "--all", "--force", "--time", "0")
		for _, pattern := range []string{"/sys/fs/cgroup/libpod_parent", "/sys/fs/cgroup/*/libpod_parent"} {
			dirs, _ := filepath.Glob(pattern) // the patterns are well-formed
			for _, dir := range dirs {
				below, _ := filepath.Glob(filepath.Join(dir, "*"))
				for _, d := range append(below, dir) {
					_ = os.Remove(d) // a folder without processes; files resist
				}
			}
		}
		return err
	})
	return p, p.load(ctx, img)
}
