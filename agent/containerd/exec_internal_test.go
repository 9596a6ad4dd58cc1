package containerd

import (
	"strings"
	"testing"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	specs "github.com/opencontainers/runtime-spec/specs-go"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/longshore-dev/longshore/agent/containerd/owned"
	"github.com/longshore-dev/longshore/agent/workload"
)

// Whatever call of a process of ours was not answered: what is left of it is killed and deleted.
func TestNoProcessOfOursStays(t *testing.T) {
	ext, err := record{Container: workload.Container{ID: "web-1"}}.extension()
	if err != nil {
		t.Fatal(err)
	}
	failed := status.Error(codes.FailedPrecondition, "process not created")
	is := func(s task.Status) func(*tasks.GetRequest) (*task.Process, error) {
		return func(*tasks.GetRequest) (*task.Process, error) { return &task.Process{Status: s}, nil }
	}
	for _, tc := range []struct {
		name string
		d    *daemon
		want string
	}{
		{"runs", &daemon{get: is(task.Status_RUNNING)}, "get kill wait delete"},
		{"has ended", &daemon{get: is(task.Status_STOPPED)}, "get delete"},
		{"ends meanwhile", &daemon{get: is(task.Status_RUNNING), kill: errGone, wait: errGone}, "get kill wait delete"},
		{"is starting", &daemon{get: is(task.Status_CREATED)}, "get kill wait delete"},
		{"was never started", &daemon{get: is(task.Status_CREATED), kill: failed}, "get kill delete"},
		{"containerd 1 does not know", &daemon{get: is(task.Status_UNKNOWN)}, "get kill wait delete"},
		{"containerd 2 does not know", &daemon{get: func(*tasks.GetRequest) (*task.Process, error) { return nil, errSlow }}, "get kill wait delete"},
		{"was never made", &daemon{get: func(*tasks.GetRequest) (*task.Process, error) { return nil, errGone }}, "get"},
	} {
		r := tc.d.runtime(t)
		if err := r.endExec(t.Context(), "web-1", "probe-1"); err != nil || strings.Join(tc.d.calls, " ") != tc.want {
			t.Errorf("%s: %v after %q, want %q", tc.name, err, tc.d.calls, tc.want)
		}
	}
	spec, err := typeurl.MarshalAny(&specs.Spec{Process: &specs.Process{Cwd: "/"}})
	if err != nil {
		t.Fatal(err)
	}
	d := &daemon{exec: errSlow, get: is(task.Status_CREATED), boxes: []containers.Container{{ID: "web-1", Labels: map[string]string{owned.LabelDevice: "press-07"}, Extensions: ext, Spec: spec}}}
	if err := d.runtime(t).Probe(t.Context(), "web-1", workload.Probe{Exec: []string{"true"}}); err == nil || strings.Join(d.calls, " ") != "exec get kill wait delete" {
		t.Errorf("Probe = %v after %q", err, d.calls)
	}
}
