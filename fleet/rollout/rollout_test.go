package rollout_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// devices are simulated ones: each takes what the registry has for it, and some time.
type devices struct {
	asked int // for capabilities
	m     *fleettest.Registry
	takes time.Duration                                           // from noticing a state to running it
	sick  func(device artifacts.DeviceID, generation uint64) bool // which states do not run; nil: all do
	past  map[artifacts.DeviceID]uint64                           // generations that they have accepted, whatever the registry has; they take nothing older

	mu   sync.Mutex
	dies map[artifacts.DeviceID]time.Duration // after it runs a state, a device reports no more; devices report at intervals then
	down error                                // what the endpoint answers; nil: it does
	told map[artifacts.DeviceID]digest.Digest
	at   map[artifacts.DeviceID]time.Time
}

func newDevices(m *fleettest.Registry) *devices {
	return &devices{m: m, takes: time.Minute, told: map[artifacts.DeviceID]digest.Digest{}, at: map[artifacts.DeviceID]time.Time{}}
}

func (d *devices) set(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.down = err
}

func (d *devices) Look(_ context.Context, of []artifacts.DeviceID) (map[artifacts.DeviceID]*rollout.DeviceReport, error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.down != nil {
		return nil, d.down
	}
	out := map[artifacts.DeviceID]*rollout.DeviceReport{}
	for _, id := range of {
		d.m.Lock()
		there := d.m.Named[fleettest.Base+"/state:"+id.Tag()]
		manifest := d.m.Manifests[there]
		d.m.Unlock()
		if there == "" {
			continue
		}
		x, err := artifacts.OpenState(manifest)
		if err != nil {
			return nil, err
		}
		if d.told[id] != there {
			d.told[id], d.at[id] = there, time.Now()
		}
		if n := d.past[id]; n > x.Generation {
			out[id] = &rollout.DeviceReport{Agent: "1.0.0", Accepted: n, Running: n, Committed: n, Digest: digest.FromString("lost")}
			continue
		}
		s := &rollout.DeviceReport{Agent: "1.0.0", Accepted: x.Generation, Running: x.Generation, Digest: there, Committed: x.Generation - 1}
		if time.Since(d.at[id]) >= d.takes {
			if s.Committed = x.Generation; d.sick != nil && d.sick(id, x.Generation) {
				s.Committed--
				s.Deployments = []rollout.DeploymentReport{{ID: "x", Generation: x.Generation, State: margo.StateFailed, Error: "unhealthy"}}
			}
		}
		if d.dies != nil {
			d.silence(id, s)
		}
		out[id] = s
	}
	return out, nil
}

// silence makes a sighting that of a device that reports every five minutes, as long as it lives.
func (d *devices) silence(id artifacts.DeviceID, s *rollout.DeviceReport) {
	s.Every = 5 * time.Minute
	s.Ago = time.Since(d.at[id]) % s.Every
	if life, ok := d.dies[id]; ok && s.Committed == s.Accepted && s.Accepted > 1 {
		s.Ago = max(s.Ago, time.Since(d.at[id])-d.takes-life)
	}
	s.Heard = time.Now().Add(-s.Ago)
	if s.Ago > 3*s.Every {
		s.OfflineSince = s.Heard
	}
}

func (d *devices) Capabilities(_ context.Context, of []artifacts.DeviceID) (map[artifacts.DeviceID][]byte, error) {
	d.asked++
	out := map[artifacts.DeviceID][]byte{}
	for _, id := range of {
		if id != "press-001" {
			out[id] = []byte(strings.Replace(fmt.Sprintf(fleettest.Capabilities, "4", "amd64", "4Gi"), "template", string(id), 1))
		}
	}
	return out, nil
}

// stage is a fleet of 20 devices that have generation 1, and a rollout of a change.
type stage struct {
	t       *testing.T
	m       *fleettest.Registry
	devices *devices
	files   fstest.MapFS
	claims  int

	mu   sync.Mutex
	said []string
}

