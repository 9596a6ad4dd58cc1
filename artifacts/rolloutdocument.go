package artifacts

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

const rolloutVersion = 1

// RolloutPhase is what a rollout is at as a whole.
type RolloutPhase string

// Phases of a rollout.
const (
	RolloutRunning    RolloutPhase = "running"
	RolloutHalted     RolloutPhase = "halted"       // by a wave that failed, or by hand; it may be continued
	RolloutGoingBack  RolloutPhase = "rolling-back" // devices are given their former content
	RolloutRolledBack RolloutPhase = "rolled-back"
	RolloutDone       RolloutPhase = "done" // every wave has passed
)

// Over reports whether the rollout will do nothing more by itself.
func (p RolloutPhase) Over() bool { return p != RolloutRunning && p != RolloutGoingBack }

// WaveState is what one wave of a rollout is at.
type WaveState string

// States of a wave, in their order.
const (
	WavePending    WaveState = "pending"
	WavePublishing WaveState = "publishing" // some of its states may be published
	WavePublished  WaveState = "published"  // all are; devices are looked at
	WavePassed     WaveState = "passed"
	WaveFailed     WaveState = "failed"
	WaveGoingBack  WaveState = "rolling-back" // some of its devices may have their former content again
	WaveRolledBack WaveState = "rolled-back"
)

// Rollout is where the publication of a release in waves stands: all that a publisher must know to go on with it.
type Rollout struct {
	Fleet   string        `json:"fleet"`
	Number  uint64        `json:"number"` // of the rollout in its fleet, from 1
	Phase   RolloutPhase  `json:"phase"`
	Reason  string        `json:"reason,omitempty"` // why it was halted, or goes back; "": neither
	Content digest.Digest `json:"content"`          // of what its devices were to run: the same again has the same digest
	By      string        `json:"by,omitempty"`     // who goes on with it, for people
	Claim   string        `json:"claim"`            // of the process that goes on with it: another one means that it was taken over
	Began   time.Time     `json:"began"`
	Changed time.Time     `json:"changed"`
	States  RolloutStates `json:"states"`
	Waves   []RolloutWave `json:"waves"` // those of one group in their order

	Targets []RolloutTarget `json:"-"` // every state that is published, by device; a layer of its own
}

// RolloutStates is how the states of a rollout are made, so that a resumed rollout makes the same bytes.
type RolloutStates struct {
	Created     time.Time         `json:"created,omitzero"` // zero: left out
	Expires     time.Time         `json:"expires,omitzero"` // zero: never
	Annotations map[string]string `json:"annotations,omitempty"`
}

// RolloutWave is one step of a rollout.
type RolloutWave struct {
	Name     string        `json:"name"`
	Group    string        `json:"group,omitempty"` // whose waves it belongs to; "": the fleet's
	Devices  int           `json:"devices"`
	Soak     time.Duration `json:"-"`       // to wait after enough devices are well
	Deadline time.Duration `json:"-"`       // for enough devices to be well, from when the wave is published; 0: none
	Success  int           `json:"success"` // percent of its devices that must be well; 0: it is not waited for
	Rollback bool          `json:"-"`       // when it fails, its devices get their former content

	State     WaveState  `json:"state"`
	Published time.Time  `json:"published,omitzero"` // when all of its states were
	Well      time.Time  `json:"well,omitzero"`      // since when enough devices are well; zero: they are not
	Ended     time.Time  `json:"ended,omitzero"`     // when it passed, failed, or had gone back
	Reason    string     `json:"reason,omitempty"`   // why it failed
	Left      []DeviceID `json:"left,omitempty"`     // devices that do not count: another publisher gave them another state
}

// RolloutTarget is the state that one device is to get.
type RolloutTarget struct {
	Device      DeviceID      `json:"device"`
	Wave        int           `json:"wave"` // index
	Repository  string        `json:"repository"`
	Generation  uint64        `json:"generation"`
	Digest      digest.Digest `json:"digest"`
	Former      digest.Digest `json:"former,omitempty"` // what the device's tag named before; "": nothing
	Deployments int           `json:"deployments"`      // in the state
}

