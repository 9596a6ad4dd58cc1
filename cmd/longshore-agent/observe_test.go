package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// fake is an agent that answers from a table.
type fake struct {
	containers []agent.ContainerStatus
	exec       func(ctx context.Context, id string, o agent.ExecOptions) (int, error)
	looks      int
}

func (f *fake) Status() agent.Status {
	return agent.Status{Device: "press-07", Version: "1.0.0", Running: &agent.Generation{Generation: 42}, CheckedAt: time.Unix(1700000000, 0)}
}
func (f *fake) Containers() []agent.ContainerStatus { return f.containers }
func (f *fake) Counts() agent.Counts {
	return agent.Counts{Polls: 9, PollErrors: 2, Events: map[agent.EventKind]uint64{agent.EventRolledBack: 1}}
}
func (f *fake) Sync(context.Context) (agent.SyncResult, error) { return agent.SyncResult{}, nil }

func (f *fake) Stats(_ context.Context, targets []string) ([]agent.ContainerUsage, error) {
	for _, t := range targets {
		if _, err := agent.Select(f.containers, t); err != nil {
			return nil, fmt.Errorf("stats: %w", err)
		}
	}
	f.looks++
	return []agent.ContainerUsage{{
		ID: "line-x-web-1-aa", Deployment: "line", Component: "line", Service: "web", Replica: 1, At: time.Unix(int64(f.looks), 0),
		CPUSeconds: float64(f.looks) / 2, MemoryBytes: 5 << 20, MemoryLimitBytes: 64 << 20, PIDs: 3, NetworkReceivedBytes: 100, LogDroppedBytes: 7,
	}}, nil
}

func (f *fake) Logs(_ context.Context, r agent.LogRequest) (io.ReadCloser, error) {
	for _, t := range r.Targets {
		if _, err := agent.Select(f.containers, t); err != nil {
			return nil, fmt.Errorf("logs: %w", err)
		}
	}
	return io.NopCloser(strings.NewReader(fmt.Sprintf("%v tail %d follow %v stamps %v prefix %v since %v\n",
		r.Targets, r.Tail, r.Follow, r.Stamps, r.Prefix, !r.Since.IsZero()))), nil
}

func (f *fake) Events(_ context.Context, _ agent.EventRequest, tell func(agent.Event) error) error {
	code := uint32(3)
	return errors.Join(
		tell(agent.Event{Sequence: 1, Time: time.Unix(1700000000, 0).UTC(), Kind: agent.EventAccepted, Generation: 42}),
		tell(agent.Event{Sequence: 2, Time: time.Unix(1700000001, 0).UTC(), Kind: agent.EventExited, Deployment: "line", Service: "web", Replica: 1, ExitCode: &code}),
	)
}

func (f *fake) Exec(ctx context.Context, id string, o agent.ExecOptions) (int, error) {
	return f.exec(ctx, id, o)
}

func (f *fake) VerifyImage(_ context.Context, repository string, d digest.Digest) agent.ImageVerdict {
	switch repository {
	case "harbor.example/plant/web":
		return agent.ImageVerdict{Allowed: true, Reason: "signed by vendor", SignedBy: []string{"vendor"}}
	case "harbor.example/plant/late":
		return agent.ImageVerdict{Code: agent.CodeSourceUnreachable, Reason: "registry away", Retry: true}
	case "harbor.example/plant/forged":
		return agent.ImageVerdict{Code: agent.CodeImageSignature, Reason: "signature invalid"}
	}
	return agent.ImageVerdict{Code: agent.CodeImageRejected, Reason: "rejected " + repository + "@" + d.String()}
}

