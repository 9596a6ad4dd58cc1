package attack

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// TestPoolWithJustEnoughRoom: the deployments of a device fill its pool of addresses, and others come in place of all of them.
func TestPoolWithJustEnoughRoom(t *testing.T) {
	t.Parallel()
	const deployments = 34 // with 4 networks each; a pool of 4096 addresses has room for 8 networks of 256 and 128 of 16
	w := newWorld(t, "pool", "10.202.0.0/20")
	reference, err := w.Component(t.Context(), "small", "1.0.0", fmt.Sprintf(`services:
  main:
    image: %s
    command: [sleep]
    stop_grace_period: 1s
    deploy: {update_config: {monitor: 100ms}}
    networks: [n1, n2, n3, n4]
networks: {n1: {}, n2: {}, n3: {}, n4: {}}
`, toolbox(t, w, "plant/toolbox:1")))
	must(t, "component", err)
	publish := func(round string, n int) error {
		args := []string{"state", "push", "--device", w.Device, "--key", w.Path("release.key"), "--replace"}
		for i := range n {
			name := fmt.Sprintf("%s-%d", round, i)
			file, text := w.Path(name+".yaml"), fmt.Sprintf(`id: %08d-1d43-4d0a-9c67-0c64a8a4b2f%s
metadata: {name: %s, namespace: plant, deviceId: %s}
spec: {applicationId: small, deploymentProfile: {type: compose, components: [{name: small, properties: {repository: "oci://%s", revision: 1.0.0}}]}}
`, i, round, name, w.Device, strings.TrimSuffix(reference, ":1.0.0"))
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				return err
			}
			args = append(args, "--deployment", file)
		}
		_, err := w.Run(t.Context(), "longshore", append(args, w.Reference("plant/state"))...)
		return err
	}
	runs := func(generation uint64, n int) {
		t.Helper()
		begin := time.Now()
		must(t, fmt.Sprintf("generation %d", generation), w.Settled(t.Context(), generation, 4*settleLimit)) // it has 34 updates
		s, err := w.Status(t.Context())
		must(t, "status", err)
		if got := len(world.Processes(s)); got != n || len(s.Problems) > 0 {
			t.Errorf("generation %d: %d containers run, want %d; problems %+v", generation, got, n, s.Problems)
		}
		t.Logf("generation %d with %d deployments took %v", generation, n, time.Since(begin))
	}
	must(t, "state 1", publish("a", deployments))
	must(t, "init", w.Init(t.Context()))
	must(t, "boot", w.Boot(t.Context()))
	runs(1, deployments)
	must(t, "state 2", publish("a", deployments+1))
	testenv.Eventually(t, tellLimit, "one deployment more does not fit", func() error {
		s, err := w.Status(t.Context())
		if err == nil && !slices.ContainsFunc(s.Problems, func(p status.Problem) bool { return strings.Contains(p.Message, "no subnet left in the pool") }) {
			err = fmt.Errorf("phase %s, problems %+v", s.Phase, s.Problems)
		}
		return err
	})
	for n, round := range []string{"b", "c", "a"} {
		size := deployments
		if round == "c" {
			size = 1
		}
		must(t, "state of round "+round, publish(round, size))
		runs(uint64(3+n), size)
	}
}
