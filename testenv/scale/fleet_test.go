package scale

import (
	"flag"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
)

var (
	devices = flag.Int("scale.devices", testenv.Rounds(60, 2000), "devices of the fleet")
	groups  = flag.Int("scale.groups", 8, "groups of the fleet")
	large   = flag.Int("scale.large", 2000, "devices of the benchmark's fleet; 10000 is what a large owner has, and takes five times as long")
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

// kinds are the registries that a large fleet is published to.
var kinds = []testenv.Kind{testenv.Distribution, testenv.Lax}

// A fleet is checked, published, killed at half, taken up, published again and planned; every state is right afterwards.
func TestFleet(t *testing.T) {
	program, err := build(t.Context(), t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range kinds {
		t.Run(string(kind), func(t *testing.T) {
			s, err := open(t.Context(), t.TempDir(), program, testenv.Registry(t, kind), *devices, *groups)
			if err != nil {
				t.Fatal(err)
			}
			f, err := s.Measure(t.Context(), false)
			t.Logf("%d devices: check %s, plan %s (%d MiB), %d states in %s after the kill: %.0f requests/s, %d MiB",
				*devices, f.Check.Round(time.Millisecond), f.Plan.Round(time.Millisecond), f.PlanRSS>>20, f.Published, f.Publish.Round(time.Millisecond), f.Rate, f.RSS>>20)
			if err != nil {
				t.Fatal(err)
			}
			if f.RSS > 300<<20 || f.PlanRSS > 300<<20 {
				t.Errorf("%d and %d MiB of memory, want less than 300", f.RSS>>20, f.PlanRSS>>20)
			}
		})
	}
}

// BenchmarkFleet is TestFleet with many devices.
func BenchmarkFleet(b *testing.B) {
	const groups = 40
	program, err := build(b.Context(), b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	for _, kind := range kinds {
		b.Run(string(kind), func(b *testing.B) {
			for b.Loop() {
				s, err := open(b.Context(), b.TempDir(), program, testenv.Registry(b, kind), *large, groups)
				if err != nil {
					b.Fatal(err)
				}
				f, err := s.Measure(b.Context(), true)
				if err != nil {
					b.Fatal(err)
				}
				b.ReportMetric(f.Check.Seconds()*1000, "check-ms")
				b.ReportMetric(f.Plan.Seconds(), "plan-s")
				b.ReportMetric(float64(f.Published)/f.Publish.Seconds(), "states/s")
				b.ReportMetric(float64(f.Requests)/float64(f.Published), "requests/state")
				b.ReportMetric(1000/f.Rate, "ours-ms/request")
				b.ReportMetric(1000/f.Raw, "raw-ms/request")
				b.ReportMetric(float64(f.RSS)/(1<<20), "publish-MiB")
				b.ReportMetric(float64(f.PlanRSS)/(1<<20), "plan-MiB")
			}
		})
	}
}
