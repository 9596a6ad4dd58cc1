package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// Up starts what a first release needs, prints the commands that make it, and stays until ctx ends: a registry with TLS and
// a password, with the images of the application; a plain registry; a device whose agent runs; a fleet endpoint.
func Up(ctx context.Context, out io.Writer) error {
	p := &playground{}
	return run(ctx, out, []scene{{"A playground: a registry, a device, a fleet endpoint", p.setUp}}, p.howToUse)
}

// playground is what Up starts besides a world.
type playground struct {
	plain *testenv.RegistryServer
	web   string // address of the application's front, once a release runs
}

func (p *playground) setUp(ctx context.Context, w *show) error {
	// Of several playgrounds on a machine each has addresses of its own: one may run while tests start another.
	pool := fmt.Sprintf("10.%d.0.0/16", 150+os.Getpid()%40)
	if err := w.startWorld(ctx, world.Options{Name: "up", Pool: pool}); err != nil {
		return err
	}
	return w.steps(ctx, []step{
		{"plain registry", func(context.Context) (string, error) { return p.startPlain(w) }},
		{"line-monitor, an application with its images", func(ctx context.Context) (string, error) { return p.project(ctx, w) }},
		{"fleet endpoint", w.startFleet},
		{"device", func(ctx context.Context) (string, error) { return w.startDevice(ctx, "--plain-http", p.plain.Host) }},
	})
}

func (p *playground) startPlain(w *show) (string, error) {
	dir, err := w.Stage.Box.Folder("plain")
	if err != nil {
		return "", err
	}
	if p.plain, err = testenv.StartRegistry(dir, testenv.Distribution, testenv.WithStorage(dir+"/content")); err != nil {
		return "", err
	}
	w.Stage.Box.Add("plain registry", p.plain.Close)
	// A CA file makes every registry on this machine one with TLS; hosts.toml says which is not.
	certs := w.Path("certs.d/" + p.plain.Host)
	err = errors.Join(os.MkdirAll(certs, 0o755), os.WriteFile(certs+"/hosts.toml", fmt.Appendf(nil, "server = %q\n", p.plain.URL), 0o644))
	return "empty, without TLS or password, on " + p.plain.Host, err
}

// project writes a Compose project into line-monitor/. Its front gets a port that is free here.
func (p *playground) project(ctx context.Context, w *show) (string, error) {
	if _, err := testenv.LineMonitor(ctx, w.out, w.Registry, w.Path("line-monitor"), 1); err != nil {
		return "", err
	}
	port, err := testenv.FreePort()
	if err != nil {
		return "", err
	}
	p.web = fmt.Sprintf("127.0.0.1:%d", port)
	return "web, broker, sensor", replaceOnce(w.Path("line-monitor/compose.yaml"), "WEB_PORT:-8080", "WEB_PORT:-"+p.web)
}

// startDevice starts an agent that trusts release.key, which the reader signs with, and has credentials of its own.
func (w *show) startDevice(ctx context.Context, flags ...string) (string, error) {
	if err := w.Login(ctx); err != nil {
		return "", err
	}
	if _, err := w.Run(ctx, "longshore", "key", "generate", "release"); err != nil {
		return "", err
	}
	if err := w.Init(ctx, flags...); err != nil {
		return "", err
	}
	return w.Device + ", its agent looks for a release every second", w.boot(ctx)
}

// howToUse prints what to type. docs/quickstart.md has the same commands, and a test types them.
func (p *playground) howToUse(w *show) {
	w.Chapter(fmt.Sprintf("Ready after %.1f s. Type this in another terminal, as root:", time.Since(w.start).Seconds()))
	fmt.Fprintf(w.out, `
cd %s && export PATH=$PWD/bin:$PATH DOCKER_CONFIG=$PWD/login LONGSHORE_CONFIG=$PWD/etc/agent.yaml \
    REGISTRY=%s PLAIN_REGISTRY=%s LONGSHORE_CA_FILE=%s LONGSHORE_CERTS_DIR=$PWD/certs.d \
    WEB=%s LONGSHORE_KEY_PASSWORD=%s LONGSHORE_ENDPOINT=%s
echo '%s' | longshore login --username %s --password-stdin $REGISTRY
longshore component push ./line-monitor $REGISTRY/plant/components/line-monitor:1.0.0
longshore state push --device %s --key release.key --component $REGISTRY/plant/components/line-monitor:1.0.0 $REGISTRY/plant/state
longshore-agent sync && curl http://$WEB/readings

The fleet page: %s/
Ctrl-C here stops and removes everything.
`, w.Dir, w.Host, p.plain.Host, strings.Replace(w.Registry.CAFile, w.Dir, "$PWD", 1), p.web, w.Name, w.FleetURL,
		w.Registry.Password, w.Registry.Username, w.Device, w.FleetURL)
}

// replaceOnce edits a file; it is an error when it does not have old exactly once.
func replaceOnce(file, old, edited string) error {
	data, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	if strings.Count(string(data), old) != 1 {
		return errors.New(file + ": " + old + " is not there once")
	}
	return os.WriteFile(file, []byte(strings.Replace(string(data), old, edited, 1)), 0o644)
}
