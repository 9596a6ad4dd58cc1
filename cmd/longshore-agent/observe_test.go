package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/plan"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// fake is an agent that answers from a table.
type fake struct {
	output     string // of containers; "": what was asked for
	containers []status.Container
	exec       func(ctx context.Context, id string, o agent.ExecOptions) (int, error)
	looks      int
	busy       *status.Status // a sync has no outcome, and this is the status meanwhile; nil: it has one at once
}

func (f *fake) Status() status.Status {
	if f.busy != nil {
		return *f.busy
	}
	return status.Status{Device: "press-07", Version: "1.0.0", Running: &status.Generation{Generation: 42}, CheckedAt: time.Unix(1700000000, 0)}
}
func (f *fake) Containers() []status.Container { return f.containers }
func (f *fake) Volumes(context.Context) ([]status.Volume, error) {
	return []status.Volume{
		{Name: "shop-0a1b2c3d/orders", Volume: "orders", Project: "shop-0a1b2c3d", Deployment: "shop", DeploymentID: "d9", Component: "shop", Bytes: 3 << 20},
		{Name: "line-4e5f6a7b/data", Volume: "data", Project: "line-4e5f6a7b", Deployment: "line", DeploymentID: "d1", Component: "line", InUse: true, Bytes: 7 << 30},
	}, nil
}

func (f *fake) RemoveVolume(ctx context.Context, name string) (status.Volume, error) {
	all, _ := f.Volumes(ctx)
	v, err := status.SelectVolume(all, name)
	if err == nil && v.InUse {
		err = fault.WithHint(fmt.Errorf("volume %s is in use by %s: %w", v.Name, v.Deployment, fault.ErrConflict), "remove the application from the device's state first")
	}
	return v, err
}

func (f *fake) Counts() status.Counts {
	return status.Counts{Polls: 9, PollErrors: 2, Events: map[status.EventKind]uint64{status.EventRolledBack: 1}}
}

func (f *fake) Sync(ctx context.Context) (status.SyncResult, error) {
	if f.busy != nil {
		<-ctx.Done()
	}
	return status.SyncResult{}, ctx.Err()
}

func (f *fake) Stats(_ context.Context, targets []string) ([]status.Usage, error) {
	for _, t := range targets {
		if _, err := status.Select(f.containers, t); err != nil {
			return nil, fmt.Errorf("stats: %w", err)
		}
	}
	f.looks++
	return []status.Usage{{
		ID: "line-x-web-1-aa", Deployment: "line", Component: "line", Service: "web", Replica: 1, At: time.Unix(int64(f.looks), 0),
		CPUSeconds: float64(f.looks) / 2, MemoryBytes: 5 << 20, MemoryLimitBytes: 64 << 20, PIDs: 3, NetworkReceivedBytes: 100, LogDroppedBytes: 7,
	}}, nil
}

func (f *fake) Logs(_ context.Context, r status.LogRequest) (io.ReadCloser, error) {
	for _, t := range r.Targets {
		if _, err := status.Select(f.containers, t); err != nil {
			return nil, fmt.Errorf("logs: %w", err)
		}
	}
	if f.output != "" {
		return io.NopCloser(strings.NewReader(f.output)), nil
	}
	return io.NopCloser(strings.NewReader(fmt.Sprintf("%v tail %d follow %v stamps %v prefix %v since %v\n",
		r.Targets, r.Tail, r.Follow, r.Stamps, r.Prefix, !r.Since.IsZero()))), nil
}

func (f *fake) Events(_ context.Context, _ status.EventRequest, tell func(status.Event) error) error {
	code := uint32(3)
	return errors.Join(
		tell(status.Event{Sequence: 1, Time: time.Unix(1700000000, 0).UTC(), Kind: status.EventAccepted, Generation: 42}),
		tell(status.Event{Sequence: 2, Time: time.Unix(1700000001, 0).UTC(), Kind: status.EventExited, Deployment: "line", Service: "web", Replica: 1, ExitCode: &code}),
	)
}

func (f *fake) Restart(_ context.Context, targets []string, _ string) ([]status.Container, error) {
	return status.SelectAll(f.containers, targets)
}

func (f *fake) Exec(ctx context.Context, id string, o agent.ExecOptions) (int, error) {
	return f.exec(ctx, id, o)
}

