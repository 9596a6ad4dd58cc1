package control_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

var changeID = digest.FromString("change")

const outputMessage = "web exited" + workload.OutputLabel + "password is hunter2"

func (d device) Changes(context.Context) ([]status.Change, error) {
	return []status.Change{{ID: changeID, Deployment: "vision"}}, nil
}

func (d device) Decide(_ context.Context, r agent.DecisionRequest) (status.Change, error) {
	if r.ID != changeID {
		return status.Change{}, fmt.Errorf("another change waits: %w", fault.ErrConflict)
	}
	return status.Change{ID: r.ID, Deployment: r.Deployment, Decision: &store.Decision{Verdict: r.Verdict, By: r.By, Via: r.Via, Reason: r.Reason, Until: r.Until}}, nil
}

func (d device) RollBack(_ context.Context, r agent.RollbackRequest) (status.Hold, error) {
	if r.To == 7 {
		return status.Hold{}, fmt.Errorf("generation 7 is revoked: %w", fault.ErrRejected)
	}
	return status.Hold{Generation: r.To, By: r.By, Reason: r.Reason}, nil
}

func (d device) Release(_ context.Context, by, via string) (status.Hold, error) {
	return status.Hold{By: by, Via: via}, nil
}

// Both sockets know by themselves who decides.
func TestDecisions(t *testing.T) {
	me := fmt.Sprintf("(%d)", os.Geteuid())
	d := device{sync: func(context.Context) (status.SyncResult, error) {
		return status.SyncResult{Generation: 3, Message: outputMessage}, nil
	}}
	path := filepath.Join(t.TempDir(), "operator.sock")
	l, err := control.ListenGroup(path, os.Getegid())
	if err != nil {
		t.Fatal(err)
	}
	if fi, err := os.Stat(path); err != nil || fi.Mode().Perm() != 0o660 {
		t.Errorf("the socket: %v, %v, want mode 0660", fi.Mode(), err)
	}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- control.ServeOperators(ctx, l, d, slog.New(slog.DiscardHandler)) }()
	defer func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	}()
	root, _ := serve(t, d)
	for name, c := range map[string]*control.Client{"root": root, "group": control.NewClient(path)} {
		t.Run(name, func(t *testing.T) {
			if all, err := c.Changes(t.Context()); err != nil || len(all) != 1 || all[0].ID != changeID {
				t.Errorf("Changes = %+v, %v", all, err)
			}
			until := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
			x, err := c.Decide(t.Context(), control.Decision{Deployment: "vision", ID: changeID, Verdict: store.Postponed, Reason: "shift", Until: until})
			if err != nil || x.Decision.Verdict != store.Postponed || !strings.HasSuffix(x.Decision.By, me) || x.Decision.Via != "command" || !x.Decision.Until.Equal(until) {
				t.Errorf("Decide = %+v, %v", x.Decision, err)
			}
			if _, err := c.Decide(t.Context(), control.Decision{Deployment: "vision"}); !errors.Is(err, fault.ErrConflict) {
				t.Errorf("Decide on another change = %v", err)
			}
			if _, err := c.Decide(t.Context(), control.Decision{Deployment: "vision", Reason: strings.Repeat("long", 1<<13)}); !errors.Is(err, fault.ErrInvalid) {
				t.Errorf("Decide with a long reason = %v", err)
			}
			if h, err := c.RollBack(t.Context(), control.Rollback{To: 3, Reason: "noise"}); err != nil || h.Generation != 3 || !strings.HasSuffix(h.By, me) || h.Reason != "noise" {
				t.Errorf("RollBack = %+v, %v", h, err)
			}
			if _, err := c.RollBack(t.Context(), control.Rollback{To: 7}); !errors.Is(err, fault.ErrRejected) {
				t.Errorf("RollBack to what is revoked = %v", err)
			}
			if h, err := c.Release(t.Context()); err != nil || !strings.HasSuffix(h.By, me) {
				t.Errorf("Release = %+v, %v", h, err)
			}
			want := outputMessage
			if name != "root" {
				want = "web exited"
			}
			if s, err := c.Status(t.Context()); err != nil || s.Device != "press-07" || s.Problems[0].Message != want {
				t.Errorf("Status = %+v, %v", s, err)
			}
			if r, err := c.Sync(t.Context()); err != nil || r.Generation != 3 || r.Message != want {
				t.Errorf("Sync = %+v, %v", r, err)
			}
			if _, err := c.Volumes(t.Context()); (err == nil) != (name == "root") {
				t.Errorf("Volumes = %v", err)
			}
		})
	}
}

// recorded remembers decisions.
type recorded struct {
	device
	mu   sync.Mutex
	made []agent.DecisionRequest
}

func (r *recorded) Decide(ctx context.Context, x agent.DecisionRequest) (status.Change, error) {
	c, err := r.device.Decide(ctx, x)
	r.mu.Lock()
	defer r.mu.Unlock()
	if err == nil {
		r.made = append(r.made, x)
	}
	return c, err
}

