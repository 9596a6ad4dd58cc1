// Package records has the records of this device's containers in containerd: their labels, and an extension that only the agent writes.
package records

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"strconv"
	"strings"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/longshore-dev/longshore/agent/containerd/failure"
	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// The extension of a record: what Start and Stop need and labels cannot hold.
const (
	key  = "longshore.workload"
	kind = "longshore.dev/workload.v1+json"
)

// Record is the content of a container's extension.
type Record struct {
	Container  workload.Container `json:"container"`
	NetNS      string             `json:"netns"`
	StopSignal string             `json:"stopSignal"` // the service's or the image's
}

// Store is the records of a device's containers. Its methods may be called from several goroutines, with containerd's namespace in
// their contexts.
type Store struct {
	store     containers.Store
	device    string
	namespace string
	log       *slog.Logger

	own     ownChanges
	foreign foreign
}

// New makes a store of a device's records.
func New(ctrs containers.Store, device, namespace string, log *slog.Logger) *Store {
	return &Store{store: ctrs, device: device, namespace: namespace, log: log}
}

// Labels are the labels of a container: the service's own, and those by which the agent finds it.
func (r *Store) Labels(p *workload.Project, c workload.Container) map[string]string {
	out := map[string]string{}
	for k, v := range c.Service.Labels {
		if !strings.HasPrefix(k, owned.LabelPrefix) && !strings.HasPrefix(k, "containerd.io/") {
			out[k] = v
		}
	}
	out[owned.LabelDevice] = r.device
	out[owned.LabelDeployment] = p.Deployment
	out[owned.LabelComponent] = p.Component
	out[owned.LabelProject] = p.Name
	out[owned.LabelService] = c.Service.Name
	out[owned.LabelReplica] = strconv.Itoa(c.Replica)
	out[owned.LabelHash] = c.Hash
	out[owned.LabelGeneration] = strconv.FormatUint(p.Generation, 10)
	return out
}

// Own loads a container of ours. fault.ErrNotFound if there is none, fault.ErrConflict when another program created it.
func (r *Store) Own(ctx context.Context, id string) (containers.Container, Record, error) {
	var rec Record
	c, err := r.store.Get(ctx, id)
	if err != nil {
		return c, rec, failure.Classify(err)
	}
	if !r.Ours(c) {
		return c, rec, r.notOurs(c)
	}
	rec, err = Of(c)
	return c, rec, err
}

// Of reads the record of a container. fault.ErrUnsupported: another version of this agent wrote it.
func Of(c containers.Container) (Record, error) {
	var rec Record
	ext := c.Extensions[key]
	if ext == nil || ext.GetTypeUrl() != kind {
		return rec, fmt.Errorf("container %s was made by another version of this agent: %w", c.ID, fault.ErrUnsupported)
	}
	if err := json.Unmarshal(ext.GetValue(), &rec); err != nil {
		return rec, fmt.Errorf("read the record of container %s: %w", c.ID, failure.As(fault.ErrInvalid, err))
	}
	return rec, nil
}

// Extension encodes a record for containerd.
func (rec Record) Extension() (map[string]typeurl.Any, error) {
	b, err := json.Marshal(rec)
	if err != nil {
		return nil, err
	}
	return map[string]typeurl.Any{key: &anypb.Any{TypeUrl: kind, Value: b}}, nil
}
