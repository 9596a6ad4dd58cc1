package main

import (
	"context"

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
