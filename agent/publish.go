package agent

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// publish makes the status that everyone else sees.
func (l *loop) publish(now time.Time) {
	s := &Status{
		Device: string(l.o.Device), Repository: l.o.Repository, Tag: l.o.Tag, Version: l.o.Version, Epoch: l.o.Store.Epoch(),
		Phase: l.phase(), CheckedAt: l.poll.checked, NextCheck: l.poll.due(), Checking: l.poll.busy,
		Accepted: generation(l.accepted), Running: generation(l.running), Committed: generation(l.committed),
		Trust: l.trustStatus(), Stale: l.stale, Insecure: l.insecure(), Deployments: []DeploymentStatus{}, Outbox: Outbox{Enabled: l.o.Reporter != nil},
		Security: l.security, StaleSince: l.staleSince(), Freshness: l.freshnessStatus(), Clock: l.clockStatus(),
	}
	seen := index(l.seen)
	for _, d := range l.before {
		s.Deployments = append(s.Deployments, l.deploymentStatus(d, seen))
	}
	slices.SortFunc(s.Deployments, func(a, b DeploymentStatus) int {
		return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
	})
	s.Problems = l.problems(now, s)
	table := l.containerTable(seen)
	l.tables.Store(&table)
	l.status.Store(s)
}

func (l *loop) phase() Phase {
	switch {
	case l.blind != nil || l.damaged != nil && l.target == nil:
		return PhaseUnavailable
	case l.accepted == nil:
		return PhaseEmpty
	case l.next != nil:
		return PhaseLoading
	}
	for _, d := range l.before {
		if d.State == margo.StateFailed {
			return PhaseDegraded
		}
	}
	if l.committed == nil || l.running == nil || l.committed.Digest != l.running.Digest {
		return PhaseApplying
	}
	return PhaseInSync
}

func generation(s *store.State) *Generation {
	if s == nil {
		return nil
	}
	return &Generation{
		Generation: s.Generation, Digest: s.Digest, Repository: s.Repository, SignedBy: s.SignedBy, Insecure: len(s.Insecure) > 0,
		Created: s.Created, AcceptedAt: s.AcceptedAt, Expires: s.Expires, Repeats: s.Repeats,
	}
}

func (l *loop) deploymentStatus(d store.Status, seen map[string]workload.Observation) DeploymentStatus {
	out := DeploymentStatus{
		ID: d.DeploymentID, Name: d.Name, Generation: d.Generation, State: d.State, Since: d.Since, Error: overallError(d),
		Components: []ComponentStatus{},
	}
	td := l.target.deployment(d.DeploymentID)
	if td == nil || td.Refused == nil {
		if nd := l.next.deployment(d.DeploymentID); nd != nil && nd.Refused != nil {
			td = nd
		}
	}
	if td != nil {
		out.Refused = l.refusedStatus(td)
	}
	for _, c := range d.Components {
		cs := ComponentStatus{Name: c.Name, Revision: c.Revision, State: c.State, Since: c.Since, Error: c.Error, Services: []ServiceStatus{}}
		comp := l.target.deployment(d.DeploymentID).component(c.Name)
		if comp == nil && l.target == nil {
			comp = l.next.deployment(d.DeploymentID).component(c.Name)
		}
		if comp != nil {
			cs.Notices = comp.Notices
			for _, x := range comp.Containers {
				cs.Services = append(cs.Services, l.serviceStatus(x, seen[x.ID]))
			}
		}
		out.Components = append(out.Components, cs)
	}
	return out
}

func (l *loop) refusedStatus(d *Deployment) *RefusedRevision {
	r := d.Refused
	if r == nil {
		return nil
	}
	out := &RefusedRevision{
		Digest: r.Digest, Generation: r.Generation, Component: r.Source, Revision: r.Revision, Code: Code(r.Code), Message: r.Message,
		Since: r.Since, Paused: r.Pause, Waiting: d.Kept, RunningGeneration: d.Back,
	}
	if d.Kept && l.running != nil {
		out.Generation = l.running.Generation
	}
	return out
}

func (l *loop) serviceStatus(x workload.Container, o workload.Observation) ServiceStatus {
	s := l.sup.Containers[x.ID]
	return ServiceStatus{
		Name: x.Service.Name, Container: x.ID, Replica: x.Replica, Image: x.Service.Image.Name(), Status: o.Status, Health: s.Health, Restarts: s.Total,
		ExitCode: o.ExitCode, PID: o.PID, StartedAt: o.StartedAt, NextStart: s.NextStart, Output: s.Output,
	}
}

