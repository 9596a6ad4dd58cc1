package devices

import (
	"errors"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestDeviceRule(t *testing.T) {
	n := func(v int64) *int64 { return &v }
	for rule, want := range map[string]specs.LinuxDeviceCgroup{
		"c 189:* rmw": {Allow: true, Type: "c", Major: n(189), Access: "rmw"},
		"b 8:1 r":     {Allow: true, Type: "b", Major: n(8), Minor: n(1), Access: "r"},
		"a *:* rwm":   {Allow: true, Type: "a", Access: "rwm"},
	} {
		if diff := cmp.Diff(want, deviceRule(rule)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", rule, diff)
		}
	}
}

func TestGPUs(t *testing.T) {
	known := []string{"nvidia.com/gpu=10", "nvidia.com/gpu=2", "nvidia.com/gpu=GPU-x", "nvidia.com/gpu=all", "amd.com/gpu=0", "vendor.com/npu=a"}
	for _, tc := range []struct {
		name string
		ask  workload.DeviceRequest
		want []string
		err  error
	}{
		{"all", workload.DeviceRequest{Count: -1}, []string{"nvidia.com/gpu=all"}, nil},
		{"all without a name for them", workload.DeviceRequest{Driver: "amd", Count: -1}, []string{"amd.com/gpu=0"}, nil},
		{"two", workload.DeviceRequest{Count: 2}, []string{"nvidia.com/gpu=2", "nvidia.com/gpu=10"}, nil},
		{"by id", workload.DeviceRequest{IDs: []string{"GPU-x"}}, []string{"nvidia.com/gpu=GPU-x"}, nil},
		{"by name", workload.DeviceRequest{Driver: "cdi", IDs: []string{"vendor.com/npu=a"}}, []string{"vendor.com/npu=a"}, nil},
		{"of another kind", workload.DeviceRequest{Driver: "vendor.com/npu", Count: 1}, []string{"vendor.com/npu=a"}, nil},
		{"too many", workload.DeviceRequest{Count: 4}, nil, fault.ErrUnfit},
		{"none there", workload.DeviceRequest{Driver: "intel", Count: -1}, nil, fault.ErrUnfit},
		{"no such driver", workload.DeviceRequest{Driver: "tpu"}, nil, fault.ErrUnsupported},
	} {
		t.Run(tc.name, func(t *testing.T) {
			got, err := gpus(tc.ask, known)
			if !errors.Is(err, tc.err) || !slices.Equal(got, tc.want) {
				t.Errorf("gpus = %v, %v, want %v, %v", got, err, tc.want, tc.err)
			}
		})
	}
}
