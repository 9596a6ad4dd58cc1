package testenv

import (
	"bytes"
	"context"
	"embed"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	v1 "github.com/google/go-containerregistry/pkg/v1"
)

//go:embed fixtures
var fixtures embed.FS

// fixtureRegistry stands in the fixtures for the registry of the day.
const fixtureRegistry = "registry.example"

// LineMonitorFiles is the Compose project of the line-monitoring application, version 1 or 2, for images at a registry
// ("127.0.0.1:5000"). Version 2 differs in the image of one service, web.
func LineMonitorFiles(registry string, version int) (map[string][]byte, error) {
	dir := fmt.Sprintf("fixtures/line-monitor-%d", version)
	files := map[string][]byte{}
	err := fs.WalkDir(fixtures, dir, func(p string, e fs.DirEntry, err error) error {
		if err != nil || e.IsDir() {
			return err
		}
		data, err := fixtures.ReadFile(p)
		rel, _ := filepath.Rel(dir, p) // p is below dir
		files[rel] = bytes.ReplaceAll(data, []byte(fixtureRegistry), []byte(registry))
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("line monitor %d: %w", version, err)
	}
	return files, nil
}

// LineMonitor pushes the images of the line-monitoring application, version 1 or 2, to s under plant/, and writes its
// Compose project into dir, which is made. All images but version 2's web are the same in both versions.
func LineMonitor(ctx context.Context, out io.Writer, s *RegistryServer, dir string, version int) (map[string]Pushed, error) {
	files, err := LineMonitorFiles(s.Host, version)
	if err != nil {
		return nil, err
	}
	for name, data := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			return nil, err
		}
		if err := os.WriteFile(file, data, 0o644); err != nil {
			return nil, err
		}
	}
	title := CollectorTitle
	if version > 1 {
		title = fmt.Sprintf("%s %d", CollectorTitle, version)
	}
	services := []struct {
		service, repository string
		build               func() (v1.Image, error)
	}{
		{"web", fmt.Sprintf("plant/web:%d", version), func() (v1.Image, error) { return CollectorImage(ctx, HostPlatform(), title) }},
		{"broker", "plant/nats:2", func() (v1.Image, error) { return SoftwareImage(ctx, out, "nats", HostPlatform()) }},
		{"sensor", "plant/sensor:1", func() (v1.Image, error) { return SoftwareImage(ctx, out, "sensor", HostPlatform()) }},
	}
	pushed := map[string]Pushed{}
	for _, x := range services {
		img, err := x.build()
		if err != nil {
			return nil, fmt.Errorf("image of %s: %w", x.service, err)
		}
		if pushed[x.service], err = s.Push(ctx, x.repository, img); err != nil {
			return nil, err
		}
	}
	return pushed, nil
}
