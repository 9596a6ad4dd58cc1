package testenv

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// containerdReady is how long a containerd of ours may take to answer. Generous: test machines are small and busy.
const containerdReady = 30 * time.Second

// Daemon is a containerd of its own: own root, state, socket and log below Dir. It runs until Stop, which also ends
// every container that it started.
type Daemon struct {
	*Process        // of containerd itself: Kill ends it as a crash does, and its containers run on
	Address  string // unix socket of the API
	Dir      string // everything of this daemon, on a real file system; gone after Stop
	Root     string // content store, snapshots, metadata
	State    string // running tasks
	Bin      string // folder with containerd, ctr and containerd-shim-runc-v2
	// Namespace is one that no other daemon of this machine uses. Use it: runc's state and the cgroups of containers
	// hang on namespace and container id, whatever the daemon.
	Namespace string

	release   Release
	verifiers string
	isolated  bool
	path      string // folders of programs that it finds before the machine's own
	stop      func() error
}

// DaemonOptions of a containerd. The zero value is what most tests want.
type DaemonOptions struct {
	Box     *Box      // where its traces are kept for clean-up; nil: a box of its own, emptied by Stop
	Out     io.Writer // where builds and installations are announced; nil: os.Stderr
	Release Release   // zero: Containerd24
	Root    string    // content store, snapshots and metadata go here; "": below Dir
	Network string    // path of the network namespace that it runs in, see [Box.Network]; "": this machine's
	// Verifiers is a folder of programs that containerd asks before its transfer service pulls an image; "": none. For
	// Containerd24.
	Verifiers string
	// Isolated keeps content that one namespace has from others: they fetch it too.
	Isolated bool
}

// Containerd starts a containerd for one test, and stops it when the test ends. It needs root.
func Containerd(t testing.TB) *Daemon { return ContainerdRelease(t, Containerd24) }

// ContainerdRelease is [Containerd] of another release.
func ContainerdRelease(t testing.TB, release Release) *Daemon {
	t.Helper()
	d, err := StartContainerd(t.Context(), DaemonOptions{Release: release})
	if err != nil {
		Unavailable(t, "%v", err)
	}
	t.Cleanup(func() {
		if text := d.warnings(); t.Failed() && text != "" {
			t.Logf("end of the log of containerd:\n%s", text)
		}
		if err := d.Stop(); err != nil {
			t.Errorf("stop containerd: %v", err)
		}
	})
	return d
}

// StartContainerd is the context form of [Containerd]. ctx bounds the preparation and the start, not the daemon's life:
// call Stop.
func StartContainerd(ctx context.Context, o DaemonOptions) (*Daemon, error) {
	if os.Geteuid() != 0 {
		return nil, errors.New("start containerd: needs root")
	}
	if o.Out == nil {
		o.Out = os.Stderr
	}
	bin, runc, err := o.Release.programs(ctx, o.Out)
	if err != nil {
		return nil, err
	}
	box, own := o.Box, false
	if box == nil {
		if box, err = OpenBox(ctx); err != nil {
			return nil, err
		}
		own = true
	}
	dir, err := box.Folder("c")
	if err != nil {
		return nil, err
	}
	d := &Daemon{
		Address:   filepath.Join(dir, "sock"),
		Namespace: strings.ReplaceAll(filepath.Base(box.Dir())+"-"+filepath.Base(dir), "/", "-"),
		Dir:       dir,
		Root:      cmp.Or(o.Root, filepath.Join(dir, "root")),
		State:     filepath.Join(dir, "state"),
		Bin:       bin,
		release:   o.Release,
		verifiers: o.Verifiers,
		isolated:  o.Isolated,
		path:      bin + ":" + runc,
	}
	argv := []string{filepath.Join(bin, "containerd"), "--log-level", "warn", "--config", filepath.Join(dir, "config.toml")}
	if o.Network != "" {
		// Network plugins keep what they gave away in one place for the whole machine, wherever all else is.
		argv = append([]string{
			"nsenter", "--net=" + o.Network, "unshare", "--mount", "--propagation", "private",
			"sh", "-c", `mkdir -p /var/lib/cni && mount -t tmpfs tmpfs /var/lib/cni && exec "$@"`, "sh",
		}, argv...)
	}
	d.Process = &Process{
		LogFile: filepath.Join(dir, "containerd.log"), name: "containerd", argv: argv, mark: dir,
		env: []string{"PATH=" + d.path + ":" + os.Getenv("PATH"), "TMPDIR=" + dir, "GOGC=50"}, // as docs/device.md has it
	}
	d.stop = box.Add("containerd", d.end)
	if own {
		d.stop = box.Empty
	}
	if err = d.configure(); err == nil {
		err = d.Start(ctx)
	}
	if err != nil {
		err = fmt.Errorf("start containerd: %w\n%s", err, d.Log(20))
		return nil, errors.Join(err, d.Stop())
	}
	return d, nil
}

// Start runs the daemon again after Kill, and waits until it answers. A running daemon is no error.
func (d *Daemon) Start(ctx context.Context) error {
	if err := d.Process.Start(); err != nil {
		return err
	}
	return Await(ctx, containerdReady, func() error {
		if err := d.Running(); err != nil {
			return err
		}
		return d.ping(ctx)
	})
}

// ping asks for the version, over the API, as soon as the daemon listens: a process for each try would take its time from it.
func (d *Daemon) ping(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "unix", d.Address)
	if err != nil {
		return err
	}
	_ = conn.Close()
	_, err = d.Ctr(ctx, "version")
	return err
}

// Restart ends the daemon as an upgrade does and starts it again; its containers run on.
func (d *Daemon) Restart(ctx context.Context) error {
	_ = d.Process.Stop() // on a busy machine it may have to be killed
	return d.Start(ctx)
}

// Stop ends the daemon and all that it started, and removes Dir.
func (d *Daemon) Stop() error { return d.stop() }

// end is Stop's work; it may be repeated.
func (d *Daemon) end() error {
	if d.PID() != 0 {
		_ = d.Process.Stop() // on a busy machine it may have to be killed
	}
	err := sweep(d.Dir)
	removeParents(d.Namespace)
	return err
}

// Ctr runs containerd's own client against this daemon and returns what it prints.
func (d *Daemon) Ctr(ctx context.Context, args ...string) (string, error) {
	cmd := exec.CommandContext(ctx, filepath.Join(d.Bin, "ctr"), append([]string{"--address", d.Address}, args...)...)
	var errs bytes.Buffer
	cmd.Stderr = &errs
	out, err := cmd.Output()
	if err != nil {
		return string(out), fmt.Errorf("ctr %s: %w: %s", strings.Join(args, " "), err, tail(append(out, errs.Bytes()...), 5))
	}
	return string(out), nil
}

// maxWarnings bounds what a failed test shows of the daemon's log, in lines and bytes of a line.
const (
	maxWarnings     = 20
	maxWarningWidth = 300
)

// warnings are the end of the daemon's log without what every start says: "" when there is nothing to tell.
func (d *Daemon) warnings() string {
	text, err := os.ReadFile(d.LogFile)
	if err != nil {
		return err.Error()
	}
	var lines []string
	for line := range strings.Lines(string(text)) {
		if strings.Contains(line, "level=info") || strings.Contains(line, "level=debug") || strings.Contains(line, "loading plugin") {
			continue
		}
		line = strings.TrimRight(line, "\n")
		lines = append(lines, line[:min(len(line), maxWarningWidth)])
	}
	return strings.Join(lines[max(0, len(lines)-maxWarnings):], "\n")
}
