package main

import (
	"fmt"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
)

// States that one publisher signs shortly after each other for the same change are one line; two of one device never are.
func TestPublicationsOfAFleet(t *testing.T) {
	line := func(device string, generation uint64, at, revision string, changes ...fleet.Change) fleetLine {
		return fleetLine{fleetState{Device: device, Generation: generation}, historyLine{
			Generation: generation, Revision: revision, Changes: append([]fleet.Change{}, changes...),
			signersInfo: signersInfo{Signers: []signerInfo{{Name: "release", Time: at}}},
		}}
	}
	update := fleet.Change{Deployment: "line", Was: "1.4.0", Version: "1.4.1"}
	got := ""
	for _, p := range publications([]fleetLine{
		line("a", 1, "2026-11-20T08:00:00Z", ""),
		line("b", 1, "2026-11-20T08:59:00Z", ""),
		line("c", 1, "2026-11-20T10:30:00Z", ""),
		line("a", 2, "2026-11-21T08:00:00Z", "4be2d1c", update),
		line("b", 2, "2026-11-21T08:00:01Z", "4be2d1c", update),
		line("c", 2, "2026-11-21T08:00:01Z", "0000000", update),
		line("a", 3, "2026-11-21T08:00:02Z", "4be2d1c", update),
		line("d", 1, "", "", update),
		line("e", 1, "", "", update),
	}) {
		got += p.Time
		for _, s := range p.States {
			got += fmt.Sprintf(" %s.v%d", s.Device, s.Generation)
		}
		got += "\n"
	}
	want := `2026-11-21T08:00:02Z a.v3 b.v2
2026-11-21T08:00:01Z c.v2
2026-11-21T08:00:00Z a.v2
2026-11-20T10:30:00Z c.v1
2026-11-20T08:59:00Z a.v1 b.v1
 d.v1 e.v1
`
	if got != want {
		t.Errorf("publications:\n%swant\n%s", got, want)
	}
}

// The states of a rollout are read where the files have those of the device: a record without a signature may name any host.
func TestRolloutHistoryReadsOnlyRepositoriesOfTheFiles(t *testing.T) {
	read := rolloutStates{at: map[artifacts.DeviceID]string{"press-07": "harbor.acme.example/plant/state"}} // no client: reading would panic
	changes, err := read.changes(t.Context(), &artifacts.Rollout{Targets: []artifacts.RolloutTarget{
		{Device: "press-07", Repository: "elsewhere.example/state"}, {Device: "press-08", Repository: "harbor.acme.example/plant/state"},
	}})
	if err != nil || len(changes) != 0 {
		t.Errorf("changes = %v, %v; want none", changes, err)
	}
}
