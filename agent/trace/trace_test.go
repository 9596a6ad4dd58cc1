package trace_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	commonpb "go.opentelemetry.io/proto/otlp/common/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/runtimetest"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/trace"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// receiver is a collector that reads OTLP as the schema of OpenTelemetry has it.
type receiver struct {
	*httptest.Server
	mu       sync.Mutex
	bodies   []byte
	headers  []http.Header
	resource []*commonpb.KeyValue
	spans    []*tracepb.Span
}

func collect(t *testing.T) *receiver {
	t.Helper()
	r := &receiver{}
	r.Server = httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, q *http.Request) {
		body, err := io.ReadAll(q.Body)
		var all tracepb.TracesData // the same on the wire as an ExportTraceServiceRequest
		if err != nil || proto.Unmarshal(body, &all) != nil || q.Method != "POST" || q.URL.Path != "/v1/traces" || q.Header.Get("Content-Type") != "application/x-protobuf" {
			t.Errorf("%s %s is no traces, %v", q.Method, q.URL, err)
		}
		r.mu.Lock()
		defer r.mu.Unlock()
		r.bodies, r.headers = append(r.bodies, body...), append(r.headers, q.Header)
		for _, x := range all.ResourceSpans {
			r.resource = x.Resource.Attributes
			for _, s := range x.ScopeSpans {
				if s.Scope.Name == "" || s.Scope.Version != "1.2.3" {
					t.Errorf("scope %v", s.Scope)
				}
				r.spans = append(r.spans, s.Spans...)
			}
		}
	}))
	t.Cleanup(r.Close)
	return r
}

func attributes(all []*commonpb.KeyValue) map[string]string {
	out := map[string]string{}
	for _, kv := range all {
		out[kv.Key] = kv.Value.GetStringValue()
		if _, is := kv.Value.Value.(*commonpb.AnyValue_IntValue); is {
			out[kv.Key] = fmt.Sprint(kv.Value.GetIntValue())
		}
	}
	return out
}

// draw draws the traces of a collector, each span below its parent: its name, the code of its failure, and some of its attributes.
func (r *receiver) draw(t *testing.T) string {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	slices.SortStableFunc(r.spans, func(a, b *tracepb.Span) int { return int(int64(a.StartTimeUnixNano) - int64(b.StartTimeUnixNano)) })
	var b strings.Builder
	drawn, ids := 0, map[string]bool{}
	var below func(parent *tracepb.Span, indent string)
	below = func(parent *tracepb.Span, indent string) {
		for _, s := range r.spans {
			switch {
			case parent == nil && len(s.ParentSpanId) > 0, parent != nil && (!bytes.Equal(s.ParentSpanId, parent.SpanId) || !bytes.Equal(s.TraceId, parent.TraceId)):
				continue
			case ids[string(s.SpanId)], len(s.SpanId) != 8, len(s.TraceId) != 16, s.EndTimeUnixNano < s.StartTimeUnixNano:
				t.Errorf("span %v", s)
			case parent != nil && (s.StartTimeUnixNano < parent.StartTimeUnixNano || s.EndTimeUnixNano > parent.EndTimeUnixNano):
				t.Errorf("%s is not within %s", s.Name, parent.Name)
			}
			ids[string(s.SpanId)] = true
			a := attributes(s.Attributes)
			b.WriteString(indent + s.Name)
			for _, key := range []string{"generation", "outcome", "deployment", "service"} {
				if v := a["longshore."+key]; v != "" {
					b.WriteString(" " + v)
				}
			}
			if s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR {
				b.WriteString(" failed: " + s.Status.Message)
			}
			b.WriteString("\n")
			drawn++
			below(s, indent+"  ")
		}
	}
	below(nil, "")
	if drawn != len(r.spans) {
		t.Errorf("%d of %d spans are in a trace", drawn, len(r.spans))
	}
	return b.String()
}

// told are the events of a device.
type told []status.Event

func (d told) Events(_ context.Context, _ status.EventRequest, tell func(status.Event) error) error {
	for _, e := range d {
		if err := tell(e); err != nil {
			return err
		}
	}
	return nil
}

func (r *receiver) options(t *testing.T) trace.Options {
	t.Helper()
	c, err := trace.Read(env{"OTEL_EXPORTER_OTLP_ENDPOINT": r.URL, "OTEL_BSP_SCHEDULE_DELAY": "10", "OTEL_EXPORTER_OTLP_HEADERS": "x-key=s%2Cecret"}.get)
	if err != nil {
		t.Fatal(err)
	}
	return trace.Options{Collector: c, Device: "press-07", Version: "1.2.3", Epoch: "e", Logger: slog.New(slog.NewTextHandler(t.Output(), nil))}
}

type env map[string]string

func (e env) get(name string) string { return e[name] }

