package agent

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// publish makes the status that everyone else sees.
func (l *loop) publish(now time.Time) {
	s := &status.Status{
		Device: string(l.o.Device), Repository: l.o.Repository, Tag: l.o.Tag, Manager: l.o.Manager, Version: l.o.Version, Epoch: l.o.Store.Epoch(),
		Phase: l.phase(), Progress: status.NewProgress(l.progressed), CheckedAt: l.poll.checked, NextCheck: l.poll.due(l), Checking: l.poll.busy,
		Accepted: status.NewGeneration(l.accepted), Running: status.NewGeneration(l.running()), Committed: status.NewGeneration(l.committed),
		Trust: l.trustStatus(), Stale: l.stale, Insecure: l.insecure(), Outbox: status.Outbox{Enabled: l.o.Reporter != nil},
		Security: l.security, StaleSince: l.staleSince(), Freshness: l.freshnessStatus(), Clock: l.clockStatus(),
	}
	v := status.View{Target: l.targetResolved, Accepted: l.acceptedResolved, Supervision: l.sup, Observed: plan.ByID(l.seen), Reported: l.reportedStatus}
	s.Deployments = v.Deployments()
	s.KeptVolumes = l.keptVolumes()
	s.Hold, s.Changes = status.NewHold(l.hold), l.changeTable()
	l.showWindows(now, s)
	s.Problems = l.problems(now, s)
	table := v.Containers()
	l.tables.Store(&table)
	l.status.Store(s)
}

// running is the generation that the device runs, or changes to: the target, once one of its changes has begun or is made, or nothing holds them
// back, else the one that ran before. nil: none.
func (l *loop) running() *store.State {
	open := l.openChanges(l.targetDesired)
	if len(open) == 0 || !l.gated() || slices.ContainsFunc(open, func(c plan.Change) bool { return !l.gate.records[c.ID].Begun.IsZero() }) {
		return l.target
	}
	for _, r := range l.gate.records {
		if l.removedFor(r) {
			return l.target
		}
	}
	for i := range l.targetDesired.Deployments {
		g, ok := l.good[l.targetDesired.Deployments[i].ID]
		if ok && g.Record.State == l.target.Digest && g.Record.Accepted.Equal(l.target.AcceptedAt) { // another one is of when it was the target before
			return l.target
		}
	}
	return l.committed
}

func (l *loop) phase() status.Phase {
	p := l.progressed
	switch {
	case l.blind != nil || l.damaged != nil && l.targetResolved == nil:
		return status.PhaseUnavailable
	case p == nil:
		return status.PhaseEmpty
	case l.acceptedResolved != nil || l.accepted == nil:
		return status.Phase(p.Phase)
	}
	for _, d := range l.reportedStatus {
		if d.State == margo.StateFailed {
			return status.PhaseDegraded
		}
	}
	switch {
	case l.held() && p.Phase == store.PhaseRolledBack:
		return status.PhaseHeld
	case p.Phase == store.PhaseCommitted || p.Phase.Found():
		return status.PhaseInSync
	}
	return status.Phase(p.Phase)
}