const threeWaves = `{name: canary, select: "device=press-000", soak: 30m}, {name: half, percent: 50, soak: 1h, success: 80}, {name: rest, percent: 100}`

func newStage(t *testing.T, m *fleettest.Registry) *stage {
	t.Helper()
	s := &stage{t: t, m: m, devices: newDevices(m), files: fleettest.Staged(20, threeWaves, "")}
	if _, err := fleettest.Planned(t, m, s.files, fleet.Options{}).Publish(t.Context(), m, nil); err != nil {
		t.Fatal(err)
	}
	s.files = fleettest.With(s.files, fleet.File, "RATE: 5", "RATE: 6")
	m.Published = nil
	return s
}

// conduct is what a process would run the rollout with.
func (s *stage) conduct() rollout.Config {
	s.claims++
	f, err := fleet.Read(s.files)
	if err != nil {
		s.t.Fatal(err)
	}
	return rollout.Config{
		Store: rollout.Of(f, s.m, s.m, nil), Endpoint: s.devices, Now: time.Now, Interval: 30 * time.Second, Wait: true, By: fmt.Sprintf("machine-%d", s.claims), Claim: fmt.Sprintf("%x", s.claims),
		Event: func(line string) {
			s.mu.Lock()
			defer s.mu.Unlock()
			s.said = append(s.said, line)
		},
	}
}

func (s *stage) lines() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Join(s.said, "\n")
}

// roll begins or takes up the rollout, and runs it.
func (s *stage) roll(ctx context.Context, start rollout.Start) error {
	s.t.Helper()
	run, _, err := rollout.Begin(ctx, fleettest.Compiled(s.t, s.files, s.m), s.conduct(), fleet.Options{}, start)
	if err != nil || run == nil {
		return err
	}
	return run.Go(ctx)
}

// generations counts the devices by the generation that they have.
func (s *stage) generations() map[uint64]int {
	s.t.Helper()
	out := map[uint64]int{}
	for i := range 20 {
		x, err := artifacts.OpenState(s.m.Manifests[s.m.Named[fmt.Sprintf("%s/state:press-%03d", fleettest.Base, i)]])
		if err != nil {
			s.t.Fatal(err)
		}
		out[x.Generation]++
	}
	return out
}

func (s *stage) want(what string, want map[uint64]int) {
	s.t.Helper()
	if got := s.generations(); fmt.Sprint(got) != fmt.Sprint(want) {
		s.t.Errorf("%s: devices by generation: %v, want %v\n%s", what, got, want, s.lines())
	}
}

func (s *stage) record() *artifacts.Rollout {
	s.t.Helper()
	rec, err := s.conduct().Store.Read(s.t.Context())
	if err != nil {
		s.t.Fatal(err)
	}
	return rec.Rollout
}

// stocked is a registry with what the fleets of these tests run.
func stocked(t *testing.T) *fleettest.Registry {
	t.Helper()
	m := fleettest.New()
	m.AddComponent(t, "sensor", "1.4.0")
	return m
}

// bubble runs a test in time that passes by itself.
func bubble(t *testing.T, f func(*testing.T, *stage)) {
	m := stocked(t)
	synctest.Test(t, func(t *testing.T) { f(t, newStage(t, m)) })
}

func TestRollout(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		began := time.Now()
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		s.want("done", map[uint64]int{2: 20})
		// A minute for the devices of each wave, half an hour and an hour of soaking; never less.
		if took := time.Since(began); took < 93*time.Minute || took > 96*time.Minute {
			t.Errorf("took %v\n%s", took, s.lines())
		}
		r := s.record()
		if r.Phase != artifacts.RolloutDone || r.Number != 1 || len(r.Waves) != 3 || r.Waves[1].Devices != 9 {
			t.Errorf("%+v", r)
		}
		for i, w := range r.Waves {
			if w.State != artifacts.WavePassed || i > 0 && w.Published.Before(r.Waves[i-1].Ended) || w.Ended.Sub(w.Well) < w.Soak {
				t.Errorf("%+v", w)
			}
		}
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Errorf("again: %v", err)
		}
		s.want("again", map[uint64]int{2: 20})
		s.files = fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 7")
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Error(err)
		}
		s.want("the next", map[uint64]int{3: 20})
		if r := s.record(); r.Number != 2 {
			t.Errorf("number %d", r.Number)
		}
	})
}

