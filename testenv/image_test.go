package testenv

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/remote"
)

func TestImagesAreReproducible(t *testing.T) {
	files := []File{
		{Path: "b", Data: []byte("b")},
		{Path: "a/c", Data: []byte("c"), Mode: 0o600, UID: 7},
		{Path: "a/d/", Mode: os.ModeSticky | 0o777},
		{Path: "l", Link: "b"},
	}
	swapped := []File{files[3], files[1], files[0], files[2]}
	digest := func(platform string, files []File) v1.Hash {
		t.Helper()
		img, err := BuildImage(platform, v1.Config{Entrypoint: []string{"/b"}}, files)
		if err != nil {
			t.Fatal(err)
		}
		d, err := img.Digest()
		if err != nil {
			t.Fatal(err)
		}
		return d
	}
	first := digest("linux/amd64", files)
	if again := digest("linux/amd64", swapped); again != first {
		t.Errorf("digest = %v, want %v again", again, first)
	}
	if other := digest("linux/arm64", files); other == first {
		t.Errorf("digest for another platform = %v, the same", other)
	}
}

func TestOwnImagesComeForSeveralPlatforms(t *testing.T) {
	s := Registry(t, Referrers)
	var images []v1.Image
	for _, platform := range []string{"linux/amd64", "linux/arm64"} {
		img, err := SoftwareImage(t.Context(), os.Stderr, "toolbox", platform)
		if err != nil {
			t.Fatal(err)
		}
		images = append(images, img)
	}
	pushed, err := s.Push(t.Context(), "plant/toolbox:1", images...)
	if err != nil {
		t.Fatal(err)
	}
	ref, err := name.NewDigest(pushed.Reference())
	if err != nil {
		t.Fatal(err)
	}
	index, err := remote.Index(ref, remoteOptions(t, s)...)
	if err != nil {
		t.Fatal(err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range manifest.Manifests {
		got = append(got, m.Platform.String())
	}
	if want := "linux/amd64 linux/arm64"; strings.Join(got, " ") != want {
		t.Errorf("platforms = %v, want %s", got, want)
	}
}

// freePort is a port without a listener at the moment.
func freePort(t *testing.T) string {
	t.Helper()
	port, err := FreePort()
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprint(port)
}

// run pulls an image and runs a container in the host's network.
func run(t *testing.T, d *Daemon, image Pushed, args ...string) (string, error) {
	t.Helper()
	if out, err := d.Ctr(t.Context(), "-n", d.Namespace, "images", "pull", "--plain-http", image.Reference()); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return d.Ctr(t.Context(), append([]string{"-n", d.Namespace, "run", "--net-host"}, args...)...)
}

// The line-monitoring application of the demo runs: readings go from the sensor through the broker to the front.
func TestLineMonitor(t *testing.T) {
	d := Containerd(t)
	s := Registry(t, Distribution)
	broker, web := freePort(t), freePort(t)
	nats := Image(t, s, "plant/nats:2", "nats")
	if _, err := run(t, d, nats, "-d", nats.Reference(), "broker", "/nats-server", "--port", broker); err != nil {
		t.Fatal(err)
	}
	sensor := Image(t, s, "plant/sensor:1", "sensor")
	if _, err := run(t, d, sensor, "-d", "--env", "BROKER=127.0.0.1:"+broker, "--env", "POLL_SECONDS=0.05", sensor.Reference(), "sensor"); err != nil {
		t.Fatal(err)
	}
	front := Image(t, s, "plant/web:1", "collector")
	if _, err := run(t, d, front, "-d", "--env", "BROKER=127.0.0.1:"+broker, "--env", "LISTEN=127.0.0.1:"+web, front.Reference(), "web"); err != nil {
		t.Fatal(err)
	}
	c := client(t, s)
	Eventually(t, time.Minute, "readings at the front", func() error {
		_, body, err := get(t, c, "http://127.0.0.1:"+web+"/readings")
		if err != nil {
			return err
		}
		var got struct {
			Title    string
			Received int
			Lines    map[string]struct{ Temperature float64 }
		}
		if err := json.Unmarshal(body, &got); err != nil {
			return err
		}
		if got.Title != CollectorTitle || got.Received < 3 || got.Lines["line-1"].Temperature < 50 {
			return fmt.Errorf("readings = %s", body)
		}
		return nil
	})
	for _, health := range [][]string{{"broker", "/toolbox", "tcp", "127.0.0.1:" + broker}, {"web", "/collector", "health"}} {
		args := append([]string{"-n", d.Namespace, "tasks", "exec", "--exec-id", "h", health[0]}, health[1:]...)
		if out, err := d.Ctr(t.Context(), args...); err != nil {
			t.Errorf("health of %s: %v\n%s", health[0], err, out)
		}
	}
}

func TestSoftwareRuns(t *testing.T) {
	d := Containerd(t)
	s := Registry(t, Distribution)
	tests := []struct {
		software string
		args     []string
		want     string
	}{
		{"toolbox", []string{"/toolbox", "print", "hello"}, "hello"},
		{"caddy", []string{"/caddy", "validate", "--config", "/etc/caddy/Caddyfile"}, "Valid configuration"},
		{"nginx", []string{"/usr/sbin/nginx", "-T"}, "listen 8080"},
		{"redis", []string{"/usr/bin/redis-server", "--version"}, "Redis server v="},
		{"busybox", []string{"/bin/sh", "-c", "echo $((6*7))"}, "42"},
	}
	for _, tt := range tests {
		t.Run(tt.software, func(t *testing.T) {
			image := Image(t, s, "plant/"+tt.software+":1", tt.software)
			Eventually(t, time.Minute, tt.software, func() error { // ctr sometimes loses the output of a short process
				out, err := run(t, d, image, append([]string{"--rm", image.Reference(), tt.software}, tt.args...)...)
				if err == nil && !strings.Contains(out, tt.want) {
					err = fmt.Errorf("%q = %q, want %q in it", tt.args, out, tt.want)
				}
				return err
			})
		})
	}
}

func TestUnknownSoftware(t *testing.T) {
	if _, err := SoftwareImage(t.Context(), os.Stderr, "emacs", HostPlatform()); err == nil {
		t.Error("no error for unknown software")
	}
	if _, err := SoftwareImage(t.Context(), os.Stderr, "nats", "linux/s390x"); err == nil {
		t.Error("no error for a platform that is not there")
	}
	if _, err := BuildProgram(t.Context(), os.Stderr, "emacs"); err == nil || errors.Is(err, os.ErrNotExist) {
		t.Errorf("BuildProgram of an unknown program = %v", err)
	}
}
