package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/fleet"
)

// staged is a fleet of n devices in four lines, with a rollout, and with one of group line-c's own when own is not empty.
func staged(n int, waves, own string) fstest.MapFS {
	var b strings.Builder
	fmt.Fprint(&b, "fleet: acme-plant\nregistry: harbor.acme.example/plant\napplications: {sensor: {component: components/sensor, version: 1.4.0}}\n")
	if waves != "" {
		fmt.Fprintf(&b, "rollout: {onFailure: rollback, waves: [%s]}\n", waves)
	}
	fmt.Fprint(&b, "groups:\n  line-a: {select: line=a}\n  line-c:\n    select: line=c\n")
	if own != "" {
		fmt.Fprintf(&b, "    rollout: {waves: [%s]}\n", own)
	}
	fmt.Fprint(&b, "deployments:\n  sensor: {application: sensor, select: \"*\", parameters: {RATE: 5}}\ndevices:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {id: press-%03d, labels: {line: %c}}\n", i, 'a'+i%4)
	}
	return fstest.MapFS{fleet.File: {Data: []byte(b.String())}}
}

// shape writes waves as "group/name:devices".
func shape(all []fleet.PlannedWave) string {
	var out []string
	for _, w := range all {
		out = append(out, fmt.Sprintf("%s/%s:%d", w.Group, w.Name, len(w.Devices)))
	}
	return strings.Join(out, " ")
}

