package soak

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

const (
	smallFiles = 400     // of an image, a kilobyte each: what a power cut empties first
	bigFile    = 6 << 20 // bytes that do not compress
	newBlobs   = 4       // of an image that changed: three layers and the configuration
)

// cutDevice is a world whose device has a disk of its own.
type cutDevice struct {
	*world.World
	seed       uint64
	disk       *testenv.Disk
	ports      [2]string
	generation int
	images     map[string]v1.Image // by digest; what was published last, and before
	span       time.Duration       // what an update without a cut takes
}

func newCutDevice(ctx context.Context, box *testenv.Box, o PowerCutOptions) (*cutDevice, error) {
	d := &cutDevice{seed: o.Seed, images: map[string]v1.Image{}}
	var err error
	if d.disk, err = box.NewDisk(ctx, powerCutDisk); err != nil {
		return nil, err
	}
	daemon, err := testenv.StartContainerd(ctx, testenv.DaemonOptions{
		Box: box, Out: o.Out, Release: o.Release, Root: filepath.Join(d.disk.Dir, "containerd"),
	})
	if err != nil {
		return nil, err
	}
	d.World, err = world.New(ctx, world.Options{Box: box, Out: o.Out, Name: "cut", Pool: "10.217.0.0/16", Poll: 10 * time.Second, Containerd: daemon})
	if err != nil {
		return nil, err
	}
	for n := range d.ports {
		port, err := testenv.FreePort()
		if err != nil {
			return nil, err
		}
		d.ports[n] = fmt.Sprint(port)
	}
	return d, d.install(ctx)
}

// install brings the device to its first generation, undisturbed, and measures how long that takes.
func (d *cutDevice) install(ctx context.Context) error {
	if _, err := d.Run(ctx, "longshore", "key", "generate", "release"); err != nil {
		return err
	}
	if err := d.publish(ctx, 0); err != nil {
		return err
	}
	if err := d.Init(ctx, "--data-dir", filepath.Join(d.disk.Dir, "agent")); err != nil {
		return err
	}
	if err := d.disk.Sync(); err != nil {
		return err
	}
	began := time.Now()
	if err := d.Boot(ctx); err != nil {
		return err
	}
	if err := testenv.Await(ctx, repairLimit, func() error { return errors.Join(d.Agent.Running(), d.runs(ctx)) }); err != nil {
		return fmt.Errorf("first installation: %w\n%s", err, d.Logs())
	}
	d.span = time.Since(began)
	if _, err := d.compare(ctx); err != nil {
		return fmt.Errorf("first installation: %w", err)
	}
	fmt.Fprintf(d.Out, "an installation without a cut takes %.1f s\n", d.span.Seconds())
	return nil
}

// image makes an image of a generation: the program, a layer of many small files, one big one, and the text that it serves.
func (d *cutDevice) image(ctx context.Context, name string, generation int) (v1.Image, error) {
	base, err := testenv.SoftwareImage(ctx, d.Out, "toolbox", testenv.HostPlatform())
	if err != nil {
		return nil, err
	}
	dice := rand.NewChaCha8([32]byte{byte(generation), byte(generation >> 8), name[0]})
	bytes := func(n int) []byte {
		b := make([]byte, n)
		_, _ = dice.Read(b) // never fails
		return b
	}
	var small []testenv.File
	for n := range smallFiles {
		small = append(small, testenv.File{Path: fmt.Sprintf("lib/%s-%d/%d/f%d", name, generation, n%20, n), Data: bytes(1024)})
	}
	small = append(small, testenv.File{Path: "lib/current", Link: fmt.Sprintf("%s-%d", name, generation)})
	return testenv.AppendLayers(base, small,
		[]testenv.File{{Path: "lib/big-" + name, Data: bytes(bigFile), Mode: fs.FileMode(0o750), UID: 33}},
		[]testenv.File{{Path: "lib/one", Data: bytes(1 << 20)}, {Path: "lib/two", Data: bytes(64 << 10)}})
}

// publish makes the next generation: a's image changes each time, b's every third time.
func (d *cutDevice) publish(ctx context.Context, generation int) error {
	var b strings.Builder
	b.WriteString("services:\n")
	for n, of := range []int{generation, generation / 3} {
		name := string(rune('a' + n))
		img, err := d.image(ctx, name, of)
		if err != nil {
			return err
		}
		p, err := d.Registry.Push(ctx, fmt.Sprintf("plant/%s:%d", name, of), img)
		if err != nil {
			return err
		}
		d.images[p.Digest] = img
		fmt.Fprintf(&b, "  %s:\n    image: %s\n    command: [serve, \"8080\", \"generation %d\"]\n    restart: always\n    stop_grace_period: 2s\n    ports: [\"127.0.0.1:%s:8080\"]\n    deploy: {update_config: {monitor: 500ms}}\n",
			name, p.Tagged(), of, d.ports[n])
	}
	component, err := d.Component(ctx, "line", fmt.Sprintf("1.0.%d", generation), b.String())
	if err != nil {
		return err
	}
	err = d.Release(ctx, component)
	d.generation = generation
	d.Registry.Faults.Forget()
	return err
}

