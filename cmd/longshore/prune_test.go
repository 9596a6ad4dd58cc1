package main

import (
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/testenv"
)

func TestHistoryHelp(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Lax)
	for _, c := range []string{"fleet prune", "state prune"} {
		s.do(outcome.OK, append([]string{"help"}, strings.Fields(c)...)...)
	}
	s.golden(golden)
}

// Old generations go with their signatures; what devices may need stays and is signed, whoever keeps the lists.
func TestPrune(t *testing.T) {
	golden := goldenDir(t)
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			s.do(outcome.NotFound, "state", "prune", states)
			s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
			push := func(device, poll string) {
				s.do(outcome.OK, "state", "push", "-q", "-d", device, "--key", "release.key", "--component", monitor+":1.4.0", "--set", "POLL_SECONDS="+poll, states)
			}
			for _, poll := range []string{"1", "2", "3", "4", "5"} {
				push("press-07", poll)
			}
			push("press-08", "1")
			s.do(outcome.OK, "state", "rollback", "-q", "--device", "press-07", "--to", "3", "--key", "release.key", states)
			before := s.tags()
			s.do(outcome.Misused, "state", "prune", "--keep", "0", states)
			s.do(outcome.Misused, "state", "prune", states+":press-07")
			s.do(outcome.Misused, "state", "prune", "--younger-than", "young", states)
			s.do(outcome.OK, "state", "prune", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--dry-run", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--dry-run", "--younger-than", "1h", states) // nobody knows when
			if now := s.tags(); !slices.Equal(now, before) {
				t.Errorf("tags are %v, want %v", now, before)
			}
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--device", "press-08", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", "--younger-than", "2025-11-20T18:00:00Z", "--verify-key", "release.pub", "-o", "json", states)
			s.do(outcome.OK, "state", "prune", "--keep", "2", states)
			s.do(outcome.OK, "state", "history", "--device", "press-07", states)
			for _, tag := range s.tags() {
				if strings.Contains(tag, ".v") {
					s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":"+tag)
				}
			}
			if kind == testenv.Distribution {
				lists := slices.DeleteFunc(s.tags(), func(tag string) bool { return !strings.HasPrefix(tag, "sha256-") })
				if len(lists) != 4 { // 3, 5, 6 of press-07 and 1 of press-08
					t.Errorf("%d lists of signatures are left, want those of what stays: %v", len(lists), lists)
				}
				s.golden(golden)
			}
		})
	}
}

// tags are those of the states.
func (s *shell) tags() []string {
	s.t.Helper()
	client, err := registry.New(registry.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	list, err := client.Tags(s.t.Context(), s.server.Host+"/plant/state")
	if err != nil {
		s.t.Fatal(err)
	}
	return list
}

// A fleet's files say which devices are meant, and where their states are.
func TestFleetPrune(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "fleet", "prune", "plant") // nothing was published yet
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	for _, poll := range []string{"poll: 11", "poll: 12", "poll: 13", "poll: 14"} {
		s.do(outcome.OK, "fleet", "publish", "-q", "--key", "release.key", "plant")
		text := string(mustRead(t, "plant/fleet.yaml"))
		i := strings.Index(text, "poll: ")
		s.write("plant/fleet.yaml", text[:i]+poll+text[i+len(poll):])
	}
	s.do(outcome.NotFound, "fleet", "prune", "--select", "line=z", "plant")
	s.do(outcome.OK, "fleet", "prune", "--keep", "2", "--select", "line=b", "plant")
	s.server.Faults.Add(testenv.Rule{Method: http.MethodDelete, Effect: testenv.Status(http.StatusMethodNotAllowed, 0)})
	s.do(outcome.Misused, "fleet", "prune", "--keep", "2", "plant")
	s.server.Faults.Clear()
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", states+":press-07.v1") // nothing was lost
	s.do(outcome.OK, "fleet", "prune", "--keep", "2", "plant")
	s.do(outcome.OK, "fleet", "prune", "--keep", "2", "plant")
	s.do(outcome.OK, "fleet", "rollback", "--previous", "--select", "device=press-07", "--key", "release.key", "plant")
	s.golden(golden)
}
