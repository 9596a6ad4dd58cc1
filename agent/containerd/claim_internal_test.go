package containerd

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/containerd/containerd/v2/core/leases"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A containerd that takes a call and never answers does not hold the agent's start, and no other caller longer than it wants.
func TestClaimOfASilentContainerd(t *testing.T) {
	for hang, want := range map[string]time.Duration{"create": claimLimit, "list": claimLimit + claimWait} {
		t.Run(hang, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d := &daemon{leases: leaseTable{hang: hang}}
				r, began := d.runtime(t), time.Now()
				ended := make(chan error, 1)
				go func() { ended <- r.Claim(t.Context()) }()
				synctest.Wait()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if _, err := r.Observe(ctx); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
					t.Errorf("Observe beside it = %v after %v, want its own deadline of 1 s", err, time.Since(began))
				}
				if err := <-ended; !errors.Is(err, fault.ErrTemporary) || fault.Hint(err) == "" || time.Since(began) != want {
					t.Errorf("Claim = %v after %v, want that it is tried again, after %v", err, time.Since(began), want)
				}
				d.leases.hang = ""
				if err := r.Claim(t.Context()); err != nil {
					t.Errorf("Claim when it answers: %v", err)
				}
			})
		})
	}
}

// A claim that this agent cannot read is respected: a newer one may have made it.
func TestUnreadableClaimStands(t *testing.T) {
	for _, text := range []string{"", "{}", "v2:AAAA"} {
		other := leases.Lease{ID: "longshore-agent-0", Labels: map[string]string{labelAgent: "press-07", labelOwner: text}}
		d := &daemon{leases: leaseTable{held: []leases.Lease{other}}}
		err := d.runtime(t).Claim(t.Context())
		if !errors.Is(err, fault.ErrConflict) || !strings.Contains(fault.Hint(err), other.ID) {
			t.Errorf("Claim beside %q = %v (hint %q), want a conflict and the lease in the hint", text, err, fault.Hint(err))
		}
		if len(d.leases.held) != 1 || d.leases.held[0].ID != other.ID {
			t.Errorf("leases = %v, want the other claim alone", d.leases.held)
		}
	}
}
