package testenv

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
)

// The agent's translator takes both versions, and finds one changed service between them.
func TestLineMonitorIsRunnable(t *testing.T) {
	hashes := map[int]map[string]string{}
	for _, version := range []int{1, 2} {
		files, err := LineMonitorFiles("127.0.0.1:5000", version)
		if err != nil {
			t.Fatal(err)
		}
		fsys := fstest.MapFS{}
		for name, data := range files {
			fsys[name] = &fstest.MapFile{Data: data}
		}
		p, err := compose.Load(t.Context(), &artifacts.Archive{Root: "line-monitor", FS: fsys, Compose: files["compose.yaml"]},
			compose.Options{Deployment: "d", Component: "line-monitor", Generation: 1, Platform: HostPlatform(), AllowUnpinned: true})
		if err != nil {
			t.Fatalf("version %d: %v", version, err)
		}
		hashes[version] = map[string]string{}
		for _, s := range p.Services {
			hashes[version][s.Name] = s.Image.Repository + ":" + s.Image.Tag
		}
	}
	want := map[int]map[string]string{
		1: {"web": "127.0.0.1:5000/plant/web:1", "broker": "127.0.0.1:5000/plant/nats:2", "sensor": "127.0.0.1:5000/plant/sensor:1"},
		2: {"web": "127.0.0.1:5000/plant/web:2", "broker": "127.0.0.1:5000/plant/nats:2", "sensor": "127.0.0.1:5000/plant/sensor:1"},
	}
	if diff := cmp.Diff(want, hashes); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	if _, err := LineMonitorFiles("127.0.0.1:5000", 3); err == nil {
		t.Error("version 3: no error")
	}
}

func TestOnlyTheChangedLayerTravels(t *testing.T) {
	s := Registry(t, Distribution)
	dir := t.TempDir()
	first, err := LineMonitor(t.Context(), os.Stderr, s, filepath.Join(dir, "1"), 1)
	if err != nil {
		Unavailable(t, "%v", err)
	}
	s.Faults.Forget()
	second, err := LineMonitor(t.Context(), os.Stderr, s, filepath.Join(dir, "2"), 2)
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"broker", "sensor"} {
		if first[service] != second[service] {
			t.Errorf("%s = %v, want %v as in version 1", service, second[service], first[service])
		}
	}
	if first["web"].Digest == second["web"].Digest {
		t.Error("web is the same in both versions")
	}
	if _, received := s.Faults.Bytes("", ""); received > 20_000 {
		t.Errorf("pushing version 2 sent %d bytes, want one small layer, a config and a manifest", received)
	}
	data, err := os.ReadFile(filepath.Join(dir, "2", "compose.yaml"))
	if err != nil || !bytes.Contains(data, []byte(s.Host+"/plant/web:2")) || strings.Contains(string(data), fixtureRegistry) {
		t.Errorf("compose.yaml = %s, %v", data, err)
	}
}