// problems lists what is not as it should be, the worst first: one sentence, what the agent does, what a person can do.
func (l *loop) problems(now time.Time, s *status.Status) []status.Problem {
	out := []status.Problem{}
	_, down := l.downtime(now)
	add := func(code codes.Code, message, doing, hint string, since time.Time) {
		if down && communication(code) {
			return
		}
		if hint == "" {
			hint = codes.Explain(code).Action
		}
		out = append(out, status.Problem{Code: code, Message: message, Doing: doing, Hint: hint, Since: since})
	}
	l.staleProblems(now, add)
	if l.blind != nil {
		add(codes.Runtime, "the runtime does not answer: "+l.blind.Error(), "containers run on; tries again", "check containerd: systemctl status containerd", time.Time{})
	}
	if l.unrepaired != nil {
		add(codes.Runtime, "what containers need of the device is not whole: "+l.unrepaired.Error(), "containers run on; repairs it again and again", fault.Hint(l.unrepaired), l.unrepairedAt)
	}
	if l.unsaved != nil {
		add(codes.Of(l.unsaved), "cannot save: "+l.unsaved.Error(), "changes nothing until it can", codes.Hint(l.unsaved), time.Time{})
	}
	if l.damaged != nil {
		add(codes.ContentDamaged, l.damaged.Error(), "leaves what runs alone and fetches the documents again", codes.Hint(l.damaged), time.Time{})
	}
	if x := l.replaced; x != nil {
		add(codes.DatabaseDamaged, l.lostText(), l.lostDoing(s.Trust), "", x.At)
	}
	if r := l.refused; r != nil {
		what := "state " + r.Digest.String()
		if r.Generation > 0 {
			what = fmt.Sprintf("generation %d", r.Generation)
		}
		doing := "keeps what runs"
		if s.Running != nil {
			doing = fmt.Sprintf("keeps generation %d", s.Running.Generation)
		}
		add(codes.Code(r.Code), what+" refused: "+r.Message, doing, r.Hint, r.Since)
	}
	if l.held() {
		add(codes.Held, l.heldText(), fmt.Sprintf("keeps generation %d", l.hold.Generation), "", l.hold.At)
	}
	l.trustProblems(now, s, add)
	for _, d := range s.Deployments {
		if d.Error != nil {
			doing := "keeps trying"
			switch r := d.Refused; {
			case r == nil:
			case r.Paused:
				doing = "leaves it as it is until the state changes"
			case r.Waiting:
				doing = fmt.Sprintf("keeps what generation %d brought; looks again each minute", r.RunningGeneration)
			default:
				doing = fmt.Sprintf("keeps what generation %d brought; not tried again until the state changes", r.RunningGeneration)
			}
			add(codes.Code(d.Error.Code), d.Name+" failed: "+d.Error.Message, doing, "", d.Since)
		}
	}
	l.pullProblems(now, add)
	l.diskProblems(add)
	if l.poll.slow(now) {
		add(codes.SourceUnreachable, fmt.Sprintf("the check for a new state that began %s ago has not ended", now.Sub(l.poll.begun).Round(time.Second)),
			"keeps what runs and waits for it, ten minutes in all", "check the network and the registry; if it does not end, restart the agent: systemctl restart longshore-agent", l.poll.begun)
	}
	if err := l.poll.problem; err != nil && !l.poll.excused {
		doing := "keeps what runs; "
		if s.Running != nil {
			doing = fmt.Sprintf("runs generation %d as accepted; ", s.Running.Generation)
		}
		if l.poll.busy {
			doing += "tries again now"
		} else {
			doing += nextTry(l.poll.due(l).Sub(now), err)
		}
		add(codes.Of(err), err.Error(), doing, codes.Hint(err), l.poll.since)
	}
	if l.target != nil && !l.target.Expires.IsZero() && !l.clock.Now().Before(l.target.Expires) {
		add(codes.Stale, fmt.Sprintf("generation %d expired %s", l.target.Generation, l.target.Expires.UTC().Format(time.RFC3339)), "runs it on", "", l.target.Expires)
	}
	for _, w := range l.o.Weakened {
		add(codes.Insecure, "agent.yaml gives up a protection: "+w, "", "remove the setting from agent.yaml if nothing needs it", time.Time{})
	}
	if l.accepted != nil && len(l.accepted.Insecure) > 0 {
		add(codes.Insecure, fmt.Sprintf("accepted unsigned, as the policy allows: %s", l.accepted.Insecure[0]), "", "", time.Time{})
	}
	return out
}

// pullProblems are what keeps images from being loaded.
func (l *loop) pullProblems(now time.Time, add func(code codes.Code, message, doing, hint string, since time.Time)) {
	troubles := l.pull.troubles
	if l.blind != nil { // which is shown already, and is why nothing is loaded
		troubles = nil
	}
	for _, image := range slices.Sorted(maps.Keys(troubles)) { // the same one each time
		if t := troubles[image]; !t.Permanent {
			add(t.Code, "cannot load an image: "+t.Message, "runs on as it is and tries again", "", time.Time{})
			break
		}
	}
	for _, p := range []*progress{&l.progress, &l.refilling} {
		if what, since, _ := p.stalls(now); what != "" {
			add(codes.PullStalled, fmt.Sprintf("loading stalls, almost nothing came for %v: %s", stallAfter, what), "runs on as it is and keeps loading", "", since)
		}
	}
}

func until(d time.Duration) string {
	if d <= 0 {
		return "now"
	}
	return "in " + d.Round(time.Second).String()
}

// outbox completes a status with what waits for the fleet endpoint.
func (a *Agent) outbox(s *status.Status) {
	if !s.Outbox.Enabled {
		return
	}
	err := a.o.Store.View(func(tx *store.Tx) (err error) {
		if s.Outbox.Depth, s.Outbox.Oldest, err = tx.Depth(); err != nil {
			return err
		}
		gap, err := tx.Gap()
		if gap != nil {
			s.Outbox.Lost = gap.Count
		}
		return err
	})
	a.sender.status(&s.Outbox)
	problems := slices.Clone(s.Problems)
	if err != nil {
		problems = append(problems, status.Problem{Code: codes.Internal, Message: err.Error()})
	}
	if _, down := a.downtime(s.Now); s.Outbox.LastError != "" && s.Outbox.Depth > 0 && !down {
		problems = append(problems, status.Problem{
			Code: codes.FleetUnreachable, Message: fmt.Sprintf("%d reports wait: %s", s.Outbox.Depth, s.Outbox.LastError),
			Doing: "keeps them; next try " + until(s.Outbox.NextTry.Sub(s.Now)), Hint: codes.Explain(codes.FleetUnreachable).Action, Since: s.Outbox.Oldest,
		})
	}
	if s.Outbox.Lost > 0 {
		problems = append(problems, status.Problem{
			Code: codes.ReportsLost, Message: fmt.Sprintf("%d reports were dropped: too many waited", s.Outbox.Lost), Hint: codes.Explain(codes.ReportsLost).Action,
		})
	}
	s.Problems = problems
}
