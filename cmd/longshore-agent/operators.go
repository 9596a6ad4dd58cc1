package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// serveOperators lets the people at the device decide, as approvals in the configuration says, until ctx ends. What is wrong there is logged:
// the workloads do not depend on it.
func serveOperators(ctx context.Context, cfg *config.Config, d control.Operator, log *slog.Logger) {
	var running sync.WaitGroup
	defer running.Wait()
	if name := cfg.Approvals.Group; name != "" {
		if err := openOperators(ctx, cfg, name, d, log, &running); err != nil {
			log.Error("only root can decide on changes", "group", name, "err", err)
		}
	}
	if cfg.Approvals.Directory == "" {
		return
	}
	dir := &control.Directory{Path: cfg.Approvals.Directory, Name: cfg.Approvals.Owner, Log: log, Now: time.Now}
	if cfg.Approvals.Owner != "" {
		uid, err := uidOf(cfg.Approvals.Owner)
		if err != nil {
			log.Error("files of root alone decide on changes", "owner", cfg.Approvals.Owner, "err", err)
		}
		dir.Owner = uid
	}
	running.Go(func() { dir.Run(ctx, d) })
}

func openOperators(ctx context.Context, cfg *config.Config, name string, d control.Operator, log *slog.Logger, running *sync.WaitGroup) error {
	g, err := user.LookupGroup(name)
	if err != nil {
		return err
	}
	gid, err := strconv.Atoi(g.Gid)
	if err != nil {
		return fmt.Errorf("group %s: id %q: %w", name, g.Gid, fault.ErrInvalid)
	}
	path := operatorSocket(cfg.RunDir)
	dir := filepath.Dir(path)
	if err := errors.Join(os.MkdirAll(dir, 0o750), os.Chown(dir, 0, gid), os.Chmod(dir, 0o750)); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	l, err := control.ListenGroup(path, gid)
	if err != nil {
		return err
	}
	running.Go(func() {
		if err := control.ServeOperators(ctx, l, d, log); err != nil && ctx.Err() == nil {
			log.Error("the operators' socket is closed", "err", err)
		}
	})
	return nil
}

// checkOperators looks for the group and the user that may decide.
func checkOperators(a config.Approvals, check func(key string, err error)) {
	if a.Group != "" {
		_, err := user.LookupGroup(a.Group)
		if unknown := user.UnknownGroupError(""); errors.As(err, &unknown) {
			err = fault.WithHint(fmt.Errorf("this device has no group %q: %w", a.Group, fault.ErrInvalid), "make it: groupadd "+a.Group)
		}
		check("approvals.group", err)
	}
	if a.Owner != "" {
		_, err := uidOf(a.Owner)
		if unknown := user.UnknownUserError(""); errors.As(err, &unknown) {
			err = fault.WithHint(fmt.Errorf("this device has no user %q: %w", a.Owner, fault.ErrInvalid), "make it: useradd "+a.Owner)
		}
		check("approvals.owner", err)
	}
}

func uidOf(name string) (uint32, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return 0, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil || uid == 0 {
		return 0, fmt.Errorf("user %s: id %q: %w", name, u.Uid, fault.ErrInvalid)
	}
	return uint32(uid), nil
}

// writable reports whether this process may use a socket. One that is not there is root's to start.
func writable(path string) bool { return !errors.Is(unix.Access(path, unix.W_OK), unix.EACCES) }