var (
	fleetFormat    = strict.Expression(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	claimFormat    = strict.Expression(`^[0-9a-f-]{1,64}$`)
	rolloutPhases  = []string{"running", "halted", "rolling-back", "rolled-back", "done"}
	rolloutWaves   = []string{"pending", "publishing", "published", "passed", "failed", "rolling-back", "rolled-back"}
	repositoryText = strict.Short(`^[!-~]+$`, 1000)
)

// wire is a wave as JSON has it: durations as people write them.
type wire struct {
	RolloutWave
	Soak      string `json:"soak"`
	Deadline  string `json:"deadline,omitempty"`
	OnFailure string `json:"onFailure"`
}

// Encode writes the rollout and its targets; it parses again to the same.
func (r *Rollout) Encode() (state, targets []byte, err error) {
	waves := make([]wire, len(r.Waves))
	for i, w := range r.Waves {
		waves[i] = wire{RolloutWave: w, Soak: w.Soak.String(), OnFailure: "halt"}
		if w.Rollback {
			waves[i].OnFailure = "rollback"
		}
		if w.Deadline > 0 {
			waves[i].Deadline = w.Deadline.String()
		}
	}
	type plain Rollout
	if state, err = json.Marshal(struct {
		Version int `json:"version"`
		plain
		Waves []wire `json:"waves"`
	}{rolloutVersion, plain(*r), waves}); err != nil {
		return nil, nil, fmt.Errorf("write rollout: %w", err)
	}
	all := r.Targets
	if all == nil {
		all = []RolloutTarget{}
	}
	if targets, err = json.Marshal(rolloutTargets{rolloutVersion, all}); err != nil {
		return nil, nil, fmt.Errorf("write rollout: targets: %w", err)
	}
	if _, err := ParseRollout("rollout", state, targets); err != nil {
		return nil, nil, fmt.Errorf("write rollout: %w", err)
	}
	return state, targets, nil
}

type rolloutTargets struct {
	Version int             `json:"version"`
	Targets []RolloutTarget `json:"targets"`
}

// ParseRollout reads a rollout and its targets. Every object is closed. The error is a *[strict.Error], or of the targets
// and wraps fault.ErrInvalid.
func ParseRollout(file string, state, targets []byte) (*Rollout, error) {
	root, err := strict.JSON(file, state)
	if err != nil {
		return nil, err
	}
	version := root.Need("version")
	if v := version.Uint64(); version.Kind() == strict.Number && v != rolloutVersion {
		version.HintFaultf("use a newer longshore", "version %d is not known here", v)
	}
	r := &Rollout{
		Fleet:   root.Need("fleet").Matching(fleetFormat, "a name of a fleet"),
		Number:  root.Need("number").Uint64(),
		Phase:   RolloutPhase(root.Need("phase").OneOf(rolloutPhases...)),
		Reason:  root.Get("reason").Text(),
		Content: margo.ReadDigest(root.Need("content")),
		By:      root.Get("by").Text(),
		Claim:   root.Need("claim").Matching(claimFormat, "a claim"),
		Began:   instant(root.Need("began")),
		Changed: instant(root.Need("changed")),
	}
	states := root.Need("states")
	r.States = RolloutStates{Created: instant(states.Get("created")), Expires: instant(states.Get("expires")), Annotations: states.Get("annotations").Texts()}
	states.Close()
	for _, n := range root.Need("waves").Items() {
		r.Waves = append(r.Waves, rolloutWave(n))
	}
	root.Close()
	if err := root.Err(); err != nil {
		return nil, err
	}
	if r.Targets, err = parseTargets(targets, len(r.Waves)); err != nil {
		return nil, fmt.Errorf("%s: targets: %w", file, err)
	}
	count := make([]int, len(r.Waves))
	for _, t := range r.Targets {
		count[t.Wave]++
	}
	for i, w := range r.Waves {
		if count[i] != w.Devices {
			return nil, fmt.Errorf("%s: wave %s: %d targets for %d devices: %w", file, w.Name, count[i], w.Devices, fault.ErrInvalid)
		}
	}
	return r, nil
}

func rolloutWave(n *strict.Node) RolloutWave {
	number := func(n *strict.Node, most int64) int {
		v := n.Int64()
		if n.Kind() == strict.Number && (v < 0 || v > most) {
			n.Faultf("must be from 0 to %d", most)
			return 0
		}
		return int(v)
	}
	w := RolloutWave{
		Name:      n.Need("name").Matching(fleetFormat, "a name of a wave"),
		Group:     n.Get("group").Text(),
		Devices:   number(n.Need("devices"), 1<<30),
		Soak:      n.Need("soak").Duration(),
		Deadline:  n.Get("deadline").Duration(),
		Success:   number(n.Need("success"), 100),
		Rollback:  n.Need("onFailure").OneOf("halt", "rollback") == "rollback",
		State:     WaveState(n.Need("state").OneOf(rolloutWaves...)),
		Published: instant(n.Get("published")),
		Well:      instant(n.Get("well")),
		Ended:     instant(n.Get("ended")),
		Reason:    n.Get("reason").Text(),
	}
	for _, l := range n.Get("left").Items() {
		id, err := ParseDeviceID(l.Text())
		if err != nil && l.Kind() == strict.String {
			l.Faultf("%q is not a device id", l.Text())
		}
		w.Left = append(w.Left, id)
	}
	n.Close()
	return w
}

// instant is a time of RFC 3339, in UTC; zero when it is not there.
func instant(n *strict.Node) time.Time {
	s := n.Text()
	t, err := time.Parse(time.RFC3339, s)
	t = t.UTC()
	if n.Kind() == strict.String && (err != nil || t.Year() < 1 || t.Year() > 9999) {
		n.Faultf("%q is no time (RFC 3339)", s)
		return time.Time{}
	}
	return t
}

// parseTargets reads the targets. There may be more of them than values in a strict document.
func parseTargets(data []byte, waves int) ([]RolloutTarget, error) {
	if len(data) > MaxRolloutTargets {
		return nil, fmt.Errorf("%d bytes, more than %d: %w", len(data), MaxRolloutTargets, fault.ErrTooLarge)
	}
	var doc rolloutTargets
	d := json.NewDecoder(bytes.NewReader(data))
	d.DisallowUnknownFields()
	if err := d.Decode(&doc); err != nil {
		return nil, fmt.Errorf("%w: %w", fault.ErrInvalid, err)
	}
	if _, err := d.Token(); err != io.EOF {
		return nil, fmt.Errorf("something follows: %w", fault.ErrInvalid)
	}
	if doc.Version != rolloutVersion {
		return nil, fmt.Errorf("version %d is not known here: %w", doc.Version, fault.ErrInvalid)
	}
	last := DeviceID("")
	for i, t := range doc.Targets {
		_, err := ParseDeviceID(string(t.Device))
		switch {
		case err != nil:
			return nil, fmt.Errorf("target %d: %w", i, err)
		case t.Device <= last:
			return nil, fmt.Errorf("target %d: %s comes after %s: %w", i, t.Device, last, fault.ErrInvalid)
		case t.Wave < 0 || t.Wave >= waves:
			return nil, fmt.Errorf("target %s: there is no wave %d: %w", t.Device, t.Wave, fault.ErrInvalid)
		case !repositoryText.MatchString(t.Repository):
			return nil, fmt.Errorf("target %s: %q is no repository: %w", t.Device, t.Repository, fault.ErrInvalid)
		case t.Generation == 0 || t.Deployments < 0:
			return nil, fmt.Errorf("target %s: generation %d, %d deployments: %w", t.Device, t.Generation, t.Deployments, fault.ErrInvalid)
		case !margo.ValidDigest(t.Digest) || t.Former != "" && !margo.ValidDigest(t.Former):
			return nil, fmt.Errorf("target %s: %q, %q: not %s: %w", t.Device, t.Digest, t.Former, margo.DigestForm, fault.ErrInvalid)
		}
		last = t.Device
	}
	return doc.Targets, nil
}