// cutDuring lets the agent notice the new generation and cuts the power at a point that the dice choose: some time after
// the update began, or some time after a layer was asked for. It returns what the device was doing.
func (d *cutDevice) cutDuring(ctx context.Context, dice *rand.Rand) (string, error) {
	layers, pause := 0, time.Duration(dice.Int64N(int64(d.span)*5/4))
	if dice.IntN(2) == 0 {
		layers, pause = 1+dice.IntN(4), time.Duration(dice.Int64N(int64(400*time.Millisecond)))
	}
	written := dice.IntN(3) == 0 // the kernel writes some of it just before
	asked := make(chan error, 1)
	syncing, cancel := context.WithCancel(ctx)
	go func() { // the agent's answer comes when the check has ended, or never
		_, err := d.Control(syncing, "sync")
		asked <- err
	}()
	defer func() { cancel(); <-asked }()
	if layers > 0 {
		err := testenv.Await(ctx, repairLimit, func() error {
			if n := len(d.Registry.Faults.Requests("GET", "/plant/[ab]/blobs/")); n < layers {
				return fmt.Errorf("%d layers were asked for, want %d", n, layers)
			}
			return nil
		})
		if err != nil {
			return "", err
		}
	}
	if err := delay.For(ctx, pause); err != nil {
		return "", err
	}
	if written {
		if err := d.disk.Sync(); err != nil {
			return "", err
		}
	}
	where := d.doing(ctx)
	return where, d.cut(ctx)
}

// doing is what the update has come to, as seen from outside.
func (d *cutDevice) doing(ctx context.Context) string {
	if len(d.Registry.Faults.Requests("GET", "/plant/[ab]/manifests/")) == 0 {
		return "checking"
	}
	blobs := newBlobs
	if d.generation%3 == 0 {
		blobs += newBlobs
	}
	if len(d.Registry.Faults.Requests("GET", "/plant/[ab]/blobs/")) < blobs {
		return "pulling"
	}
	if d.answers(ctx, 0) == nil {
		return "running"
	}
	return "unpacking or replacing"
}

// cut takes the power away.
func (d *cutDevice) cut(ctx context.Context) error {
	return d.Box.PowerCut(ctx, d.disk, d.Containerd, d.Path("run"), filepath.Join(d.Containerd.Dir, "s"))
}

// powerOn starts the daemons, as a boot does.
func (d *cutDevice) powerOn(ctx context.Context) error {
	if err := d.Containerd.Start(ctx); err != nil {
		return fmt.Errorf("containerd does not start after the cut: %w", err)
	}
	return d.Agent.Start()
}

// emptied counts the unpacked files without content: no image has such files.
func (d *cutDevice) emptied() (int, error) {
	count := 0
	dirs, err := filepath.Glob(filepath.Join(d.Containerd.Root, "io.containerd.snapshotter.v1.overlayfs", "snapshots", "*", "fs", "lib"))
	if err != nil {
		return 0, err
	}
	for _, dir := range dirs {
		err := filepath.WalkDir(dir, func(_ string, e fs.DirEntry, err error) error {
			if err != nil || !e.Type().IsRegular() {
				return err
			}
			info, err := e.Info()
			if err == nil && info.Size() == 0 {
				count++
			}
			return err
		})
		if err != nil {
			return count, err
		}
	}
	return count, nil
}

// runs is nil when the device is at the newest generation and its services answer as that generation's.
func (d *cutDevice) runs(ctx context.Context) error {
	s, err := d.Status(ctx)
	if err != nil {
		return err
	}
	want := uint64(d.generation + 1)
	if s.Committed == nil || s.Committed.Generation != want || s.Phase != status.PhaseInSync {
		if s.Accepted == nil || s.Accepted.Generation != want {
			// The cut may have come before the agent knew of it: it asks at its next poll, or after sync.
			_, _ = d.Control(ctx, "sync", "--timeout", "100ms")
		}
		return fmt.Errorf("device is %q, committed %+v, want generation %d; problems %+v", s.Phase, s.Committed, want, s.Problems)
	}
	return errors.Join(d.answers(ctx, 0), d.answers(ctx, 1))
}

// answers is nil when service n serves its newest text on its published port.
func (d *cutDevice) answers(ctx context.Context, n int) error {
	text, err := testenv.Get(ctx, "http://127.0.0.1:"+d.ports[n]+"/")
	want := fmt.Sprintf("generation %d\n", []int{d.generation, d.generation / 3}[n])
	if err == nil && string(text) != want {
		err = fmt.Errorf("service %c serves %q, want %q", 'a'+n, text, want)
	}
	return err
}
