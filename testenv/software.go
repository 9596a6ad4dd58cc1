package testenv

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
)

// HostPlatform is the platform of containers on this machine.
func HostPlatform() string { return "linux/" + runtime.GOARCH }

// Software lists what [SoftwareImage] knows. Ours come for every platform that Go knows; the others for this machine's.
//
//	sensor     ours: publishes readings to a NATS server
//	collector  ours: serves the newest readings over HTTP on :8080; its title is a layer of its own
//	toolbox    ours: behaves as its arguments say; for runtime tests
//	nats       NATS server with our toolbox as /toolbox for health checks; client port 4222, monitoring 8222
//	caddy      Caddy serving /srv on :8080, configuration /etc/caddy/Caddyfile
//	nginx      Debian's nginx serving /usr/share/nginx/html on :8080
//	redis      Debian's redis-server on 6379, data in /data
//	busybox    Debian's static busybox with /bin/sh
func Software() []string {
	return append(ownSoftware(), "nats", "caddy", "nginx", "redis", "busybox")
}

// ownSoftware is the software of which testenv/images has the sources.
func ownSoftware() []string { return []string{"sensor", "collector", "toolbox"} }

// accounts let a container run as a user by name.
var accounts = []File{
	{Path: "etc/passwd", Data: []byte("root:x:0:0:root:/:/sbin/nologin\nwww-data:x:33:33:www-data:/var/www:/sbin/nologin\nnobody:x:65534:65534:nobody:/:/sbin/nologin\n")},
	{Path: "etc/group", Data: []byte("root:x:0:\nwww-data:x:33:\nnogroup:x:65534:\n")},
	{Path: "tmp/", Mode: os.ModeSticky | 0o777},
}

// CollectorTitle is the title that the collector's image has unless [CollectorImage] gives another.
const CollectorTitle = "Line monitor"

// SoftwareImage makes the image of one of [Software]. What it has to build, download or install first it says on out.
func SoftwareImage(ctx context.Context, out io.Writer, software, platform string) (v1.Image, error) {
	switch software {
	case "collector":
		return CollectorImage(ctx, platform, CollectorTitle)
	case "sensor", "toolbox":
		config := v1.Config{Entrypoint: []string{"/" + software}, Env: []string{"PATH=/"}, WorkingDir: "/"}
		if software == "sensor" {
			config.User = "nobody"
		}
		return ownImage(ctx, software, platform, config)
	}
	if platform != HostPlatform() {
		return nil, fmt.Errorf("image of %s for %s: only %s", software, platform, HostPlatform())
	}
	switch software {
	case "nats":
		return natsImage(ctx, out)
	case "caddy":
		return caddyImage(ctx, out)
	case "nginx", "redis", "busybox":
		return debianImage(ctx, out, software)
	}
	return nil, fmt.Errorf("software %q is not one of %s", software, strings.Join(Software(), ", "))
}

// CollectorImage makes the collector's image with another title, which is all that differs: one small layer.
func CollectorImage(ctx context.Context, platform, title string) (v1.Image, error) {
	img, err := ownImage(ctx, "collector", platform, v1.Config{
		Entrypoint: []string{"/collector"}, Env: []string{"PATH=/"}, WorkingDir: "/", User: "nobody",
		ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		Healthcheck:  &v1.HealthConfig{Test: []string{"CMD", "/collector", "health"}},
	})
	if err != nil {
		return nil, err
	}
	return AppendLayers(img, []File{{Path: "srv/title", Data: []byte(title + "\n")}})
}

// ownImage makes the image of one of testenv/images, or takes it from the cache.
func ownImage(ctx context.Context, software, platform string, config v1.Config) (v1.Image, error) {
	binary, err := ownBinary(ctx, software, platform)
	if err != nil {
		return nil, err
	}
	data, err := os.ReadFile(binary)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(data)
	return cachedImage(ctx, binary, fmt.Sprintf("%s-%x", filepath.Base(binary), sum[:8]), func() (v1.Image, error) {
		return BuildImage(platform, config, append(slices.Clone(accounts), File{Path: software, Mode: 0o755, Data: data}))
	})
}

// built are the files of [ownBinary] by name and platform: a process asks go build only once for each, which takes half a second.
var built struct {
	mu    sync.Mutex
	files map[string]string
}

// ownBinary builds one of testenv/images for a platform, statically.
func ownBinary(ctx context.Context, software, platform string) (string, error) {
	_ = builtBefore() // the result depends on it
	built.mu.Lock()
	defer built.mu.Unlock()
	if file, ok := built.files[software+" "+platform]; ok {
		return file, nil
	}
	file, err := buildOwnBinary(ctx, software, platform)
	if err != nil {
		return "", err
	}
	if built.files == nil {
		built.files = map[string]string{}
	}
	built.files[software+" "+platform] = file
	return file, nil
}