// A device that dies while its wave soaks holds the rollout back, also where the soak time ends before it counts as offline.
func TestRolloutWaitsForTheSilent(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.files = fleettest.With(s.files, fleet.File, "soak: 30m", "soak: 10m, deadline: 2h")
		s.devices.dies = map[artifacts.DeviceID]time.Duration{"press-000": time.Second}
		err := s.roll(t.Context(), rollout.Start{})
		if !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "wave canary: 0 of 1 device well, 1 offline after 2h") {
			t.Errorf("%v", err)
		}
		s.want("rolled back", map[uint64]int{1: 19, 3: 1})
		if !strings.Contains(s.lines(), "wave canary: 1 of 1 device well, soaked; waits for the next report of 1") {
			t.Errorf("what it waits for is not told:\n%s", s.lines())
		}
	})
	bubble(t, func(t *testing.T, s *stage) {
		s.files = fleettest.With(s.files, fleet.File, "soak: 30m", "soak: 10m")
		s.devices.dies = map[artifacts.DeviceID]time.Duration{}
		began := time.Now()
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 90*time.Minute { // 73 minutes, and at most an interval for each wave that soaks
			t.Errorf("took %v\n%s", took, s.lines())
		}
	})
}

func TestRolloutHalts(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.files = fleettest.With(s.files, fleet.File, "onFailure: rollback", "onFailure: halt")
		s.devices.sick = func(_ artifacts.DeviceID, g uint64) bool { return g == 2 }
		err := s.roll(t.Context(), rollout.Start{})
		if !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "wave canary: 1 of 1 devices failed (limit 0): press-000: unhealthy") {
			t.Errorf("%v", err)
		}
		s.want("halted", map[uint64]int{1: 19, 2: 1})
		pushed := len(s.m.Published)
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) || fault.Hint(err) == "" || len(s.m.Published) != pushed {
			t.Errorf("the same again: %v", err)
		}
		if err := s.proceed(); !errors.Is(err, fault.ErrRejected) { // nothing is better
			t.Errorf("continue: %v", err)
		}
		s.want("continued", map[uint64]int{1: 19, 2: 1})
		s.devices.sick = func(d artifacts.DeviceID, _ uint64) bool { return d == "press-000" }
		if err := s.proceed("canary", "rest"); !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "wave rest of rollout 1 of acme-plant: it is pending") {
			t.Errorf("promote what was not begun: %v", err)
		}
		if err := s.proceed("none"); !errors.Is(err, fault.ErrNotFound) || fault.Hint(err) != "there is wave canary, wave half, wave rest" {
			t.Errorf("promote what is not there: %v", err)
		}
		if err := s.proceed("canary"); err != nil { // the release is good, that device is not
			t.Errorf("promote: %v\n%s", err, s.lines())
		}
		s.want("promoted", map[uint64]int{2: 20})
		if err := s.proceed(); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("nothing to continue: %v", err)
		}
	})
}

// A rollout that every device has and that is halted is not a success for who publishes the same again.
func TestRolloutHaltsInItsLastWave(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.files = fleettest.With(s.files, fleet.File, "onFailure: rollback", "onFailure: halt")
		s.files = fleettest.With(s.files, fleet.File, threeWaves, "{name: all, percent: 100}")
		s.devices.sick = func(_ artifacts.DeviceID, g uint64) bool { return g == 2 }
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) {
			t.Errorf("%v", err)
		}
		s.want("halted", map[uint64]int{2: 20})
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "was of the same and is halted") || !strings.Contains(fault.Hint(err), "rollout continue") {
			t.Errorf("the same again: %v", err)
		}
		if err := s.roll(t.Context(), rollout.Start{Again: true}); err != nil { // there is nothing to publish
			t.Errorf("the same again, as asked for: %v", err)
		}
		s.devices.sick = nil
		if err := s.proceed(); err != nil {
			t.Errorf("continue: %v", err)
		}
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Errorf("the same again when it is done: %v", err)
		}
		s.want("done", map[uint64]int{2: 20})
	})
}

