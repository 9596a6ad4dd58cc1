package fleet_test

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/fleet/fleettest"
)

// shape writes waves as "group/name:devices".
func shape(all []fleet.PlannedWave) string {
	var out []string
	for _, w := range all {
		out = append(out, fmt.Sprintf("%s/%s:%d", w.Group, w.Name, len(w.Devices)))
	}
	return strings.Join(out, " ")
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
		p := fleettest.Planned(t, m, staged(tt.devices, tt.waves, tt.own), fleet.Options{})
		if got := shape(p.Waves()); got != tt.want {
			t.Errorf("%s: %s, want %s", name, got, tt.want)
		}
	}
	// Devices that do not change are in no wave, and percentages are of those that do.
	files := staged(40, "{name: half, percent: 50}, {name: all, percent: 100}", "")
	p := fleettest.Planned(t, m, files, fleet.Options{Devices: func(d *fleet.Device) bool { return d.Labels["line"] != "a" }})
	if _, err := p.Publish(t.Context(), m, nil); err != nil {
		t.Fatal(err)
	}
	if got := shape(fleettest.Planned(t, m, files, fleet.Options{}).Waves()); got != "/half:5 /all:5" {
		t.Errorf("of 10 that change: %s", got)
	}
	lines := fleet.WaveLines(fleettest.Planned(t, stocked(t), staged(8, "", "{name: first, percent: 50, success: 50, soak: 30m}, {name: second, percent: 100}"), fleet.Options{}).Waves())
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
		p := fleettest.Planned(t, m, files, fleet.Options{})
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
		if diff := cmp.Diff(shape(p.Waves()), shape(fleettest.Planned(t, m, files, fleet.Options{}).Waves())); diff != "" {
			t.Fatalf("round %d: the same files, other waves: %s", round, diff)
		}
	}
}
