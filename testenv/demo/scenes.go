package demo

import (
	"context"
	"fmt"
	"io"
	"path/filepath"

	"github.com/longshore-dev/longshore/testenv"
)

// scenes are the demo, in order.
func scenes() []scene {
	return []scene{
		{"A device with containerd, and a registry", setUp},
	}
}

// setUp starts the servers that a plant has already, and fills the registry with the images of version 1.
func setUp(ctx context.Context, w *world) error {
	err := w.Step(ctx, "containerd", func(ctx context.Context) (shown string, err error) {
		w.containerd, err = testenv.StartContainerd(ctx, testenv.DaemonOptions{Box: w.Box, Out: w.out})
		if err != nil {
			return "", err
		}
		return "process " + fmt.Sprint(w.containerd.PID()), nil
	})
	if err != nil {
		return err
	}
	err = w.Step(ctx, "registry", func(context.Context) (shown string, err error) {
		dir, err := w.Box.Folder("registry")
		if err != nil {
			return "", err
		}
		w.registry, err = testenv.StartRegistry(dir, testenv.Distribution, testenv.WithStorage(filepath.Join(dir, "content")))
		if err != nil {
			return "", err
		}
		w.Box.Add("registry", w.registry.Close)
		return "CNCF distribution on " + w.registry.Host, nil
	})
	if err != nil {
		return err
	}
	return w.Step(ctx, "images of version 1", func(ctx context.Context) (shown string, err error) {
		w.images, err = testenv.LineMonitor(ctx, w.out, w.registry, w.project(1), 1)
		if err != nil {
			return "", err
		}
		_, received := w.registry.Faults.Bytes("", "")
		return fmt.Sprintf("web, broker and sensor, %.1f MB", float64(received)/1e6), nil
	})
}

// project is the folder of a version's Compose project.
func (w *world) project(version int) string {
	return filepath.Join(w.Box.Dir(), fmt.Sprintf("line-monitor-%d", version))
}

// howToLook tells what a person can do while the demo stays.
func (w *world) howToLook() {
	w.Chapter("Everything runs on. Ctrl-C ends and removes it. Meanwhile:")
	w.Say("%s --address %s namespaces list", filepath.Join(w.containerd.Bin, "ctr"), w.containerd.Address)
	w.Say("curl %s/v2/_catalog", w.registry.URL)
}

// Up starts containerd and a registry with the images of version 1, says where they are, and stays until ctx ends.
func Up(ctx context.Context, out io.Writer) error {
	return run(ctx, Options{Out: out, Keep: true}, []scene{{"containerd and a registry", setUp}})
}
