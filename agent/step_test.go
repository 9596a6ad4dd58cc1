package agent

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/workload"
)

// hanging is a runtime that never answers.
type hanging struct{ Runtime }

func (hanging) Prepare(ctx context.Context, _ *workload.Project) error {
	<-ctx.Done()
	return ctx.Err()
}

// TestStepThatDoesNotEnd: a step that ran into its limit says so, and what to look at.
func TestStepThatDoesNotEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &loop{Agent: &Agent{o: Options{Runtime: hanging{}}}, steps: steps{slots: make(chan struct{}, 1)}, log: slog.New(slog.DiscardHandler)}
		err := l.perform(t.Context(), plan.Step{Verb: plan.Prepare, Project: "p"})
		if !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "did not end within 3m0s, the container runtime or the disk is slow") {
			t.Errorf("perform = %v", err)
		}
	})
}