// fakeAgent listens where the returned configuration says.
func fakeAgent(t *testing.T) (f *fake, file string) {
	t.Helper()
	file = writeConfig(t)
	cfg, err := readConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(cfg.RunDir, 0o700); err != nil {
		t.Fatal(err)
	}
	l, err := control.Listen(socketPath(cfg))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Now().Add(-90 * time.Minute)
	box := func(deployment, service string, replica int, state workload.Status) agent.ContainerStatus {
		return agent.ContainerStatus{
			ID: fmt.Sprintf("%s-x-%s-%d-aabbccdd", deployment, service, replica), Deployment: deployment, DeploymentID: "id-" + deployment, Component: deployment,
			Project: deployment + "-x", Service: service, Replica: replica, State: state, Active: true, StartedAt: at, Ports: []agent.PortStatus{},
			Image: "harbor.example/plant/" + service + "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		}
	}
	f = &fake{containers: []agent.ContainerStatus{
		box("line", "web", 1, workload.Running), box("line", "web", 2, workload.Running), box("line", "job", 1, workload.Exited),
		box("shop", "db", 1, workload.Running), box("shop", "web", 1, workload.Running), box("shop", "late", 1, agent.Missing),
	}}
	f.containers[0].Health, f.containers[0].Restarts = agent.HealthHealthy, 2
	f.containers[0].Ports = []agent.PortStatus{{HostIP: "127.0.0.1", HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 53, ContainerPort: 53, Protocol: "udp"}}
	f.containers[2].ExitCode, f.containers[2].ExitedAt = 3, at.Add(30*time.Minute)
	f.containers[5].StartedAt = time.Time{}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error)
	go func() { done <- control.Serve(ctx, l, f, slog.New(slog.DiscardHandler)) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return f, file
}

// startTime is the one figure that follows the clock.
var startTime = regexp.MustCompile(`(?m)^(longshore_container_start_time_seconds\{.*\} ).*$`)

func TestObservingCommands(t *testing.T) {
	_, file := fakeAgent(t)
	for _, tc := range []struct {
		name, golden string
		args         []string
		code         int
		errs         string
	}{
		{"ps", "ps.golden", []string{"ps"}, 0, ""},
		{"ps of all", "ps-all.golden", []string{"ps", "-a"}, 0, ""},
		{"ps with an argument", "", []string{"ps", "web"}, 2, "takes no argument"},
		{"ps in another format", "", []string{"ps", "-o", "xml"}, 2, "--output"},
		{"logs of several", "logs.golden", []string{"logs", "line/web", "db", "-t", "--since", "10m", "-n", "5"}, 0, ""},
		{"logs of what is ambiguous", "", []string{"logs", "web"}, 2, "line/web-1, line/web-2, shop/web-1"},
		{"logs of nothing", "", []string{"logs", "nothing"}, 4, "ps -a"},
		{"logs since nonsense", "", []string{"logs", "--since", "yesterday"}, 2, "--since"},
		{"logs with a bad tail", "", []string{"logs", "--tail", "-1"}, 2, "--tail"},
		{"stats", "stats.golden", []string{"stats", "--no-stream"}, 0, ""},
		{"stats of nothing", "", []string{"stats", "--no-stream", "nothing"}, 4, "no container or service"},
		{"stats in another format", "", []string{"stats", "-o", "xml"}, 2, "--output"},
		{"events as JSON", "events.golden", []string{"events", "-o", "json"}, 0, ""},
		{"events as YAML", "", []string{"events", "-o", "yaml"}, 2, "text or json"},
		{"metrics", "metrics.golden", []string{"metrics"}, 0, ""},
		{"exec without a command", "", []string{"exec", "web"}, 2, "a container and a command"},
		{"exec with a bad variable", "", []string{"exec", "-e", "=1", "web", "--", "x"}, 2, "--env"},
		{"exec with a terminal that is none", "", []string{"exec", "-it", "db", "--", "sh"}, 2, "no terminal"},
		{"completion", "", []string{"completion", "tcsh"}, 2, "bash, zsh, fish"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			args := append([]string{tc.args[0], "--config", file}, tc.args[1:]...)
			if tc.args[0] == "completion" {
				args = tc.args
			}
			code, out, errs := command(t, args...)
			if code != tc.code || !strings.Contains(errs, tc.errs) || (errs != "") != (code != 0) {
				t.Errorf("%v = %d, want %d with %q\n%s", tc.args, code, tc.code, tc.errs, errs)
			}
			if tc.golden != "" {
				golden(t, tc.golden, startTime.ReplaceAll([]byte(out), []byte("${1}1.7e+09")))
			} else if out != "" {
				t.Errorf("stdout = %q, want nothing", out)
			}
		})
	}
	for _, args := range [][]string{{"ps", "-a", "-o", "json"}, {"stats", "--no-stream", "-o", "json"}} {
		_, out, _ := command(t, append(args, "--config", file)...)
		var rows []map[string]any
		if err := json.Unmarshal([]byte(out), &rows); err != nil || len(rows) == 0 {
			t.Errorf("%v is no list: %v\n%s", args, err, out)
		}
	}
	if code, out, _ := command(t, "ps", "-o", "yaml", "--config", file); code != 0 || !strings.Contains(out, "service: db\n") {
		t.Errorf("ps -o yaml = %d\n%s", code, out)
	}
	if code, out, _ := command(t, "events", "--config", file); code != 0 || !strings.Contains(out, "exited      line/web-1 code 3\n") {
		t.Errorf("events = %d\n%s", code, out)
	}
}

