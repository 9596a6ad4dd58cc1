package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// What no device could run is not published to one, with the same words as a fleet's check has.
func TestStatePushRefusesWhatNoDeviceRuns(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	flat := pack(t, "compose.yaml", "services: {web: {image: nginx}}\n")
	s.foreignComponent(flat, "plant/components/flat", "1.0.0")
	s.write("needs/compose.yaml", "services: {web: {image: "+host+"/library/nats:2.12, environment: {LINE: \"${LINE:?name the line}\"}}}\n")
	s.do(outcome.OK, "component", "push", "-q", "./needs", host+"/plant/components/needs:1.4.0")
	for _, dry := range [][]string{nil, {"--dry-run"}} {
		push := func(component string, more ...string) []string {
			args := append([]string{"state", "push", "--device", "press-07", "--key", "release.key", "--component", host + "/plant/components/" + component}, more...)
			return append(append(args, dry...), states)
		}
		s.refuses(outcome.Refused, []string{"state of press-07", "component flat", "is not in a directory"}, push("flat:1.0.0")...)
		s.refuses(outcome.Refused, []string{"press-07", "LINE", "name the line"}, push("needs:1.4.0")...)
	}
	s.do(outcome.OK, "state", "push", "--device", "press-07", "--key", "release.key", "--component", host+"/plant/components/needs:1.4.0", "--set", "LINE=7", states)
	// Two deployments that publish one port.
	s.copyProject("twin", "8080:8081")
	s.do(outcome.OK, "component", "push", "-q", "./twin", host+"/plant/components/twin:1.4.0")
	s.do(outcome.OK, "state", "push", "--device", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.refuses(outcome.Refused, []string{"port 8080/tcp is used by"}, "state", "push", "--device", "press-07", "--key", "release.key",
		"--component", host+"/plant/components/twin:1.4.0", states)
}

// Profiles are chosen by a parameter that no service reads.
func TestStatePushTakesProfiles(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	image := host + "/library/nats:2.12"
	s.write("both/compose.yaml", "services: {web: {image: "+image+"}, trace: {image: "+image+", profiles: [debug]}}\n")
	s.write("plain/compose.yaml", "services: {web: {image: "+image+"}}\n")
	for _, name := range []string{"both", "plain"} {
		s.do(outcome.OK, "component", "push", "-q", "./"+name, host+"/plant/components/"+name+":1.4.0")
	}
	push := func(name string) []string {
		return []string{"state", "push", "--device", "press-07", "--key", "release.key", "--component", host + "/plant/components/" + name + ":1.4.0", "--set", "COMPOSE_PROFILES=debug", states}
	}
	s.do(outcome.OK, push("both")...)
	s.refuses(outcome.Misused, []string{"COMPOSE_PROFILES"}, push("plain")...)
	s.write("line.yaml", "id: 0d7b6b5e-1d43-4d0a-9c67-0c64a8a4b2f1\nmetadata: {name: line, namespace: plant, deviceId: press-08}\n"+
		"spec:\n  applicationId: line\n  deploymentProfile: {type: compose, components: [{name: line-monitor, properties: {repository: \"oci://"+host+
		"/plant/components/line-monitor\", revision: 1.4.0}}]}\n"+
		"  parameters: {poll: {value: 5, targets: [{pointer: ENV.POLL_SECOND, components: [line-monitor]}]}}\n")
	s.refuses(outcome.Misused, []string{"line.yaml:6:22: spec.parameters.poll: component line-monitor does not use the variable POLL_SECOND"},
		"state", "push", "--device", "press-08", "--key", "release.key", "--deployment", "line.yaml", states)
}

// pack makes a Compose Archive of one file.
func pack(t *testing.T, name, content string) []byte {
	t.Helper()
	var b bytes.Buffer
	z := gzip.NewWriter(&b)
	w := tar.NewWriter(z)
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: int64(len(content))}); err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write([]byte(content)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// foreignComponent pushes an archive as another tool would: nothing looks into it.
func (s *shell) foreignComponent(archive []byte, repository, version string) {
	s.t.Helper()
	a, err := artifacts.PackComponent(fstest.MapFS{"compose.yaml": {Data: []byte("services: {}\n")}}, artifacts.ComponentOptions{Name: "flat", Version: version})
	if err != nil {
		s.t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(a.Manifest, &m); err != nil {
		s.t.Fatal(err)
	}
	for i := range a.Blobs {
		if d := &a.Blobs[i].Descriptor; d.Digest == m.Layers[0].Digest {
			d.Digest, d.Size = digest.FromBytes(archive), int64(len(archive))
			a.Blobs[i].Data, m.Layers[0] = archive, *d
		}
	}
	if a.Manifest, err = json.Marshal(m); err != nil {
		s.t.Fatal(err)
	}
	a.Descriptor.Digest, a.Descriptor.Size = digest.FromBytes(a.Manifest), int64(len(a.Manifest))
	client, err := registry.New(registry.Options{})
	if err != nil {
		s.t.Fatal(err)
	}
	defer client.Close()
	repo, err := client.OpenName(s.t.Context(), s.server.Host+"/"+repository)
	if err != nil {
		s.t.Fatal(err)
	}
	if _, err := release.Publish(s.t.Context(), repo, a, release.PublishOptions{Tags: []string{version}}); err != nil {
		s.t.Fatal(err)
	}
}

// A device keeps its deployments, and so its volumes, when its states come from a fleet's files from now on, or no longer.
func TestStatePushIsAFleetOfOne(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "state", "push", "--device", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", host+"/plant/one")
	s.oneDevice("one", "line-monitor")
	if out := s.do(outcome.OK, "fleet", "plan", "--key", "release.key", "one"); !strings.Contains(out, "no change") {
		t.Errorf("the plan says\n%s", out)
	}
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.1")
	s.change("one/fleet.yaml", "1.4.0", "1.4.1")
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "one")
	out := s.do(outcome.OK, "state", "push", "--device", "press-07", "--key", "release.key", "--component", monitor+":1.4.1", host+"/plant/one")
	if !strings.Contains(out, "what it runs stays") {
		t.Errorf("state push after fleet publish says\n%s", out)
	}
}

// The registry lost all generations of a device: the next one is above what the device reports.
func TestLostHistory(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	endpoint := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"id":"press-07","agentVersion":"1","acceptedGeneration":11,"committedGeneration":11}`)
	}))
	t.Cleanup(endpoint.Close)
	at := "--endpoint=" + endpoint.URL
	s.oneDevice("one", "line-monitor")
	if out := s.do(outcome.Differs, "fleet", "plan", "--key", "release.key", at, "one"); !strings.Contains(out, "has accepted generation 11") {
		t.Errorf("the plan says\n%s", out)
	}
	push := []string{"state", "push", "--device", "press-07", "--key", "release.key", "--component", monitor + ":1.4.0"}
	s.refuses(outcome.NotFound, []string{"read what press-07 runs", "has accepted generation 11", "--replace"}, append(push, at, states)...)
	if out := s.do(outcome.OK, append(push, "--replace", at, states)...); !strings.Contains(out, "generation 12") || !strings.Contains(out, "has accepted generation 11") {
		t.Errorf("the push says\n%s", out)
	}
	if out := s.do(outcome.OK, append(push, "--endpoint=http://127.0.0.1:1", host+"/plant/other")...); !strings.Contains(out, "generation 1\n") || !strings.Contains(out, "could not be found out") {
		t.Errorf("the push without an answer says\n%s", out)
	}
}
