package rollout

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/artifacts/schedule"
	"github.com/longshore-dev/longshore/fleet"
)

// Endpoint is the source of device reports.
type Endpoint interface {
	// Look returns the reports of devices; a device that has never reported is not in the result. Errors wrap fault.ErrTemporary when
	// a retry may succeed.
	Look(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID]*DeviceReport, error)
	// Capabilities are the capabilities documents that devices have reported; one that never has is not in the answer.
	Capabilities(ctx context.Context, devices []artifacts.DeviceID) (map[artifacts.DeviceID][]byte, error)
}

// DeviceReport is the last report of a device.
type DeviceReport struct {
	Heard time.Time
	Ago   time.Duration // since then, by the endpoint's clock
	Every time.Duration // it reports at least so often; 0: it does not say
	// OfflineSince is the time of the last report of an offline device: what it reported may have changed. Zero: it is online.
	OfflineSince time.Time
	// Agent is the version of longshore-agent, which reports generations; "": another agent, which reports them only with its
	// deployments.
	Agent                        string
	Accepted, Running, Committed uint64                    // 0: none
	Digest                       digest.Digest             // of the accepted state; "": none
	Refused                      *artifacts.CurrentRefusal // nil: it accepts its published state
	Deployments                  []DeploymentReport
	Waits                        Waits
	Progress                     *artifacts.CurrentProgress // of the change to its newest state; nil: it does not say
}

// Waits are the changes that wait for people, locks and windows at a device, as devices report them.
type Waits struct {
	Hold      *artifacts.CurrentHold     `json:"hold"`
	Waiting   []artifacts.CurrentWait    `json:"waiting"`
	Decisions artifacts.CurrentDecisions `json:"decisions"` // of people at the device, the last at the end
}

// words says it in one sentence; "": nothing waits.
func (w Waits) words() string {
	switch {
	case w.Hold != nil && w.Hold.Reason != "":
		return fmt.Sprintf("%s keeps it at generation %d: %s", w.Hold.By, w.Hold.Generation, w.Hold.Reason)
	case w.Hold != nil:
		return fmt.Sprintf("%s keeps it at generation %d", w.Hold.By, w.Hold.Generation)
	case len(w.Waiting) == 0:
		return ""
	}
	x := w.Waiting[0]
	out := fmt.Sprintf("%s: %s (%s)", x.Name, x.Message, x.Code)
	if more := len(w.Waiting) - 1; more > 0 {
		out += fmt.Sprintf(", and %d more", more)
	}
	return out
}

// DeploymentReport is a deployment as its device has reported it.
type DeploymentReport struct {
	ID         string
	Generation uint64 // that the report is about
	State      margo.State
	Error      string // "": none
}

// DeviceState is the progress of a published state on its device, by its reports.
type DeviceState string

// DeviceStates.
const (
	Silent  DeviceState = "silent"  // nothing was heard of it
	Working DeviceState = "working" // it is accepted, and does not run completely yet
	Waiting DeviceState = "waiting" // it is accepted, and waits for an approval, a lock or a window at the device, or was rolled back there by hand
	Well    DeviceState = "well"    // it runs completely
	Failed  DeviceState = "failed"  // it is refused, or something of it failed
	Later   DeviceState = "later"   // the device has a later one
	Offline DeviceState = "offline" // the device has stopped reporting; the progress of the state is unknown
)

// Of reports what became of a state, and why when it failed or is not known. A nil DeviceReport is a device that never reported.
// An offline device has the state Offline, unless it reported what cannot change back: that the state failed, or a later one.
func (s *DeviceReport) Of(t artifacts.RolloutTarget) (DeviceState, string) {
	state, why := s.reported(t)
	if s != nil && !s.OfflineSince.IsZero() && (state == Well || state == Working || state == Waiting || state == Silent) {
		return Offline, "offline since " + s.OfflineSince.UTC().Format(time.RFC3339)
	}
	return state, why
}

// reported is Of by the last report, however old it is.
func (s *DeviceReport) reported(t artifacts.RolloutTarget) (DeviceState, string) {
	switch {
	case s == nil:
		return Silent, ""
	case s.Refused != nil && s.Refused.Digest == t.Digest:
		return Failed, "refused: " + s.Refused.Code + ": " + s.Refused.Message
	case s.Agent == "":
		return s.foreign(t)
	case s.Accepted > t.Generation:
		return Later, ""
	case s.Accepted < t.Generation:
		return Silent, ""
	case s.Digest != t.Digest:
		return Failed, fmt.Sprintf("has another state as generation %d: %s", t.Generation, s.Digest)
	}
	if h := s.Waits.Hold; h != nil && h.Generation < t.Generation {
		return Waiting, s.Waits.words()
	}
	for _, d := range s.Deployments {
		if d.State == margo.StateFailed {
			return Failed, d.words()
		}
	}
	if s.Committed == t.Generation {
		return Well, ""
	}
	if why := s.Waits.words(); why != "" {
		return Waiting, why
	}
	return Working, ""
}