func TestExecCommand(t *testing.T) {
	f, file := fakeAgent(t)
	var asked agent.ExecOptions
	f.exec = func(_ context.Context, id string, o agent.ExecOptions) (int, error) {
		asked = o
		if o.Argv[0] == "missing" {
			return 0, fmt.Errorf("exec in %s: no such program: %w", id, fault.ErrInvalid)
		}
		if o.Argv[0] == "away" {
			return 0, fmt.Errorf("exec in %s: %w", id, fault.ErrTemporary)
		}
		if o.Stdin != nil {
			if _, err := io.Copy(o.Stdout, o.Stdin); err != nil {
				return 0, err
			}
		}
		fmt.Fprint(o.Stderr, "to stderr")
		fmt.Fprint(o.Stdout, "in ", id)
		var code int
		_, _ = fmt.Sscan(o.Argv[len(o.Argv)-1], &code) // no number: 0
		return code, nil
	}
	exec := func(in string, args ...string) (int, string, string) {
		var out, errs bytes.Buffer
		code := run(t.Context(), append([]string{"longshore-agent", "exec", "--config", file}, args...), strings.NewReader(in), &out, &errs)
		return code, out.String(), errs.String()
	}
	code, out, errs := exec("input ", "-i", "-u", "7", "-w", "/w", "-e", "A=1", "-e", "B=2", "line/web-2", "--", "sh", "-c", "exit", "42")
	if code != 42 || out != "input in line-x-web-2-aabbccdd" || errs != "to stderr" {
		t.Errorf("exec = %d, %q, %q", code, out, errs)
	}
	if asked.User != "7" || asked.WorkingDir != "/w" || !slices.Equal(asked.Environment, []string{"A=1", "B=2"}) || !slices.Equal(asked.Argv, []string{"sh", "-c", "exit", "42"}) || asked.TTY {
		t.Errorf("asked for %+v", asked)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		errs string
	}{
		{"without dashes the rest is the command", []string{"db", "ls", "-i", "--tty", "--", "-u"}, 0, "to stderr"},
		{"no such program", []string{"db", "--", "missing"}, 127, "no such program"},
		{"the runtime is away", []string{"db", "--", "away"}, 125, "try"},
		{"ambiguous", []string{"web", "--", "x"}, 125, "line/web-1"},
		{"several replicas", []string{"line/web", "--", "x"}, 125, "line/web-2"},
		{"not running", []string{"job", "--", "x"}, 125, "does not run"},
		{"no such container", []string{"nothing", "--", "x"}, 125, "no container"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.errs == "try" {
				tc.errs = "temporar"
			}
			if code, _, errs := exec("", tc.args...); code != tc.code || !strings.Contains(errs, tc.errs) {
				t.Errorf("exec %v = %d, want %d with %q\n%s", tc.args, code, tc.code, tc.errs, errs)
			}
		})
	}
	exec("", "db", "ls", "-i", "--tty", "--", "-u")
	if !slices.Equal(asked.Argv, []string{"ls", "-i", "--tty", "--", "-u"}) || asked.Stdin != nil || asked.TTY {
		t.Errorf("asked for %+v", asked)
	}
}

func TestCompletion(t *testing.T) {
	_, file := fakeAgent(t)
	t.Setenv("LONGSHORE_CONFIG", file)
	for _, tc := range []struct {
		words []string
		want  string
	}{
		{[]string{"st"}, "status stats"},
		{[]string{"exec", ""}, "db line/web-1 web-2 line/web-2 shop/db-1 shop/web shop/web-1"},
		{[]string{"exec", "-i", "shop/"}, "shop/db-1 shop/web shop/web-1"},
		{[]string{"exec", "db", ""}, ""},
		{[]string{"logs", "j"}, "job"},
		{[]string{"logs", "db", "d"}, ""},
		{[]string{"ps", "-o", ""}, "text json yaml"},
		{[]string{"ps", "--a"}, "--all"},
		{[]string{"completion", "b"}, "bash"},
	} {
		t.Run(strings.Join(tc.words, " "), func(t *testing.T) {
			_, out, _ := command(t, append([]string{completeCommand}, tc.words...)...)
			got, want := strings.Fields(out), strings.Fields(tc.want)
			slices.Sort(got)
			slices.Sort(want)
			if !slices.Equal(got, want) {
				t.Errorf("completes to %v, want %v", got, want)
			}
		})
	}
}

func TestMetricsAreServed(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := taken.Addr().String()
	if err := taken.Close(); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		defer close(done)
		serveMetrics(ctx, address, &fake{}, slog.New(slog.DiscardHandler))
	}()
	ask := func(path string) (*http.Response, error) {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://"+address+path, nil)
		if err != nil {
			return nil, err
		}
		return (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	}
	testenv.Eventually(t, 20*time.Second, "metrics answer", func() error {
		res, err := ask("/metrics")
		if err != nil {
			return err
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil || !strings.Contains(string(b), "\nlongshore_generation_running 42\n") || !strings.HasPrefix(res.Header.Get("Content-Type"), "text/plain; version=0.0.4") {
			return fmt.Errorf("%s: %.200q, %w", res.Status, b, err)
		}
		return nil
	})
	res, err := ask("/v1/status")
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusNotFound {
		t.Errorf("the metrics' address also answers /v1/status: %s", res.Status)
	}
	cancel()
	<-done
}

func TestMetricsAddressIsChecked(t *testing.T) {
	dir := t.TempDir()
	for listen, ok := range map[string]bool{"127.0.0.1:9464": true, "'[::]:9464'": true, "9464": false, "localhost": false, "'*:1'": false} {
		file := filepath.Join(dir, "agent.yaml")
		if err := os.WriteFile(file, []byte("device: d\nstate: h/r\nmetrics: {listen: "+listen+"}\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := readConfig(file); (err == nil) != ok {
			t.Errorf("listen: %s = %v", listen, err)
		}
	}
}