func (s *stage) proceed(promote ...string) error {
	s.t.Helper()
	run, _, err := rollout.Continue(s.t.Context(), fleettest.Compiled(s.t, s.files, s.m), s.conduct(), fleet.Options{}, rollout.Start{Promote: promote})
	if err != nil {
		return err
	}
	return run.Go(s.t.Context())
}

// Of two waves that failed only the one that is named is promoted, the other is looked at again.
func TestRolloutPromotesWhatIsNamed(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		files := fleettest.Staged(20, "{name: all, percent: 100}", "{name: first, percent: 20}, {name: all, percent: 100}")
		s.files = fleettest.With(fleettest.With(files, fleet.File, "RATE: 5", "RATE: 6"), fleet.File, "onFailure: rollback", "onFailure: halt")
		s.devices.sick = func(_ artifacts.DeviceID, g uint64) bool { return g == 2 }
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) {
			t.Errorf("%v", err)
		}
		s.want("both failed", map[uint64]int{1: 4, 2: 16})
		if err := s.proceed("line-c/first"); !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "wave all: 15 of 15 devices failed") {
			t.Errorf("%v", err)
		}
		s.want("its next wave was published", map[uint64]int{2: 20})
		if w := s.record().Waves; w[0].State != artifacts.WaveFailed || w[1].State != artifacts.WavePassed || w[2].State != artifacts.WavePublished {
			t.Errorf("%+v", w)
		}
		if err := s.proceed("line-c/first", "all", "line-c/all"); err != nil { // the first one was already
			t.Errorf("all: %v", err)
		}
	})
}

func TestRolloutGoesBack(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		s.devices.sick = func(d artifacts.DeviceID, g uint64) bool { return g == 2 && d != "press-000" }
		err := s.roll(t.Context(), rollout.Start{})
		if !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "wave half: ") || !strings.Contains(err.Error(), "failed (limit 1)") {
			t.Errorf("%v", err)
		}
		// The canary was well and stays, those of the wave have what they had, the others never had anything else.
		s.want("rolled back", map[uint64]int{1: 10, 2: 1, 3: 9})
		for i := range 20 {
			tag := fmt.Sprintf("%s/state:press-%03d", fleettest.Base, i)
			x, err := artifacts.OpenState(s.m.Manifests[s.m.Named[tag]])
			if err != nil {
				t.Fatal(err)
			}
			if first := s.m.Named[tag+".v1"]; x.Generation == 3 && (x.Repeats != first || x.Previous != s.m.Named[tag+".v2"]) {
				t.Errorf("%s: %+v", tag, x)
			}
		}
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) {
			t.Errorf("the same again: %v", err)
		}
		s.devices.sick = nil
		if err := s.roll(t.Context(), rollout.Start{Again: true}); err != nil {
			t.Errorf("the same again, as asked for: %v", err)
		}
		s.want("again", map[uint64]int{2: 11, 4: 9})
		run, err := rollout.Undo(t.Context(), s.conduct(), "by hand")
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Go(t.Context()); !errors.Is(err, fault.ErrRejected) {
			t.Errorf("undo: %v", err)
		}
		s.want("undone", map[uint64]int{2: 1, 3: 10, 5: 9}) // the canary was not of the second rollout
		if _, err := rollout.Undo(t.Context(), s.conduct(), ""); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("undo again: %v", err)
		}
	})
}

