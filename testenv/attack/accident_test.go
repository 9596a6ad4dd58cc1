package attack

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// TestFullDevice: a workload has written until the device's only disk was full. The state that removes it and needs room for a new
// image still gets through: what the agent has to write has its room already.
func TestFullDevice(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	box, err := testenv.OpenBox(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := box.Empty(); err != nil {
			t.Error(err)
		}
	})
	disk, err := box.NewDisk(t.Context(), 96<<20)
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	daemon, err := testenv.StartContainerd(t.Context(), testenv.DaemonOptions{Box: box, Root: filepath.Join(disk.Dir, "containerd")})
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	w, err := world.New(t.Context(), world.Options{Box: box, Name: "full", Pool: "10.218.0.0/16", Containerd: daemon})
	if err != nil {
		t.Fatal(err)
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	first, err := testenv.SoftwareImage(t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	must("image", err)
	data := make([]byte, 2<<20)
	_, _ = rand.NewChaCha8([32]byte{}).Read(data) // does not fail
	second, err := testenv.AppendLayers(first, []testenv.File{{Path: "grown", Data: data}})
	must("image", err)
	for n, img := range []v1.Image{first, second} {
		_, err := w.Registry.Push(t.Context(), fmt.Sprintf("plant/toolbox:%d", n+1), img)
		must("push", err)
	}
	component := func(name, version string) string {
		reference, err := w.Component(t.Context(), name, version+".0.0", fmt.Sprintf("services: {main: {image: %s, command: [serve, \"8080\", hello]}}\n", w.Registry.Reference("plant/toolbox:"+version)))
		must("component", err)
		return reference
	}
	_, err = w.Run(t.Context(), "longshore", "key", "generate", "release")
	must("key", err)
	must("state 1", w.Release(t.Context(), component("press", "1")))
	must("state 2", w.Release(t.Context(), component("filler", "1"), "--keep-others"))
	must("init", w.Init(t.Context(), "--data-dir", filepath.Join(disk.Dir, "data")))
	must("boot", w.Boot(t.Context()))
	must("the workloads run", w.Settled(t.Context(), 2, settleLimit))

	said, err := w.Control(t.Context(), "exec", "filler/main", "--", "/toolbox", "touch-mib", "/filled", "1024")
	if err != nil || !strings.Contains(said, "no space left") {
		t.Fatalf("filling the disk: %q, %v", said, err)
	}
	must("the full disk is a problem", testenv.Await(t.Context(), tellLimit, func() error {
		s, err := w.Status(t.Context())
		if err == nil && !slices.ContainsFunc(s.Problems, func(p status.Problem) bool { return p.Code == codes.DiskLow }) {
			err = fmt.Errorf("problems %+v", s.Problems)
		}
		return err
	}))
	must("the last bytes", fill(filepath.Join(disk.Dir, "rest")))
	must("state 3", w.Release(t.Context(), component("press", "2")))
	if err := w.Settled(t.Context(), 3, tellLimit); err != nil {
		log, _ := os.ReadFile(w.Agent.LogFile)
		t.Fatalf("the state that frees the disk: %v\n%s", err, log[max(0, len(log)-6000):])
	}
	s, err := w.Status(t.Context())
	must("status", err)
	if n := len(world.Processes(s)); n != 1 {
		t.Errorf("%d containers, want 1", n)
	}
}

// fill writes into a file until its disk has no room for another byte, which it then says is so.
func fill(name string) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_APPEND|os.O_SYNC, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	for piece := 64 << 10; piece > 0; {
		if _, err := f.Write(make([]byte, piece)); errors.Is(err, syscall.ENOSPC) {
			piece /= 2
		} else if err != nil {
			return err
		}
	}
	return nil
}