// Files decide when they are whole, regular, and of somebody who may.
func TestDecisionFiles(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "files of other users need root")
	}
	const panel, stranger = 4711, 4712
	good := fmt.Sprintf(`{"deployment": "vision", "id": %q, "verdict": "approved"}`, changeID)
	tests := map[string]struct {
		make func(file string) error
		want string // part of the error; "": it decides
	}{
		"of root": {func(f string) error { return os.WriteFile(f, []byte(good), 0o600) }, ""},
		"of the owner": {func(f string) error {
			return errors.Join(os.WriteFile(f, []byte(good), 0o644), os.Chown(f, panel, panel))
		}, ""},
		"of a stranger": {func(f string) error {
			return errors.Join(os.WriteFile(f, []byte(good), 0o644), os.Chown(f, stranger, 0))
		}, "neither root nor"},
		"of everybody": {func(f string) error { return errors.Join(os.WriteFile(f, []byte(good), 0o644), os.Chmod(f, 0o666)) }, "lets others write"},
		"a directory":  {func(f string) error { return os.Mkdir(f, 0o755) }, "no regular file"},
		"a link":       {func(f string) error { return os.Symlink("/etc/hostname", f) }, "no regular file"},
		"a pipe":       {func(f string) error { return syscall.Mkfifo(f, 0o600) }, "no regular file"},
		"half written": {func(f string) error { return os.WriteFile(f, []byte(good[:20]), 0o600) }, "read the request"},
		"too large":    {func(f string) error { return os.WriteFile(f, make([]byte, 1<<20), 0o600) }, "more than"},
		"another change": {func(f string) error {
			return os.WriteFile(f, []byte(`{"deployment": "vision", "id": "sha256:00", "verdict": "approved"}`), 0o600)
		}, "another change"},
		"an unknown field": {func(f string) error { return os.WriteFile(f, []byte(`{"approve": true}`), 0o600) }, "unknown field"},
	}
	now := time.Now()
	for name, x := range tests {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			file := filepath.Join(dir, "press.decision")
			if err := x.make(file); err != nil {
				t.Fatal(err)
			}
			r := &recorded{}
			var result control.Result
			synctest.Test(t, func(t *testing.T) {
				d := &control.Directory{Path: dir, Owner: panel, Name: "panel", Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }}
				ctx, stop := context.WithCancel(t.Context())
				done := make(chan struct{})
				go func() { d.Run(ctx, r); close(done) }()
				time.Sleep(time.Second)
				stop()
				<-done
			})
			data, err := os.ReadFile(filepath.Join(dir, "press.result"))
			if x.want == "read the request" || x.want == "unknown field" { // it may be incomplete
				if _, gone := os.Lstat(file); gone != nil || err == nil {
					t.Errorf("the file was taken although it was written just now: %s", data)
				}
				old := time.Now().Add(-time.Hour)
				if x.want == "unknown field" { // written by a clock that is wrong
					old = time.Now().Add(time.Hour)
				}
				if err := os.Chtimes(file, old, old); err != nil {
					t.Fatal(err)
				}
				ctx, stop := context.WithCancel(t.Context())
				d := &control.Directory{Path: dir, Owner: panel, Name: "panel", Log: slog.New(slog.DiscardHandler), Now: func() time.Time { return now }}
				done := make(chan struct{})
				go func() { d.Run(ctx, r); close(done) }()
				err = testenv.Await(t.Context(), time.Minute, func() (err error) {
					data, err = os.ReadFile(filepath.Join(dir, "press.result"))
					return err
				})
				stop()
				<-done
			}
			if err != nil {
				t.Fatal(err)
			}
			if err := json.Unmarshal(data, &result); err != nil {
				t.Fatal(err)
			}
			if _, err := os.Lstat(file); err == nil {
				t.Error("the file is still there")
			}
			if x.want == "" {
				if len(r.made) != 1 || r.made[0].Via != "file" || !strings.Contains(r.made[0].By, "file press") || result.Error != "" {
					t.Errorf("decided %+v, result %+v", r.made, result)
				}
			} else if len(r.made) > 0 || !strings.Contains(result.Error, x.want) {
				t.Errorf("decided %+v, result %+v, want %q", r.made, result, x.want)
			}
			if all, err := os.ReadFile(filepath.Join(dir, control.ChangesFile)); err != nil || !strings.Contains(string(all), changeID.String()) {
				t.Errorf("%s: %s, %v", control.ChangesFile, all, err)
			}
		})
	}
}

