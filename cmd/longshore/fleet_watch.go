package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/cmd/longshore/git"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// leastInterval is the shortest time between two polls of a Git server.
const leastInterval = time.Second

var fleetWatchCommand = command{
	name: "watch", args: "REPOSITORY|DIRECTORY", min: 1, max: 1,
	usage: "publish a fleet from a branch of a Git repository, continuously",
	about: "Polls a branch of a Git repository, publishes the fleet in its newest commit, and prints one line per change. " +
		"REPOSITORY is an address for git clone, with git's credentials; of a DIRECTORY in a checkout the commits are used, not " +
		"the files. Every state contains its commit, so the command stores nothing. It rejects a commit if the last published " +
		"commit is not in its history, because the branch was reset. Failed attempts are retried with increasing delays. --once " +
		"publishes the newest commit and ends with the exit codes of fleet publish; otherwise SIGTERM ends the command with " +
		"exit code 0. If the files define waves, a newer commit waits for the rollout of the previous one, or for longshore " +
		"fleet rollout halt.",
	examples: []string{
		"--key release.key --path plants/graz https://git.acme.example/plants.git",
		"--key release.key --once --branch release .",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "branch", Value: "main", Usage: "`NAME` of the branch"},
		{Name: "path", Value: ".", Usage: "`DIRECTORY` of the fleet in the repository, or below the DIRECTORY argument"},
		{Name: "once", Value: false, Usage: "publish the newest commit and exit"},
		{Name: "interval", Value: "1m", Usage: "`TIME` between two polls of the branch, at least " + leastInterval.String()},
		{Name: "rewritten", Value: []string(nil), Usage: "`COMMIT` that was published and then removed from the branch's history on purpose; may be repeated"},
		unsignedFlag, lookFlag,
	}, planFlags, contentFlags, signFlags, registryFlags),
	run: (*call).fleetWatch,
}

// watched describes a published commit.
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
		skipped = ", " + printable.Counted(r.Skipped, "device") + " skipped"
	}
	fmt.Fprintf(w, "%s %.12s: %s published%s%s, %s up to date%s\n", r.Branch, r.Commit, printable.Counted(len(r.Published), "state"), signed, andProposed(r.Proposed), printable.Counted(r.Same, "device"), skipped)
}

// watcher publishes the commits of a branch.
type watcher struct {
	*call
	branch *git.Branch
}

func (c *call) fleetWatch(args []string) (err error) {
	if err := c.whoSigns(); err != nil {
		return err
	}
	interval, err := strict.ParseDuration(c.String("interval"))
	if err != nil || interval < leastInterval {
		return c.misused("--interval %q is not a time such as 1m, of at least %s", c.String("interval"), leastInterval)
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
	w := &watcher{call: c}
	program := git.Program{Environ: os.Environ()}
	if w.branch, err = program.Follow(c.Context, args[0], c.String("branch"), c.String("path"), dir); err != nil {
		return err
	}
	if err := c.openSigner(true); err != nil {
		return err
	}
	watch := fleet.Watch{
		Newest: w.branch.Newest, Publish: w.publish, Interval: interval,
		Error: func(_ string, err error) { outcome.Tell(c.stderr, "longshore", err) },
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
		return fmt.Errorf("%s: %w", w.String("branch")+" "+short12(commit), err)
	}
	if err := w.openPolicy(); err != nil { // it may have changed
		return err
	}
	compiled, o, err := w.ready(f, name, w.annotated(w.branch.Source, commit, false))
	if err != nil {
		return err
	}
	follows := func(plan *fleet.Plan) error { return w.follows(ctx, commit, plan) }
	if f.Staged() {
		return w.rollOut(compiled, o, rollout.Start{Skip: w.Bool("skip-unfit"), Check: follows}, func(r result) error {
			return w.tell(commit, r)
		})
	}
	plan, err := w.planReady(compiled, o)
	if err != nil {
		return err
	}
	if err := follows(plan); err != nil {
		return err
	}
	if plan.Count(fleet.Cannot) > 0 && !w.Bool("skip-unfit") {
		return plan.Unfit()
	}
	published, err := w.publishPlan(plan, false)
	if published == nil {
		return err
	}
	return cmp.Or(err, w.tell(commit, published))
}

// follows rejects a plan if the commit of a published state is not in the history of the new one.
func (w *watcher) follows(ctx context.Context, commit string, plan *fleet.Plan) error {
	err := plan.Follows(ctx, func(ctx context.Context, published string) (bool, error) {
		return w.branch.Contains(ctx, commit, published)
	}, w.StringSlice("rewritten"))
	if errors.Is(err, fault.ErrRollback) && w.branch.Shallow(ctx) {
		err = fault.WithHint(err, "the repository is a shallow clone: name its URL, or fetch its history (git fetch --unshallow)")
	}
	return err
}

// tell prints the result of a commit.
func (w *watcher) tell(commit string, r result) error {
	branch := w.String("branch")
	switch x := r.(type) {
	case *fleetPublished:
		r = watched{Branch: branch, Commit: commit, fleetPublished: *x}
	case rolloutInfo:
		r = watchedRollout{branch, commit, x}
	}
	if format := w.String("output"); format != "text" { // more follow
		return cmdline.EncodeNext(w.stdout, format, r)
	}
	return w.show(r)
}

// watchedRollout describes a commit that was published in waves.
type watchedRollout struct {
	Branch  string      `json:"branch"`
	Commit  string      `json:"commit"`
	Rollout rolloutInfo `json:"rollout"`
}

func (r watchedRollout) quietText() string { return r.Commit }

func (r watchedRollout) text(w io.Writer) {
	fmt.Fprintf(w, "%s %.12s: rollout %d is %s\n", r.Branch, r.Commit, r.Rollout.Rollout, r.Rollout.Phase)
}

func (r watched) quietText() string { return r.Commit }

func short12(commit string) string { return commit[:min(12, len(commit))] }
