package main

import (
	"context"
	"errors"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/network"
	"github.com/longshore-dev/longshore/agent/workload"
)

// attacher gives the runtime its networks: two rooms that do not know each other, in one word each.
type attacher struct{ *network.Manager }

func (a attacher) Attach(ctx context.Context, project string, c workload.Container) (containerd.Attachment, error) {
	at, err := a.Manager.Attach(ctx, project, c)
	return containerd.Attachment(at), err
}

// Mend implements [agent.Mender]: what a firewall reload or a curious hand took away is made again.
func (a attacher) Mend(ctx context.Context) error {
	err := a.Verify(ctx)
	var drift *network.Drift
	if !errors.As(err, &drift) {
		return err
	}
	return a.Restore(ctx)
}

// Watch implements [agent.Watcher].
func (a attacher) Watch(ctx context.Context) (<-chan struct{}, error) { return a.Events(ctx) }

var _ agent.Watcher = attacher{}
