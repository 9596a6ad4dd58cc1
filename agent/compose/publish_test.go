package compose_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestImages(t *testing.T) {
	const file = `
x-base: &base {image: "redis:8"}
services:
  a: {image: "caddy:${V:-2}", build: ., user: "${UNKNOWN:?}"}
  b: {image: "${REGISTRY}/nats:2"}
  c: *base
  d: {image: "caddy:2"}
`
	got, err := compose.Images("compose.yaml", []byte(file), map[string]string{"REGISTRY": "r.example:5000"})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"caddy:2", "r.example:5000/nats:2", "redis:8"}, got); diff != "" {
		t.Errorf("Images (-want +got):\n%s", diff)
	}
	_, err = compose.Images("compose.yaml", []byte(file), nil)
	wantFault(t, err, "services.b.image", "variable REGISTRY has no value here")
	for name, c := range map[string]struct{ file, path, message string }{
		"none":    {"services: {a: {user: x}}", "services.a", "no image"},
		"null":    {"services: {a: {image: }}", "services.a.image", "must be"},
		"broken":  {"services: {a: {image: \"A b\"}}", "services.a.image", "A b"},
		"nothing": {"volumes: {}", "", "no services"},
		"text":    {"services: x", "services", "must be a mapping"},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := compose.Images("compose.yaml", []byte(c.file), nil)
			wantFault(t, err, c.path, c.message)
		})
	}
}

func TestCheckKnowsNoValues(t *testing.T) {
	good := map[string]string{
		"all open": `services:
  a:
    image: "${IMAGE}"
    ports: ["${PORT}:80", {target: "${T}", published: 1}]
    healthcheck: {test: "true", interval: "${EVERY}"}
    deploy: {resources: {limits: {memory: "${MEM:?how much}"}}}
    environment: {A: "${A}", B: x}
    entrypoint: ["${E}"]
    volumes: ["${DIR}:/data"]
    networks: ["${NET}"]
    depends_on: {b: {condition: "${C}"}}
    restart: "${R}"
  b: {image: "x:${V:-1}"}
volumes: {v: {labels: {a: "${L}"}}}
`,
		"health by variable": "services: {a: {image: x, healthcheck: {test: \"${T}\"}}, b: {image: x, depends_on: {a: {condition: service_healthy}}}}",
		"project variable":   "services: {a: {image: x, user: \"${COMPOSE_PROJECT_NAME}\"}}",
	}
	for name, file := range good {
		t.Run(name, func(t *testing.T) {
			if _, err := compose.CheckFile(t.Context(), "compose.yaml", []byte(file), nil); err != nil {
				t.Errorf("Check: %v", err)
			}
		})
	}
	_, err := compose.CheckFile(t.Context(), "compose.yaml", []byte("services: {a: {image: \"${I}\", ports: [\"${P}:1\", \"80\"], builds: x, user: \"${U\"}}"), nil)
	wantFault(t, err, "services.a.builds", "unknown key")
	wantFault(t, err, "services.a.user", "no valid use")
	_, err = compose.CheckFile(t.Context(), "compose.yaml", []byte("services: {a: {image: x, ports: [\"${P}:1\", \"80\"]}}"), nil)
	wantFault(t, err, "services.a.ports[1]", "no host port")
}

func TestCheckLooksAtEnvFiles(t *testing.T) {
	file := []byte("services: {a: {image: x, env_file: a.env}}")
	_, err := compose.CheckFile(t.Context(), "compose.yaml", file, fstest.MapFS{})
	wantFault(t, err, "services.a.env_file", "not in the archive")
	_, err = compose.CheckFile(t.Context(), "compose.yaml", file, fstest.MapFS{"a.env": {Data: []byte("PASSWORD=hunter2\nnot a line\n")}})
	wantFault(t, err, "services.a.env_file", "no env file")
	if strings.Contains(err.Error(), "hunter2") {
		t.Errorf("the error tells a secret: %v", err)
	}
	_, err = compose.CheckFile(t.Context(), "compose.yaml", file, fstest.MapFS{"a.env": {Data: []byte(strings.Repeat("A=1\n", 100_000))}})
	wantFault(t, err, "services.a.env_file", "larger than")
}

