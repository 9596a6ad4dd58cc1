package demo

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry"
	chain "github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// attacks are those of a person who may write to the registry, or controls the network before it. Each is refused with
// its code while the workload answers every request.
func attacks(ctx context.Context, w *show) error {
	return w.steps(ctx, []step{
		{"a state that was changed on its way is rejected", w.refused(codes.StateDigest, w.tamper)},
		{"an unsigned state is rejected", w.refused(codes.SignatureMissing, w.unsigned)},
		{"an old generation, correctly signed, is rejected", w.refused(codes.Rollback, w.old)},
		{"another device's state is rejected", w.refused(codes.WrongDevice, w.foreign)},
	})
}

// refused plays an attack and ends it: the device must tell the code, and be in sync again once the attack is over.
func (w *show) refused(code codes.Code, attack func(context.Context) (undo func(context.Context) error, err error)) func(context.Context) (string, error) {
	return func(ctx context.Context) (seen string, err error) {
		before, err := w.Status(ctx)
		if err != nil {
			return "", err
		}
		customer := startWatch(ctx, w.webURL+"/readings")
		defer func() {
			watched, lost := customer.end()
			seen, err = string(code)+"; "+watched, errors.Join(err, lost)
		}()
		undo, err := attack(ctx)
		if err != nil {
			return "", err
		}
		if err := testenv.Await(ctx, 30*time.Second, func() error { return w.hasProblem(ctx, code) }); err != nil {
			return "", err
		}
		s, err := w.Status(ctx)
		if err != nil {
			return "", err
		}
		if was, is := processes(before), processes(s); was["web"] != is["web"] || was["broker"] != is["broker"] || was["sensor"] != is["sensor"] {
			return "", fmt.Errorf("processes were %v and are %v: nothing should have been touched", was, is)
		}
		if err := undo(ctx); err != nil {
			return "", err
		}
		return "", testenv.Await(ctx, 60*time.Second, func() error {
			if w.hasProblem(ctx, code) == nil {
				return fmt.Errorf("the attack is over and %s is still told", code)
			}
			return nil
		})
	}
}

// tamper flips a bit in the manifest of a new generation between registry and device, which also has its documents.
func (w *show) tamper(ctx context.Context) (func(context.Context) error, error) {
	s, err := w.Status(ctx)
	if err != nil {
		return nil, err
	}
	w.Registry.Faults.Add(testenv.Rule{Method: "GET", Path: `^/v2/plant/state/manifests/sha256:`, Effect: corruptForDevice})
	if _, err := w.pushState(ctx, "1.2.0", "--set", "POLL_SECONDS=1"); err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		w.Registry.Faults.Clear()
		return w.Settled(ctx, s.Running.Generation+1, time.Minute)
	}, nil
}

// unsigned pushes a state that says all the right things and bears no signature.
func (w *show) unsigned(ctx context.Context) (func(context.Context) error, error) {
	return w.hijack(ctx, func(repo *registry.Repository) error {
		forged, err := artifacts.PackState(artifacts.StateOptions{Device: device, Generation: 99})
		if err != nil {
			return err
		}
		_, err = chain.Publish(ctx, repo, forged, chain.PublishOptions{Tags: []string{device}})
		return err
	})
}

// old points the tag at the first generation again: every byte of it was signed by the right key.
func (w *show) old(ctx context.Context) (func(context.Context) error, error) {
	return w.hijack(ctx, func(repo *registry.Repository) error {
		first, err := repo.Resolve(ctx, artifacts.HistoryTag(device, 1))
		if err != nil {
			return err
		}
		return repo.Tag(ctx, first, device)
	})
}

// foreign points the device's tag at a state that the right key signed for another device.
func (w *show) foreign(ctx context.Context) (func(context.Context) error, error) {
	return w.hijack(ctx, func(repo *registry.Repository) error {
		if _, err := w.Run(ctx, "longshore", "state", "push", "--device", "press-08", "--key", "release.key", "--generation", "99",
			"--component", "oci://"+w.Reference("plant/components/line-monitor:1.1.0"), w.Reference("plant/state")); err != nil {
			return err
		}
		other, err := repo.Resolve(ctx, "press-08")
		if err != nil {
			return err
		}
		return repo.Tag(ctx, other, device)
	})
}

// hijack changes the device's tag with write access to the registry; undo restores it.
func (w *show) hijack(ctx context.Context, do func(*registry.Repository) error) (undo func(context.Context) error, err error) {
	client, err := registry.New(registry.Options{Host: w.Registry.Host, Username: w.Registry.Username, Password: w.Registry.Password, CAFile: w.Registry.CAFile})
	if err != nil {
		return nil, err
	}
	defer client.Close()
	repo, err := client.OpenName(ctx, w.Reference("plant/state"))
	if err != nil {
		return nil, err
	}
	honest, err := repo.Resolve(ctx, device)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error { return repo.Tag(ctx, honest, device) }, do(repo)
}

func corruptForDevice(rw http.ResponseWriter, r *http.Request, next http.Handler) {
	if !strings.HasPrefix(r.UserAgent(), "longshore-agent/") {
		next.ServeHTTP(rw, r)
		return
	}
	testenv.Corrupt()(rw, r, next)
}
