package main

import (
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// publishCompose pushes a project laid out as docker compose publish does it.
func (s *shell) publishCompose(tag string, files ...[3]string) {
	s.t.Helper()
	repo := s.repository()
	put := func(d ocispec.Descriptor, data []byte) {
		if err := repo.PushBlob(s.t.Context(), d, data); err != nil {
			s.t.Fatal(err)
		}
	}
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "application/vnd.docker.compose.project", Config: ocispec.DescriptorEmptyJSON,
		Annotations: map[string]string{ocispec.AnnotationCreated: "2026-11-20T12:00:00Z"},
	}
	put(ocispec.DescriptorEmptyJSON, []byte("{}"))
	for _, f := range files {
		mediaType, name, data := f[0], f[1], []byte(f[2])
		d := ocispec.Descriptor{
			MediaType: "application/vnd.docker.compose." + mediaType, Digest: digest.FromBytes(data), Size: int64(len(data)), Data: data,
			Annotations: map[string]string{"com.docker.compose.version": "v5.5.0"},
		}
		if d.Annotations["com.docker.compose.file"] = name; mediaType == "envfile" {
			d.Annotations = map[string]string{"com.docker.compose.version": "v5.5.0", "com.docker.compose.envfile": name}
		}
		put(d, data)
		m.Layers = append(m.Layers, d)
	}
	data, err := json.Marshal(m)
	if err != nil {
		s.t.Fatal(err)
	}
	d := ocispec.Descriptor{MediaType: m.MediaType, Digest: digest.FromBytes(data), Size: int64(len(data))}
	if err := repo.PushManifest(s.t.Context(), d, data, tag); err != nil {
		s.t.Fatal(err)
	}
}

// Nothing outside the directory is packed, whatever links lead there.
func TestPackingStaysInside(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.write("elsewhere/secret", "hunter2")
	s.write("linked/compose.yaml", "services:\n  web: {image: x, secrets: [key], env_file: in.env}\nsecrets: {key: {file: key}}\n")
	s.write("linked/real.env", "A=1\n")
	for link, target := range map[string]string{"linked/key": "../elsewhere/secret", "linked/in.env": "real.env"} {
		if err := os.Symlink(target, link); err != nil {
			t.Fatal(err)
		}
	}
	code, stdout, stderr := s.try("check", "linked")
	if code != outcome.Misused || !strings.Contains(stderr, "linked/compose.yaml:3:17: secrets.key.file:") || strings.Contains(stdout+stderr, "hunter2") {
		t.Errorf("check = %d\n%s%s\nwant a fault at the secret's file", code, stdout, stderr)
	}
	if strings.Contains(stderr, "in.env") {
		t.Errorf("a link that stays inside is refused: %s", stderr)
	}
}

// What docker compose publish has pushed becomes a component, with the images that it pins.
func TestPushPublished(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	repo := s.repository()
	project := "oci://" + host + "/plant/state:compose-app" // any repository will do
	const env = "5efca9cdbac9f5394c6c2e2094b1b42661f988f57fcab165a0bf72b205451af3.env"
	s.publishCompose("compose-app",
		[3]string{"file+yaml", "compose.yaml", fmt.Sprintf("services:\n  web:\n    build: .\n    image: %s/library/caddy:2.10\n    env_file: %s\n"+
			"    deploy: {endpoint_mode: vip}\n", host, env)},
		[3]string{"file+yaml", "compose.override.yaml", "services:\n  web:\n    ports: [\"8080:80\"]\n"},
		[3]string{"envfile", env, "LEVEL=info\n"})
	s.do(outcome.OK, "component", "push", project, host+"/plant/components/app:1.0.0")
	s.do(outcome.OK, "component", "push", "-q", project, host+"/plant/components/app:1.0.0")
	s.do(outcome.NotFound, "component", "push", "oci://"+host+"/plant/state:nothing", host+"/plant/components/app:1.0.1")
	s.do(outcome.Misused, "component", "push", "oci://"+host+"/library/caddy:2.10", host+"/plant/components/app:1.0.1")
	s.publishCompose("compose-broken", [3]string{"file+yaml", "compose.yaml", "services:\n  web: {image: x, prots: []}\n"})
	s.do(outcome.Misused, "component", "push", "oci://"+host+"/plant/state:compose-broken", host+"/plant/components/app:1.0.1")
	s.golden(golden)
	if _, err := repo.Resolve(t.Context(), "compose-app"); err != nil {
		t.Error(err)
	}
}

// What a mirror shows of a project that has been published again since is not packed.
func TestPushPublishedPastAStaleMirror(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	project := func(port int) {
		s.publishCompose("compose-app", [3]string{"file+yaml", "compose.yaml", fmt.Sprintf("services:\n  web:\n    image: %s/library/caddy:2.10\n    ports: [\"%d:80\"]\n", host, port)})
	}
	push := func(more ...string) string {
		return s.do(outcome.OK, append(append([]string{"component", "push", "-q"}, more...), "oci://"+host+"/plant/state:compose-app", host+"/plant/components/app:1.0.0")...)
	}
	project(8080)
	before := push()
	s.stale()
	project(8081)
	if after := push("--overwrite"); after == before {
		t.Errorf("it is packed as it was before: %s", after)
	}
}