func TestLoadWithoutFiles(t *testing.T) {
	a := of("services: {a: {image: x, env_file: a.env}}")
	a.FS = nil
	_, err := compose.Load(t.Context(), a, compose.Options{AllowUnpinned: true})
	wantFault(t, err, "services.a.env_file", "not in the archive")
}

func TestPins(t *testing.T) {
	one := func(image string, l *artifacts.Lock, o compose.Options) (string, error) {
		a := of("services: {a: {image: \"" + image + "\"}}")
		a.Lock = l
		p, err := compose.Load(t.Context(), a, o)
		if err != nil {
			return "", err
		}
		i := p.Services[0].Image
		return i.Repository + ":" + i.Tag + "@" + i.Digest.String(), nil
	}
	pinned := "sha256:" + strings.Repeat("2", 64)
	cases := []struct {
		name, image string
		lock        *artifacts.Lock
		allow       bool
		want        string
	}{
		{"by the lock", "nats:2.12", lock(), false, "docker.io/library/nats:2.12@" + pinned},
		{"by itself", "nats@" + pinned, nil, false, "docker.io/library/nats:@" + pinned},
		{"tag and digest", "q.example/a/b:1@" + pinned, lock(), false, "q.example/a/b:1@" + pinned},
		{"not at all, allowed", "a/b", nil, true, "docker.io/a/b:latest@"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			got, err := one(c.image, c.lock, compose.Options{AllowUnpinned: c.allow})
			if err != nil || got != c.want {
				t.Errorf("image = %q, %v, want %q", got, err, c.want)
			}
		})
	}
	_, err := one("nats:2.11", lock(), compose.Options{})
	wantFault(t, err, "services.a.image", "not pinned")
	l := lock()
	l.Images[0].Reference = "x@" + pinned
	_, err = one("x@"+pinned, l, compose.Options{})
	wantFault(t, err, "services.a.image", "the lock has")
}

func TestPlatforms(t *testing.T) {
	for platform, size := range map[string]int64{
		"linux/amd64": 400, "linux/arm64": 401, "linux/arm64/v8": 401, "linux/arm/v7": 402, "linux/arm/v6": 402, "": 0,
		"linux/arm/v5": -1, "linux/riscv64": -1,
	} {
		p, err := compose.Load(t.Context(), archive(t, "least.yaml"), compose.Options{Platform: platform})
		switch {
		case size < 0:
			if !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "redis") {
				t.Errorf("Load on %s: %v, want ErrUnfit that names the image", platform, err)
			}
		case err != nil:
			t.Errorf("Load on %s: %v", platform, err)
		case p.Services[0].Image.Size != size:
			t.Errorf("size on %s = %d, want %d", platform, p.Services[0].Image.Size, size)
		}
	}
}

