package containerd_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
)

// Each container finds the collector, its authorities and its own name in its environment, also as a user and without files of its own to
// write. Another collector restarts nothing: it is that of containers that are created from then on.
func TestTelemetry(t *testing.T) {
	ca := filepath.Join(t.TempDir(), "otlp-ca.crt")
	if err := os.WriteFile(ca, []byte("authorities\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, func(o *containerd.Options) {
		o.Telemetry = runspec.Telemetry{Endpoint: "https://192.0.2.7:4318", Protocol: "http/protobuf", Certificate: ca}
	})
	s := server(r.pulled(nil))
	s.User, s.ReadOnly, s.Environment = "1000", true, []string{"OTEL_EXPORTER_OTLP_PROTOCOL=http/json"}
	p := project("telemetry", s)
	p.Application = "line-monitor"
	c := r.up(p)[0]
	env := r.inside(c.ID, "env")
	for _, want := range []string{
		"HTTP_OTEL_EXPORTER_OTLP_ENDPOINT=https://192.0.2.7:4318\n", "OTEL_EXPORTER_OTLP_PROTOCOL=http/json\n", "OTEL_EXPORTER_OTLP_CERTIFICATE=/dev/longshore-otlp-ca.crt\n",
		"service.name=" + s.Name + ",service.namespace=line-monitor,service.instance.id=" + c.ID + ",device.id=press-07,longshore.deployment.id=dep-telemetry," +
			"longshore.component=comp-telemetry,longshore.generation=3\n",
	} {
		if !strings.Contains(env, want) {
			t.Errorf("the environment has no %q:\n%s", want, env)
		}
	}
	if got := r.inside(c.ID, "cat", "/dev/longshore-otlp-ca.crt"); got != "authorities\n" {
		t.Errorf("the authorities are %q", got)
	}

	// The next agent has another collector.
	pid, o := r.seen(c.ID).PID, r.o
	o.Telemetry = runspec.Telemetry{Endpoint: "http://192.0.2.8:4318", Protocol: "http/protobuf"}
	next := r.reopened(o)
	if err := errors.Join(next.Create(t.Context(), p, c), next.Start(t.Context(), p, c)); err != nil {
		t.Fatal(err)
	}
	if got := r.seen(c.ID).PID; got != pid {
		t.Errorf("process %d, before %d: another collector has restarted the container", got, pid)
	}
	p.Services[0].Environment = nil
	created := p.Containers()[0]
	if err := errors.Join(next.Stop(t.Context(), c.ID), next.Remove(t.Context(), c.ID), next.Create(t.Context(), p, created), next.Start(t.Context(), p, created)); err != nil {
		t.Fatal(err)
	}
	if env := r.inside(created.ID, "env"); !strings.Contains(env, "\nOTEL_EXPORTER_OTLP_ENDPOINT=http://192.0.2.8:4318\n") || strings.Contains(env, "CERTIFICATE") {
		t.Errorf("the environment of a new container:\n%s", env)
	}
}
