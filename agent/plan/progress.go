package plan

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	keptOutcomes = 8   // of states that came to an end
	maxReason    = 512 // bytes of a message in a progress
)

// Stage is where a change of one deployment, or of all of them, stands.
type Stage struct {
	Phase         store.Phase // "": there is nothing to change
	Code, Message string      // why
	Until         time.Time
}

// urgency orders phases: the device is at the first that one of its deployments is at.
var urgency = []store.Phase{
	store.PhaseRollingBack, store.PhaseApplying, store.PhaseProbation, store.PhaseAwaitingApproval, store.PhaseAwaitingLock, store.PhaseAwaitingWindow, store.PhaseStaged, store.PhaseFailed, store.PhaseRolledBack,
}

// and returns the one of two that says more about a device.
func (s Stage) and(o Stage) Stage {
	rank := func(s Stage) int {
		if i := slices.Index(urgency, s.Phase); i >= 0 {
			return i
		}
		return len(urgency)
	}
	if rank(o) < rank(s) {
		return o
	}
	return s
}

// stage says where a deployment of the target stands; now is its status.
func (q AssessmentInput) stage(d *Deployment, views []*view, now store.Status) Stage {
	why := func(p store.Phase) Stage {
		s := Stage{Phase: p}
		if e := OverallError(now); e != nil {
			s.Code, s.Message = e.Code, e.Source+": "+e.Message
		}
		return s
	}
	up, runs := true, true
	for _, v := range views {
		up = up && v.up && (v.fault == nil || !v.fault.Permanent)
		runs = runs && v.exists && v.started && len(v.extra) == 0 && !slices.ContainsFunc(v.slots, func(x *slot) bool { return len(x.old) > 0 })
	}
	switch w := d.Waiting; {
	case w != nil && w.Code == "": // a moment, until locks were read
		return Stage{Phase: store.PhaseStaged}
	case w != nil:
		return Stage{waitsFor(w.Code), string(w.Code), d.Name + ": " + w.Message, w.Until}
	case d.Refused != nil && (d.Refused.Pause || d.Deferred):
		return why(store.PhaseFailed)
	case d.Refused != nil && q.onTheWayBack(d, views):
		return why(store.PhaseRollingBack)
	case d.Refused != nil:
		return why(store.PhaseRolledBack)
	case d.Blocked != nil && d.Blocked.Code == "": // nobody has said yet whether there is room for it
		return Stage{Phase: store.PhaseStaged}
	case up:
		return Stage{}
	case now.State == margo.StateFailed:
		return why(store.PhaseFailed)
	case runs:
		return Stage{Phase: store.PhaseProbation}
	}
	return Stage{Phase: store.PhaseApplying}
}

func waitsFor(c codes.Code) store.Phase {
	switch c {
	case codes.UpdateLocked:
		return store.PhaseAwaitingLock
	case codes.OutsideWindow:
		return store.PhaseAwaitingWindow
	}
	return store.PhaseAwaitingApproval
}

// Standing is what the progress of a device follows from.
type Standing struct {
	Now       time.Time
	Accepted  *store.State  // nil: none
	Committed *store.State  // nil: none
	Found     digest.Digest // of the state that is being checked; "": none
	Verifying bool          // Found, whose manifest is here
	Unloaded  bool          // some of Accepted is not on the device yet
	Intact    bool          // nothing that was on the device is known to lack: Unloaded means that it is being looked
	Whole     bool          // all of it is, and it is not what the device is kept at yet
	First     uint64        // generation of which a change has begun that is finished before; 0: none
	Hold      *store.Hold   // that keeps Accepted from being applied; nil: none
	Settled   bool          // what the device is kept at runs completely
	Stage     Stage         // of it
	Pull      Trouble       // why images cannot be loaded; zero: nothing is known
	Damaged   error         // documents of Accepted, or of what the device is kept at, cannot be read; nil: they can
	Attempt   int           // number of boots in which Accepted was applied, with this one; 0: none, or they are not counted
}

