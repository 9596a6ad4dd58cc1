package compose_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	"github.com/opencontainers/image-spec/specs-go"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	composeLayer = "application/vnd.docker.compose.file+yaml"
	envLayer     = "application/vnd.docker.compose.envfile"
)

// layer is one file as docker compose publish writes it: its content stands in the descriptor too.
func layer(mediaType, name, text string) ocispec.Descriptor {
	key := "com.docker.compose.file"
	if mediaType == envLayer {
		key = "com.docker.compose.envfile"
	}
	return ocispec.Descriptor{
		MediaType: mediaType, Digest: digest.FromString(text), Size: int64(len(text)), Data: []byte(text),
		Annotations: map[string]string{"com.docker.compose.version": "v5.5.0", key: name},
	}
}

func extended(d ocispec.Descriptor) ocispec.Descriptor {
	d.Annotations["com.docker.compose.extends"] = "true"
	return d
}

// published is a manifest as docker compose publish writes it, with an artifact type or, for OCI 1.0, without.
func published(t testing.TB, one bool, layers ...ocispec.Descriptor) []byte {
	t.Helper()
	m := ocispec.Manifest{
		Versioned: specs.Versioned{SchemaVersion: 2}, MediaType: ocispec.MediaTypeImageManifest,
		ArtifactType: "application/vnd.docker.compose.project", Config: ocispec.DescriptorEmptyJSON, Layers: layers,
		Annotations: map[string]string{ocispec.AnnotationCreated: "2026-11-20T12:00:00Z"},
	}
	if !one {
		m.ArtifactType = ""
		m.Config.MediaType = "application/vnd.docker.compose.config.empty.v1+json"
	}
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// packPublished packs the files of a published project, as longshore component push does.
func packPublished(t *testing.T, name string, p *artifacts.Published, blob func(ocispec.Descriptor) ([]byte, error)) (*compose.Packed, error) {
	t.Helper()
	files, names, err := p.Files(blob)
	if err != nil {
		return nil, err
	}
	return compose.Pack(t.Context(), name, files, names...)
}

func inline(d ocispec.Descriptor) ([]byte, error) { return d.Data, nil }

// lineLayers is a project of two files, one of which extends a third, with env files and pinned images.
func lineLayers() []ocispec.Descriptor {
	const common, env = "f8f9ede3d201ec37d5a5e3a77bbadab79af26035e53135e19571f50d541d390c.yaml", "5efca9cdbac9f5394c6c2e2094b1b42661f988f57fcab165a0bf72b205451af3.env"
	pinned := func(c string) string { return "@sha256:" + strings.Repeat(c, 64) }
	return []ocispec.Descriptor{
		layer(composeLayer, "compose.yaml", "name: line\nservices:\n  web:\n    extends:\n      file: "+common+"\n      service: base\n"+
			"    build: .\n    image: caddy:2.10\n    ports: [\"8080:80\"]\n  db:\n    image: postgres:16\n    env_file:\n      - "+env+"\n      - path: "+
			strings.Repeat("0", 64)+".env\n        required: false\n"),
		layer(composeLayer, "compose.yaml", "services:\n  web:\n    ports: !override [\"80:80\"]\n    environment: {LEVEL: \"${LEVEL:-info}\"}\n"),
		extended(layer(composeLayer, common, "services:\n  base:\n    restart: always\n    environment: [BASE=1]\n")),
		layer(envLayer, env, "POSTGRES_PASSWORD=hunter2\n"),
		layer(composeLayer, "image-digests.yaml", "services:\n  db:\n    command: null\n    entrypoint: null\n    image: docker.io/library/postgres:16"+pinned("1")+
			"\n  web:\n    command: null\n    entrypoint: null\n    image: docker.io/library/caddy:2.10"+pinned("2")+"\n"),
	}
}

func TestPublishedProject(t *testing.T) {
	for _, one := range []bool{true, false} {
		p, err := artifacts.OpenPublished("r.example/line:1", published(t, one, lineLayers()...))
		if err != nil {
			t.Fatal(err)
		}
		packed, err := packPublished(t, "r.example/line:1", p, inline)
		if err != nil {
			t.Fatalf("Pack: %v", err)
		}
		golden := filepath.Join("testdata", "packed", "published.yaml")
		if os.Getenv("UPDATE_GOLDEN") == "1" {
			if err := os.WriteFile(golden, packed.Compose, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(golden)
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(string(want), string(packed.Compose)); diff != "" {
			t.Errorf("compose.yaml (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"5efca9cdbac9f5394c6c2e2094b1b42661f988f57fcab165a0bf72b205451af3.env", "compose.yaml"}, names(t, packed.Files)); diff != "" {
			t.Errorf("files (-want +got):\n%s", diff)
		}
		loaded, err := compose.Load(t.Context(), &artifacts.Archive{Root: "line", FS: packed.Files, Compose: packed.Compose}, compose.Options{})
		if err != nil {
			t.Fatalf("Load: %v", err)
		}
		if got := loaded.Services[0].Image.Digest; got != "sha256:"+digest.Digest(strings.Repeat("2", 64)) {
			t.Errorf("web runs %s, want what the artifact pins", got)
		}
		if diff := cmp.Diff([]string{"POSTGRES_PASSWORD=hunter2"}, loaded.Services[1].Environment); diff != "" {
			t.Errorf("environment of db (-want +got):\n%s", diff)
		}
	}
}

// One file is taken as it is.
func TestPublishedBytes(t *testing.T) {
	const text = "# theirs\nservices: {a: {image: x}}\n"
	p, err := artifacts.OpenPublished("x", published(t, true, layer(composeLayer, "docker-compose.yml", text)))
	if err != nil {
		t.Fatal(err)
	}
	packed, err := packPublished(t, "x", p, inline)
	if err != nil || string(packed.Compose) != text {
		t.Fatalf("Pack = %v, %v", packed, err)
	}
	if data, err := fs.ReadFile(packed.Files, composefile.Name); err != nil || string(data) != text {
		t.Errorf("compose.yaml = %q, %v", data, err)
	}
}

func TestPublishedRefuses(t *testing.T) {
	file := layer(composeLayer, "compose.yaml", "services: {a: {image: x}}\n")
	large := file
	large.Size = 2 << 20
	bad := file
	bad.Digest = "sha256:x"
	other := file
	other.MediaType = "application/octet-stream"
	image, err := json.Marshal(ocispec.Manifest{MediaType: ocispec.MediaTypeImageManifest, Config: ocispec.Descriptor{MediaType: ocispec.MediaTypeImageConfig}})
	if err != nil {
		t.Fatal(err)
	}
	many := make([]ocispec.Descriptor, 200)
	for i := range many {
		many[i] = layer(envLayer, fmt.Sprintf("%d.env", i), "")
	}
	cases := []struct {
		name     string
		manifest []byte
		is       error
		want     string
	}{
		{"no JSON", []byte("{"), fault.ErrInvalid, "read manifest"},
		{"an image", image, fault.ErrUnsupported, "not a project that docker compose publish has made"},
		{"large manifest", make([]byte, 5<<20), fault.ErrTooLarge, "manifest has more than"},
		{"large file", published(t, true, large), fault.ErrTooLarge, "layer 1 has 2097152 bytes"},
		{"bad digest", published(t, true, bad), fault.ErrInvalid, "layer 1"},
		{"another layer", published(t, true, other), fault.ErrUnsupported, "application/octet-stream"},
		{"many files", published(t, true, many...), fault.ErrTooLarge, "more than 128 files"},
		{"no files", published(t, true), fault.ErrInvalid, "no Compose file"},
		{"env file elsewhere", published(t, true, file, layer(envLayer, "../a.env", "")), fault.ErrInvalid, "no name of a file"},
		{"env file without name", published(t, true, file, layer(envLayer, "", "")), fault.ErrInvalid, "no name of a file"},
		{"env file in place of the project", published(t, true, file, layer(envLayer, "compose.yaml", "")), fault.ErrInvalid, "twice"},
		{"env file twice", published(t, true, file, layer(envLayer, "a.env", ""), layer(envLayer, "a.env", "A=1")), fault.ErrInvalid, "a.env is there twice"},
		{
			"config that was not published", published(t, true, layer(composeLayer, "compose.yaml", "services: {a: {image: x, configs: [c]}}\nconfigs: {c: {file: ./c}}\n")),
			fault.ErrInvalid, "x/compose.yaml:2:15: configs.c.file: \"./c\" is not in the archive",
		},
		{"remote include", published(t, true, layer(composeLayer, "compose.yaml", "include: [\"oci://x/y\"]\nservices: {a: {image: x}}\n")), fault.ErrInvalid, "is elsewhere"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p, err := artifacts.OpenPublished("x", c.manifest)
			if err == nil {
				_, err = packPublished(t, "x", p, inline)
			}
			if !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("error = %v\nwant %v with %q", err, c.is, c.want)
			}
		})
	}
}

// FuzzPublished holds the reader of foreign artifacts to its promise: an error or a project that a device reads.
func FuzzPublished(f *testing.F) {
	f.Add(published(f, true, lineLayers()...), []byte("services: {a: {image: x}}"))
	f.Add(published(f, false, layer(composeLayer, "a.yaml", "")), []byte("services: {a: {extends: {file: a.yaml, service: a}}}"))
	f.Add([]byte("{}"), []byte(""))
	f.Fuzz(func(t *testing.T, manifest, file []byte) {
		p, err := artifacts.OpenPublished("x", manifest)
		if err != nil {
			return
		}
		packed, err := packPublished(t, "x", p, func(d ocispec.Descriptor) ([]byte, error) {
			if len(d.Data) > 0 {
				return d.Data, nil
			}
			return file, nil
		})
		if err != nil {
			return
		}
		if _, err := compose.CheckFile(t.Context(), "x", packed.Compose, packed.Files); err != nil {
			t.Errorf("what was packed is refused: %v\n%s", err, packed.Compose)
		}
	})
}
