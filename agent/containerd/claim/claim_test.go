package claim

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// leaseTable is containerd's leases.
type leaseTable struct {
	leases.Manager

	held []leases.Lease
	hang string // the call from which on none is answered
}

func (l *leaseTable) answer(ctx context.Context, call string) error {
	if l.hang == call {
		l.hang = "all"
	}
	if l.hang == "all" {
		<-ctx.Done()
	}
	return ctx.Err()
}

func (l *leaseTable) Create(ctx context.Context, opts ...leases.Opt) (leases.Lease, error) {
	if err := l.answer(ctx, "create"); err != nil {
		return leases.Lease{}, err
	}
	var made leases.Lease
	for _, o := range opts {
		if err := o(&made); err != nil {
			return made, err
		}
	}
	l.held = append(l.held, made)
	return made, nil
}

func (l *leaseTable) List(ctx context.Context, _ ...string) ([]leases.Lease, error) {
	return slices.Clone(l.held), l.answer(ctx, "list")
}

func (l *leaseTable) Delete(ctx context.Context, gone leases.Lease, _ ...leases.DeleteOpt) error {
	if err := l.answer(ctx, "delete"); err != nil {
		return err
	}
	l.held = slices.DeleteFunc(l.held, func(have leases.Lease) bool { return have.ID == gone.ID })
	return nil
}

func newClaim(t *testing.T, held *leaseTable) *Claim {
	t.Helper()
	return New(held, Options{Device: "press-07", Namespace: "n", DataDir: t.TempDir(), Logger: slog.New(slog.DiscardHandler)})
}

// A containerd that takes a call and never answers does not hold the agent's start, and no other caller longer than it wants.
func TestClaimOfASilentContainerd(t *testing.T) {
	for hang, want := range map[string]time.Duration{"create": claimLimit, "list": claimLimit + claimWait} {
		t.Run(hang, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				held := &leaseTable{hang: hang}
				c, began := newClaim(t, held), time.Now()
				ended := make(chan error, 1)
				go func() { ended <- c.Hold(t.Context()) }()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := c.Hold(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
					t.Errorf("Hold beside it = %v after %v, want its own deadline of 1 s", err, time.Since(began))
				}
				if err := <-ended; !errors.Is(err, fault.ErrTemporary) || fault.Hint(err) == "" || time.Since(began) != want {
					t.Errorf("Hold = %v after %v, want that it is tried again, after %v", err, time.Since(began), want)
				}
				held.hang = ""
				if err := c.Hold(t.Context()); err != nil {
					t.Errorf("Hold when it answers: %v", err)
				}
			})
		})
	}
}

// A claim that this agent cannot read is respected: a newer one may have made it.
func TestUnreadableClaimStands(t *testing.T) {
	for _, text := range []string{"", "{}", "v2:AAAA"} {
		other := leases.Lease{ID: "longshore-agent-0", Labels: map[string]string{labelAgent: "press-07", labelOwner: text}}
		held := &leaseTable{held: []leases.Lease{other}}
		err := newClaim(t, held).Hold(t.Context())
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(fault.Hint(err), other.ID) {
			t.Errorf("Hold beside %q = %v (hint %q), want a conflict and the lease in the hint", text, err, fault.Hint(err))
		}
		if len(held.held) != 1 || held.held[0].ID != other.ID {
			t.Errorf("leases = %v, want the other claim alone", held.held)
		}
	}
}
