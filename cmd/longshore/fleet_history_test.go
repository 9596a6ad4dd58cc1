package main

import (
	"fmt"
	"slices"
	"testing"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
)

// States that one publisher signs shortly after each other for the same change are one line; two of one device never are.
func TestPublicationsOfAFleet(t *testing.T) {
	line := func(device string, generation uint64, at, revision string, changes ...fleet.Change) fleetLine {
		return fleetLine{fleetState{Device: device, Generation: generation}, historyLine{
			Generation: generation,
			contentInfo: contentInfo{
				Revision: revision, Changes: append([]fleet.Change{}, changes...), signersInfo: signersInfo{Signers: []signerInfo{{Name: "release", Time: at}}},
			},
		}}
	}
	update := fleet.Change{Deployment: "line", Was: "1.4.0", Version: "1.4.1"}
	got := ""
	for _, p := range publications([]fleetLine{
		line("a", 1, "2026-11-20T08:00:00Z", ""),
		line("b", 1, "2026-11-20T08:59:00Z", ""),
		line("f", 1, "2026-11-20T07:55:00Z", ""), // more than an hour before the last one
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
2026-11-20T07:55:00Z f.v1
 d.v1 e.v1
`
	if got != want {
		t.Errorf("publications:\n%swant\n%s", got, want)
	}
}

// Texts about a signature or a tag name the state. They do not divide what was published together.
func TestPublicationWithProblems(t *testing.T) {
	line := func(device string, set func(*contentInfo)) fleetLine {
		l := fleetLine{fleetState{Device: device}, historyLine{Created: "2026-11-20T08:00:00Z", contentInfo: contentInfo{Changes: []fleet.Change{}}}}
		set(&l.contentInfo)
		return l
	}
	for name, set := range map[string]func(*contentInfo, string){
		"signature":        func(x *contentInfo, text string) { x.Unverified = text },
		"unread signature": func(x *contentInfo, text string) { x.Unread = text },
		"tag":              func(x *contentInfo, text string) { x.Problem = text },
	} {
		all := publications([]fleetLine{
			line("a", func(x *contentInfo) { set(x, "sha256:a is signed by another key") }),
			line("b", func(x *contentInfo) { set(x, "sha256:b is signed by another key") }),
			line("c", func(*contentInfo) {}),
		})
		if len(all) != 2 || len(all[0].States) != 2 || !slices.Contains(all[0].lines(), "! sha256:a is signed by another key (and 1 more)") {
			t.Errorf("%s: publications = %+v, want two, the first of two devices", name, all)
		}
	}
	for n, want := range map[int]string{1: "plant: 1 of 1 publication has no trusted signature", 2: "plant: 2 of 2 publications have no trusted signature"} {
		if got := unverified("plant", "publication", slices.Repeat([]publication{{contentInfo: contentInfo{signersInfo: signersInfo{Unverified: "x"}}}}, n)); got == nil || got.Error() != want {
			t.Errorf("unverified = %v, want %s", got, want)
		}
	}
}

// The states of a rollout are read where the files have those of the device: a record without a signature may name any host.
func TestRolloutHistoryReadsOnlyRepositoriesOfTheFiles(t *testing.T) {
	read := rolloutStates{at: map[artifacts.DeviceID]string{"press-07": "harbor.acme.example/plant/state"}} // no client: reading would panic
	changes, gone, err := read.changes(t.Context(), &artifacts.Rollout{
		Waves: []artifacts.RolloutWave{{State: artifacts.WavePassed}, {State: artifacts.WavePending}},
		Targets: []artifacts.RolloutTarget{
			{Device: "press-07", Repository: "elsewhere.example/state"},
			{Device: "press-08", Repository: "harbor.acme.example/plant/state"},
			{Device: "press-07", Repository: "harbor.acme.example/plant/state", Wave: 1}, // not published yet
		},
	})
	if err != nil || len(changes) != 0 || gone != 2 {
		t.Errorf("changes = %v, %d gone, %v; want none, 2", changes, gone, err)
	}
}