func planned(t testing.TB, m *memory, files fstest.MapFS, o fleet.Options) *fleet.Plan {
	t.Helper()
	p, err := compiled(t, files, m).Plan(t.Context(), m, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestWaves(t *testing.T) {
	m := stocked(t)
	for name, tt := range map[string]struct {
		devices    int
		waves, own string
		want       string
	}{
		"none":                  {8, "", "", ""},
		"by label and percent":  {100, `{name: canary, select: "device=press-007"}, {name: tenth, percent: 10}, {name: all, percent: 100}`, "", "/canary:1 /tenth:9 /all:90"},
		"rounded up":            {5, "{name: few, percent: 1}, {name: rest, percent: 50}, {name: all, percent: 51}", "", "/few:1 /rest:2 /all:2"},
		"reached already":       {20, `{name: line, select: "line=a"}, {name: tenth, percent: 10}, {name: all, percent: 100}`, "", "/line:5 /all:15"},
		"the last takes all":    {8, `{name: one, percent: 50}, {name: two, select: "line=a"}`, "", "/one:4 /two:4"},
		"one wave":              {3, `{name: only, select: "device=press-001"}`, "", "/only:3"},
		"a group with its own":  {40, "{name: half, percent: 50}, {name: all, percent: 100}", `{name: first, select: "device=press-002"}, {name: others, percent: 100}`, "/half:15 /all:15 line-c/first:1 line-c/others:9"},
		"only a group has one":  {8, "", "{name: first, percent: 50}, {name: second, percent: 100}", "/others:6 line-c/first:1 line-c/second:1"},
		"nobody selected first": {8, `{name: none, select: "line=z"}, {name: all, percent: 100}`, "", "/all:8"},
	} {
		p := planned(t, m, staged(tt.devices, tt.waves, tt.own), fleet.Options{})
		if got := shape(p.Waves()); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	// Devices that do not change are in no wave, and percentages are of those that do.
	files := staged(40, "{name: half, percent: 50}, {name: all, percent: 100}", "")
	p := planned(t, m, files, fleet.Options{Devices: func(d *fleet.Device) bool { return d.Labels["line"] != "a" }})
	if _, err := p.Publish(t.Context(), m, nil); err != nil {
		t.Fatal(err)
	}
	if got := shape(planned(t, m, files, fleet.Options{}).Waves()); got != "/half:5 /all:5" {
		t.Errorf("of 10 that change: %s", got)
	}
	lines := fleet.WaveLines(planned(t, stocked(t), staged(8, "", "{name: first, percent: 50, success: 50, soak: 30m}, {name: second, percent: 100}"), fleet.Options{}).Waves())
	if len(lines) != 3 || lines[0] != "wave others: 6 devices" || lines[1] != "wave line-c/first: 1 device, then 1 of them well for 30m" {
		t.Errorf("lines: %q", lines)
	}
}

// Whatever the waves say, every device that changes is in exactly one, and none is in front of where a percentage allows.
func TestWavesProperty(t *testing.T) {
	m := stocked(t)
	rounds := 60
	if testing.Short() {
		rounds = 20
	}
	for round := range rounds {
		r := rand.New(rand.NewPCG(uint64(round), 7))
		devices := 1 + r.IntN(60)
		draw := func() string {
			var out []string
			last := 0
			for i := range 1 + r.IntN(5) {
				switch {
				case r.IntN(2) == 0:
					out = append(out, fmt.Sprintf("{name: w%d, select: %q}", i, []string{"line=a", "line in (a, c)", "device=press-00*", "group=line-c", "!line", "*"}[r.IntN(6)]))
				case last < 99:
					last += 1 + r.IntN(100-last)
					out = append(out, fmt.Sprintf("{name: w%d, percent: %d}", i, last))
				}
			}
			if len(out) == 0 {
				return "{name: w, percent: 100}"
			}
			return strings.Join(out, ", ")
		}
		own := ""
		if r.IntN(2) == 0 && devices > 3 {
			own = draw()
		}
		files := staged(devices, draw(), own)
		if devices < 3 { // the groups would be empty
			files = staged(devices+4, draw(), own)
		}
		p := planned(t, m, files, fleet.Options{})
		in, sum, total := map[artifacts.DeviceID]int{}, map[string]int{}, map[string]int{}
		for _, w := range p.Waves() {
			total[w.Group] += len(w.Devices)
		}
		waves := p.Waves()
		for i, w := range waves {
			if len(w.Devices) == 0 {
				t.Fatalf("round %d: an empty wave\n%s", round, files[fleet.File].Data)
			}
			sum[w.Group] += len(w.Devices)
			last := i == len(waves)-1 || waves[i+1].Group != w.Group
			if most := (total[w.Group]*w.Percent + 99) / 100; w.Percent > 0 && !last && sum[w.Group] > most {
				t.Fatalf("round %d: %s has %d devices so far, %d may\n%s", round, w.Name, sum[w.Group], most, files[fleet.File].Data)
			}
			for _, d := range w.Devices {
				in[d.Device]++
			}
		}
		for _, d := range p.Devices {
			if in[d.Device] != 1 {
				t.Fatalf("round %d: %s is in %d waves\n%s", round, d.Device, in[d.Device], files[fleet.File].Data)
			}
		}
		if diff := cmp.Diff(shape(p.Waves()), shape(planned(t, m, files, fleet.Options{}).Waves())); diff != "" {
			t.Fatalf("round %d: the same files, other waves: %s", round, diff)
		}
	}
}

func TestFate(t *testing.T) {
	target := artifacts.RolloutTarget{Device: "press-07", Generation: 4, Digest: digest.FromString("4"), Deployments: 2}
	ours := func(edit func(*fleet.Sighting)) *fleet.Sighting {
		s := &fleet.Sighting{Agent: "1.0.0", Accepted: 4, Running: 4, Committed: 4, Digest: digest.FromString("4"), Deployments: []fleet.SeenDeployment{
			{ID: "a", Generation: 4, State: margo.StateInstalled}, {ID: "b", Generation: 4, State: margo.StateInstalled},
		}}
		edit(s)
		return s
	}
	for name, tt := range map[string]struct {
		s    *fleet.Sighting
		want fleet.Fate
	}{
		"never heard":                {nil, fleet.Silent},
		"well":                       {ours(func(*fleet.Sighting) {}), fleet.Well},
		"has the one before":         {ours(func(s *fleet.Sighting) { s.Accepted = 3 }), fleet.Silent},
		"accepted":                   {ours(func(s *fleet.Sighting) { s.Committed = 3 }), fleet.Working},
		"failed":                     {ours(func(s *fleet.Sighting) { s.Committed, s.Deployments[0].State = 3, margo.StateFailed }), fleet.Failed},
		"fails later":                {ours(func(s *fleet.Sighting) { s.Deployments[1].State = margo.StateFailed }), fleet.Failed},
		"refused":                    {ours(func(s *fleet.Sighting) { s.Accepted, s.Refused = 3, &fleet.Refusal{Digest: target.Digest} }), fleet.Failed},
		"refused something else":     {ours(func(s *fleet.Sighting) { s.Refused = &fleet.Refusal{Digest: digest.FromString("x")} }), fleet.Well},
		"a later one":                {ours(func(s *fleet.Sighting) { s.Accepted = 5 }), fleet.Later},
		"another one of that number": {ours(func(s *fleet.Sighting) { s.Digest = digest.FromString("x") }), fleet.Failed},
		"foreign":                    {ours(func(s *fleet.Sighting) { *s = fleet.Sighting{Deployments: s.Deployments} }), fleet.Well},
		"foreign, one of two":        {ours(func(s *fleet.Sighting) { *s = fleet.Sighting{Deployments: s.Deployments[:1]} }), fleet.Working},
		"foreign, at work": {ours(func(s *fleet.Sighting) {
			*s = fleet.Sighting{Deployments: s.Deployments}
			s.Deployments[0].State = margo.StateInstalling
		}), fleet.Working},
		"foreign, failed": {ours(func(s *fleet.Sighting) {
			*s = fleet.Sighting{Deployments: s.Deployments}
			s.Deployments[0].State = margo.StateFailed
		}), fleet.Failed},
		"foreign, silent": {ours(func(s *fleet.Sighting) {
			*s = fleet.Sighting{Deployments: s.Deployments}
			s.Deployments[0].Generation, s.Deployments[1].Generation = 3, 3
		}), fleet.Silent},
		"foreign, later": {ours(func(s *fleet.Sighting) {
			*s = fleet.Sighting{Deployments: s.Deployments}
			s.Deployments[0].Generation = 5
		}), fleet.Later},
	} {
		if got, why := tt.s.Of(target); got != tt.want || (got == fleet.Failed) != (why != "") {
			t.Errorf("%s: %s %q, want %s", name, got, why, tt.want)
		}
	}
}

func TestJudge(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	w := artifacts.RolloutWave{Name: "w", Success: 90, Soak: time.Hour, State: artifacts.WavePublished, Published: at}
	for name, tt := range map[string]struct {
		edit  func(*artifacts.RolloutWave)
		tally fleet.Tally
		after time.Duration
		want  artifacts.WaveState
		well  time.Duration // after at; negative: none
		until time.Duration // after at; negative: none
	}{
		"nothing yet":           {nil, fleet.Tally{Devices: 20, Silent: 20}, 0, artifacts.WavePublished, -1, -1},
		"well":                  {nil, fleet.Tally{Devices: 20, Well: 18, Silent: 2}, time.Minute, artifacts.WavePublished, time.Minute, 61 * time.Minute},
		"one too few":           {nil, fleet.Tally{Devices: 20, Well: 17, Silent: 3}, time.Minute, artifacts.WavePublished, -1, -1},
		"soaks":                 {func(w *artifacts.RolloutWave) { w.Well = at }, fleet.Tally{Devices: 20, Well: 18, Failed: 2}, 59 * time.Minute, artifacts.WavePublished, 0, time.Hour},
		"soaked":                {func(w *artifacts.RolloutWave) { w.Well = at }, fleet.Tally{Devices: 20, Well: 18, Failed: 2}, time.Hour, artifacts.WavePassed, 0, time.Hour},
		"one too many":          {func(w *artifacts.RolloutWave) { w.Well = at }, fleet.Tally{Devices: 20, Well: 17, Failed: 3}, time.Hour, artifacts.WaveFailed, -1, -1},
		"falls back":            {func(w *artifacts.RolloutWave) { w.Well = at }, fleet.Tally{Devices: 20, Well: 17, Working: 3}, 59 * time.Minute, artifacts.WavePublished, -1, -1},
		"a clock that was late": {func(w *artifacts.RolloutWave) { w.Well = at.Add(24 * time.Hour) }, fleet.Tally{Devices: 1, Well: 1}, time.Minute, artifacts.WavePublished, time.Minute, 61 * time.Minute},
		"all, one failed":       {func(w *artifacts.RolloutWave) { w.Success = 100 }, fleet.Tally{Devices: 20, Well: 19, Failed: 1}, 0, artifacts.WaveFailed, -1, -1},
		"not waited for":        {func(w *artifacts.RolloutWave) { w.Success = 0 }, fleet.Tally{Devices: 20, Silent: 20}, 0, artifacts.WavePassed, -1, -1},
		"nobody left":           {nil, fleet.Tally{Left: 3}, 0, artifacts.WavePassed, -1, -1},
		"before the deadline":   {func(w *artifacts.RolloutWave) { w.Deadline = time.Hour }, fleet.Tally{Devices: 2, Silent: 2}, time.Minute, artifacts.WavePublished, -1, time.Hour},
		"after the deadline":    {func(w *artifacts.RolloutWave) { w.Deadline = time.Hour }, fleet.Tally{Devices: 2, Silent: 2}, time.Hour, artifacts.WaveFailed, -1, time.Hour},
		"no soak":               {func(w *artifacts.RolloutWave) { w.Soak = 0 }, fleet.Tally{Devices: 2, Well: 2}, time.Minute, artifacts.WavePassed, time.Minute, time.Minute},
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
		state, well, until, reason := fleet.Judge(wave, tt.tally, at.Add(tt.after))
		if state != tt.want || !well.Equal(stamp(tt.well)) || !until.Equal(stamp(tt.until)) || (state == artifacts.WaveFailed) != (reason != "") {
			t.Errorf("%s: %s since %v until %v: %q", name, state, well, until, reason)
		}
	}
}