// lived are the events of an agent.
func lived(t *testing.T, live func(t *testing.T, w *agenttest.World, m *runtimetest.Memory, r *agenttest.Running)) (out told) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		m := runtimetest.NewMemory()
		m.Now = time.Now
		m.Pulling = func(ctx context.Context, _ workload.Image, progress func(done, total int64)) error {
			progress(50, 100)
			time.Sleep(time.Second)
			return ctx.Err()
		}
		w := agenttest.NewWorld(t, agenttest.Env{
			Now: time.Now, Patience: time.Hour,
			Runtime: func(*testing.T) agent.Runtime { return m },
			Image: func(name string) agenttest.Image {
				return agenttest.Image{Reference: "registry.example/images/" + name, Digest: digest.FromString(name)}
			},
		})
		w.Edit = func(o *agent.Options) { o.Probation = 10 * time.Minute }
		r := w.Start(t)
		live(t, w, m, r)
		if err := r.Events(t.Context(), status.EventRequest{}, func(e status.Event) error { out = append(out, e); return nil }); err != nil {
			t.Error(err)
		}
	})
	return out
}

const secret = "hunter2"

func app(tag string) agenttest.App {
	return agenttest.App{ID: 1, Name: "line", Components: []agenttest.Comp{{Name: "line", Version: "1.0." + tag, Services: []agenttest.Service{
		{Name: "web", Image: "web:" + tag, Extra: "    environment: {PASSWORD: " + secret + "}\n"},
	}}}}
}

// updated is an update from generation 1 to 2 that succeeds.
func updated(t *testing.T) told {
	return lived(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory, r *agenttest.Running) {
		w.Publish(t, 1, app("1"))
		w.Committed(t, r, 1)
		w.Publish(t, 2, app("2"))
		w.Committed(t, r, 2)
	})
}

func TestUpdate(t *testing.T) {
	r, events := collect(t), updated(t)
	trace.New(r.options(t)).Run(t.Context(), events)
	if diff := cmp.Diff(one("1")+one("2"), r.draw(t)); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	var accepted []string
	for _, e := range events {
		if e.Kind == status.EventAccepted {
			accepted = append(accepted, e.Digest.String())
		}
	}
	for _, s := range r.spans {
		switch a, took := attributes(s.Attributes), time.Duration(s.EndTimeUnixNano-s.StartTimeUnixNano); s.Name {
		case "change":
			if !slices.Contains(accepted, a["longshore.state.digest"]) || took < 10*time.Minute {
				t.Errorf("change %v in %v", a, took)
			}
		case "start":
			if a["longshore.replica"] != "1" || a["container.id"] == "" || a["longshore.component"] != "line" {
				t.Errorf("start %v", a)
			}
		case "download":
			if took != time.Second {
				t.Errorf("a download of a second took %v", took)
			}
		}
	}
	want := map[string]string{"service.name": "longshore-agent", "service.version": "1.2.3", "service.instance.id": "press-07", "device.id": "press-07"}
	if diff := cmp.Diff(want, attributes(r.resource)); diff != "" {
		t.Errorf("resource (-want +got):\n%s", diff)
	}
	if h := r.headers[0]; h.Get("X-Key") != "s,ecret" || h.Get("User-Agent") != "longshore-agent/1.2.3" {
		t.Errorf("headers %v", h)
	}
}

// What failed is a failed trace, with the code, and without a word of what containers or the agent said.
func TestRollback(t *testing.T) {
	r := collect(t)
	events := lived(t, func(t *testing.T, w *agenttest.World, m *runtimetest.Memory, r *agenttest.Running) {
		w.Publish(t, 1, app("1"))
		w.Committed(t, r, 1)
		w.Publish(t, 2, app("2"))
		at := func(p store.Phase) func() bool {
			return func() bool { x := r.Status().Progress; return x.Phase == p && x.Generation == 2 }
		}
		w.Wait(t, "probation", at(store.PhaseProbation))
		if err := m.Exit(w.Observe(t)["line/web"].ID, 3); err != nil {
			t.Fatal(err)
		}
		w.Wait(t, "the end", at(store.PhaseRolledBack))
		w.Publish(t, 1, app("3")) // which is refused
		w.Sync(t, r)
	})
	trace.New(r.options(t)).Run(t.Context(), events)
	got := r.draw(t)
	_, got, _ = strings.Cut(got, "change 2")
	want := " rolled-back failed: container-exited\n  check\n    verify\n  download\n  staged\n  probation\n" +
		"  apply line failed: container-exited\n    start line web\n  start line web\n  rollback\n" + // the second start is that of what ran before
		"change 1 refused failed: generation-rollback\n  check failed: generation-rollback\n    verify failed: generation-rollback\n"
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	for _, e := range events {
		if word, what, ok := strings.Cut(e.Message, ": "); ok && word == "failed" && bytes.Contains(r.bodies, []byte(what)) {
			t.Errorf("a message is in a trace: %q", what)
		}
	}
	if bytes.Contains(r.bodies, []byte(secret)) {
		t.Error("a secret is in a trace")
	}
}