func (f *fake) VerifyImage(_ context.Context, repository string, d digest.Digest) agent.ImageVerdict {
	switch repository {
	case "harbor.example/plant/web":
		return agent.ImageVerdict{Allowed: true, Reason: "signed by vendor", SignedBy: []string{"vendor"}}
	case "harbor.example/plant/late":
		return agent.ImageVerdict{Code: codes.SourceUnreachable, Reason: "registry away", Retry: true}
	case "harbor.example/plant/forged":
		return agent.ImageVerdict{Code: codes.ImageSignature, Reason: "signature invalid"}
	}
	return agent.ImageVerdict{Code: codes.ImageRejected, Reason: "rejected " + repository + "@" + d.String()}
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
	box := func(deployment, service string, replica int, state workload.Status) status.Container {
		return status.Container{
			ID: fmt.Sprintf("%s-x-%s-%d-aabbccdd", deployment, service, replica), Deployment: deployment, DeploymentID: "id-" + deployment, Component: deployment,
			Project: deployment + "-x", Service: service, Replica: replica, State: state, Active: true, StartedAt: at, Ports: []status.Port{},
			Image: "harbor.example/plant/" + service + "@sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef",
		}
	}
	f = &fake{containers: []status.Container{
		box("line", "web", 1, workload.Running), box("line", "web", 2, workload.Running), box("line", "job", 1, workload.Exited),
		box("shop", "db", 1, workload.Running), box("shop", "web", 1, workload.Running), box("shop", "late", 1, status.Missing),
	}}
	f.containers[0].Health, f.containers[0].Restarts = plan.HealthHealthy, 2
	f.containers[0].Ports = []status.Port{{HostIP: "127.0.0.1", HostPort: 8080, ContainerPort: 80, Protocol: "tcp"}, {HostPort: 53, ContainerPort: 53, Protocol: "udp"}}
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
		{"ids of all", "ps-ids.golden", []string{"ps", "-aq"}, 0, ""},
		{"ps with an argument", "", []string{"ps", "web"}, 2, "takes no argument"},
		{"ps in another format", "", []string{"ps", "-o", "xml"}, 2, "--output"},
		{"logs of several", "logs.golden", []string{"logs", "line/web", "db", "-t", "--since", "10m", "-n", "5"}, 0, ""},
		{"logs of what is ambiguous", "", []string{"logs", "web"}, 2, "line/web-1, line/web-2, shop/web-1"},
		{"logs of nothing", "", []string{"logs", "nothing"}, 4, "ps -a"},
		{"logs since nonsense", "", []string{"logs", "--since", "yesterday"}, 2, "--since"},
		{"logs with a bad tail", "", []string{"logs", "--tail", "-1"}, 2, "--tail"},
		{"logs with a tail that is no number", "", []string{"logs", "--tail", "many"}, 2, "neither a number of lines nor all"},
		{"stats", "stats.golden", []string{"stats", "--no-stream"}, 0, ""},
		{"stats of nothing", "", []string{"stats", "--no-stream", "nothing"}, 4, "no container or service"},
		{"stats in another format", "", []string{"stats", "-o", "xml"}, 2, "--output"},
		{"events as JSON", "events.golden", []string{"events", "-o", "json"}, 0, ""},
		{"events in another format", "", []string{"events", "-o", "xml"}, 2, "text, json or yaml"},
		{"a restart in another format", "", []string{"restart", "-o", "xml", "db"}, 2, "text, json or yaml"},
		{"events of no kind", "", []string{"events", "--kind", "exit"}, 2, `"exit" is not one of accepted refused`},
		{"metrics", "metrics.golden", []string{"metrics"}, 0, ""},
		{"exec without a command", "", []string{"exec", "web"}, 2, "a container and a command"},
		{"exec with a bad variable", "", []string{"exec", "-e", "=1", "web", "--", "x"}, 2, "--env"},
		{"exec with a terminal that is none", "", []string{"exec", "-it", "db", "--", "sh"}, 2, "no terminal"},
		{"completion", "", []string{"completion", "tcsh"}, 2, "is not bash, zsh or fish"},
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
	if code, out, _ := command(t, "events", "-o", "yaml", "--config", file); code != 0 || !strings.HasPrefix(out, "- sequence: 1\n") || !strings.Contains(out, "\n  exitCode: 3\n") {
		t.Errorf("events -o yaml = %d\n%s", code, out)
	}
	if code, out, _ := command(t, "events", "--config", file); code != 0 || !strings.Contains(out, "exited      line/web-1 code 3\n") {
		t.Errorf("events = %d\n%s", code, out)
	}
}

// The times that events shows are taken as they are, like those of other programs.
func TestTimes(t *testing.T) {
	_, file := fakeAgent(t)
	for _, at := range []string{"10m", "3d", "1d12h", "2026-11-20T12:00:00Z", "2026-11-20T12:00", "2026-11-20 12:00:00", "2026-11-20 12:00", "2026-11-20"} {
		if code, _, errs := command(t, "logs", "--config", file, "--since", at, "db"); code != 0 {
			t.Errorf("--since %q = %d\n%s", at, code, errs)
		}
	}
}

