package containerd_test

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/runspec"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/testenv"
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

// The address in a container's environment leads to a collector on the device: to a program beside the containers, and to an application
// that publishes its port.
func TestTelemetryReachesACollectorOnTheDevice(t *testing.T) {
	here := ownAddress(t)
	asked := make(chan string, 1)
	l, err := net.Listen("tcp", net.JoinHostPort(here, "0"))
	if err != nil {
		t.Fatal(err)
	}
	program := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked <- r.Method + " " + r.URL.Path
		fmt.Fprintln(w, "taken by a program")
	})}
	served := make(chan error, 1)
	go func() { served <- program.Serve(l) }() // ends with Close
	t.Cleanup(func() {
		if err := program.Close(); err != nil {
			t.Error(err)
		}
		if err := <-served; !errors.Is(err, http.ErrServerClosed) {
			t.Error(err)
		}
	})
	port, err := testenv.FreePort()
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t)
	img := r.pulled(nil)
	collector := workload.Service{
		Name: "collector", Image: img, Command: []string{"serve", "4318", "taken by an application"},
		Ports: []workload.Port{{HostPort: port, ContainerPort: 4318, Protocol: "tcp"}},
	}
	r.up(project("collector", collector))
	for name, x := range map[string]struct{ endpoint, taken string }{
		"program":     {"http://" + l.Addr().String(), "taken by a program"},
		"application": {"http://" + net.JoinHostPort(here, strconv.Itoa(int(port))), "taken by an application"},
	} {
		o := r.o
		o.Telemetry = runspec.Telemetry{Endpoint: x.endpoint, Protocol: "http/protobuf"}
		next := r.reopened(o)
		p := project("measures-"+name, server(img))
		c := p.Containers()[0]
		if err := errors.Join(next.Prepare(t.Context(), p), next.Create(t.Context(), p, c), next.Start(t.Context(), p, c)); err != nil {
			t.Fatal(err)
		}
		var to string
		for line := range strings.Lines(r.inside(c.ID, "env")) {
			if v, ok := strings.CutPrefix(strings.TrimSpace(line), "OTEL_EXPORTER_OTLP_ENDPOINT="); ok {
				to = v
			}
		}
		testenv.Eventually(t, time.Minute, "the container reaches the "+name, func() error {
			var out bytes.Buffer
			code, err := r.Exec(t.Context(), c.ID, agent.ExecOptions{Argv: []string{"/toolbox", "get", to + "/"}, Stdout: &out, Stderr: &out})
			if err == nil && (code != 0 || !strings.Contains(out.String(), x.taken)) {
				err = fmt.Errorf("exit code %d: %s", code, &out)
			}
			return err
		})
	}
	if got := <-asked; got != "GET /" {
		t.Errorf("the program was asked %q", got)
	}
}

// ownAddress is an address of this machine that containers can reach it by.
func ownAddress(t *testing.T) string {
	t.Helper()
	all, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range all {
		if n, ok := a.(*net.IPNet); ok && n.IP.To4() != nil && n.IP.IsGlobalUnicast() {
			return n.IP.String()
		}
	}
	testenv.Unavailable(t, "this machine has no address but loopback")
	return ""
}
