package demo

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

const (
	device = "press-07"
	pool   = "10.219.0.0/16" // not the default: an agent of this machine may have that
)

// table of this demo alone, as other demos may run.
func (w *world) table() string { return fmt.Sprintf("lsdemo%d", os.Getpid()) }

// configure sets the device up as its owner would, and gives it a corner of this machine of its own.
func (w *world) configure(ctx context.Context) error {
	_, err := w.longshore(ctx, "longshore-agent", "init", "--config-dir", w.path("etc"),
		"--device", device, "--state", "oci://"+w.registry.Reference("plant/state"), "--key", w.path("release.pub"),
		"--ca-file", w.registry.CAFile, "--registry-config", w.path("home/.docker/config.json"), "--poll", "1s",
		"--fleet-url", w.fleetURL, "--fleet-token-file", w.path("etc/token"),
		"--data-dir", w.path("data"), "--run-dir", w.path("run"), "--network-pool", pool, "--network-table", w.table(),
		"--containerd", w.containerd.Address, "--containerd-namespace", w.containerd.Namespace)
	return err
}

// boot starts the agent and waits until it answers.
func (w *world) boot(ctx context.Context) (err error) {
	if w.agent == nil {
		if err := w.Box.OwnTable(ctx, w.out, w.table()); err != nil {
			return err
		}
		w.agent, err = w.Box.Start("longshore-agent", w.environment(), filepath.Join(w.Bin, "longshore-agent"), "run", "--config", w.path("etc/agent.yaml"))
	} else {
		err = w.agent.Start()
	}
	if err != nil {
		return err
	}
	return testenv.Await(ctx, 20*time.Second, func() error {
		_, err := w.status(ctx)
		return err
	})
}

func (w *world) status(ctx context.Context) (*status.Status, error) {
	text, err := w.longshore(ctx, "longshore-agent", "status", "-o", "json", "--config", w.path("etc/agent.yaml"))
	if err != nil {
		return nil, err
	}
	var s status.Status
	if err := json.Unmarshal([]byte(text), &s); err != nil {
		return nil, fmt.Errorf("status: %w", err)
	}
	return &s, nil
}

// processes are the first processes of the device's containers, by service.
func processes(s *status.Status) map[string]uint32 {
	out := map[string]uint32{}
	for _, d := range s.Deployments {
		for _, c := range d.Components {
			for _, sv := range c.Services {
				out[sv.Name] = sv.PID
			}
		}
	}
	return out
}

// settled waits until a generation runs completely.
func (w *world) settled(ctx context.Context, generation uint64) error {
	return testenv.Await(ctx, 60*time.Second, func() error {
		s, err := w.status(ctx)
		if err != nil {
			return err
		}
		if s.Committed == nil || s.Committed.Generation != generation || s.Phase != status.PhaseInSync {
			return fmt.Errorf("device is %q, want generation %d in sync; problems %+v", s.Phase, generation, s.Problems)
		}
		return nil
	})
}

// hasProblem is nil when the device tells of a problem with the code.
func (w *world) hasProblem(ctx context.Context, code codes.Code) error {
	s, err := w.status(ctx)
	if err != nil {
		return err
	}
	var codes []string
	for _, problem := range s.Problems {
		if problem.Code == code {
			return nil
		}
		codes = append(codes, string(problem.Code))
	}
	return fmt.Errorf("problems are %v, want %s", codes, code)
}

// answers asks the web front until it tells of a reading, which has to travel from sensor to broker to front.
func (w *world) answers(ctx context.Context) (string, error) {
	var body []byte
	err := testenv.Await(ctx, 20*time.Second, func() (err error) {
		if body, err = fetch(ctx, w.webURL+"/readings"); err == nil && !strings.Contains(string(body), `"`+device+`"`) {
			err = fmt.Errorf("no reading of %s in %s", device, body)
		}
		return err
	})
	return string(body), err
}

// maxAnswer bounds what the demo reads of its own servers.
const maxAnswer = 1 << 20

func fetch(ctx context.Context, url string) ([]byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	client := &http.Client{Timeout: 3 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	if err == nil && resp.StatusCode != http.StatusOK {
		err = fmt.Errorf("get %s: status %d", url, resp.StatusCode)
	}
	return body, err
}
