// Package metrics writes in Prometheus' text format what a device does. Entry points are [Write] and [Handler].
//
// The format is written by hand: it is a few lines, and a client library with its registries would make the program larger
// by more than a megabyte. Names and labels are part of the interface; docs/metrics.md lists them.
package metrics

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
)

const ContentType = "text/plain; version=0.0.4; charset=utf-8"

// askLimit bounds how long the runtime may take to measure containers; scrapers wait 10 s.
const askLimit = 5 * time.Second

// Device is what is measured; [agent.Agent] is one.
type Device interface {
	Status() status.Status
	Containers() []status.Container
	Stats(ctx context.Context, targets []string) ([]status.Usage, error)
	Counts() status.Counts
}

// Write writes everything once. When the runtime does not answer, what the agent knows by itself is written and
// longshore_runtime_up is 0.
func Write(ctx context.Context, w io.Writer, d Device) error {
	var b text
	ctx, cancel := context.WithTimeout(ctx, askLimit)
	defer cancel()
	usage, err := d.Stats(ctx, nil)
	s := d.Status()
	b.agent(&s, d.Counts(), err == nil)
	b.containers(d.Containers())
	b.usage(usage)
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write metrics: %w", err)
	}
	return nil
}

// Handler answers GET /metrics, and nothing else.
func Handler(d Device, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /metrics", func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Content-Type", ContentType)
		if err := Write(r.Context(), w, d); err != nil {
			log.Debug("metrics were not sent", "err", err)
		}
	})
	return mux
}

// text is a page of metrics.
type text struct{ bytes.Buffer }

// family begins a metric of a name.
func (b *text) family(name, kind, help string) {
	fmt.Fprintf(b, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, kind)
}

// sample writes one value; labels are pairs.
func (b *text) sample(name string, value float64, labels ...string) {
	b.WriteString(name)
	for i := 0; i+1 < len(labels); i += 2 {
		b.WriteByte("{,"[min(i, 1)])
		fmt.Fprintf(b, `%s="%s"`, labels[i], escape(labels[i+1]))
	}
	if len(labels) > 0 {
		b.WriteByte('}')
	}
	b.WriteByte(' ')
	b.WriteString(strconv.FormatFloat(value, 'g', -1, 64))
	b.WriteByte('\n')
}

// one is a metric of one sample.
func (b *text) one(name, kind, help string, value float64) {
	b.family(name, kind, help)
	b.sample(name, value)
}