// foreign is Of for agents that report a generation only with their deployments.
func (s *DeviceReport) foreign(t artifacts.RolloutTarget) (DeviceState, string) {
	seen, installed, removed := 0, 0, 0
	for _, d := range s.Deployments {
		switch {
		case d.Generation > t.Generation:
			return Later, ""
		case d.Generation < t.Generation:
			continue
		case d.State == margo.StateFailed:
			return Failed, d.words()
		case d.State == margo.StateInstalled:
			installed++
		case d.State == margo.StateRemoved:
			removed++
		}
		seen++
	}
	switch {
	case seen == 0:
		return Silent, ""
	case seen == installed+removed && installed >= t.Deployments:
		return Well, ""
	}
	return Working, ""
}

// Generations are those that a device runs, or may go back to by itself, as far as it has reported. A nil DeviceReport has none.
func (s *DeviceReport) Generations() []uint64 {
	if s == nil {
		return nil
	}
	all := []uint64{s.Accepted, s.Running, s.Committed}
	if s.Agent == "" { // it reports them only with its deployments
		for _, d := range s.Deployments {
			all = append(all, d.Generation)
		}
	}
	slices.Sort(all)
	return slices.DeleteFunc(slices.Compact(all), func(n uint64) bool { return n == 0 })
}

// Lacks returns why a device does not run one deployment of a state, by its id, as far as it has reported; "": it does. A
// nil DeviceReport is a device that never reported.
func (s *DeviceReport) Lacks(t artifacts.RolloutTarget, deployment string) string {
	switch {
	case s == nil:
		return "it has reported nothing"
	case !s.OfflineSince.IsZero():
		return "it is offline since " + s.OfflineSince.UTC().Format(time.RFC3339)
	case s.Refused != nil && s.Refused.Digest == t.Digest:
		return fmt.Sprintf("it refuses generation %d: %s: %s", t.Generation, s.Refused.Code, s.Refused.Message)
	case s.Agent != "" && s.Accepted != t.Generation:
		return fmt.Sprintf("it has generation %d, and %d is published", s.Accepted, t.Generation)
	case s.Agent != "" && s.Digest != t.Digest:
		return fmt.Sprintf("it has another state as generation %d: %s", t.Generation, s.Digest)
	}
	for _, d := range s.Deployments {
		switch {
		case !strings.EqualFold(d.ID, deployment):
			continue
		case d.State == margo.StateFailed:
			return d.words()
		case d.State != margo.StateInstalled:
			return "it is " + string(d.State)
		case d.Generation != t.Generation && (s.Agent == "" || s.Committed != t.Generation):
			return fmt.Sprintf("it is reported for generation %d, and %d is published", d.Generation, t.Generation)
		}
		return ""
	}
	return "it has not reported it"
}

func (d DeploymentReport) words() string {
	if d.Error == "" {
		return "deployment " + d.ID + " failed"
	}
	return d.Error
}

// WaveCount counts the devices of a wave by the progress of their states. The keys of its JSON are stable.
type WaveCount struct {
	Devices int      `json:"-"` // that count
	Well    int      `json:"well"`
	Failed  int      `json:"failed"`
	Working int      `json:"working"`
	Waiting int      `json:"waiting"` // at the device, for an approval, a lock or a window
	Silent  int      `json:"silent"`
	Offline int      `json:"offline"`
	Left    int      `json:"left"` // that do not count: they have another state by now
	Later   int      `json:"-"`    // of Left: those that report a later state
	Unheard int      `json:"-"`    // of Well: those that have not reported since the end of the wave's soak time, although they report at intervals
	Reasons []string `json:"-"`    // why some failed, or why none counts, a few of them, with the device
}

// CountWave counts the devices of one wave, of which seen was read at a time.
func CountWave(r *artifacts.Rollout, wave int, seen map[artifacts.DeviceID]*DeviceReport, at time.Time) WaveCount {
	var t WaveCount
	soaked := r.Waves[wave].Well.Add(r.Waves[wave].Soak)
	var later []string
	for _, target := range r.Targets {
		if target.Wave != wave {
			continue
		}
		if slices.Contains(r.Waves[wave].Left, target.Device) {
			t.Left++
			continue
		}
		s := seen[target.Device]
		state, why := s.Of(target)
		t.Devices++
		switch state {
		case Well:
			t.Well++
			if s.Every > 0 && !r.Waves[wave].Well.IsZero() && at.Add(-s.Ago).Before(soaked) {
				t.Unheard++
			}
		case Working:
			t.Working++
		case Waiting:
			t.Waiting++
		case Silent:
			t.Silent++
		case Offline:
			t.Offline++
		case Later:
			t.Left++
			t.Later++
			t.Devices--
			later = append(later, fmt.Sprintf("%s: has a later state than generation %d", target.Device, target.Generation))
		case Failed:
			t.Failed++
			t.Reasons = append(t.Reasons, string(target.Device)+": "+why)
		}
	}
	if t.Devices == 0 {
		t.Reasons = later
	}
	const few = 3
	if more := len(t.Reasons) - few; more > 0 {
		t.Reasons = append(t.Reasons[:few], fmt.Sprintf("and %d more", more))
	}
	return t
}