func TestBounds(t *testing.T) {
	var bomb strings.Builder
	bomb.WriteString("a0: &a0 [x,x,x,x,x,x,x,x,x,x]\n")
	for i := 1; i < 9; i++ {
		bomb.WriteString(strings.ReplaceAll("aN: &aN [*aM,*aM,*aM,*aM,*aM,*aM,*aM,*aM,*aM,*aM]\n", "N", string(rune('0'+i))))
	}
	text := bomb.String()
	for i := 9; i > 0; i-- {
		text = strings.Replace(text, "*aM", "*a"+string(rune('0'+i-1)), -1)
	}
	cases := map[string]struct {
		file, message string
		env           map[string]string
	}{
		"large":       {strings.Repeat("# a comment\n", 100_000), "larger than", nil},
		"aliases":     {"services: {a: {image: x}}\nx-a: &a [" + strings.Repeat("x,", 300) + "x]\nx-b: &b [" + strings.Repeat("*a,", 300) + "x]\n", "more than", nil},
		"services":    {"services:\n" + numbered(200, "  s%: {image: x}\n"), "more than 128 services", nil},
		"replicas":    {"services:\n" + numbered(20, "  s%: {image: x, deploy: {replicas: 60}}\n"), "1200 containers, more than 256", nil},
		"port ranges": {"services: {a: {image: x, ports: [\"1-65535:1-65535/udp\", \"[::1]:1-65535:1-65535\"]}}", "more than 1024 ports", nil},
		"variables": {
			"services: {a: {image: x, environment: [" + strings.Repeat("\"A=${A}${A}${A}${A}\",", 30) + "]}}", "grow the file",
			map[string]string{"A": strings.Repeat("x", 100_000)},
		},
		"ports":      {"services:\n" + numbered(100, "  s%: {image: x, ports: [\"1%00-1%20:80-100\"]}\n"), "", nil},
		"references": {"services: {a: {image: x, user: \"" + strings.Repeat("${A:-b}", 2000) + "\"}}", "too long", nil},
	}
	for name, c := range cases {
		t.Run(name, func(t *testing.T) {
			_, err := compose.Load(t.Context(), of(c.file), compose.Options{AllowUnpinned: true, Environment: c.env})
			if err == nil || !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), c.message) {
				t.Errorf("Load: %v, want a fault.ErrInvalid with %q", err, c.message)
			}
		})
	}
	if _, err := compose.Load(t.Context(), of(text), compose.Options{}); err == nil {
		t.Error("a bomb of aliases passed")
	}
}

func numbered(n int, line string) string {
	var b strings.Builder
	for i := range n {
		b.WriteString(strings.ReplaceAll(line, "%", strings.Repeat("x", i/10)+string(rune('0'+i%10))))
	}
	return b.String()
}

func TestCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := compose.Load(ctx, archive(t, "least.yaml"), compose.Options{})
	if err != nil && !errors.Is(err, context.Canceled) {
		t.Errorf("Load: %v", err)
	}
}

// FuzzLoad holds the reader to its promise on any bytes: an error or a project, no panic, nothing read from outside.
func FuzzLoad(f *testing.F) {
	for _, seed := range []string{
		"", "services: {a: {image: x}}", "services: {a: {image: \"${A:-${B}}\", ports: [\"1-3:1-3\"]}}",
		"a: &a [*a]", "services: &s {a: {<<: *s}}", "services: {a: {image: x, command: \"a 'b\"}}", "services: {? [a] : b}",
		"services:\n  a: {image: x, volumes: [\"a:/b:ro\", {type: tmpfs, target: /x}], healthcheck: {test: [CMD, x]}}\nvolumes: {a: }\n",
		"services: {a: {image: x, cpus: .inf, mem_limit: -1, deploy: {resources: {limits: {cpus: nan}}}}}",
		"services: {a: {image: x, environment: {A: 1.e5, B: 0x1F, C: 2024-01-01}, labels: [a, b=c]}}",
		"services: {a: {image: x, networks: {default: {aliases: [b]}}, depends_on: {a: }}}",
	} {
		f.Add([]byte(seed))
	}
	f.Add(archive(f, "line.yaml").Compose)
	f.Fuzz(func(t *testing.T, data []byte) {
		a := of(string(data))
		a.FS = fstest.MapFS{"a.env": {Data: data}}
		p, err := compose.Load(t.Context(), a, compose.Options{AllowUnpinned: true, Environment: map[string]string{"A": "1"}})
		if err == nil {
			for _, c := range p.Containers() {
				if len(c.ID) > 76 {
					t.Errorf("container id %q is too long", c.ID)
				}
			}
			if _, err := compose.CheckFile(t.Context(), "f", data, nil); err != nil {
				t.Errorf("Check refuses what Load takes: %v", err)
			}
		} else if strings.Contains(err.Error(), "compose-go: runtime error") {
			t.Errorf("the library panicked: %v", err)
		}
		_, _ = compose.Images("f", data, nil)
	})
}

func TestImagesRefusesOtherDigests(t *testing.T) {
	_, err := compose.Images("compose.yaml", []byte("services: {a: {image: \"x@sha512:"+strings.Repeat("a", 128)+"\"}}"), nil)
	wantFault(t, err, "services.a.image", "sha512")
}