// direct brings requests to a collector without a network.
type direct struct{ http.Handler }

func (d direct) RoundTrip(q *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	d.ServeHTTP(w, q)
	return w.Result(), nil
}

// A tracer beside an agent that runs sends what has ended within seconds, and ends with the agent.
func TestBesideAnAgent(t *testing.T) {
	r := collect(t)
	o := r.options(t)
	o.Wrap = func(http.RoundTripper) http.RoundTripper { return direct{r.Config.Handler} }
	lived(t, func(t *testing.T, w *agenttest.World, _ *runtimetest.Memory, a *agenttest.Running) {
		tracer, done := trace.New(o), make(chan struct{})
		go func() {
			defer close(done)
			tracer.Run(t.Context(), a.Agent)
		}()
		w.Publish(t, 1, app("1"))
		w.Committed(t, a, 1)
		time.Sleep(6 * time.Second)
		if got, want := r.draw(t), one("1"); got != want {
			t.Errorf("it sent\n%s", got)
		}
		a.Stop(t)
		<-done
	})
}

// one is the trace of an update that succeeds.
func one(generation string) string {
	return "change " + generation + " committed\n  check\n    verify\n  download\n  staged\n  apply line\n    start line web\n  probation\n  commit\n"
}

// The agent is restarted in the middle of a change: the trace goes on, and no span is there twice.
func TestRestart(t *testing.T) {
	r, events := collect(t), updated(t)
	i := slices.IndexFunc(events, func(e status.Event) bool {
		return e.Kind == status.EventPhase && e.Generation == 2 && e.Message == string(store.PhaseProbation)
	})
	if i < 0 {
		t.Fatalf("no probation in %+v", events)
	}
	first, o := r.options(t), r.options(t)
	trace.New(first).Run(t.Context(), events[:i+1])
	o.Before = &store.Progress{
		Phase: store.PhaseProbation, Since: events[i].Time, Generation: 2, Digest: events[i].Digest,
		History: []store.Outcome{{Generation: 1, Outcome: store.PhaseCommitted, Digest: digest.FromString("1")}},
	}
	accepted := slices.IndexFunc(events, func(e status.Event) bool { return e.Kind == status.EventAccepted && e.Generation == 2 })
	o.Begun = events[accepted].Since
	for _, e := range events[accepted:i] {
		if e.Kind == status.EventDeployment && e.Message == string(margo.StateInstalling) {
			o.Statuses = []store.Status{{Name: e.Deployment, State: margo.StateInstalling, Since: e.Since}}
		}
	}
	trace.New(o).Run(t.Context(), events[i+1:])
	got := r.draw(t)
	_, got, _ = strings.Cut(got, "change 2")
	if diff := cmp.Diff(" committed\n  check\n    verify\n  download\n  staged\n  apply line\n    start line web\n  probation\n  commit\n", got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

// Another change to the same state is another trace, and what the device comes back to after a check is no change.
func TestSameStateAgain(t *testing.T) {
	r, at := collect(t), time.Unix(1e9, 0)
	tell := func(kind status.EventKind, message store.Phase, state string) status.Event {
		at = at.Add(time.Minute)
		return status.Event{Kind: kind, Message: string(message), Digest: digest.FromString(state), Generation: 1, Time: at}
	}
	phase := func(p store.Phase, state string) status.Event { return tell(status.EventPhase, p, state) }
	events := told{
		phase(store.PhaseCommitted, "1"), // of an earlier run
		phase(store.PhaseApplying, "1"), phase(store.PhaseCommitted, "1"),
		phase(store.PhaseResolved, "2"), phase(store.PhaseCommitted, "1"),
		phase(store.PhaseRollingBack, "1"), phase(store.PhaseRolledBack, "1"),
		phase(store.PhaseApplying, "1"), tell(status.EventAccepted, "", "3"),
		phase(store.PhaseDownloading, "3"), phase(store.PhaseCommitted, "3"),
	}
	trace.New(r.options(t)).Run(t.Context(), events)
	got := r.draw(t)
	if want := "change 1 committed\n  commit\nchange 1 rolled-back\n  rollback\nchange 1 superseded\nchange 1 committed\n  check\n  download\n  commit\n"; got != want {
		t.Errorf("%s", got)
	}
	traces := map[string]bool{}
	for _, s := range r.spans {
		traces[string(s.TraceId)] = true
	}
	if len(traces) != 4 {
		t.Errorf("%d traces, want 4", len(traces))
	}
}

// hanging never answers.
type hanging struct{ asked func() }

func (h hanging) RoundTrip(q *http.Request) (*http.Response, error) {
	h.asked()
	<-q.Context().Done()
	return nil, q.Context().Err()
}

// A collector that hangs costs the agent no time, and the end of the agent two seconds.
func TestCollectorHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c, err := trace.Read(env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://user:" + secret + "@collector.example:4318", "OTEL_EXPORTER_OTLP_TIMEOUT": "3600000"}.get)
		if err != nil {
			t.Fatal(err)
		}
		var asked atomic.Int32
		tracer := trace.New(trace.Options{
			Collector: c, Device: "press-07", Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Wrap: func(http.RoundTripper) http.RoundTripper { return hanging{func() { asked.Add(1) }} },
		})
		d := &endless{make(chan time.Duration, 1), make(chan struct{})}
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() {
			defer close(done)
			tracer.Run(ctx, d)
		}()
		if took := <-d.told; took > 0 {
			t.Errorf("10,000 events took %v", took)
		}
		time.Sleep(time.Minute)
		if n := asked.Load(); n < 4 || n > 6 { // what fits into the queue, in batches that each wait for 5 s
			t.Errorf("%d requests in a minute", n)
		}
		d.more <- struct{}{}
		time.Sleep(6 * time.Second)
		began := time.Now()
		cancel()
		<-done
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the agent waited %v for the collector", took)
		}
		if n := strings.Count(log.String(), "takes no traces"); n != 1 || strings.Contains(log.String(), secret) {
			t.Errorf("the log says it %d times\n%s", n, log.String())
		}
	})
}

