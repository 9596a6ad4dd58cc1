package main

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/longshore/git"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// leastInterval is how often a Git server is asked at most.
const leastInterval = time.Second

func (p *program) fleetWatchCommand() *cli.Command {
	return p.command("fleet", command{
		name: "watch", args: "REPOSITORY|DIRECTORY", min: 1, max: 1,
		usage: "publish a fleet from a branch of a Git repository, continuously",
		about: "Polls a branch of a Git repository for its newest commit and publishes the fleet in it; it prints one line per " +
			"change. REPOSITORY is an address as for git clone, with git's credentials; for a DIRECTORY in a checkout its commits " +
			"are used, not its files. Every state contains its commit, so the command stores nothing. It rejects a commit without " +
			"the last published commit in its history, because the branch was reset. Failed attempts are retried with increasing " +
			"delays. --once publishes the newest commit and ends with the exit codes of fleet publish; otherwise SIGTERM ends the " +
			"command with exit code 0. Waves in the files are followed; a newer commit waits for the rollout of the previous one, " +
			"or for longshore fleet rollout halt.",
		examples: []string{
			"--key release.key --path plants/graz https://git.acme.example/plants.git",
			"--key release.key --once --branch release .",
		},
		flags: slices.Concat([]cli.Flag{
			&cli.StringFlag{Name: "branch", Value: "main", Usage: "`NAME` of the branch"},
			&cli.StringFlag{Name: "path", Value: ".", Usage: "`DIRECTORY` of the fleet in the repository, or below the DIRECTORY argument"},
			&cli.BoolFlag{Name: "once", Usage: "publish the newest commit and exit"},
			&cli.StringFlag{Name: "interval", Value: "1m", Usage: "`TIME` between two polls of the branch, at least " + leastInterval.String()},
			&cli.StringSliceFlag{Name: "rewritten", Usage: "`COMMIT` that was published and then removed from the branch's history on purpose; may be repeated"},
			unsignedFlag(), lookFlag(),
		}, planFlags(), contentFlags(), signFlags(), registryFlags()),
		formats: []string{"text", "json"},
		run:     p.fleetWatch,
	})
}

// watched tells of one commit that was published.
type watched struct {
	Branch string `json:"branch"`
	Commit string `json:"commit"`
	fleetPublished
}

func (r watched) text(w io.Writer) {
	signed := ""
	if !r.Signed && len(r.Published) > 0 {
		signed = ", unsigned"
	}
	skipped := ""
	if r.Skipped > 0 {
		skipped = ", " + fleet.Counted(r.Skipped, "device") + " cannot run it"
	}
	fmt.Fprintf(w, "%s %.12s: %s published%s, %s up to date%s\n", r.Branch, r.Commit, fleet.Counted(len(r.Published), "state"), signed, fleet.Counted(r.Same, "device"), skipped)
}

// watcher is what publishing a commit needs.
type watcher struct {
	p      *program
	c      *cli.Context
	branch *git.Branch
	*session
}

func (p *program) fleetWatch(c *cli.Context, args []string) (err error) {
	if err := whoSigns(c); err != nil {
		return err
	}
	interval, err := time.ParseDuration(c.String("interval"))
	if err != nil || interval < leastInterval {
		return misused(c, "--interval %q is no time like 1m, of at least %s", c.String("interval"), leastInterval)
	}
	dir, err := os.MkdirTemp("", "longshore-watch-")
	if err != nil {
		return err
	}
	defer func() {
		if gone := os.RemoveAll(dir); err == nil {
			err = gone
		}
	}()
	w := &watcher{p: p, c: c}
	program := git.Program{Environ: os.Environ()}
	if w.branch, err = program.Follow(c.Context, args[0], c.String("branch"), c.String("path"), dir); err != nil {
		return err
	}
	if w.session, err = p.session(c, nil, true); err != nil {
		return err
	}
	defer w.Close()
	watch := fleet.Watch{
		Newest: w.branch.Newest, Publish: w.publish, Interval: interval,
		Error: func(_ string, err error) { outcome.Tell(p.stderr, "longshore", err) },
	}
	if c.Bool("once") {
		return watch.Once(c.Context)
	}
	watch.Run(c.Context)
	return nil
}

// publish publishes a commit.
func (w *watcher) publish(ctx context.Context, commit string) (err error) {
	tree, err := w.branch.Open(ctx, commit)
	if err != nil {
		return err
	}
	defer func() {
		if gone := os.RemoveAll(tree); err == nil {
			err = gone
		}
	}()
	name := w.branch.Path
	f, err := readFleetAs(w.branch.Directory(tree), name)
	if err != nil {
		return fmt.Errorf("%s: %w", w.c.String("branch")+" "+short12(commit), err)
	}
	annotations, err := pairs("annotation", w.c.StringSlice("annotation"))
	if err != nil {
		return err
	}
	compiled, o, err := w.p.ready(w.c, w.session, f, name, annotated(annotations, w.branch.Source, commit, false))
	if err != nil {
		return err
	}
	follows := func(plan *fleet.Plan) error { return w.follows(ctx, commit, plan) }
	if f.Staged() {
		return w.p.rollOut(w.c, w.session, compiled, o, rollout.Start{Skip: w.c.Bool("skip-unfit"), Check: follows}, func(r result) error {
			return w.tell(commit, r)
		})
	}
	plan, err := planReady(w.c, w.Client, compiled, o)
	if err != nil {
		return err
	}
	if err := follows(plan); err != nil {
		return err
	}
	if plan.Count(fleet.Cannot) > 0 && !w.c.Bool("skip-unfit") {
		return plan.Unfit()
	}
	published, err := w.p.publishPlan(w.c, plan, w.session, nil)
	if published == nil {
		return err
	}
	return cmp.Or(err, w.tell(commit, published))
}

// follows refuses a plan of a commit that has what devices have no longer in its history.
func (w *watcher) follows(ctx context.Context, commit string, plan *fleet.Plan) error {
	err := plan.Follows(ctx, func(ctx context.Context, published string) (bool, error) {
		return w.branch.Contains(ctx, commit, published)
	}, w.c.StringSlice("rewritten"))
	if errors.Is(err, fault.ErrRollback) && w.branch.Shallow(ctx) {
		err = fault.WithHint(err, "the repository is a clone without its history, where nothing is found: name its URL, or fetch all of it (git fetch --unshallow)")
	}
	return err
}

// tell shows what came of a commit.
func (w *watcher) tell(commit string, r result) error {
	branch := w.c.String("branch")
	switch x := r.(type) {
	case *fleetPublished:
		r = watched{Branch: branch, Commit: commit, fleetPublished: *x}
	case rolloutInfo:
		r = watchedRollout{branch, commit, x}
	}
	if w.c.String("output") == "json" { // a line each: there will be more
		return json.NewEncoder(w.p.stdout).Encode(r)
	}
	return w.p.show(w.c, r)
}

// watchedRollout tells of one commit that went through the waves.
type watchedRollout struct {
	Branch  string      `json:"branch"`
	Commit  string      `json:"commit"`
	Rollout rolloutInfo `json:"rollout"`
}

func (r watchedRollout) essence() string { return r.Commit }

func (r watchedRollout) text(w io.Writer) {
	fmt.Fprintf(w, "%s %.12s: rollout %d is %s\n", r.Branch, r.Commit, r.Rollout.Rollout, r.Rollout.Phase)
}

func (r watched) essence() string { return r.Commit }

func short12(commit string) string { return commit[:min(12, len(commit))] }