// Ended at any revision and at any publication, and taken up by another process, it comes to the same.
func TestRolloutTakenUp(t *testing.T) {
	for at := 1; at < 45; at += 8 {
		bubble(t, func(t *testing.T, s *stage) {
			kill := at
			s.devices.sick = func(_ artifacts.DeviceID, g uint64) bool { return g == 2 && s.generations()[2] > 1 }
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			s.m.Before = func() {
				if kill--; kill == 0 {
					cancel()
				}
			}
			first := s.roll(ctx, rollout.Start{})
			s.m.Before = nil
			if kill > 0 && errors.Is(first, context.Canceled) || kill <= 0 && first == nil {
				t.Errorf("the first: %v, %d publications before its end", first, kill)
			}
			if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrRejected) {
				t.Errorf("%v\n%s", err, s.lines())
			}
			s.want("taken up", map[uint64]int{1: 10, 2: 1, 3: 9})
			if r := s.record(); r.Phase != artifacts.RolloutRolledBack {
				t.Errorf("%+v", r)
			}
		})
	}
}

// Two at once: the later one goes on, the earlier one is told. A hand that halts is obeyed.
func TestRolloutOfTwo(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		first := make(chan error, 1)
		go func() { first <- s.roll(t.Context(), rollout.Start{}) }()
		time.Sleep(10 * time.Minute)
		second := make(chan error, 1)
		go func() { second <- s.roll(t.Context(), rollout.Start{}) }()
		if err := <-first; !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "is gone on with by machine-2") {
			t.Errorf("the first: %v", err)
		}
		time.Sleep(time.Minute)
		if _, err := rollout.Halt(t.Context(), s.conduct(), "lunch"); err != nil {
			t.Error(err)
		}
		if err := <-second; !errors.Is(err, fault.ErrRejected) || !strings.Contains(err.Error(), "ended by machine-") || !strings.Contains(err.Error(), "lunch") {
			t.Errorf("the second: %v", err)
		}
		if _, err := rollout.Halt(t.Context(), s.conduct(), "again"); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("halt again: %v", err)
		}
		s.want("halted", map[uint64]int{1: 19, 2: 1})
		if err := s.proceed(); err != nil {
			t.Error(err)
		}
		s.want("continued", map[uint64]int{2: 20})
	})
}

// Somebody else's publications: other files end the attempt, another state on a device leaves that device out.
func TestRolloutAmongOthers(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		done := make(chan error, 1)
		go func() { done <- s.roll(t.Context(), rollout.Start{}) }()
		time.Sleep(10 * time.Minute)
		synctest.Wait() // it has read the files
		mine := s.files
		s.files = fleettest.With(mine, fleet.File, "RATE: 6", "RATE: 7")
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "with another release") {
			t.Errorf("other files: %v", err)
		}
		hand := fleettest.Planned(t, s.m, s.files, fleet.Options{Devices: func(d *fleet.Device) bool { return d.ID == "press-001" || d.ID == "press-002" }})
		if _, err := hand.Publish(t.Context(), s.m, nil); err != nil {
			t.Fatal(err)
		}
		s.files = mine
		time.Sleep(time.Hour) // the second wave
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Errorf("taken up: %v\n%s", err, s.lines())
		}
		if err := <-done; !errors.Is(err, fault.ErrConflict) {
			t.Errorf("the first: %v", err)
		}
		left := 0
		for _, w := range s.record().Waves {
			left += len(w.Left)
		}
		if left != 2 || s.record().Phase != artifacts.RolloutDone {
			t.Errorf("%d left out; %+v", left, s.record())
		}
	})
}

