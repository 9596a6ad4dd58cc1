package records

import (
	"errors"
	"testing"

	"github.com/containerd/containerd/v2/core/containers"
	"github.com/containerd/typeurl/v2"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestOf(t *testing.T) {
	want := Record{Container: workload.Container{ID: "web-1", Hash: "h"}, NetNS: "/run/a", StopSignal: "SIGINT"}
	ext, err := want.Extension()
	if err != nil {
		t.Fatal(err)
	}
	got, err := Of(containers.Container{ID: "web-1", Extensions: ext})
	if d := cmp.Diff(want, got); err != nil || d != "" {
		t.Errorf("Of(Extension) = %v (-want +got):\n%s", err, d)
	}
	for name, tc := range map[string]struct {
		ext  typeurl.Any
		want error
	}{
		"none":            {nil, fault.ErrUnsupported},
		"another version": {&anypb.Any{TypeUrl: "longshore.dev/workload.v2+json", Value: []byte("{}")}, fault.ErrUnsupported},
		"torn":            {&anypb.Any{TypeUrl: kind, Value: []byte("{")}, fault.ErrInvalid},
	} {
		if _, err := Of(containers.Container{ID: "web-1", Extensions: map[string]typeurl.Any{key: tc.ext}}); !errors.Is(err, tc.want) {
			t.Errorf("%s: %v, want %v", name, err, tc.want)
		}
	}
}

// Each change of our own is expected once; one that failed is not.
func TestExpected(t *testing.T) {
	s := New(nil, "press-07", "n", nil)
	if err := s.expecting("/containers/update", "web-1", func() error { return nil }); err != nil {
		t.Fatal(err)
	}
	if !s.OwnChange("/containers/update", "web-1") || s.OwnChange("/containers/update", "web-1") {
		t.Error("a change of our own is not expected once")
	}
	if err := s.expecting("/containers/delete", "web-1", func() error { return fault.ErrTemporary }); err == nil {
		t.Error("the change's error is lost")
	}
	if s.OwnChange("/containers/delete", "web-1") {
		t.Error("a change that failed is expected")
	}
}