func escape(s string) string {
	return strings.NewReplacer(`\`, `\\`, "\n", `\n`, `"`, `\"`).Replace(s)
}

const (
	gauge   = "gauge"
	counter = "counter"
)

func flag(is bool) float64 {
	if is {
		return 1
	}
	return 0
}

func seconds(t time.Time) float64 {
	if t.IsZero() {
		return 0
	}
	return float64(t.UnixMilli()) / 1000
}

func generation(g *status.Generation) float64 {
	if g == nil {
		return 0
	}
	return float64(g.Generation)
}

func freshUntil(s *status.Status) float64 {
	if s.Freshness == nil {
		return 0
	}
	return seconds(s.Freshness.NotAfter)
}

func (b *text) agent(s *status.Status, c status.Counts, runtime bool) {
	b.family("longshore_agent_info", gauge, "Always 1; the labels name device and version.")
	b.sample("longshore_agent_info", 1, "device", s.Device, "version", s.Version)
	b.one("longshore_runtime_up", gauge, "Whether the container runtime answers.", flag(runtime))
	b.one("longshore_generation_accepted", gauge, "Newest generation that passed every check; 0: none.", generation(s.Accepted))
	b.one("longshore_generation_running", gauge, "Generation that the device runs or changes to; 0: none.", generation(s.Running))
	b.one("longshore_generation_committed", gauge, "Newest generation that ran completely; 0: none.", generation(s.Committed))
	version := uint64(0)
	if s.Trust != nil {
		version = s.Trust.Version
	}
	b.one("longshore_trust_version", gauge, "Version of the trust policy in use; 0: none.", float64(version))
	b.family("longshore_change_phase", gauge, "Always 1; the label phase is where the change to the newest state stands. Absent before the first.")
	if p := s.Progress; p != nil {
		b.sample("longshore_change_phase", 1, "phase", string(p.Phase))
	}
	b.one("longshore_stale", gauge, "Whether the running generation has expired, or the accepted one is not known to be the current one.", flag(s.Stale))
	b.one("longshore_last_poll_timestamp_seconds", gauge, "When the source last answered; 0: not since the agent started.", seconds(s.CheckedAt))
	b.one("longshore_polls_total", counter, "Checks of the source.", float64(c.Polls))
	b.one("longshore_poll_errors_total", counter, "Checks where the source did not answer.", float64(c.PollErrors))
	b.one("longshore_pulled_bytes_total", counter, "Bytes of images pulled.", float64(c.BytesPulled))
	b.one("longshore_outbox_reports", gauge, "Reports that wait for the fleet endpoint.", float64(s.Outbox.Depth))
	b.one("longshore_outbox_lost_reports", gauge, "Reports dropped because there was no room.", float64(s.Outbox.Lost))
	b.one("longshore_rollbacks_total", counter, "Rollbacks to an earlier generation.", float64(c.Events[status.EventRolledBack]))
	b.one("longshore_refusals_total", counter, "States that failed a check.", float64(c.Events[status.EventRefused]))
	b.family("longshore_security_events_total", counter, "Security events since the agent's database was created, by code.")
	for _, k := range slices.Sorted(maps.Keys(c.Security)) {
		b.sample("longshore_security_events_total", float64(c.Security[k]), "code", string(k))
	}
	b.one("longshore_freshness_expiry_timestamp_seconds", gauge, "When the newest freshness statement of the accepted state expires; 0: none is required, or there is none.", freshUntil(s))
	b.family("longshore_events_total", counter, "Events, by kind.")
	for _, k := range slices.Sorted(maps.Keys(c.Events)) {
		b.sample("longshore_events_total", float64(c.Events[k]), "kind", string(k))
	}
	b.family("longshore_problems", gauge, "Problems in the status, by code.")
	problems := map[codes.Code]int{}
	for _, p := range s.Problems {
		problems[p.Code]++
	}
	for _, k := range slices.Sorted(maps.Keys(problems)) {
		b.sample("longshore_problems", float64(problems[k]), "code", string(k))
	}
	b.family("longshore_deployment_state", gauge, "Always 1; the label state is the state of the application.")
	for _, d := range s.Deployments {
		b.sample("longshore_deployment_state", 1, "deployment", d.Name, "state", string(d.State))
	}
}

func labels(deployment, component, service string, replica int, id string) []string {
	return []string{"deployment", deployment, "component", component, "service", service, "replica", strconv.Itoa(replica), "container", id}
}

func (b *text) containers(all []status.Container) {
	each := func(name, kind, help string, value func(status.Container) (float64, bool)) {
		b.family(name, kind, help)
		for _, c := range all {
			if v, ok := value(c); ok {
				b.sample(name, v, labels(c.Deployment, c.Component, c.Service, c.Replica, c.ID)...)
			}
		}
	}
	each("longshore_container_up", gauge, "Whether the container runs.", func(c status.Container) (float64, bool) {
		return flag(c.State == workload.Running), true
	})
	each("longshore_container_healthy", gauge, "Whether its health check passes; absent without one.", func(c status.Container) (float64, bool) {
		return flag(c.Health == plan.HealthHealthy), c.Health != ""
	})
	each("longshore_container_restarts_total", counter, "Restarts since the agent started.", func(c status.Container) (float64, bool) {
		return float64(c.Restarts), true
	})
	each("longshore_container_exit_code", gauge, "Exit code of a container that has exited.", func(c status.Container) (float64, bool) {
		return float64(c.ExitCode), c.State == workload.Exited
	})
	each("longshore_container_start_time_seconds", gauge, "When it was started.", func(c status.Container) (float64, bool) {
		return seconds(c.StartedAt), !c.StartedAt.IsZero()
	})
}

func (b *text) usage(all []status.Usage) {
	each := func(name, kind, help string, value func(status.Usage) float64) {
		b.family(name, kind, help)
		for _, u := range all {
			b.sample(name, value(u), labels(u.Deployment, u.Component, u.Service, u.Replica, u.ID)...)
		}
	}
	n := func(f func(status.Usage) uint64) func(status.Usage) float64 {
		return func(u status.Usage) float64 { return float64(f(u)) }
	}
	each("longshore_container_cpu_seconds_total", counter, "CPU time of all cores.", func(u status.Usage) float64 { return u.CPUSeconds })
	each("longshore_container_cpu_throttled_seconds_total", counter, "Time throttled by the CPU limit.", func(u status.Usage) float64 { return u.CPUThrottledSeconds })
	each("longshore_container_memory_bytes", gauge, "Memory in use, without file content that can be dropped at once.", n(func(u status.Usage) uint64 { return u.MemoryBytes }))
	each("longshore_container_memory_cache_bytes", gauge, "Memory that holds file content.", n(func(u status.Usage) uint64 { return u.MemoryCacheBytes }))
	each("longshore_container_memory_limit_bytes", gauge, "Memory limit; 0: none.", n(func(u status.Usage) uint64 { return u.MemoryLimitBytes }))
	each("longshore_container_oom_kills_total", counter, "Processes killed for lack of memory.", n(func(u status.Usage) uint64 { return u.OOMKills }))
	each("longshore_container_pids", gauge, "Processes and threads.", n(func(u status.Usage) uint64 { return u.PIDs }))
	each("longshore_container_network_receive_bytes_total", counter, "Bytes received.", n(func(u status.Usage) uint64 { return u.NetworkReceivedBytes }))
	each("longshore_container_network_transmit_bytes_total", counter, "Bytes sent.", n(func(u status.Usage) uint64 { return u.NetworkTransmittedBytes }))
	each("longshore_container_network_errors_total", counter, "Packets damaged or dropped, both ways.", n(func(u status.Usage) uint64 { return u.NetworkErrors }))
	each("longshore_container_fs_read_bytes_total", counter, "Bytes read from block devices.", n(func(u status.Usage) uint64 { return u.BlockReadBytes }))
	each("longshore_container_fs_write_bytes_total", counter, "Bytes written to block devices.", n(func(u status.Usage) uint64 { return u.BlockWrittenBytes }))
	each("longshore_container_log_bytes", gauge, "Output kept on the disk.", func(u status.Usage) float64 { return float64(u.LogBytes) })
	each("longshore_container_log_dropped_bytes_total", counter, "Output that could not be stored since the agent started.", n(func(u status.Usage) uint64 { return u.LogDroppedBytes }))
}