func buildOwnBinary(ctx context.Context, software, platform string) (string, error) {
	root, err := Root()
	if err != nil {
		return "", err
	}
	p, err := v1.ParsePlatform(platform)
	if err != nil {
		return "", err
	}
	dir, err := ownDir(root)
	if err != nil {
		return "", err
	}
	file := filepath.Join(dir, software+"-"+strings.ReplaceAll(platform, "/", "-"))
	unlock, err := lockFile(ctx, file+".lock")
	if err != nil {
		return "", err
	}
	defer unlock()
	args := append([]string{"build"}, strings.Fields(buildFlags)...)
	args = append(args, "-ldflags", "-s -w", "-o", file, "./testenv/images/"+software)
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = root
	cmd.Env = append(goEnv(), "CGO_ENABLED=0", "GOOS="+p.OS, "GOARCH="+p.Architecture, "GOARM="+strings.TrimPrefix(p.Variant, "v"))
	if text, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("build %s for %s: %w\n%s", software, platform, err, tail(text, 20))
	}
	return file, nil
}

func natsImage(ctx context.Context, out io.Writer) (v1.Image, error) {
	binary, err := BuildProgram(ctx, out, "nats-server")
	if err != nil {
		return nil, err
	}
	toolbox, err := ownBinary(ctx, "toolbox", HostPlatform())
	if err != nil {
		return nil, err
	}
	health, err := os.ReadFile(toolbox)
	if err != nil {
		return nil, err
	}
	sum := sha256.Sum256(health)
	return cachedImage(ctx, binary, "nats-"+hex.EncodeToString(sum[:8]), func() (v1.Image, error) {
		return BuildImage(HostPlatform(), v1.Config{
			Entrypoint: []string{"/nats-server"}, Cmd: []string{"--addr", "0.0.0.0", "--port", "4222", "--http_port", "8222"},
			Env: []string{"PATH=/"}, WorkingDir: "/", User: "nobody",
			ExposedPorts: map[string]struct{}{"4222/tcp": {}, "8222/tcp": {}},
		}, append(slices.Clone(accounts), File{Path: "nats-server", Mode: 0o755, From: binary}),
			[]File{{Path: "toolbox", Mode: 0o755, From: toolbox}})
	})
}

const caddyfile = `{
	admin off
	auto_https off
	persist_config off
}
:8080 {
	root * /srv
	respond /healthz 200
	file_server
}
`

func caddyImage(ctx context.Context, out io.Writer) (v1.Image, error) {
	binary, err := BuildProgram(ctx, out, "caddy")
	if err != nil {
		return nil, err
	}
	return cachedImage(ctx, binary, "caddy", func() (v1.Image, error) {
		return BuildImage(HostPlatform(), v1.Config{
			Entrypoint: []string{"/caddy"}, Cmd: []string{"run", "--config", "/etc/caddy/Caddyfile"},
			Env: []string{"PATH=/", "XDG_CONFIG_HOME=/tmp", "XDG_DATA_HOME=/tmp"}, WorkingDir: "/",
			ExposedPorts: map[string]struct{}{"8080/tcp": {}},
		}, append(slices.Clone(accounts), File{Path: "caddy", Mode: 0o755, From: binary}), []File{
			{Path: "etc/caddy/Caddyfile", Data: []byte(caddyfile)},
			{Path: "srv/index.html", Data: []byte("<!doctype html><title>Longshore test</title><p>caddy\n")},
		})
	})
}

// cachedImage keeps an image as an OCI layout beside the binary that it is made of, because compressing takes seconds.
func cachedImage(ctx context.Context, binary, name string, build func() (v1.Image, error)) (v1.Image, error) {
	// A change of what is in the image besides the binary must not meet an old image: its config and small files are
	// part of this program, whose version the layout does not know, so imageFormat counts them.
	dir := filepath.Join(filepath.Dir(binary), fmt.Sprintf("image-%s-%d", name, imageFormat))
	unlock, err := lockFile(ctx, dir+".lock")
	if err != nil {
		return nil, err
	}
	defer unlock()
	if img, err := readLayout(dir); !errors.Is(err, os.ErrNotExist) {
		return img, err
	}
	img, err := build()
	if err != nil {
		return nil, err
	}
	tmp := dir + ".new"
	if err := os.RemoveAll(tmp); err != nil {
		return nil, err
	}
	p, err := layout.Write(tmp, emptyIndex())
	if err == nil {
		err = p.AppendImage(img)
	}
	if err == nil {
		err = os.Rename(tmp, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("keep the image of %s: %w", name, err)
	}
	return readLayout(dir)
}

// imageFormat rises when the making of a cached image changes.
const imageFormat = 1

// readLayout opens the only image of a layout.
func readLayout(dir string) (v1.Image, error) {
	p, err := layout.FromPath(dir)
	if err != nil {
		return nil, err
	}
	index, err := p.ImageIndex()
	if err != nil {
		return nil, err
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("%s holds %d images, want 1", dir, len(manifest.Manifests))
	}
	return p.Image(manifest.Manifests[0].Digest)
}
