package runspec

import (
	"slices"
	"testing"

	"github.com/containerd/containerd/v2/pkg/oci"
	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	specs "github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore-dev/longshore/agent/workload"
)

// What the image and the service say of the collector stays; the rest is the device's.
func TestTelemetryInTheEnvironment(t *testing.T) {
	p := &workload.Project{Name: "front-1", Deployment: "9b1c", Application: "line monitor", Component: "front", Generation: 7}
	http := Telemetry{Endpoint: "http://192.0.2.7:4318", Protocol: "http/protobuf"}
	both := Telemetry{Endpoint: "https://c:4318", GRPCEndpoint: "https://c:4317", Protocol: ProtocolGRPC, Certificate: "/var/lib/longshore/otlp-ca.crt"}
	const about = "OTEL_RESOURCE_ATTRIBUTES=service.name=web,service.namespace=line%20monitor,service.instance.id=front-1-web-1-abc," +
		"device.id=plant%2Fpress-07,longshore.deployment.id=9b1c,longshore.component=front,longshore.generation=7"
	first := []string{defaultPath, "HOSTNAME=web"}
	for _, tc := range []struct {
		name           string
		t              Telemetry
		image, service []string
		want           []string
	}{
		{"none", Telemetry{}, []string{"A=1"}, nil, []string{"A=1"}},
		{"HTTP", http, nil, nil, []string{
			"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.7:4318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.7:4318",
			"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", about,
		}},
		{"gRPC", both, nil, nil, []string{
			"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4318", "GRPC_OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317", "OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317",
			"OTEL_EXPORTER_OTLP_PROTOCOL=grpc", "OTEL_EXPORTER_OTLP_CERTIFICATE=" + CertificateTarget, about,
		}},
		{"the service's own collector", http, []string{"OTEL_RESOURCE_ATTRIBUTES=service.name=mine"}, []string{"OTEL_EXPORTER_OTLP_ENDPOINT=http://sidecar:4318"}, []string{
			"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.7:4318", "OTEL_EXPORTER_OTLP_ENDPOINT=http://sidecar:4318",
			"OTEL_EXPORTER_OTLP_PROTOCOL=http/protobuf", "OTEL_RESOURCE_ATTRIBUTES=service.name=mine",
		}},
		{"an image that insists on HTTP", both, []string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}, nil, []string{
			"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4318", "GRPC_OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4317", "OTEL_EXPORTER_OTLP_ENDPOINT=https://c:4318",
			"OTEL_EXPORTER_OTLP_PROTOCOL=http/json", "OTEL_EXPORTER_OTLP_CERTIFICATE=" + CertificateTarget, about,
		}},
		{"one that insists on gRPC, which is not there", http, nil, []string{"OTEL_EXPORTER_OTLP_PROTOCOL=grpc"}, []string{
			"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.7:4318", "OTEL_EXPORTER_OTLP_PROTOCOL=grpc", about,
		}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			c := workload.Container{ID: "front-1-web-1-abc", Service: workload.Service{Name: "web", Command: []string{"run"}, Environment: tc.service}}
			m, config := Maker{Device: "plant/press-07", Telemetry: tc.t}, ocispec.ImageConfig{Env: tc.image}
			spec := &oci.Spec{Process: &specs.Process{}}
			err := processOpts(c.Service, config, "web", m.Telemetry.environment(m.Device, p, c, config))(t.Context(), nil, nil, spec)
			if d := cmp.Diff(slices.Concat(first, tc.want), spec.Process.Env); err != nil || d != "" {
				t.Errorf("%v (-want +got):\n%s", err, d)
			}
		})
	}
}