// After a power cut neither is a result lost, nor does a file that was taken come back: it would count again over a later decision.
func TestDecisionFilesAreDurable(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "files in the directory must be root's")
	}
	dir := t.TempDir()
	file := filepath.Join(dir, "press.decision")
	if err := os.WriteFile(file, fmt.Appendf(nil, `{"deployment": "vision", "id": %q, "verdict": "approved"}`, changeID), 0o600); err != nil {
		t.Fatal(err)
	}
	var written, taken bool
	d := &control.Directory{Path: dir, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	ctx, stop := context.WithCancel(t.Context())
	d.OnSync(func(name string) {
		_, there := os.Lstat(file)
		_, result := os.Lstat(filepath.Join(dir, "press.result"))
		switch {
		case strings.Contains(filepath.Base(name), "press.result"):
			written = there == nil && result != nil
		case filepath.Clean(name) == dir:
			taken = there != nil && result == nil
			stop()
		}
	})
	time.AfterFunc(time.Minute, stop)
	d.Run(ctx, &recorded{})
	if !written || !taken {
		t.Errorf("the result is durable before the file is removed: %v; the removal is: %v", written, taken)
	}
}

// A decision counts once, also where its result cannot be written, and does not hold up others.
func TestDecisionsWithoutResults(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "files in the directory must be root's")
	}
	dir := t.TempDir()
	for _, name := range []string{"a", "b"} {
		if err := os.WriteFile(filepath.Join(dir, name+".decision"), fmt.Appendf(nil, `{"deployment": "vision", "id": %q, "verdict": "approved"}`, changeID), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.MkdirAll(filepath.Join(dir, "a.result", "x"), 0o755); err != nil {
		t.Fatal(err)
	}
	r := &recorded{}
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		(&control.Directory{Path: dir, Log: slog.New(slog.DiscardHandler), Now: time.Now}).Run(ctx, r)
	})
	left, err := filepath.Glob(filepath.Join(dir, "*.decision"))
	if err != nil || len(left) > 0 || len(r.made) != 2 {
		t.Errorf("%d decisions were taken, %v are left (%v)", len(r.made), left, err)
	}
}

// A directory in which others could decide decides nothing. That is told once, and what is in it counts when it was put right.
func TestDecisionsOfADirectoryOfOthers(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "directories of other users need root")
	}
	good := fmt.Sprintf(`{"deployment": "vision", "id": %q, "verdict": "approved"}`, changeID)
	for name, x := range map[string]struct {
		spoil, repair func(dir string) error
		want          string
	}{
		"of a stranger": {
			func(dir string) error { return os.Chown(dir, 4712, 0) }, func(dir string) error { return os.Chown(dir, 4711, 0) }, "neither root nor approvals.owner",
		},
		"of everybody": {
			func(dir string) error { return os.Chmod(dir, 0o777) }, func(dir string) error { return os.Chmod(dir, 0o755) }, "lets others write",
		},
		"no directory": {
			func(dir string) error { return errors.Join(os.Rename(dir, dir+".away"), os.WriteFile(dir, nil, 0o644)) },
			func(dir string) error { return errors.Join(os.Remove(dir), os.Rename(dir+".away", dir)) }, "not a directory",
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "panel")
			if err := errors.Join(os.Mkdir(dir, 0o755), os.WriteFile(filepath.Join(dir, "press.decision"), []byte(good), 0o600), x.spoil(dir)); err != nil {
				t.Fatal(err)
			}
			var log bytes.Buffer
			r := &recorded{}
			synctest.Test(t, func(t *testing.T) {
				d := &control.Directory{Path: dir, Owner: 4711, Name: "panel", Log: slog.New(slog.NewTextHandler(&log, nil)), Now: time.Now}
				run := func() {
					ctx, stop := context.WithTimeout(t.Context(), time.Minute)
					defer stop()
					d.Run(ctx, r)
				}
				run()
				if told := log.String(); len(r.made) > 0 || strings.Count(told, x.want) != 1 || !strings.Contains(told, dir) {
					t.Errorf("decided %+v, told\n%s", r.made, told)
				}
				if err := x.repair(dir); err != nil {
					t.Error(err)
				}
				run()
			})
			if len(r.made) != 1 {
				t.Errorf("when it was put right: decided %+v, told\n%s", r.made, &log)
			}
		})
	}
}

// Whoever removes the directory or what is in it, or mounts another one there, finds the changes again.
func TestChangesAreWrittenAgain(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "the directory must be root's")
	}
	dir := filepath.Join(t.TempDir(), "panel")
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithTimeout(t.Context(), time.Minute)
		defer stop()
		done := make(chan struct{})
		go func() {
			(&control.Directory{Path: dir, Log: slog.New(slog.DiscardHandler), Now: time.Now}).Run(ctx, &recorded{})
			close(done)
		}()
		for _, remove := range []string{filepath.Join(dir, control.ChangesFile), dir} {
			time.Sleep(10*time.Second + 500*time.Millisecond) // between two looks, which would write while the directory is removed
			if _, err := os.Stat(filepath.Join(dir, control.ChangesFile)); err != nil {
				t.Error(err)
			}
			if err := os.RemoveAll(remove); err != nil {
				t.Error(err)
			}
		}
		<-done
	})
	if _, err := os.Stat(filepath.Join(dir, control.ChangesFile)); err != nil {
		t.Error(err)
	}
}
