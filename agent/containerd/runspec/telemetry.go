package runspec

import (
	"net/url"
	"slices"
	"strconv"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/workload"
)

// CertificateTarget is the path, in containers, of the certificates that verify the collector. As [InitTarget] it is in memory.
const CertificateTarget = "/dev/longshore-otlp-ca.crt"

// ProtocolGRPC is OTLP over gRPC, among the values of OTEL_EXPORTER_OTLP_PROTOCOL.
const ProtocolGRPC = "grpc"

// Telemetry is the collector for the measurements of containers, over OTLP. It is only in their environment, not in the
// hash of their services: another collector restarts nothing, and applies to containers that are created later. The zero value:
// no variables are set.
type Telemetry struct {
	Endpoint     string // URL of OTLP over HTTP
	GRPCEndpoint string // URL of OTLP over gRPC; "": there is none
	Protocol     string // of OTEL_EXPORTER_OTLP_PROTOCOL
	Certificate  string // file of the device, mounted at CertificateTarget; "": the image's own authorities are used
}

// environment returns the variables about the collector and the container that neither its image nor its service
// sets. The first two variables are Margo's, the others OpenTelemetry's.
func (t Telemetry) environment(device string, p *workload.Project, c workload.Container, image ocispec.ImageConfig) []string {
	if t.Endpoint == "" {
		return nil
	}
	protocol := t.Protocol
	for _, kv := range slices.Concat(image.Env, c.Service.Environment) { // a container that sets its protocol needs the endpoint of that protocol
		if v, ok := strings.CutPrefix(kv, "OTEL_EXPORTER_OTLP_PROTOCOL="); ok {
			protocol = v
		}
	}
	out := []string{"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=" + t.Endpoint}
	if t.GRPCEndpoint != "" {
		out = append(out, "GRPC_OTEL_EXPORTER_OTLP_ENDPOINT="+t.GRPCEndpoint)
	}
	switch {
	case protocol != ProtocolGRPC:
		out = append(out, "OTEL_EXPORTER_OTLP_ENDPOINT="+t.Endpoint)
	case t.GRPCEndpoint != "":
		out = append(out, "OTEL_EXPORTER_OTLP_ENDPOINT="+t.GRPCEndpoint)
	}
	out = append(out, "OTEL_EXPORTER_OTLP_PROTOCOL="+t.Protocol)
	if t.Certificate != "" {
		out = append(out, "OTEL_EXPORTER_OTLP_CERTIFICATE="+CertificateTarget)
	}
	var about []string
	for _, kv := range [][2]string{
		{"service.name", c.Service.Name},
		{"service.namespace", p.Application},
		{"service.instance.id", c.ID},
		{"device.id", device},
		{"longshore.deployment.id", p.Deployment},
		{"longshore.component", p.Component},
		{"longshore.generation", strconv.FormatUint(p.Generation, 10)},
	} {
		about = append(about, kv[0]+"="+url.PathEscape(kv[1])) // percent-encoded, as in W3C baggage; a comma, too
	}
	return append(out, "OTEL_RESOURCE_ATTRIBUTES="+strings.Join(about, ","))
}