// Output that cannot be written is an error of every command.
func TestOutputIsFull(t *testing.T) {
	_, file := fakeAgent(t)
	full, err := os.OpenFile("/dev/full", os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer full.Close()
	for _, args := range [][]string{
		{"status"}, {"ps"}, {"changes"}, {"volumes", "list"}, {"stats"}, {"stats", "--no-stream"}, {"events"}, {"metrics"}, {"logs", "db"}, {"ps", "-o", "yaml"},
	} {
		var errs bytes.Buffer
		args = append(append([]string{"longshore-agent"}, args...), "--config", file)
		if code := run(t.Context(), args, strings.NewReader(""), full, &errs); code != outcome.Other || strings.Count(errs.String(), "no space left on device") != 1 {
			t.Errorf("%v on a full disk = %d\n%s", args, code, errs.String())
		}
	}
}

// What containers write does not reach a terminal as commands for it, unless that is asked for.
func TestLogsAreEscaped(t *testing.T) {
	f, file := fakeAgent(t)
	f.output = "ready\r\n\x1b[31mred\x1b]0;owned\a \u202etxt.exe \x9b2J\n"
	code, out, errs := command(t, "logs", "--config", file, "db")
	if want := "ready\n" + `\u001b[31mred\u001b]0;owned\u0007 \u202etxt.exe \x9b2J` + "\n"; code != 0 || out != want {
		t.Errorf("logs = %d %q, want %q\n%s", code, out, want, errs)
	}
	if code, out, errs := command(t, "logs", "--raw", "--config", file, "db"); code != 0 || out != f.output {
		t.Errorf("logs --raw = %d %q\n%s", code, out, errs)
	}
	if code, _, errs := command(t, "logs", "--config", file, "\x1b[31m"); code != 4 || strings.Contains(errs, "\x1b") {
		t.Errorf("logs of nothing = %d %q", code, errs)
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
	code, out, errs := exec("input ", "-i", "-u", "7", "-w", "/w", "-e", "A=1,2", "-eB= 2 ", "line/web-2", "--", "sh", "-c", "exit", "42")
	if code != 42 || out != "input in line-x-web-2-aabbccdd" || errs != "to stderr" {
		t.Errorf("exec = %d, %q, %q", code, out, errs)
	}
	if asked.User != "7" || asked.WorkingDir != "/w" || !slices.Equal(asked.Environment, []string{"A=1,2", "B= 2 "}) || !slices.Equal(asked.Argv, []string{"sh", "-c", "exit", "42"}) || asked.TTY {
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

// TestExecWithAnotherVersion: an agent that knows another protocol answers as it does to a request that is not valid. The container may have
// the program.
func TestExecWithAnotherVersion(t *testing.T) {
	file := writeConfig(t)
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
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusBadRequest)
		fmt.Fprint(w, `{"error":"exec: the request must ask for an upgrade to longshore-exec/9","hint":"restart the agent"}`)
	}))
	s.Listener = l
	s.Start()
	t.Cleanup(s.Close)
	if code, _, errs := command(t, "exec", "--config", file, "web", "ls"); code != 125 || !strings.Contains(errs, "restart the agent") {
		t.Errorf("exec = %d, want 125 with a hint\n%s", code, errs)
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
		{[]string{"logs", "--config=" + file + ".other", "j"}, ""},
		{[]string{"logs", "db", "d"}, ""},
		{[]string{"ps", "-o", ""}, "text json yaml"},
		{[]string{"ps", "--a"}, "--all"},
		{[]string{"completion", "b"}, "bash"},
		{[]string{"volumes", ""}, "list remove"},
		{[]string{"volumes", "list", "-o", "y"}, "yaml"},
	} {
		t.Run(strings.Join(tc.words, " "), func(t *testing.T) {
			want := strings.Fields(tc.want)
			slices.Sort(want)
			testenv.Eventually(t, time.Minute, "the completion", func() error { // it does not wait for an agent on a busy machine
				_, out, _ := command(t, append([]string{cmdline.CompleteCommand}, tc.words...)...)
				got := strings.Fields(out)
				if slices.Sort(got); !slices.Equal(got, want) {
					return fmt.Errorf("it completes to %v, want %v", got, want)
				}
				return nil
			})
		})
	}
}

