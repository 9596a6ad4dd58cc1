package containerd

import (
	"errors"
	"slices"
	"testing"

	api "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"

	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/containerd/records"
	"github.com/longshore-dev/longshore/agent/containerd/tasks"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// containerd 1 says of a task whose shim does not answer that its state is unknown, containerd 2 does not list it.
func TestSilentTasksAreWhatTheyWere(t *testing.T) {
	ext, err := records.Record{Container: workload.Container{ID: "web-1"}}.Extension()
	if err != nil {
		t.Fatal(err)
	}
	web := containers.Container{
		ID: "web-1", Labels: map[string]string{owned.LabelDevice: "press-07", owned.LabelProject: "line", owned.LabelService: "web", owned.LabelReplica: "1"}, Extensions: ext,
	}
	for _, tc := range []struct {
		name   string
		listed []*task.Process
		get    func(*api.GetRequest) (*task.Process, error)
		want   workload.Status
		pid    uint32
	}{
		{"unknown", []*task.Process{{ID: "web-1", Status: task.Status_UNKNOWN}}, nil, workload.Running, 1},
		{"not listed", nil, func(*api.GetRequest) (*task.Process, error) { return nil, errSlow }, workload.Running, 1},
		{"not listed, then unknown", nil, func(*api.GetRequest) (*task.Process, error) {
			return &task.Process{ID: "web-1", Status: task.Status_UNKNOWN}, nil
		}, workload.Running, 1},
		{"not listed, then answers", nil, func(*api.GetRequest) (*task.Process, error) {
			return &task.Process{ID: "web-1", Status: task.Status_STOPPED}, nil
		}, workload.Exited, 0},
		{"gone", nil, func(*api.GetRequest) (*task.Process, error) { return nil, errGone }, workload.Created, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d := &daemon{ctrs: []containers.Container{web}, listed: []*task.Process{{ID: "web-1", Status: task.Status_RUNNING, Pid: 1}}}
			r := d.runtime(t)
			if _, err := r.Observe(t.Context()); err != nil {
				t.Fatal(err)
			}
			d.listed, d.get = tc.listed, tc.get
			for range 2 {
				seen, err := r.Observe(t.Context())
				if err != nil {
					t.Fatal(err)
				}
				if o := seen.Containers[0]; o.Status != tc.want || o.PID != tc.pid || (o.Run == "") != (tc.pid == 0) {
					t.Errorf("observed %+v, want %s", o, tc.want)
				}
			}
		})
	}
}

func TestAnUnknownTaskIsNotStartedOver(t *testing.T) {
	ext, err := records.Record{Container: workload.Container{ID: "web-1", Hash: "h"}}.Extension()
	if err != nil {
		t.Fatal(err)
	}
	for name, get := range map[string]func(*api.GetRequest) (*task.Process, error){
		"unknown": func(*api.GetRequest) (*task.Process, error) { return &task.Process{Status: task.Status_UNKNOWN}, nil },
		"slow":    func(*api.GetRequest) (*task.Process, error) { return nil, errSlow },
	} {
		d := &daemon{ctrs: []containers.Container{{ID: "web-1", Labels: map[string]string{owned.LabelDevice: "press-07"}, Extensions: ext}}, get: get}
		err := d.runtime(t).Start(t.Context(), &workload.Project{}, workload.Container{ID: "web-1", Hash: "h"})
		if !errors.Is(err, fault.ErrTemporary) || !errors.Is(err, tasks.ErrShimTimeout) || slices.Contains(d.calls, "kill") {
			t.Errorf("%s: Start = %v, after %q", name, err, d.calls)
		}
	}
}