// problems lists what is not as it should be, the worst first: one sentence, what the agent does, what a person can do.
func (l *loop) problems(now time.Time, s *Status) []Problem {
	out := []Problem{}
	add := func(code Code, message, doing, hint string, since time.Time) {
		if hint == "" {
			for _, d := range Codes() {
				if d.Code == code {
					hint = d.Action
				}
			}
		}
		out = append(out, Problem{code, message, doing, hint, since})
	}
	l.staleProblems(now, add)
	if l.blind != nil {
		add(CodeRuntime, "the runtime does not answer: "+l.blind.Error(), "containers run on; tries again", "check containerd: systemctl status containerd", time.Time{})
	}
	if l.unmended != nil {
		add(CodeRuntime, "what containers need of the device is not whole: "+l.unmended.Error(), "containers run on; repairs it again and again", fault.Hint(l.unmended), l.unmendedAt)
	}
	if l.unsaved != nil {
		add(CodeOf(l.unsaved), "cannot save: "+l.unsaved.Error(), "changes nothing until it can", hintOf(l.unsaved), time.Time{})
	}
	if l.damaged != nil {
		add(CodeContentDamaged, l.damaged.Error(), "leaves what runs alone and fetches the documents again", hintOf(l.damaged), time.Time{})
	}
	if r := l.refused; r != nil {
		what := "state " + r.Digest.String()
		if r.Generation > 0 {
			what = fmt.Sprintf("generation %d", r.Generation)
		}
		doing := "keeps what runs"
		if l.running != nil {
			doing = fmt.Sprintf("keeps generation %d", l.running.Generation)
		}
		add(Code(r.Code), what+" refused: "+r.Message, doing, r.Hint, r.Since)
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
			add(Code(d.Error.Code), d.Name+" failed: "+d.Error.Message, doing, "", d.Since)
		}
	}
	for _, t := range l.pull.troubles {
		if !t.lasting {
			add(t.code, "cannot load an image: "+t.message, "runs on as it is and tries again", "", time.Time{})
			break
		}
	}
	if err := l.poll.problem; err != nil {
		doing := "keeps what runs; next try " + until(l.poll.due().Sub(now))
		if l.running != nil {
			doing = fmt.Sprintf("runs generation %d as accepted; next try %s", l.running.Generation, until(l.poll.due().Sub(now)))
		}
		add(CodeOf(err), err.Error(), doing, hintOf(err), l.poll.since)
	}
	if l.running != nil && !l.running.Expires.IsZero() && !l.clock.Now().Before(l.running.Expires) {
		add(CodeStale, fmt.Sprintf("generation %d expired %s", l.running.Generation, l.running.Expires.UTC().Format(time.RFC3339)), "runs it on", "", l.running.Expires)
	}
	if in := s.Insecure; len(in) > 0 {
		add(CodeInsecure, fmt.Sprintf("accepted unsigned, as the policy allows: %s", in[0]), "", "", time.Time{})
	}
	return out
}

func until(d time.Duration) string {
	if d <= 0 {
		return "now"
	}
	return "in " + d.Round(time.Second).String()
}

// outbox completes a status with what waits for the fleet endpoint.
func (a *Agent) outbox(s *Status) {
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
	a.pump.status(&s.Outbox)
	problems := slices.Clone(s.Problems)
	if err != nil {
		problems = append(problems, Problem{Code: CodeInternal, Message: err.Error()})
	}
	if s.Outbox.LastError != "" && s.Outbox.Depth > 0 {
		problems = append(problems, Problem{
			CodeFleetUnreachable, fmt.Sprintf("%d reports wait: %s", s.Outbox.Depth, s.Outbox.LastError),
			"keeps them; next try " + until(s.Outbox.NextTry.Sub(s.Now)), docOf(CodeFleetUnreachable).Action, s.Outbox.Oldest,
		})
	}
	if s.Outbox.Lost > 0 {
		problems = append(problems, Problem{
			CodeReportsLost, fmt.Sprintf("%d reports were dropped: too many waited", s.Outbox.Lost), "", docOf(CodeReportsLost).Action, time.Time{},
		})
	}
	s.Problems = problems
}

func docOf(c Code) CodeDoc {
	for _, d := range Codes() {
		if d.Code == c {
			return d
		}
	}
	return CodeDoc{Code: c}
}
