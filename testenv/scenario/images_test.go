package scenario

import (
	"context"
	"os"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/mutate"

	"github.com/longshore-dev/longshore/testenv"
)

// scenarioImages are what scenarios run, all of them the toolbox:
//
//	toolbox:1, toolbox:2  serve their name on :8080 unless the service has a command
//	checked:1             with a HEALTHCHECK that asks :8080/health
//	filled:1              with a VOLUME /data that holds a file "greeting", owned by 33:33
//	user:1                runs as 33:33 in /tmp, with GREETING=hello from the image
//
// missing:1 is in no registry, foreign:1 is made for another platform.
func scenarioImages(ctx context.Context) (map[string]v1.Image, error) {
	base, err := testenv.SoftwareImage(ctx, os.Stderr, "toolbox", testenv.HostPlatform())
	if err != nil {
		return nil, err
	}
	out := map[string]v1.Image{}
	for name, edit := range map[string]func(c *v1.Config){
		"toolbox:1": func(*v1.Config) {},
		"toolbox:2": func(*v1.Config) {},
		"checked:1": func(c *v1.Config) {
			c.Healthcheck = &v1.HealthConfig{
				Test: []string{"CMD", "/toolbox", "get", "http://127.0.0.1:8080/health"}, Interval: 200 * time.Millisecond, Timeout: 10 * time.Second, Retries: 2,
			}
		},
		"filled:1": func(c *v1.Config) { c.Volumes = map[string]struct{}{"/data": {}} },
		"user:1": func(c *v1.Config) {
			c.User, c.WorkingDir = "www-data", "/tmp"
			c.Env = append(c.Env, "GREETING=hello")
		},
	} {
		img := base
		if name == "filled:1" {
			config, err := base.ConfigFile()
			if err != nil {
				return nil, err
			}
			filled, err := testenv.BuildImage(testenv.HostPlatform(), config.Config, []testenv.File{
				{Path: "data/greeting", Data: []byte("hello\n"), UID: 33}, {Path: "data/", UID: 33}, {Path: "data/inner/deep", Data: []byte("deep\n")},
			})
			if err != nil {
				return nil, err
			}
			layers, err := filled.Layers()
			if err != nil {
				return nil, err
			}
			if img, err = mutate.AppendLayers(base, layers...); err != nil {
				return nil, err
			}
		}
		f, err := img.ConfigFile()
		if err != nil {
			return nil, err
		}
		f = f.DeepCopy()
		f.Config.Cmd = []string{"serve", "8080", name}
		edit(&f.Config)
		if img, err = mutate.ConfigFile(img, f); err != nil {
			return nil, err
		}
		out[name] = img
	}
	return out, nil
}
