package agent_test

import (
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
)

// inWorld runs f on a device in memory, in a bubble where time takes no time.
func inWorld(t *testing.T, f func(t *testing.T, w *agenttest.World, m *runtimetest.Memory)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := runtimetest.NewMemory()
		m.Now = time.Now
		f(t, agenttest.NewWorld(t, agenttest.Env{
			Now: time.Now, Patience: 5 * time.Minute,
			Runtime: func(*testing.T) agent.Runtime { return m },
			Image: func(name string) agenttest.Image {
				return agenttest.Image{Reference: "registry.example/images/" + name, Digest: digest.FromString(name)}
			},
		}), m)
	})
}

// anApp is an application of one component of one service "web".
func anApp(id int, image string) agenttest.App {
	name := fmt.Sprintf("app-%d", id)
	version := "1.0.0"
	if _, tag, ok := strings.Cut(image, ":"); ok {
		version = "1.0." + tag
	}
	return agenttest.App{ID: id, Name: name, Components: []agenttest.Comp{
		{Name: name, Version: version, Services: []agenttest.Service{{Name: "web", Image: image}}},
	}}
}

// hasProblem reports whether a status names a code.
func hasProblem(s status.Status, code codes.Code) bool {
	for _, p := range s.Problems {
		if p.Code == code {
			return true
		}
	}
	return false
}
