package agent

import (
	"context"
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/agent/status"
)

// Containers lists the containers that the device needs or has, in order of deployments, components and services.
func (a *Agent) Containers() []status.Container {
	if t := a.tables.Load(); t != nil {
		return *t
	}
	return nil
}

// Stats measures the running containers that targets mean, as [Select] takes them; none: all.
func (a *Agent) Stats(ctx context.Context, targets []string) ([]status.Usage, error) {
	chosen, err := status.SelectAll(a.Containers(), targets)
	if err != nil {
		return nil, fmt.Errorf("stats: %w", err)
	}
	usage, logs, err := a.o.Runtime.Usage(ctx)
	if err != nil {
		return nil, err
	}
	return status.Usages(chosen, usage, logs), nil
}

// Logs opens the output of containers.
func (a *Agent) Logs(ctx context.Context, r status.LogRequest) (io.ReadCloser, error) {
	return status.OpenLogs(ctx, a.Containers(), r, a.o.Runtime.Logs)
}

// Events calls tell with what happened, oldest first. With Follow it goes on until ctx ends, which is no error, or tell fails. An
// agent remembers the newest thousand events since it started, and before them the security events that were kept from earlier on.
func (a *Agent) Events(ctx context.Context, r status.EventRequest, tell func(status.Event) error) error {
	return a.events.Follow(ctx, a.done, r, tell)
}

// Counts returns what the agent has counted since it started.
func (a *Agent) Counts() status.Counts {
	events, security := a.events.Counts()
	return status.Counts{
		Polls: a.counts.polls.Load(), PollErrors: a.counts.pollErrors.Load(), BytesPulled: a.progress.Sum() + a.refilling.Sum(),
		Events: events, Security: security,
	}
}
