// Package demo shows the main job on real servers, narrated: a signed release goes from a registry to running containers,
// is updated, survives faults, and a tampered one is refused.
//
// [Run] plays the scenes in order on a [Stage]. Whatever happens, also Ctrl-C and a panic, it ends by removing everything
// that was started, and by looking for what is left of it.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/longshore-dev/longshore/testenv/world"
)

// Options of the demo.
type Options struct {
	Out    io.Writer
	Keep   bool   // stay after the last scene, until ctx ends
	Record string // file for an animated SVG of what Out gets, with its timing; "": none
}

// scene is a part of the demo under a title of its own.
type scene struct {
	title string
	play  func(ctx context.Context, w *show) error
}

// show is what the scenes hand to each other.
type show struct {
	*Stage
	*world.World        // nil before it is set up
	webURL       string // of the application's front
}

// Run plays the demo. The error is that of the first scene that failed, or says what was left behind.
func Run(ctx context.Context, o Options) error {
	play, stay := scenes(), (*show).howToLook
	if !o.Keep {
		play, stay = append(play, scene{"The end", removal}), nil
	}
	if o.Record == "" {
		return run(ctx, o.Out, append(play, scene{"Shown", summary}), stay)
	}
	rec := newRecorder(o.Out, "go run ./cmd/testenv demo")
	if err := run(ctx, rec, play, stay); err != nil {
		return err
	}
	return os.WriteFile(o.Record, rec.svg(), 0o644)
}

// run plays scenes; with stay it then calls that, and waits until ctx ends.
func run(ctx context.Context, out io.Writer, scenes []scene, stay func(*show)) (err error) {
	stage, err := newStage(ctx, out)
	if err != nil {
		return err
	}
	defer func() { // also while panicking
		if ctx.Err() != nil {
			fmt.Fprintln(out, "\nCleaning up.")
		}
		clean := stage.Box.Empty()
		if traces := stage.Box.Traces(context.WithoutCancel(ctx)); len(traces) > 0 {
			clean = errors.Join(clean, fmt.Errorf("left behind:\n  %s", strings.Join(traces, "\n  ")))
		}
		if clean == nil {
			fmt.Fprintln(out, "\nNothing is left behind: no process, mount, namespace, interface, nftables table or cgroup.")
		}
		err = errors.Join(err, clean)
	}()
	w := &show{Stage: stage}
	for _, s := range scenes {
		stage.Chapter(s.title)
		if err := s.play(ctx, w); err != nil {
			return err
		}
	}
	if stay != nil {
		stay(w)
		<-ctx.Done()
	}
	return nil
}
