package containerd

import (
	"context"
	"encoding/json"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Labels on every object of ours. A thing without labelDevice, or with another device's, is not ours.
const (
	labelPrefix     = "dev.longshore."
	labelDevice     = labelPrefix + "device"
	labelDeployment = labelPrefix + "deployment"
	labelComponent  = labelPrefix + "component"
	labelProject    = labelPrefix + "project"
	labelService    = labelPrefix + "service"
	labelReplica    = labelPrefix + "replica"
	labelHash       = labelPrefix + "hash"
	labelGeneration = labelPrefix + "generation"
	// labelHook marks a container that only runs before another one, whose id it is. It is no container of the project.
	labelHook = labelPrefix + "hook"

	// labelRoot keeps containerd's collector away.
	labelRoot = "containerd.io/gc.root"
	// extensionKey and extensionType carry what Start and Stop must know and labels cannot hold.
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
		if !strings.HasPrefix(k, labelPrefix) && !strings.HasPrefix(k, "containerd.io/") {
			out[k] = v
		}
	}
	out[labelDevice] = r.o.Device
	out[labelDeployment] = p.Deployment
	out[labelComponent] = p.Component
	out[labelProject] = p.Name
	out[labelService] = c.Service.Name
	out[labelReplica] = strconv.Itoa(c.Replica)
	out[labelHash] = c.Hash
	out[labelGeneration] = strconv.FormatUint(p.Generation, 10)
	return out
}

// filter selects by labels, given as key, value pairs, beside the device's own.
func (r *Runtime) filter(pairs ...string) string {
	f := "labels." + strconv.Quote(labelDevice) + "==" + strconv.Quote(r.o.Device)
	for i := 0; i+1 < len(pairs); i += 2 {
		f += ",labels." + strconv.Quote(pairs[i]) + "==" + strconv.Quote(pairs[i+1])
	}
	return f
}

// own loads a container of ours. fault.ErrNotFound when there is none, fault.ErrConflict when it is somebody else's.
func (r *Runtime) own(ctx context.Context, id string) (containers.Container, record, error) {
	var rec record
	c, err := r.client.ContainerService().Get(ctx, id)
	if err != nil {
		return c, rec, classify(err)
	}
	if c.Labels[labelDevice] != r.o.Device {
		return c, rec, fmt.Errorf("container %s does not belong to device %s: %w", id, r.o.Device, fault.ErrConflict)
	}
	ext := c.Extensions[extensionKey]
	if ext == nil || ext.GetTypeUrl() != extensionType {
		return c, rec, fmt.Errorf("container %s was made by another version of this agent: %w", id, fault.ErrUnsupported)
	}
	if err := json.Unmarshal(ext.GetValue(), &rec); err != nil {
		return c, rec, fmt.Errorf("read the record of container %s: %w", id, as(fault.ErrInvalid, err))
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

// path joins names below dir; each name must be one plain path element.
func path(dir string, names ...string) (string, error) {
	for _, n := range names {
		if n == "" || n == "." || n == ".." || strings.ContainsAny(n, "/\x00") {
			return "", fmt.Errorf("%q cannot name a file: %w", n, fault.ErrInvalid)
		}
		dir = filepath.Join(dir, n)
	}
	return dir, nil
}
