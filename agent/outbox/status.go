package outbox

import (
	"fmt"
	"slices"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/retry"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/printable"
)

// Status completes a status with what waits for the fleet endpoint, if there is one.
func (s *Sender) Status(to *status.Status) {
	o := &to.Outbox
	if !o.Enabled {
		return
	}
	err := s.o.Store.View(func(tx *store.Tx) (err error) {
		if o.Depth, o.Oldest, err = tx.Depth(); err != nil {
			return err
		}
		gap, err := tx.Gap()
		if gap != nil {
			o.Lost = gap.Count
		}
		return err
	})
	s.mu.Lock()
	o.NextDue = s.heard
	if s.err != nil {
		o.LastError, o.NextTry = s.err.Error(), s.next
	}
	s.mu.Unlock()
	problems := slices.Clone(to.Problems)
	if err != nil {
		problems = append(problems, status.Problem{Code: codes.Internal, Message: err.Error()})
	}
	if _, down := s.o.Downtime(to.Now); o.LastError != "" && o.Depth > 0 && !down {
		problems = append(problems, status.Problem{
			Code: codes.FleetUnreachable, Message: fmt.Sprintf("the fleet endpoint does not accept %s: %s", printable.Counted(o.Depth, "report"), o.LastError),
			Doing: "keeps them; next try " + retry.In(o.NextTry.Sub(to.Now)), Hint: codes.Explain(codes.FleetUnreachable).Action, Since: o.Oldest,
		})
	}
	if o.Lost > 0 {
		problems = append(problems, status.Problem{
			Code: codes.ReportsLost, Message: printable.Counted(o.Lost, "report") + " lost: too many waited", Hint: codes.Explain(codes.ReportsLost).Action,
		})
	}
	to.Problems = problems
}
