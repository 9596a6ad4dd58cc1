package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/logs"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// What a record is kept as: what Start and Stop must know and labels cannot hold.
const (
	extensionKey  = "longshore.workload"
	extensionType = "longshore.dev/workload.v1+json"
)

// record is what a container's extension holds.
type record struct {
	Container  workload.Container `json:"container"`
	NetNS      string             `json:"netns"`
	StopSignal string             `json:"stopSignal"` // the service's or the image's
}

func (r *Runtime) labels(p *workload.Project, c workload.Container) map[string]string {
	out := map[string]string{}
	for k, v := range c.Service.Labels {
		if !strings.HasPrefix(k, owned.LabelPrefix) && !strings.HasPrefix(k, "containerd.io/") {
			out[k] = v
		}
	}
	out[owned.LabelDevice] = r.o.Device
	out[owned.LabelDeployment] = p.Deployment
	out[owned.LabelComponent] = p.Component
	out[owned.LabelProject] = p.Name
	out[owned.LabelService] = c.Service.Name
	out[owned.LabelReplica] = strconv.Itoa(c.Replica)
	out[owned.LabelHash] = c.Hash
	out[owned.LabelGeneration] = strconv.FormatUint(p.Generation, 10)
	return out
}

// filter selects what is this device's and has some labels, given as key, value pairs.
func (r *Runtime) filter(pairs ...string) string { return owned.By(r.o.Device, pairs...) }

// own loads a container of ours. fault.ErrNotFound when there is none, fault.ErrConflict when it is somebody else's.
func (r *Runtime) own(ctx context.Context, id string) (containers.Container, record, error) {
	var rec record
	c, err := r.client.ContainerService().Get(ctx, id)
	if err != nil {
		return c, rec, failure.Classify(err)
	}
	if !r.mine(c) {
		return c, rec, r.disowned(c)
	}
	ext := c.Extensions[extensionKey]
	if ext.GetTypeUrl() != extensionType {
		return c, rec, fmt.Errorf("container %s was made by another version of this agent: %w", id, fault.ErrUnsupported)
	}
	if err := json.Unmarshal(ext.GetValue(), &rec); err != nil {
		return c, rec, fmt.Errorf("read the record of container %s: %w", id, failure.As(fault.ErrInvalid, err))
	}
	return c, rec, nil
}

func (rec record) extension() (map[string]typeurl.Any, error) {
	b, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	return map[string]typeurl.Any{extensionKey: &anypb.Any{TypeUrl: extensionType, Value: b}}, nil
}

func (r *Runtime) stamp() string { return r.o.Now().UTC().Format(time.RFC3339) }

// replicaOf names the log of a container with these labels.
func replicaOf(labels map[string]string) logs.Replica {
	return logs.Replica{Project: labels[owned.LabelProject], Service: labels[owned.LabelService], Replica: labels[owned.LabelReplica]}
}
