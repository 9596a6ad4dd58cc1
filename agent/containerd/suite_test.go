package containerd_test

import (
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
)

// TestRuntime runs the suite that also the agent's runtime in memory passes. A nightly run takes every release of containerd.
func TestRuntime(t *testing.T) {
	t.Parallel()
	for _, release := range testenv.Releases() {
		if release != testenv.Containerd24 && !testenv.Nightly() {
			continue
		}
		t.Run(release.String(), func(t *testing.T) { runtimeSuite(t, release) })
	}
}

// olderTest is the test whose subtests run on the release that their name tells.
const olderTest = "TestOlderReleases"

// TestOlderReleases runs on the older releases what touches what differs in them. All tests run on one of them with
// LONGSHORE_TEST_CONTAINERD=1.7 or 1.6.
func TestOlderReleases(t *testing.T) {
	t.Parallel()
	for _, release := range testenv.Releases() {
		if release == testenv.Containerd24 {
			continue
		}
		t.Run(release.String(), func(t *testing.T) {
			t.Run("start", TestStartServesAndRestartsInTheSameNetwork)
			t.Run("mounts refused", TestMountRefusals)
			t.Run("another runtime", TestAnotherRuntime)
			t.Run("users", TestUsersOfItsOwn)
			t.Run("offered", TestOffered)
			t.Run("full disk", TestPullOnAFullDisk)
			t.Run("collect", TestCollectKeepsWhatIsAskedFor)
		})
	}
}

func runtimeSuite(t *testing.T, release testenv.Release) {
	runtimetest.Run(t, func(t *testing.T) runtimetest.Env {
		r := newRigOn(t, release, sharedDaemon(t, release))
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
