package demo

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/world"
)

// reportInterval of the devices in the picture. After three of them without a report a device is offline.
const reportInterval = 5 * time.Second

// Picture writes a PNG of the fleet page into file: a real endpoint, to which the agents of four devices report. One
// device is offline, one was rolled back. It needs Debian's chromium, and installs it.
func Picture(ctx context.Context, out io.Writer, file string) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return err
	}
	if err := testenv.InstallBrowser(ctx, out); err != nil {
		return err
	}
	return run(ctx, out, []scene{
		{"A registry and a fleet endpoint", func(ctx context.Context, w *show) error {
			if err := w.startWorld(ctx, world.Options{Name: "picture", Pool: "10.209.0.0/16"}); err != nil {
				return err
			}
			return w.steps(ctx, []step{
				{"images of the application", w.pushImages},
				{"fleet endpoint", w.startFleet},
				{"releases 1.0.0, 1.1.0, and 1.2.0, which never becomes healthy", w.pushReleases},
			})
		}},
		{"Four devices", func(ctx context.Context, w *show) error { return w.steps(ctx, w.fourDevices()) }},
		{"The page", func(ctx context.Context, w *show) error {
			return w.Step(ctx, file, func(ctx context.Context) (string, error) { return "", w.screenshot(ctx, file) })
		}},
	}, nil)
}

func (w *show) pushReleases(ctx context.Context) (string, error) {
	if err := w.Login(ctx); err != nil {
		return "", err
	}
	if _, err := w.Run(ctx, "longshore", "key", "generate", "release"); err != nil {
		return "", err
	}
	if err := w.derive(2, projectBroken, "      BROKER: broker:4222\n", "      BROKER: nowhere:4222\n"); err != nil {
		return "", err
	}
	for version, project := range map[string]int{"1.0.0": 1, "1.1.0": 2, "1.2.0": projectBroken} {
		if _, err := w.pushComponent(ctx, project, version); err != nil {
			return "", err
		}
	}
	return "", nil
}

// fourDevices are two whose release is installed, one that no longer reports, and one that rolled back.
func (w *show) fourDevices() []step {
	return []step{
		{"press-07 runs 1.1.0", func(ctx context.Context) (string, error) {
			_, err := w.addDevice(ctx, 1, "1.1.0")
			return "", err
		}},
		{"press-08 runs 1.0.0", func(ctx context.Context) (string, error) {
			_, err := w.addDevice(ctx, 2, "1.0.0")
			return "", err
		}},
		{"press-10 runs 1.0.0, and its agent is killed", func(ctx context.Context) (string, error) {
			d, err := w.addDevice(ctx, 4, "1.0.0")
			if err == nil {
				d.Agent.Kill()
			}
			return "", err
		}},
		{"press-09 runs 1.1.0 and gets 1.2.0", func(ctx context.Context) (string, error) {
			d, err := w.addDevice(ctx, 3, "1.1.0")
			if err == nil {
				err = w.assign(ctx, d, "1.2.0")
			}
			return "", err
		}},
		{"the endpoint knows one failed deployment and one device offline", func(ctx context.Context) (string, error) {
			return "", testenv.Await(ctx, 2*time.Minute, func() error {
				for _, query := range []string{"deployments?state=failed", "devices?offline=true"} {
					body, err := testenv.Get(ctx, w.FleetURL+"/fleet/v1/"+query)
					if err == nil && !strings.Contains(string(body), `"press-`) {
						err = fmt.Errorf("%s: %s", query, body)
					}
					if err != nil {
						return err
					}
				}
				return nil
			})
		}},
	}
}

// addDevice starts the n-th device, and waits until it runs a release.
func (w *show) addDevice(ctx context.Context, n int, version string) (*world.World, error) {
	name := fmt.Sprintf("press-%02d", 6+n)
	d, err := world.New(ctx, world.Options{
		Box: w.Stage.Box, Out: w.out, Name: fmt.Sprintf("pic%d", n), Pool: fmt.Sprintf("10.%d.0.0/16", 209+n), Device: name, Dir: w.Path(name),
		Bin: w.Bin, Containerd: w.Containerd, Namespace: name, Registry: w.Registry,
	})
	if err != nil {
		return nil, err
	}
	if err := w.Enroll(ctx, d); err != nil {
		return nil, err
	}
	key, err := os.ReadFile(w.Path("release.pub"))
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(d.Path("release.pub"), key, 0o644); err != nil {
		return nil, err
	}
	if err := d.Login(ctx); err != nil {
		return nil, err
	}
	if err := d.Init(ctx); err != nil {
		return nil, err
	}
	if err := replaceOnce(d.Path("etc/agent.yaml"), "\nfleet:\n", fmt.Sprintf("\ncapabilities: {vendor: Acme, modelNumber: E1}\nfleet:\n  interval: %v\n", reportInterval)); err != nil {
		return nil, err
	}
	if err := w.assign(ctx, d, version); err != nil {
		return nil, err
	}
	if err := d.Boot(ctx); err != nil {
		return nil, err
	}
	return d, d.Settled(ctx, 1, time.Minute)
}

// assign publishes a release for a device.
func (w *show) assign(ctx context.Context, d *world.World, version string) error {
	port, err := testenv.FreePort()
	if err != nil {
		return err
	}
	_, err = w.Run(ctx, "longshore", "state", "push", "--device", d.Device, "--key", "release.key", "--set", fmt.Sprintf("WEB_PORT=127.0.0.1:%d", port),
		"--component", "oci://"+w.Reference("plant/components/line-monitor:"+version), w.Reference("plant/state"))
	return err
}

// screenshot lets a browser draw the page.
func (w *show) screenshot(ctx context.Context, file string) error {
	_, err := w.Stage.Box.Output(ctx, nil, testenv.Browser(w.Path("browser"), w.FleetURL+"/", "--hide-scrollbars", "--window-size=1200,1070", "--screenshot="+file)...)
	return err
}
