package bench

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/longshore-dev/longshore/testenv"
)

const (
	gapRounds = 10
	gapEvery  = 2 * time.Millisecond // between two requests
)

// gap measures how long nothing answers while a service is updated in stop-first order: by the whole agent, and by podman in turns with it.
func gap(ctx context.Context, bin string, out io.Writer) (samples map[string]sample, err error) {
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	d, err := newDevice(ctx, box, bin, out)
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("an update through the agent: %w\n%s", err, d.Logs())
		}
	}()
	for _, step := range []func(context.Context) error{d.image, func(ctx context.Context) error { return d.publish(ctx, 0, 1) }, d.boot} {
		if err := step(ctx); err != nil {
			return nil, err
		}
	}
	port, err := testenv.FreePort()
	if err != nil {
		return nil, err
	}
	ours := updater{fmt.Sprintf("http://127.0.0.1:%d/", port), (&net.Dialer{}).DialContext, func(n int) error { return d.revise(ctx, port, n) }}
	podman, err := podmanUpdates(ctx, box, out)
	if err != nil {
		fmt.Fprintln(out, "without podman:", err)
	}
	var took, theirs []float64
	for n := range gapRounds + 1 {
		one, err := ours.gap(ctx, n)
		if err != nil {
			return nil, err
		}
		if n > 0 {
			took = append(took, one)
		}
		if podman == nil {
			continue
		}
		if one, err = podman.gap(ctx, n); err != nil {
			return nil, fmt.Errorf("podman: %w", err)
		}
		if n > 0 {
			theirs = append(theirs, one)
		}
	}
	s := middle("ours-ms", took)
	if podman != nil {
		maps.Copy(s, middle("podman-ms", theirs))
	}
	return map[string]sample{"gap of an update": s}, d.Agent.Stop()
}

// revise gives a service another text to answer with, and waits until the agent has taken it.
func (d *device) revise(ctx context.Context, port uint16, n int) error {
	component, err := d.Component(ctx, "gap", fmt.Sprintf("1.0.%d", n), fmt.Sprintf(`services:
  web: {image: %q, command: [serve, "8080", "version %d."], ports: ["127.0.0.1:%d:8080"]}
`, d.Registry.Reference("plant/toolbox:1"), n, port))
	if err == nil {
		err = d.Release(ctx, component)
	}
	if err == nil {
		_, err = d.Control(ctx, "sync", "--timeout", throughLimit.String())
	}
	return err
}

// podmanUpdates are the same updates of a pod of podman.
func podmanUpdates(ctx context.Context, box *testenv.Box, out io.Writer) (*updater, error) {
	image, err := testenv.SoftwareImage(ctx, out, "toolbox", testenv.HostPlatform())
	if err != nil {
		return nil, err
	}
	p, err := testenv.StartPodman(ctx, testenv.DaemonOptions{Box: box, Out: out}, image)
	if err != nil {
		return nil, err
	}
	file := filepath.Join(filepath.Dir(p.Network), "pod.yaml")
	return &updater{"http://127.0.0.1:8080/", testenv.DialIn(p.Network), func(n int) error {
		text := fmt.Appendf(nil, `apiVersion: v1
kind: Pod
metadata: {name: gap}
spec:
  containers:
  - {name: web, image: %q, imagePullPolicy: Never, args: [serve, "8080", "version %d."], ports: [{containerPort: 8080, hostPort: 8080}]}
`, p.Image, n)
		err := os.WriteFile(file, text, 0o644)
		if err == nil {
			_, err = p.Run(ctx, "kube", "play", "--replace", file)
		}
		return err
	}}, nil
}

// updater updates a service that answers with its version.
type updater struct {
	url    string
	dial   func(ctx context.Context, network, address string) (net.Conn, error)
	update func(version int) error
}

// gap updates the service and returns the milliseconds from the last answer of the version before to the first one of this version.
func (u updater) gap(ctx context.Context, version int) (float64, error) {
	ctx, cancel := context.WithTimeout(ctx, throughLimit)
	defer cancel()
	var (
		asking      sync.WaitGroup
		mu          sync.Mutex
		last, first time.Time
	)
	updated := make(chan error, 1)
	go func() { updated <- u.update(version) }() // ends with the update, which is waited for
	client := &http.Client{Timeout: time.Second, Transport: &http.Transport{DisableKeepAlives: true, DialContext: u.dial}}
	answered := func() bool { mu.Lock(); defer mu.Unlock(); return !first.IsZero() }
	tick := time.NewTicker(gapEvery)
	defer tick.Stop()
	var err error
	for err == nil && !answered() {
		asking.Go(func() {
			text, now := u.ask(ctx, client), time.Now()
			mu.Lock()
			defer mu.Unlock()
			switch {
			case strings.Contains(text, fmt.Sprintf("version %d.", version)):
				if first.IsZero() || now.Before(first) {
					first = now
				}
			case text != "" && now.After(last):
				last = now
			}
		})
		select {
		case <-tick.C:
		case <-ctx.Done():
			err = fmt.Errorf("version %d does not answer: %w", version, ctx.Err())
		}
	}
	asking.Wait()
	return float64(first.Sub(last).Microseconds()) / 1000, errors.Join(err, <-updated)
}

// ask returns an answer; "": there was none.
func (u updater) ask(ctx context.Context, client *http.Client) string {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.url, nil)
	if err != nil {
		return ""
	}
	resp, err := client.Do(req)
	if err != nil {
		return ""
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != http.StatusOK {
		return ""
	}
	return string(text)
}
