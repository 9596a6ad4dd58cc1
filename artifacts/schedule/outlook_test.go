package schedule_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/schedule"
)

// Times with a monotonic reading are compared by it, which a clock that is set does not change.
func TestOutlookForgetsMonotonicReadings(t *testing.T) {
	now := time.Now() // with one
	list := fmt.Sprintf(`[{"only":[%q],"zone":"UTC"}]`, now.UTC().Format(time.DateOnly))
	w, err := schedule.ParseJSON("windows", []byte(list))
	if err != nil {
		t.Fatal(err)
	}
	o := &schedule.Outlook{Windows: w}
	if opens, _ := o.Next(now); !opens.Equal(now) {
		t.Fatalf("closed on its day until %v", opens)
	}
	for _, days := range []int{2, -2} {
		set := now.AddDate(0, 0, days) // by the wall clock: it keeps no reading
		if opens, _ := o.Next(set); opens.Equal(set) {
			t.Errorf("open %d days later", days)
		}
		if opens, _ := o.Next(now); !opens.Equal(now) {
			t.Errorf("closed after %d days and back", days)
		}
	}
	if opens, _ := o.Next(now); opens != opens.Round(0) {
		t.Errorf("%v has a monotonic reading", opens)
	}
}

// An Outlook says what its windows say, whatever the clock does in between.
func TestOutlook(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	for _, lists := range [][]string{
		{`[{"days":"Mon-Fri","hours":"22:00-05:00","zone":"Europe/Berlin"}]`},
		{`[{"hours":"03:00-03:30","zone":"UTC"},{"cron":"*/40 * * * *","duration":"10m","zone":"UTC"}]`},
		{`[{"days":"Mon","zone":"UTC"}]`, `[{"hours":"23:50-00:10","zone":"UTC"}]`},
		{`[{"days":"Mon","zone":"UTC"}]`, `[{"days":"Tue","zone":"UTC"}]`},
		{},
	} {
		var all []schedule.Windows
		for _, list := range lists {
			w, err := schedule.ParseJSON("windows", []byte(list))
			if err != nil {
				t.Fatal(err)
			}
			all = append(all, w)
		}
		w := schedule.All(all...)
		o := &schedule.Outlook{Windows: w}
		at := time.Date(2026, 3, 27, 12, 0, 0, 0, time.UTC)
		for range 200 {
			if at = at.Add(time.Duration(random.Int64N(int64(20 * time.Minute)))); random.IntN(50) == 0 {
				at = at.Add(time.Duration(random.Int64N(int64(72*time.Hour))) - 36*time.Hour)
			}
			opens, closes := o.Next(at)
			wantOpens, wantCloses := w.Next(at)
			if !opens.Equal(wantOpens) || !closes.Equal(wantCloses) {
				t.Fatalf("%v at %v: %v to %v, want %v to %v", lists, at, opens, closes, wantOpens, wantCloses)
			}
		}
	}
}
