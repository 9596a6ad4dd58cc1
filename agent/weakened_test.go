package agent_test

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/runtimetest"
)

// TestAWeakenedConfigurationIsNoPolicy: the advice names the file that gives up the protection.
func TestAWeakenedConfigurationIsNoPolicy(t *testing.T) {
	inWorld(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory) {
		w.Edit = func(o *agent.Options) {
			o.Weakened = []string{"containers may be privileged (runtime.allowPrivileged)"}
		}
		w.Publish(t, 1, anApp(1, "web:1"))
		r := w.Start(t)
		w.Committed(t, r, 1)
		found := false
		for _, p := range r.Status().Problems {
			if p.Code != codes.Insecure {
				continue
			}
			found = true
			text := p.Message + " " + p.Hint
			if !strings.Contains(text, "runtime.allowPrivileged") || !strings.Contains(p.Hint, "agent.yaml") || strings.Contains(text, "allowUnsigned") {
				t.Errorf("problem %q, hint %q", p.Message, p.Hint)
			}
		}
		if !found {
			t.Errorf("no problem says what is given up: %+v", r.Status().Problems)
		}
	})
}