// That nobody can be asked is no fault of a release: the rollout waits, says so, and does not count that time as soaking.
func TestRolloutWaits(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- s.roll(t.Context(), rollout.Start{}) }()
		time.Sleep(10*time.Minute + 7*time.Second) // between two looks
		s.devices.set(fmt.Errorf("connection refused: %w", fault.ErrTemporary))
		time.Sleep(3 * time.Hour)
		s.want("while it is not there", map[uint64]int{1: 19, 2: 1})
		if said := s.lines(); strings.Count(said, "waits: read device reports: connection refused") != 1 {
			t.Errorf("said:\n%s", said)
		}
		s.devices.set(nil)
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took < 3*time.Hour+93*time.Minute {
			t.Errorf("took %v\n%s", took, s.lines())
		}
		s.files = fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 7")
		s.devices.set(fmt.Errorf("the password is wrong: %w", fault.ErrUnauthenticated))
		if err := s.roll(t.Context(), rollout.Start{}); !errors.Is(err, fault.ErrUnauthenticated) {
			t.Errorf("not let in: %v", err)
		}
		s.devices.set(nil)
		go func() { done <- s.roll(t.Context(), rollout.Start{}) }()
		time.Sleep(20 * time.Minute)
		s.m.Leave("publish", 3)
		if err := <-done; err != nil {
			t.Errorf("a registry that was away for a while: %v", err)
		}
		s.want("done", map[uint64]int{3: 20})
	})
}

// Without waiting each run does what can be done now; a plan that was shown is kept; a revision that nobody vouches for is
// not followed.
func TestRolloutStepByStep(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		step := func() (*artifacts.Rollout, error) {
			k := s.conduct()
			k.Wait = false
			run, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), k, fleet.Options{}, rollout.Start{})
			if err != nil || run == nil {
				return nil, err
			}
			err = run.Go(t.Context())
			return run.Rollout(), err
		}
		runs := 0
		for {
			r, err := step()
			if err != nil {
				t.Fatal(err)
			}
			runs++
			if r.Phase == artifacts.RolloutDone {
				break
			}
			time.Sleep(20 * time.Minute)
		}
		if runs < 6 || runs > 12 {
			t.Errorf("%d runs", runs)
		}
		s.want("done", map[uint64]int{2: 20})
		s.files = fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 7")
		k := s.conduct()
		k.Store.Verify = func(context.Context, string, digest.Digest) error { return fault.ErrUnsigned }
		if _, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), k, fleet.Options{}, rollout.Start{}); !errors.Is(err, fault.ErrUnsigned) {
			t.Errorf("a rollout that is not signed: %v", err)
		}
		// The tag is moved back to where the canary had not soaked: the history knows better.
		tag := fleettest.Base + "/rollouts:acme-plant"
		s.m.Named[tag] = s.m.Named[tag+".v3"]
		if r := s.record(); r.Phase != artifacts.RolloutDone {
			t.Errorf("after the tag was moved back: %+v", r)
		}
		newest, err := s.conduct().Store.Read(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		s.m.Named[fmt.Sprintf("%s.v%d", tag, newest.Revision+1)] = s.m.Named[tag+".v3"] // an old one as the next
		if again, err := s.conduct().Store.Read(t.Context()); err != nil || again.Digest != newest.Digest {
			t.Errorf("an old revision under the next tag: %+v, %v", again, err)
		}
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Error(err)
		}
		s.want("the next", map[uint64]int{3: 20})
	})
}

func TestEquip(t *testing.T) {
	m := stocked(t)
	files := fleettest.With(fleettest.Staged(4, "", ""), fleet.File, "line: a}}", "line: a}, capabilities: reported}")
	files = fleettest.With(files, fleet.File, "line: b}}", "line: b}, capabilities: reported}")
	f, err := fleet.Read(files)
	if err != nil {
		t.Fatal(err)
	}
	if err := rollout.LoadCapabilities(t.Context(), f, nil); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("without an endpoint: %v", err)
	}
	from := newDevices(m)
	if err := rollout.LoadCapabilities(t.Context(), f, from); err != nil || from.asked != 1 {
		t.Fatalf("%v, asked %d times", err, from.asked)
	}
	if d := f.Device("press-000"); d.Capabilities == nil || d.Capabilities.Properties.Memory != "4Gi" {
		t.Errorf("%+v", d)
	}
	if d := f.Device("press-001"); d.Capabilities != nil || !d.Reported {
		t.Errorf("never heard of: %+v", d)
	}
	i := slices.IndexFunc(f.Devices, func(d *fleet.Device) bool { return d.Capabilities != nil })
	if i != 0 {
		t.Errorf("device %d", i)
	}
}

