package containerd_test

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
)

// TestRuntime runs the suite that also the agent's runtime in memory passes.
func TestRuntime(t *testing.T) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Env {
		r := newRig(t)
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
