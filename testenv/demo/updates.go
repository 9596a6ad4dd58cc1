package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

// Numbers of the Compose projects that this file derives from those of the fixtures.
const (
	projectStartFirst = 3
	projectBroken     = 4
)

// gapless moves on to release 1.2.0, which asks for its front to be started before the old one is stopped.
func (w *show) gapless(ctx context.Context) (string, error) {
	if err := w.derive(2, projectStartFirst, "    read_only: true\n", "    read_only: true\n    deploy:\n      update_config:\n        order: start-first\n"); err != nil {
		return "", err
	}
	if _, err := w.pushComponent(ctx, projectStartFirst, "1.2.0"); err != nil {
		return "", err
	}
	before, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	customer := startWatch(ctx, w.webURL+"/readings")
	if _, err = w.pushState(ctx, "1.2.0"); err == nil {
		err = w.Settled(ctx, before.Running.Generation+1, time.Minute)
	}
	seen, lost := customer.end()
	if err := errors.Join(err, lost); err != nil {
		return "", err
	}
	after, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	if was, is := processes(before), processes(after); is["web"] == was["web"] || is["broker"] != was["broker"] {
		return "", fmt.Errorf("processes were %v and are %v: only web should have changed", was, is)
	}
	return seen, nil
}

// goesBack publishes release 1.3.0, signed and all, whose front never gets healthy.
func (w *show) goesBack(ctx context.Context) (string, error) {
	if err := w.derive(projectStartFirst, projectBroken, "      BROKER: broker:4222\n", "      BROKER: nowhere:4222\n"); err != nil {
		return "", err
	}
	if _, err := w.pushComponent(ctx, projectBroken, "1.3.0"); err != nil {
		return "", err
	}
	before, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	customer := startWatch(ctx, w.webURL+"/readings")
	var told string
	if _, err = w.pushState(ctx, "1.3.0"); err == nil {
		err = testenv.Await(ctx, 60*time.Second, func() error {
			s, err := w.Status(ctx)
			if err != nil {
				return err
			}
			if d := s.Deployments; len(d) == 1 && d[0].Refused != nil {
				told = string(d[0].Refused.Code)
				return nil
			}
			return fmt.Errorf("device is %q, want release 1.3.0 refused", s.Phase)
		})
	}
	seen, lost := customer.end()
	if err := errors.Join(err, lost); err != nil {
		return "", err
	}
	after, err := w.Status(ctx)
	if err != nil {
		return "", err
	}
	if was, is := processes(before), processes(after); is["web"] != was["web"] || is["broker"] != was["broker"] {
		return "", fmt.Errorf("processes were %v and are %v: release 1.2.0 should have run on", was, is)
	}
	return told + ", release 1.2.0 runs on; " + seen, nil
}

// derive makes a Compose project out of another one by one edit.
func (w *show) derive(from, to int, old, edited string) error {
	if err := os.CopyFS(w.project(to), os.DirFS(w.project(from))); err != nil {
		return err
	}
	return replaceOnce(w.project(to)+"/compose.yaml", old, edited)
}
