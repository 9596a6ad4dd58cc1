package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// DecisionRequest is a decision of a person at the device about a change.
type DecisionRequest struct {
	Deployment string        `json:"deployment"` // name or id
	ID         digest.Digest `json:"id"`         // of the change that was looked at
	Verdict    store.Verdict `json:"verdict"`
	By         string        `json:"-"`
	Via        string        `json:"-"`
	Reason     string        `json:"reason,omitempty"` // of a rejection: not empty
	Until      time.Time     `json:"until,omitzero"`   // of [store.Postponed]
	// Seen is when the decision about the change was made that was looked at; zero: there was none. Another verdict since then is a conflict while it
	// counts. nil: it does not matter.
	Seen *time.Time `json:"seen,omitempty"`
}

// MaxPostponed is the longest time for which a change can be postponed.
const MaxPostponed = 90 * 24 * time.Hour

// Decide records a decision about a change that waits. fault.ErrNotFound: no change of the deployment waits; fault.ErrConflict: it is another
// change, it has begun, or another decision was made meanwhile.
func (a *Agent) Decide(ctx context.Context, r DecisionRequest) (status.Change, error) {
	return ask(ctx, a, func(l *loop) (status.Change, error) { return l.decide(r) })
}

func (l *loop) decide(d DecisionRequest) (status.Change, error) {
	now := l.o.Now()
	c, err := l.changeNamed(d.Deployment)
	if err != nil {
		return status.Change{}, err
	}
	r := l.gate.records[c.ID]
	switch {
	case d.ID != c.ID:
		return status.Change{}, fault.WithHint(fmt.Errorf("the change of %s that waits is %s, not %s: %w", c.Name, c.ID, d.ID, fault.ErrConflict),
			"look at it again: longshore-agent changes")
	case !r.Begun.IsZero():
		return status.Change{}, fmt.Errorf("the change of %s has begun at %s: %w", c.Name, r.Begun.UTC().Format(time.RFC3339), fault.ErrConflict)
	case d.Seen != nil && r.Decision.Counts(now) && r.Decision.Verdict != d.Verdict && !r.Decision.At.Equal(*d.Seen):
		return status.Change{}, fault.WithHint(fmt.Errorf("the change of %s was %s by %s meanwhile, at %s%s: %w", c.Name, r.Decision.Verdict, r.Decision.By,
			r.Decision.At.UTC().Format(time.RFC3339), reasonText(r.Decision.Reason), fault.ErrConflict), "look at it again: longshore-agent changes")
	case d.By == "":
		return status.Change{}, fmt.Errorf("decide on %s: the request does not name who decides: %w", c.Name, fault.ErrInvalid)
	case d.Verdict == store.Rejected && d.Reason == "":
		return status.Change{}, fmt.Errorf("reject the change of %s: a reason is needed: %w", c.Name, fault.ErrInvalid)
	case d.Verdict == store.Postponed && !d.Until.After(now):
		return status.Change{}, fmt.Errorf("postpone the change of %s: until %s is not in the future: %w", c.Name, d.Until.UTC().Format(time.RFC3339), fault.ErrInvalid)
	case d.Verdict == store.Postponed && d.Until.After(now.Add(MaxPostponed)):
		return status.Change{}, fmt.Errorf("postpone the change of %s: at most %d days: %w", c.Name, int(MaxPostponed.Hours()/24), fault.ErrInvalid)
	case !slices.Contains([]store.Verdict{store.Approved, store.Rejected, store.Postponed}, d.Verdict):
		return status.Change{}, fmt.Errorf("decide on %s: verdict %q: %w", c.Name, d.Verdict, fault.ErrInvalid)
	}
	until := l.o.Approvals.Expiry(d.Verdict, now)
	if d.Verdict == store.Postponed {
		until = d.Until
	}
	r.Decision = &store.Decision{Verdict: d.Verdict, By: d.By, Via: d.Via, Reason: status.Cut(d.Reason, status.MaxMessage), At: now, Until: until}
	records := maps.Clone(l.gate.records)
	records[c.ID] = r
	err = l.o.Store.Update(func(tx *store.Tx) error {
		return errors.Join(tx.SetChanges(records), keepDecided(tx, decisionEvent(c, *r.Decision), *r.Decision), l.capabilities(tx, now))
	})
	if err != nil {
		return status.Change{}, fmt.Errorf("save the decision on %s: %w", c.Name, err)
	}
	l.gate.records, l.gate.built = records, -1
	if r.Trust != nil {
		l.trust.next = now
	}
	l.nudge()
	l.tellDecision(c, *r.Decision)
	return l.changeStatus(c), nil
}

func decisionEvent(c plan.Change, d store.Decision) status.Event {
	return status.Event{Kind: status.EventChange, Deployment: c.Name, Digest: c.ID, Message: fmt.Sprintf("%s by %s%s", d.Verdict, d.By, reasonText(d.Reason))}
}

func (l *loop) tellDecision(c plan.Change, d store.Decision) {
	l.log.Info("decision", "deployment", c.Name, "change", c.ID, "verdict", d.Verdict, "by", d.By, "via", d.Via, "reason", d.Reason)
	l.events.Emit(decisionEvent(c, d))
}

// keepDecided saves the event of a decision, so that it is shown after a restart, too.
func keepDecided(tx *store.Tx, e status.Event, d store.Decision) error {
	return tx.AddDecided(store.Decided{
		At: d.At, Kind: string(e.Kind), Deployment: e.Deployment, Generation: e.Generation, Digest: e.Digest, Code: string(e.Code), Message: e.Message,
		Verdict: d.Verdict, By: d.By, Via: d.Via, Reason: d.Reason,
	})
}

// reportedDecisions are the newest few, for the reports.
func reportedDecisions(tx *store.Tx) ([]artifacts.CurrentDecision, error) {
	all, err := tx.Decided()
	all = slices.DeleteFunc(all, func(d store.Decided) bool { return d.Verdict == "" })
	var out []artifacts.CurrentDecision
	for _, d := range all[max(0, len(all)-maxReported):] {
		out = append(out, currentstate.Decision(d))
	}
	return out, err
}

// recallDecided brings back what people decided in earlier runs of the agent.
func (l *loop) recallDecided(tx *store.Tx) error {
	all, err := tx.Decided()
	for _, d := range all {
		l.events.Recall(status.Event{
			Time: d.At, Kind: status.EventKind(d.Kind), Deployment: d.Deployment, Generation: d.Generation, Digest: d.Digest, Code: codes.Code(d.Code), Message: d.Message,
		})
	}
	return err
}

func reasonText(reason string) string {
	if reason == "" {
		return ""
	}
	return ": " + status.Cut(reason, status.MaxMessage)
}

func (l *loop) changeNamed(deployment string) (plan.Change, error) {
	var found []plan.Change
	var names []string
	for _, c := range l.waitingChanges() {
		names = append(names, c.Name)
		if c.Deployment == deployment {
			return c, nil
		}
		if c.Name == deployment {
			found = append(found, c)
		}
	}
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return plan.Change{}, fmt.Errorf("%d deployments are named %s: use the id: %w", len(found), deployment, fault.ErrInvalid)
	}
	hint := "no change waits on this device"
	if len(names) > 0 {
		hint = "changes of these deployments wait: " + strings.Join(names, ", ")
	}
	return plan.Change{}, fault.WithHint(fmt.Errorf("no change of a deployment %q waits: %w", deployment, fault.ErrNotFound), hint)
}
