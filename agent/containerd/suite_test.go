package containerd_test

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// TestRuntime runs the suite that also the agent's runtime in memory passes, on every release of containerd.
func TestRuntime(t *testing.T) {
	for _, release := range testenv.Releases() {
		t.Run(release.String(), func(t *testing.T) { runtimeSuite(t, release) })
	}
}

func runtimeSuite(t *testing.T, release testenv.Release) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Env {
		r := newRigOn(t, release)
		images := map[string]workload.Image{}
		return runtimetest.Env{
			Runtime: r.Runtime,
			Image: func(name string) workload.Image {
				if _, ok := images[name]; !ok {
					images[name] = r.push(r.toolbox(func(c *v1.Config) {
						c.Cmd, c.Env = []string{"sleep"}, append(c.Env, "NAME="+name)
					}), "plant/"+name)
				}
				return images[name]
			},
			Again: func(*testing.T) agent.Runtime { return r.reopened(r.o) },
		}
	})
}
