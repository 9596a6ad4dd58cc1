package rollout_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet/fleettest"
	"github.com/longshore-dev/longshore/fleet/rollout"
)

// Each rollout is listed by its last revision, and of long ones only a few revisions are read.
func TestHistoryOfRollouts(t *testing.T) {
	m := fleettest.New()
	l := rollout.Store{Fleet: "acme-plant", Registry: fleettest.Base, From: m}
	if _, _, err := l.History(t.Context(), 9); err == nil {
		t.Error("History of a fleet without a rollout is no error")
	}
	revision, last := uint64(0), map[uint64]uint64{}
	for i, revisions := range []int{1, 3, 1, 200, 2} {
		number := uint64(i + 1)
		for range revisions {
			revision++
			a, err := artifacts.PackRollout(artifacts.RolloutOptions{Revision: revision, Rollout: &artifacts.Rollout{
				Fleet: l.Fleet, Number: number, Phase: artifacts.RolloutDone, Content: digest.FromString(""), Claim: "1",
				Began: time.Unix(int64(number), 0).UTC(), Changed: time.Unix(int64(revision), 0).UTC(),
			}})
			if err != nil {
				t.Fatal(err)
			}
			m.Push(l.Repository(), artifacts.HistoryTag(l.Fleet, revision), a)
			m.Push(l.Repository(), l.Fleet, a)
		}
		last[number] = revision
	}
	list := func(limit int) (out string) {
		t.Helper()
		all, more, err := l.History(t.Context(), limit)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			out += fmt.Sprintf("%d@%d ", r.Rollout.Number, r.Revision)
		}
		return out + fmt.Sprint(more)
	}
	m.Asked["manifest"] = 0
	if got, want := list(9), fmt.Sprintf("5@%d 4@%d 3@%d 2@%d 1@%d false", last[5], last[4], last[3], last[2], last[1]); got != want {
		t.Errorf("History = %s, want %s", got, want)
	}
	if n := m.Asked["manifest"]; n == 0 || n > 40 {
		t.Errorf("%d revisions of %d were read", n, revision)
	}
	if got, want := list(2), fmt.Sprintf("5@%d 4@%d true", last[5], last[4]); got != want {
		t.Errorf("History = %s, want %s", got, want)
	}
	delete(m.Named, l.Repository()+":"+artifacts.HistoryTag(l.Fleet, last[4]))
	if got, want := list(9), fmt.Sprintf("5@%d true", last[5]); got != want {
		t.Errorf("History without the revision before = %s, want %s", got, want)
	}
}