// endless tells 10,000 changes, and once more when more is sent to.
type endless struct {
	told chan time.Duration
	more chan struct{} // made by the test
}

func (d *endless) Events(ctx context.Context, _ status.EventRequest, tell func(status.Event) error) error {
	for {
		began := time.Now()
		for i := range 10_000 {
			e := status.Event{Kind: status.EventAccepted, Digest: digest.FromString(fmt.Sprint(i)), Generation: uint64(i + 1), Time: began}
			if err := tell(e); err != nil {
				return err
			}
		}
		select {
		case d.told <- time.Since(began):
		default:
		}
		select {
		case <-d.more:
		case <-ctx.Done():
			return nil
		}
	}
}

// A collector that is away, and comes back, is one line each.
func TestCollectorIsAway(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		c, err := trace.Read(env{"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector.example:4318"}.get)
		if err != nil {
			t.Fatal(err)
		}
		answers := []int{503, 503, 200, 200}
		tracer := trace.New(trace.Options{
			Collector: c, Device: "press-07", Logger: slog.New(slog.NewTextHandler(&log, nil)),
			Wrap: func(http.RoundTripper) http.RoundTripper {
				return answering(func() int { a := answers[0]; answers = answers[1:]; return a })
			},
		})
		tracer.Run(t.Context(), slow{})
		if len(answers) != 0 || strings.Count(log.String(), "\n") != 2 || !strings.Contains(log.String(), "503") || !strings.Contains(log.String(), "takes traces again") {
			t.Errorf("%d answers are left, the log\n%s", len(answers), log.String())
		}
	})
}

type answering func() int

func (a answering) RoundTrip(*http.Request) (*http.Response, error) {
	code := a()
	return &http.Response{StatusCode: code, Status: fmt.Sprint(code), Body: io.NopCloser(strings.NewReader("words"))}, nil
}

// slow tells a refusal every ten seconds, four times.
type slow struct{}

func (slow) Events(_ context.Context, _ status.EventRequest, tell func(status.Event) error) error {
	for i := range 4 {
		if err := tell(status.Event{Kind: status.EventRefused, Digest: digest.FromString(fmt.Sprint(i)), Code: "rollback", Time: time.Now()}); err != nil {
			return err
		}
		time.Sleep(10 * time.Second)
	}
	return nil
}

// A part of the changes is traced, each with all of its spans.
func TestSampled(t *testing.T) {
	for ratio, want := range map[string][2]int{"0": {0, 0}, "0.25": {150, 350}, "1": {1000, 1000}} {
		r := collect(t)
		o := r.options(t)
		c, err := trace.Read(env{"OTEL_EXPORTER_OTLP_ENDPOINT": r.URL, "OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": ratio}.get)
		if err != nil {
			t.Fatal(err)
		}
		var events told
		for i := range 500 {
			events = append(events, status.Event{Kind: status.EventRefused, Digest: digest.FromString(fmt.Sprint(i)), Code: "rollback", Time: time.Unix(1e9, 0)})
		}
		o.Collector = c
		trace.New(o).Run(t.Context(), events)
		if n := len(r.spans); n < want[0] || n > want[1] || n != 2*strings.Count(r.draw(t), "change") {
			t.Errorf("ratio %s: %d spans, want %v", ratio, n, want)
		}
	}
}
