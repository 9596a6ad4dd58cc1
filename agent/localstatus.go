package agent

import (
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/loading"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/retry"
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
		Trust: l.trustStatus(), Stale: l.told.stale, Insecure: l.insecure(), Outbox: status.Outbox{Enabled: l.o.Reporter != nil},
		Security: l.security, StaleSince: l.staleSince(), Freshness: l.freshnessStatus(), Clock: l.clockStatus(),
	}
	v := status.View{Target: l.targetResolved, Accepted: l.acceptedResolved, Supervision: l.sup, Observed: plan.ByID(l.sight.seen), Reported: l.told.statuses}
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
	if l.facts(l.o.Now()).Begun() {
		return l.target
	}
	return l.committed
}

func (l *loop) phase() status.Phase {
	p := l.progressed
	switch {
	case l.sight.blind != nil || l.damaged != nil && l.targetResolved == nil:
		return status.PhaseUnavailable
	case p == nil:
		return status.PhaseEmpty
	case l.acceptedResolved != nil || l.accepted == nil:
		return status.Phase(p.Phase)
	}
	for _, d := range l.told.statuses {
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
	target := ""
	add := func(code codes.Code, message, doing, hint string, since time.Time) {
		if down && communication(code) {
			return
		}
		out = append(out, status.Problem{Code: code, Message: message, Doing: doing, Hint: l.hint(code, hint, target), Since: since})
	}
	l.staleProblems(now, add)
	if l.sight.blind != nil {
		add(codes.Runtime, "the runtime does not answer: "+l.sight.blind.Error(), "containers run on; tries again", "check containerd: systemctl status containerd", time.Time{})
	}
	if l.repairs.err != nil {
		add(codes.Runtime, "what containers need of the device is not whole: "+l.repairs.err.Error(), "containers run on; repairs it again and again", fault.Hint(l.repairs.err), l.repairs.since)
	}
	if l.saving.err != nil {
		add(codes.Of(l.saving.err), "cannot save: "+l.saving.err.Error(), "changes nothing until it can", codes.Hint(l.saving.err), time.Time{})
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
			target = troubled(d)
			add(codes.Code(d.Error.Code), d.Name+" failed: "+d.Error.Message, doing, "", d.Since)
		}
	}
	target = ""
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
			doing += retry.Next(l.poll.due(l).Sub(now), err)
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
	if l.sight.blind != nil { // which is shown already, and is why nothing is loaded
		troubles = nil
	}
	for _, image := range slices.Sorted(maps.Keys(troubles)) { // the same one each time
		if t := troubles[image]; !t.Permanent {
			add(t.Code, "cannot load an image: "+t.Message, "runs on as it is and tries again", "", time.Time{})
			break
		}
	}
	for _, p := range []*loading.Progress{&l.progress, &l.refilling} {
		if what, since, _ := p.Stalls(now); what != "" {
			add(codes.PullStalled, fmt.Sprintf("loading stalls, almost nothing came for %v: %s", loading.StallAfter, what), "runs on as it is and keeps loading", "", since)
		}
	}
}