func TestMetricsAreServed(t *testing.T) {
	address, err := testenv.FreeAddress()
	if err != nil {
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
	testenv.Eventually(t, time.Minute, "metrics answer", func() error {
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

// A sync that has no outcome in time says what the agent is still doing.
func TestSyncTimeoutSaysWhatIsUnderWay(t *testing.T) {
	installing := func(name string, services ...status.Service) status.Deployment {
		return status.Deployment{Name: name, State: margo.StateInstalling, Components: []status.Component{
			{Name: name, State: margo.StateInstalling, Services: services},
		}}
	}
	done := status.Deployment{Name: "done", Components: []status.Component{{Name: "done", State: margo.StateInstalled, Services: []status.Service{{Name: "x"}}}}}
	for name, tc := range map[string]struct {
		status status.Status
		want   string
	}{
		"starting": {
			status.Status{Deployments: []status.Deployment{done, installing("hello",
				status.Service{Name: "job", Status: workload.Exited},
				status.Service{Name: "web", Status: workload.Running, Health: plan.HealthStarting},
				status.Service{Name: "web", Replica: 2, Status: workload.Created},
				status.Service{Name: "db", Status: workload.Exited, ExitCode: 3})}},
			"installing: hello/web is starting, hello/web/2 is not started yet, hello/db exited with code 3",
		},
		"settling": {
			status.Status{Deployments: []status.Deployment{installing("hello", status.Service{Name: "web", Status: workload.Running})}},
			"installing: hello has started and must stay up for a while",
		},
		"loading":  {status.Status{Loading: &status.Loading{Generation: 43, Images: 2, Ready: 1, Done: 1e6, Total: 5e6}}, "loading generation 43: 1 of 2 images, 1.0 of 5.0 MB"},
		"checking": {status.Status{Checking: true, Repository: "h/r"}, "checking h/r"},
		"removing": {status.Status{Phase: status.Phase(store.PhaseApplying), Deployments: []status.Deployment{done}}, "applying"},
	} {
		t.Run(name, func(t *testing.T) {
			f, file := fakeAgent(t)
			f.busy = &tc.status
			code, out, errs := command(t, "sync", "--timeout", "50ms", "--config", file)
			if want := "longshore-agent: no outcome after 50ms: still " + tc.want; code != 75 || out != "" || !strings.HasPrefix(errs, want) || !strings.Contains(errs, "the agent goes on") {
				t.Errorf("sync = %d\n%s%s\nwant 75 with %q", code, out, errs, want)
			}
		})
	}
}

func TestStateOfAFinishedContainer(t *testing.T) {
	for want, c := range map[string]status.Container{
		"finished":        {State: workload.Exited},
		"finished, going": {State: workload.Exited, Obsolete: true},
		"exited (0)":      {State: workload.Exited, NextStart: time.Now()},
		"exited (3)":      {State: workload.Exited, ExitCode: 3},
		"running":         {State: workload.Running},
	} {
		if got := stateOf(c); got != want {
			t.Errorf("stateOf(%+v) = %q, want %q", c, got, want)
		}
	}
}

var waitingChange = status.Change{
	ID: digest.FromString("change"), Deployment: "vision", DeploymentID: "00000000-0000-4000-8000-000000000003", Generation: 43,
	Kinds: []plan.Kind{plan.Images, plan.Parameters}, Restarts: 1, Containers: 2, Bytes: 41 << 20, Since: time.Unix(1700000000, 0).UTC(),
	Components: []status.ComponentChange{{Component: "line-monitor", From: "1.4.0", To: "1.4.1"}},
	Images: []status.ImageChange{{
		Component: "vision", Service: "vision", FromTag: "0.9.1", ToTag: "0.9.2", Bytes: 41 << 20,
		From: "registry.example/vision@" + digest.FromString("1").String(), To: "registry.example/vision@" + digest.FromString("2").String(),
	}},
	Waiting: &status.Waiting{Code: codes.ApprovalNeeded, Message: "waiting for approval: longshore-agent approve vision"},
}

func (f *fake) Changes(context.Context) ([]status.Change, error) {
	return []status.Change{waitingChange}, nil
}

func (f *fake) Decide(_ context.Context, r agent.DecisionRequest) (status.Change, error) {
	if r.ID != waitingChange.ID {
		return status.Change{}, fmt.Errorf("no change of %s waits: %w", r.Deployment, fault.ErrNotFound)
	}
	c := waitingChange
	c.Waiting = nil
	return c, nil
}

var hold = status.Hold{Generation: 41, By: "user ana (1000)", Via: "command", Reason: "noise", At: time.Unix(1700000000, 0).UTC()}

func (f *fake) RollBack(_ context.Context, r agent.RollbackRequest) (status.Hold, error) {
	if r.To == 0 {
		return status.Hold{}, fault.WithHint(fmt.Errorf("roll back: generation 40: the trust policy has revoked key sha256:00: %w", fault.ErrRejected), "choose another generation, or publish a new one")
	}
	return hold, nil
}

func (f *fake) Release(context.Context, string, string) (status.Hold, error) { return hold, nil }