// Progress derives from where the device stands and from what was saved where its change stands now. It is pure. nil: there is none.
func Progress(p *store.Progress, s Standing) *store.Progress {
	p = cmp.Or(p, &store.Progress{})
	next := store.Progress{}
	if a := s.Accepted; a != nil {
		next.Generation, next.Digest = a.Generation, a.Digest
	}
	was := p.Digest == next.Digest && !p.Phase.Found()
	set := func(st Stage) {
		next.Phase, next.Code, next.Message, next.Until = st.Phase, st.Code, st.Message, st.Until
	}
	switch {
	case s.Accepted == nil:
	case s.Hold != nil:
		next.Phase, next.Code, next.Message = store.PhaseRollingBack, string(codes.Held), "rolled back by "+s.Hold.By
		if s.Hold.Reason != "" {
			next.Message += ": " + s.Hold.Reason
		}
		if s.Settled || was && p.Phase == store.PhaseRolledBack && p.Code == next.Code {
			next.Phase = store.PhaseRolledBack
		}
	case s.Committed != nil && s.Committed.Digest == s.Accepted.Digest:
		next.Phase = store.PhaseCommitted
	case s.Damaged != nil && was:
		set(Stage{p.Phase, string(codes.ContentDamaged), s.Damaged.Error(), time.Time{}})
	case s.Whole:
		next.Phase = store.PhaseStaged
		if s.First > 0 {
			next.Message = fmt.Sprintf("what generation %d has begun is finished first", s.First)
		}
	case s.Unloaded && s.Intact && was && p.Phase == store.PhaseStaged: // the agent has started again
		set(Stage{p.Phase, p.Code, p.Message, p.Until})
	case s.Unloaded, s.Damaged != nil:
		set(Stage{store.PhaseDownloading, string(s.Pull.Code), s.Pull.Message, time.Time{}})
	case s.Stage.Phase == "": // the moment before it is committed
		next.Phase = store.PhaseApplying
		if was {
			set(Stage{p.Phase, p.Code, p.Message, p.Until})
		}
	case s.Stage.Phase == store.PhaseStaged && was && p.Phase != store.PhaseDownloading: // locks are being read again, admission is asked again
		set(Stage{p.Phase, p.Code, p.Message, p.Until})
	default:
		set(s.Stage)
	}
	if next.Phase != "" && next.Phase != store.PhaseCommitted && s.Hold == nil && !s.Unloaded {
		next.Attempt = s.Attempt
	}
	if s.Found != "" && s.Found != next.Digest && (next.Phase == "" || next.Phase.Ended()) {
		next = store.Progress{Phase: store.PhaseResolved, Digest: s.Found}
		if s.Verifying {
			next.Phase = store.PhaseVerifying
		}
	}
	if next.Phase == "" {
		return nil
	}
	return follow(p, next, s.Now)
}

// follow keeps since when a phase lasts, and what became of earlier states.
func follow(p *store.Progress, next store.Progress, now time.Time) *store.Progress {
	next.Since, next.History = now, slices.Clone(p.History)
	if len(next.Message) > maxReason {
		next.Message = strings.ToValidUTF8(next.Message[:maxReason], "") + "…"
	}
	if p.Digest == next.Digest && p.Phase == next.Phase {
		next.Since = p.Since
	}
	add := func(o store.Outcome) {
		last := len(next.History) - 1
		switch {
		case last >= 0 && next.History[last].Digest == o.Digest && next.History[last].Outcome == o.Outcome:
			next.Since = next.History[last].At // it was at its end before something newer was looked at
		case last >= 0 && next.History[last].Digest == o.Digest && next.History[last].Outcome == store.PhaseFailed: // after all
			next.History[last] = o
		default:
			next.History = append(next.History, o)
		}
	}
	if p.Phase != "" && !p.Phase.Found() && !p.Phase.Ended() && p.Digest != next.Digest && !next.Phase.Found() {
		add(store.Outcome{Generation: p.Generation, Digest: p.Digest, Outcome: store.PhaseSuperseded, At: now, Message: fmt.Sprintf("by generation %d", next.Generation)})
		next.Since = now
	}
	if next.Phase.Ended() {
		add(store.Outcome{Generation: next.Generation, Digest: next.Digest, Outcome: next.Phase, At: next.Since, Code: next.Code, Message: next.Message})
	}
	next.History = next.History[max(0, len(next.History)-keptOutcomes):]
	return &next
}
