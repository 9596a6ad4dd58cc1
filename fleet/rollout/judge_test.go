package rollout_test

import (
	"encoding/json"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

func TestFate(t *testing.T) {
	target := artifacts.RolloutTarget{Device: "press-07", Generation: 4, Digest: digest.FromString("4"), Deployments: 2}
	ours := func(edit func(*rollout.DeviceReport)) *rollout.DeviceReport {
		s := &rollout.DeviceReport{Agent: "1.0.0", Accepted: 4, Running: 4, Committed: 4, Digest: digest.FromString("4"), Deployments: []rollout.DeploymentReport{
			{ID: "a", Generation: 4, State: margo.StateInstalled}, {ID: "b", Generation: 4, State: margo.StateInstalled},
		}}
		edit(s)
		return s
	}
	for name, tt := range map[string]struct {
		s    *rollout.DeviceReport
		want rollout.DeviceState
	}{
		"never heard":        {nil, rollout.Silent},
		"well":               {ours(func(*rollout.DeviceReport) {}), rollout.Well},
		"has the one before": {ours(func(s *rollout.DeviceReport) { s.Accepted = 3 }), rollout.Silent},
		"accepted":           {ours(func(s *rollout.DeviceReport) { s.Committed = 3 }), rollout.Working},
		"waits for somebody": {ours(func(s *rollout.DeviceReport) {
			s.Committed, s.Waits = 3, waits(t, `{"waiting":[{"name":"web","code":"approval-needed"}]}`)
		}), rollout.Waiting},
		"rolled back by hand": {ours(func(s *rollout.DeviceReport) {
			s.Waits = waits(t, `{"hold":{"generation":3,"by":"ana"}}`)
		}), rollout.Waiting},
		"waits, and another failed": {ours(func(s *rollout.DeviceReport) {
			s.Committed, s.Waits, s.Deployments[0].State = 3, waits(t, `{"waiting":[{"name":"web"}]}`), margo.StateFailed
		}), rollout.Failed},
		"failed":      {ours(func(s *rollout.DeviceReport) { s.Committed, s.Deployments[0].State = 3, margo.StateFailed }), rollout.Failed},
		"fails later": {ours(func(s *rollout.DeviceReport) { s.Deployments[1].State = margo.StateFailed }), rollout.Failed},
		"refused": {ours(func(s *rollout.DeviceReport) {
			s.Accepted, s.Refused = 3, &artifacts.CurrentRefusal{Digest: target.Digest}
		}), rollout.Failed},
		"refused something else":     {ours(func(s *rollout.DeviceReport) { s.Refused = &artifacts.CurrentRefusal{Digest: digest.FromString("x")} }), rollout.Well},
		"a later one":                {ours(func(s *rollout.DeviceReport) { s.Accepted = 5 }), rollout.Later},
		"another one of that number": {ours(func(s *rollout.DeviceReport) { s.Digest = digest.FromString("x") }), rollout.Failed},
		"offline":                    {ours(func(s *rollout.DeviceReport) { s.OfflineSince = time.Unix(1, 0) }), rollout.Offline},
		"offline at work":            {ours(func(s *rollout.DeviceReport) { s.Committed, s.OfflineSince = 3, time.Unix(1, 0) }), rollout.Offline},
		"offline before it":          {ours(func(s *rollout.DeviceReport) { s.Accepted, s.OfflineSince = 3, time.Unix(1, 0) }), rollout.Offline},
		"failed, then offline": {ours(func(s *rollout.DeviceReport) {
			s.Deployments[1].State, s.OfflineSince = margo.StateFailed, time.Unix(1, 0)
		}), rollout.Failed},
		"later, then offline": {ours(func(s *rollout.DeviceReport) { s.Accepted, s.OfflineSince = 5, time.Unix(1, 0) }), rollout.Later},
		"foreign":             {ours(func(s *rollout.DeviceReport) { *s = rollout.DeviceReport{Deployments: s.Deployments} }), rollout.Well},
		"foreign, one of two": {ours(func(s *rollout.DeviceReport) { *s = rollout.DeviceReport{Deployments: s.Deployments[:1]} }), rollout.Working},
		"foreign, at work": {ours(func(s *rollout.DeviceReport) {
			*s = rollout.DeviceReport{Deployments: s.Deployments}
			s.Deployments[0].State = margo.StateInstalling
		}), rollout.Working},
		"foreign, one removed": {ours(func(s *rollout.DeviceReport) {
			*s = rollout.DeviceReport{Deployments: append(s.Deployments, rollout.DeploymentReport{ID: "c", Generation: 4, State: margo.StateRemoved})}
		}), rollout.Well},
		"foreign, one on its way off": {ours(func(s *rollout.DeviceReport) {
			*s = rollout.DeviceReport{Deployments: append(s.Deployments, rollout.DeploymentReport{ID: "c", Generation: 4, State: margo.StateRemoving})}
		}), rollout.Working},
		"foreign, failed": {ours(func(s *rollout.DeviceReport) {
			*s = rollout.DeviceReport{Deployments: s.Deployments}
			s.Deployments[0].State = margo.StateFailed
		}), rollout.Failed},
		"foreign, silent": {ours(func(s *rollout.DeviceReport) {
			*s = rollout.DeviceReport{Deployments: s.Deployments}
			s.Deployments[0].Generation, s.Deployments[1].Generation = 3, 3
		}), rollout.Silent},
		"foreign, later": {ours(func(s *rollout.DeviceReport) {
			*s = rollout.DeviceReport{Deployments: s.Deployments}
			s.Deployments[0].Generation = 5
		}), rollout.Later},
	} {
		if got, why := tt.s.Of(target); got != tt.want || (got == rollout.Failed || got == rollout.Offline || got == rollout.Waiting) != (why != "") {
			t.Errorf("%s: %s %q, want %s", name, got, why, tt.want)
		}
	}
}

// waits is what a device reports of what waits there.
func waits(t *testing.T, text string) (w rollout.Waits) {
	t.Helper()
	if err := json.Unmarshal([]byte(text), &w); err != nil {
		t.Fatal(err)
	}
	return w
}

func TestJudge(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	w := artifacts.RolloutWave{Name: "w", Success: 90, Soak: time.Hour, State: artifacts.WavePublished, Published: at}
	for name, tt := range map[string]struct {
		edit  func(*artifacts.RolloutWave)
		tally rollout.WaveCount
		after time.Duration
		want  artifacts.WaveState
		well  time.Duration // after at; negative: none
		until time.Duration // after at; negative: none
	}{
		"some wait at the deadline": {
			func(w *artifacts.RolloutWave) { w.Deadline = time.Hour }, rollout.WaveCount{Devices: 20, Well: 2, Waiting: 18}, 2 * time.Hour, artifacts.WavePublished, -1, -1,
		},
		"nothing yet":           {nil, rollout.WaveCount{Devices: 20, Silent: 20}, 0, artifacts.WavePublished, -1, -1},
		"well":                  {nil, rollout.WaveCount{Devices: 20, Well: 18, Silent: 2}, time.Minute, artifacts.WavePublished, time.Minute, 61 * time.Minute},
		"one too few":           {nil, rollout.WaveCount{Devices: 20, Well: 17, Silent: 3}, time.Minute, artifacts.WavePublished, -1, -1},
		"soaks":                 {func(w *artifacts.RolloutWave) { w.Well = at }, rollout.WaveCount{Devices: 20, Well: 18, Failed: 2}, 59 * time.Minute, artifacts.WavePublished, 0, time.Hour},
		"one goes offline":      {func(w *artifacts.RolloutWave) { w.Well = at }, rollout.WaveCount{Devices: 20, Well: 17, Offline: 3}, 59 * time.Minute, artifacts.WavePublished, -1, -1},
		"offline to the end":    {func(w *artifacts.RolloutWave) { w.Deadline = time.Hour }, rollout.WaveCount{Devices: 2, Offline: 2}, time.Hour, artifacts.WaveFailed, -1, time.Hour},
		"soaked":                {func(w *artifacts.RolloutWave) { w.Well = at }, rollout.WaveCount{Devices: 20, Well: 18, Failed: 2}, time.Hour, artifacts.WavePassed, 0, time.Hour},
		"one too many":          {func(w *artifacts.RolloutWave) { w.Well = at }, rollout.WaveCount{Devices: 20, Well: 17, Failed: 3}, time.Hour, artifacts.WaveFailed, -1, -1},
		"falls back":            {func(w *artifacts.RolloutWave) { w.Well = at }, rollout.WaveCount{Devices: 20, Well: 17, Working: 3}, 59 * time.Minute, artifacts.WavePublished, -1, -1},
		"a clock that was late": {func(w *artifacts.RolloutWave) { w.Well = at.Add(24 * time.Hour) }, rollout.WaveCount{Devices: 1, Well: 1}, time.Minute, artifacts.WavePublished, time.Minute, 61 * time.Minute},
		"all, one failed":       {func(w *artifacts.RolloutWave) { w.Success = 100 }, rollout.WaveCount{Devices: 20, Well: 19, Failed: 1}, 0, artifacts.WaveFailed, -1, -1},
		"not waited for":        {func(w *artifacts.RolloutWave) { w.Success = 0 }, rollout.WaveCount{Devices: 20, Silent: 20}, 0, artifacts.WavePassed, -1, -1},
		"all left out":          {nil, rollout.WaveCount{Left: 3}, 0, artifacts.WavePassed, -1, -1},
		"all went on":           {nil, rollout.WaveCount{Left: 3, Later: 3}, 0, artifacts.WaveFailed, -1, -1},
		"left out or went on":   {nil, rollout.WaveCount{Left: 3, Later: 1}, 0, artifacts.WaveFailed, -1, -1},
		"went on, unwatched":    {func(w *artifacts.RolloutWave) { w.Success = 0 }, rollout.WaveCount{Left: 3, Later: 3}, 0, artifacts.WavePassed, -1, -1},
		"some went on":          {func(w *artifacts.RolloutWave) { w.Soak = 0 }, rollout.WaveCount{Devices: 1, Well: 1, Left: 3, Later: 3}, time.Minute, artifacts.WavePassed, time.Minute, time.Minute},
		"before the deadline":   {func(w *artifacts.RolloutWave) { w.Deadline = time.Hour }, rollout.WaveCount{Devices: 2, Silent: 2}, time.Minute, artifacts.WavePublished, -1, time.Hour},
		"after the deadline":    {func(w *artifacts.RolloutWave) { w.Deadline = time.Hour }, rollout.WaveCount{Devices: 2, Silent: 2}, time.Hour, artifacts.WaveFailed, -1, time.Hour},
		"soaked, not heard yet": {func(w *artifacts.RolloutWave) { w.Well = at }, rollout.WaveCount{Devices: 20, Well: 18, Unheard: 1, Silent: 2}, time.Hour, artifacts.WavePublished, 0, -1},
		"soaked, enough heard":  {func(w *artifacts.RolloutWave) { w.Well = at }, rollout.WaveCount{Devices: 20, Well: 20, Unheard: 2}, time.Hour, artifacts.WavePassed, 0, time.Hour},
		"no soak":               {func(w *artifacts.RolloutWave) { w.Soak = 0 }, rollout.WaveCount{Devices: 2, Well: 2}, time.Minute, artifacts.WavePassed, time.Minute, time.Minute},
	} {
		wave := w
		if tt.edit != nil {
			tt.edit(&wave)
		}
		stamp := func(d time.Duration) time.Time {
			if d < 0 {
				return time.Time{}
			}
			return at.Add(d)
		}
		state, well, until, reason := rollout.Judge(wave, tt.tally, at.Add(tt.after))
		if state != tt.want || !well.Equal(stamp(tt.well)) || !until.Equal(stamp(tt.until)) || (state == artifacts.WaveFailed) != (reason != "") {
			t.Errorf("%s: %s since %v until %v: %q", name, state, well, until, reason)
		}
	}
}