// CountWaves reads the reports of the devices of every wave that was begun, and counts them.
func CountWaves(ctx context.Context, from Endpoint, r *artifacts.Rollout, at time.Time) ([]WaveCount, error) {
	var of []artifacts.DeviceID
	for _, t := range r.Targets {
		if r.Waves[t.Wave].State != artifacts.WavePending {
			of = append(of, t.Device)
		}
	}
	seen := map[artifacts.DeviceID]*DeviceReport{}
	if len(of) > 0 {
		var err error
		if seen, err = from.Look(ctx, of); err != nil {
			return nil, fmt.Errorf("read device reports: %w", err)
		}
	}
	out := make([]WaveCount, len(r.Waves))
	for i := range r.Waves {
		out[i] = CountWave(r, i, seen, at)
	}
	return out, nil
}

func (t WaveCount) String() string {
	out := fmt.Sprintf("%d of %s well", t.Well, printable.Counted(t.Devices, "device"))
	for _, x := range []struct {
		n    int
		word string
	}{{t.Failed, "failed"}, {t.Working, "at work"}, {t.Waiting, "waiting"}, {t.Silent, "silent"}, {t.Offline, "offline"}, {t.Left, "left out"}} {
		if x.n > 0 {
			out += fmt.Sprintf(", %d %s", x.n, x.word)
		}
	}
	return out
}

// verdict is the conclusion from the reports of a published wave's devices.
type verdict struct {
	state  artifacts.WaveState // published still, passed, failed
	well   time.Time           // since when enough devices are well; zero: they are not
	until  time.Time           // of what is published still: when time alone changes the verdict; zero: a report has to
	reason string              // of failed
}

// judge is pure: the same wave, tally and time have the same verdict. A wave fails as soon as it cannot pass any more,
// passes when enough devices have been well for the soak time, and waits otherwise, for ever unless it has a deadline:
// that a device is offline says nothing about the release. Devices where it waits for a decision or a window do not make a wave fail. One whose devices were all left out when it was published passes; but not
// one whose devices went on to later states: they do not show how the release runs. At the end of the soak time each
// device has to report once more that it is well, if it reports at intervals: the last report may be older than its end.
func judge(w artifacts.RolloutWave, t WaveCount, now time.Time) verdict {
	switch {
	case w.Success == 0, t.Devices+t.Later == 0:
		return verdict{state: artifacts.WavePassed}
	case t.Devices == 0:
		return verdict{state: artifacts.WaveFailed, reason: "no device is left that shows how the release runs: " + strings.Join(t.Reasons, "; ")}
	}
	want := fleet.Share(w.Success, t.Devices)
	if t.Failed > t.Devices-want {
		return verdict{state: artifacts.WaveFailed, reason: fmt.Sprintf("%d of %d devices failed (limit %d): %s",
			t.Failed, t.Devices, t.Devices-want, strings.Join(t.Reasons, "; "))}
	}
	if t.Well >= want {
		v := verdict{state: artifacts.WavePublished, well: w.Well}
		if v.well.IsZero() || v.well.After(now) { // not after a clock that was ahead
			v.well = now
		}
		v.until = v.well.Add(w.Soak)
		switch {
		case now.Before(v.until):
		case t.Well-t.Unheard >= want:
			v.state = artifacts.WavePassed
		default: // a device that failed during the soak time becomes offline only later
			v.until = time.Time{}
		}
		return v
	}
	v := verdict{state: artifacts.WavePublished}
	if w.Deadline > 0 && t.Well+t.Waiting < want { // people and windows at devices have no deadline
		if v.until = w.Published.Add(w.Deadline); !now.Before(v.until) {
			v.state, v.reason = artifacts.WaveFailed, fmt.Sprintf("%s after %s, %d must be", t, schedule.Brief(w.Deadline), want)
		}
	}
	return v
}

// DeviceStatus is a device's report about the state of its tag.
type DeviceStatus struct {
	State DeviceState
	Why   string        // it failed, or is offline; "" otherwise
	Seen  *DeviceReport // nil: it never reported
}

// DeviceStatuses reads the reports of a plan's devices about their published states.
func DeviceStatuses(ctx context.Context, p *fleet.Plan, from Endpoint) (map[artifacts.DeviceID]DeviceStatus, error) {
	ids := make([]artifacts.DeviceID, 0, len(p.Devices))
	for _, d := range p.Devices {
		ids = append(ids, d.Device)
	}
	seen, err := from.Look(ctx, ids)
	if err != nil {
		return nil, fmt.Errorf("read device reports: %w", err)
	}
	out := make(map[artifacts.DeviceID]DeviceStatus, len(p.Devices))
	for _, d := range p.Devices {
		t := artifacts.RolloutTarget{Device: d.Device, Generation: d.TaggedGeneration, Digest: d.Tagged}
		if d.Action == fleet.Same {
			t.Generation, t.Deployments = d.Generation, d.Deployments()
		}
		x := DeviceStatus{Seen: seen[d.Device], State: Silent}
		if d.Tagged != "" && t.Generation > 0 {
			x.State, x.Why = x.Seen.Of(t)
		}
		out[d.Device] = x
	}
	return out, nil
}
