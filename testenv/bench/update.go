package bench

import (
	"context"
	"fmt"
	"math/rand/v2"
	"os"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/testenv"
)

// The application whose source changes: so many files in one layer, each of so many bytes.
const (
	sourceFiles = 240
	sourceBytes = 100 << 10
)

// update has the device run an application, then its next version, of which one source file differs, and counts what leaves the
// registry for that: the state, the component and the image.
func (d *device) update(ctx context.Context) (sample, error) {
	base, err := testenv.SoftwareImage(ctx, d.Out, "toolbox", testenv.HostPlatform())
	if err != nil {
		return nil, err
	}
	if _, err := d.version(ctx, base, 1); err != nil {
		return nil, err
	}
	if err := os.WriteFile(fmt.Sprintf("/proc/%d/clear_refs", d.Agent.PID()), []byte("5"), 0); err != nil { // its peak starts here
		return nil, err
	}
	d.Registry.Faults.Forget()
	layer, err := d.version(ctx, base, 2)
	if err != nil {
		return nil, err
	}
	sent, _ := d.Registry.Faults.Bytes("GET", "")
	peak, err := testenv.PeakMemory(d.Agent.PID())
	return sample{"update-MiB": float64(sent) / (1 << 20), "layer-MiB": float64(layer) / (1 << 20), "agent-MiB": float64(peak) / (1 << 20)}, err
}

// version publishes a version of the application, and returns when the device runs it. The size is that of the layer of its source.
func (d *device) version(ctx context.Context, base v1.Image, n int) (size int64, err error) {
	files := make([]testenv.File, sourceFiles)
	for i := range files {
		seed := [32]byte{byte(i)}
		if i == sourceFiles/2 {
			seed[1] = byte(n)
		}
		files[i] = testenv.File{Path: fmt.Sprintf("app/%03d.py", i), Data: make([]byte, sourceBytes)}
		_, _ = rand.NewChaCha8(seed).Read(files[i].Data) // never fails
	}
	image, err := testenv.AppendLayers(base, files)
	if err != nil {
		return 0, err
	}
	layers, err := image.Layers()
	if err != nil {
		return 0, err
	}
	if size, err = layers[len(layers)-1].Size(); err != nil {
		return 0, err
	}
	tag := fmt.Sprintf("plant/source:%d", n)
	if _, err := d.Registry.Push(ctx, tag, image); err != nil {
		return 0, err
	}
	component, err := d.Component(ctx, "source", fmt.Sprintf("%d.0.0", n), fmt.Sprintf("services:\n  app: {image: %q, command: [sleep]}\n", d.Registry.Reference(tag)))
	if err != nil {
		return 0, err
	}
	if err := d.Release(ctx, component); err != nil {
		return 0, err
	}
	_, err = d.Control(ctx, "sync", "--timeout", throughLimit.String())
	return size, err
}
