package main

import (
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/agent/machine"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/testenv"
)

// Containers that were made with a copy of the authorities need it at each start: it stays, whatever becomes of the file.
func TestCopyOfTheCollectorsAuthoritiesStays(t *testing.T) {
	dir := t.TempDir()
	s := httptest.NewTLSServer(nil)
	defer s.Close()
	good := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Certificate().Raw})
	file, kept := filepath.Join(dir, "ca.pem"), filepath.Join(dir, "otlp-ca.crt")
	cfg := &config.Config{DataDir: dir, OTLP: config.OTLP{Endpoint: "https://c:4318", Protocol: "http/protobuf", CAFile: file}}
	for _, tc := range []struct {
		name, content, copied string // "": not there
	}{
		{"no file, no copy", "", ""},
		{"a file without a certificate", "words", ""},
		{"a file", string(good), string(good)},
		{"a file that is spoiled", "words", string(good)},
		{"a file that is gone", "", string(good)},
	} {
		err := os.WriteFile(file, []byte(tc.content), 0o600)
		if tc.content == "" {
			err = os.Remove(file)
		}
		if err != nil {
			t.Fatal(err)
		}
		got := telemetry(cfg, slog.New(slog.DiscardHandler))
		data, err := os.ReadFile(kept)
		if string(data) != tc.copied || (got.Certificate == kept) != (tc.copied != "") || got.Endpoint != cfg.OTLP.Endpoint || err != nil && !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s: %+v, copy %q, %v", tc.name, got, data, err)
		}
	}
}

// agent.yaml counts in place of what is found, and what cannot be found out is told once.
func TestMachineLook(t *testing.T) {
	cdi := t.TempDir()
	if err := os.WriteFile(filepath.Join(cdi, "half.json"), []byte(`{"kind": `), 0o600); err != nil {
		t.Fatal(err)
	}
	var told []string
	answer, silent := features.Features{Containerd: "v2.4.2", Offered: []string{"seccomp"}}, errors.New("does not answer")
	s, err := store.Open(store.Options{Path: filepath.Join(t.TempDir(), "agent.db"), Device: "press-07"})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	cfg := &config.Config{
		Device: "press-07", DataDir: t.TempDir(), Runtime: config.Runtime{CDIDirs: []string{cdi}}, OTLP: config.OTLP{Endpoint: "https://c:4318"},
		Capabilities: config.Capabilities{Vendor: "Acme", Labels: map[string]any{machine.LabelKernel: "ours", "rack": 3.0}},
	}
	ask, unread := func() (features.Features, error) { return answer, silent }, func(what string) { told = append(told, what) }
	look := machineLook(cfg, ask, s, unread)
	first := look()
	if _, known := first.Labels[machine.LabelContainerd]; known || !slices.Contains(told, "containerd: does not answer") {
		t.Errorf("without containerd %+v, told %q", first.Labels, told)
	}
	silent = nil
	if l := look().Labels; l[machine.LabelContainerd] != "v2.4.2" || !slices.Equal(l[machine.LabelRuntimeFeatures].([]string), []string{"seccomp"}) {
		t.Errorf("with containerd %+v", l)
	}
	silent = errors.New("restarts")
	if l := look().Labels; l[machine.LabelContainerd] != "v2.4.2" {
		t.Errorf("while containerd restarts %+v", l)
	}
	if l := machineLook(cfg, ask, s, unread)().Labels; l[machine.LabelContainerd] != "v2.4.2" || !slices.Equal(l[machine.LabelRuntimeFeatures].([]string), []string{"seccomp"}) {
		t.Errorf("after a restart, before containerd answers: %+v", l)
	}
	if p := first.Properties; p.ID != "press-07" || p.Vendor != "Acme" || !*p.OTELCollector || first.Labels[machine.LabelKernel] != "ours" || first.Labels["rack"] != 3.0 {
		t.Errorf("capabilities %+v", first)
	}
	before := slices.Clone(told)
	if look(); len(before) == 0 || !slices.Equal(told, before) {
		t.Errorf("told %q, after one look %q", told, before)
	}
}

// The command prints what containerd and runc offer, and all the rest without a containerd.
func TestCapabilitiesCommand(t *testing.T) {
	d := testenv.Containerd(t)
	for name, address := range map[string]string{"with": d.Address, "without": filepath.Join(t.TempDir(), "none.sock")} {
		file := filepath.Join(t.TempDir(), "agent.yaml")
		text := fmt.Sprintf("device: press-07\nstate: h.example/r\ndataDir: %s\ncontainerd: {address: %s}\nruntime: {allowed: {kata: io.containerd.kata.v2}}\n", t.TempDir(), address)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		code, out, errs := command(t, "capabilities", "--config", file)
		c, err := margo.ParseDeviceCapabilities("stdout", []byte(out))
		if code != 0 || err != nil {
			t.Fatalf("%s containerd: exit code %d, %v\n%s", name, code, err, errs)
		}
		for _, label := range []string{machine.LabelContainerd, machine.LabelRunc, machine.LabelSnapshotter, machine.LabelRuntimeFeatures, machine.LabelRuntimes} {
			if v, there := c.Labels[label]; there != (name == "with") {
				t.Errorf("%s containerd: label %s is %v", name, label, v)
			}
		}
		if told := strings.Contains(errs, "not found out: containerd: "); told != (name == "without") {
			t.Errorf("%s containerd: told %q", name, errs)
		}
	}
}