// A rollout that has published all that it will is not ended by files that say something else: they would pass for published.
func TestRolloutOfOtherFilesIsNotTakenUp(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		step := func() error {
			k := s.conduct()
			k.Wait = false
			run, _, err := rollout.Begin(t.Context(), fleettest.Compiled(t, s.files, s.m), k, fleet.Options{}, rollout.Start{})
			if err != nil {
				return err
			}
			return run.Go(t.Context())
		}
		for s.generations()[2] < 20 {
			if err := step(); err != nil {
				t.Fatal(err)
			}
			if s.generations()[2] < 20 {
				time.Sleep(20 * time.Minute)
			}
		}
		begun := s.files
		s.files = fleettest.With(s.files, fleet.File, "RATE: 6", "RATE: 7")
		if err := step(); !errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "something else") {
			t.Errorf("other files: %v", err)
		}
		s.files = begun
		time.Sleep(20 * time.Minute)
		if err := step(); err != nil || s.record().Phase != artifacts.RolloutDone {
			t.Errorf("its own files: %v, %s", err, s.record().Phase)
		}
	})
}

// What looks at the plan sees the one that is published, whether the rollout is begun or taken up, and may refuse it.
func TestRolloutIsChecked(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		refused := errors.New("not this one")
		var seen int
		refuse := func(p *fleet.Plan) error {
			seen = p.Count(fleet.Publish)
			return refused
		}
		if err := s.roll(t.Context(), rollout.Start{Check: refuse}); !errors.Is(err, refused) || seen != 20 || len(s.m.Published) != 0 {
			t.Errorf("begun: %v of %d devices, %q", err, seen, s.m.Published)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Minute)
		defer cancel()
		if err := s.roll(ctx, rollout.Start{Check: func(*fleet.Plan) error { return nil }}); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("not refused: %v", err)
		}
		written := len(s.m.Published)
		if err := s.roll(t.Context(), rollout.Start{Check: refuse}); !errors.Is(err, refused) || seen != 19 || len(s.m.Published) != written {
			t.Errorf("taken up: %v of %d devices, %q", err, seen, s.m.Published[written:])
		}
		s.want("refused", map[uint64]int{1: 19, 2: 1})
	})
}

// A device whose former state is gone keeps what it has, the others go back; also when the way back was halted.
func TestUndoThatIsHaltedAndLacksAState(t *testing.T) {
	bubble(t, func(t *testing.T, s *stage) {
		if err := s.roll(t.Context(), rollout.Start{}); err != nil {
			t.Fatal(err)
		}
		delete(s.m.Manifests, s.m.Named[fleettest.Base+"/state:press-003.v1"])
		if _, err := rollout.Undo(t.Context(), s.conduct(), "by hand"); err != nil {
			t.Fatal(err)
		}
		if _, err := rollout.Halt(t.Context(), s.conduct(), "lunch"); err != nil {
			t.Fatal(err)
		}
		run, _, err := rollout.Continue(t.Context(), fleettest.Compiled(t, s.files, s.m), s.conduct(), fleet.Options{}, rollout.Start{})
		if err != nil {
			t.Fatal(err)
		}
		if err := run.Go(t.Context()); !errors.Is(err, fault.ErrRejected) {
			t.Errorf("undo: %v", err)
		}
		s.want("undone", map[uint64]int{2: 1, 3: 19})
		if run.Kept() != 1 || s.record().Phase != artifacts.RolloutRolledBack {
			t.Errorf("%d kept, %s\n%s", run.Kept(), s.record().Phase, s.lines())
		}
	})
}
