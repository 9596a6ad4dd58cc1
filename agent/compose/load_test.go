package compose_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

func archive(t testing.TB, file string) *artifacts.Archive {
	t.Helper()
	data, err := os.ReadFile(filepath.Join("testdata", "accepted", file))
	if err != nil {
		t.Fatal(err)
	}
	fsys := fstest.MapFS{composefile.Name: {Data: data}}
	if env, err := os.ReadFile(filepath.Join("testdata", "accepted", "line.env")); err == nil {
		fsys["sensor.env"] = &fstest.MapFile{Data: env}
	}
	for _, name := range []string{"all/raw.env", "all/labels.env", "all/seccomp.json", "all/site.conf"} {
		data, err := os.ReadFile(filepath.Join("testdata", "accepted", name))
		if err != nil {
			t.Fatal(err)
		}
		fsys[name] = &fstest.MapFile{Data: data}
	}
	return &artifacts.Archive{Root: "line", FS: fsys, Compose: data, Lock: lock()}
}

func of(text string) *artifacts.Archive {
	return &artifacts.Archive{Root: "line", FS: fstest.MapFS{}, Compose: []byte(text)}
}

func lock() *artifacts.Lock {
	image := func(ref, digit string, size int64) artifacts.LockedImage {
		d := digest.Digest("sha256:" + strings.Repeat(digit, 64))
		return artifacts.LockedImage{Reference: ref, Digest: d, Platforms: []artifacts.LockedPlatform{
			{Platform: "linux/amd64", Digest: d, Size: size},
			{Platform: "linux/arm64/v8", Digest: d, Size: size + 1},
			{Platform: "linux/arm/v6", Digest: d, Size: size + 2},
		}}
	}
	return &artifacts.Lock{Images: []artifacts.LockedImage{
		image("harbor.example/plant/caddy:2.10", "1", 100),
		image("nats:2.12", "2", 200),
		image("redis", "4", 400),
	}}
}

func TestLoadGolden(t *testing.T) {
	env := map[string]string{"POLL_SECONDS": "30", "PASSED": "from the deployment", "LINE": "7", "TOKEN": "hunter2", "COMPOSE_PROFILES": "debug,x"}
	for _, name := range []string{"line", "least", "all"} {
		t.Run(name, func(t *testing.T) {
			o := compose.Options{Deployment: "a1b2", Component: "Line Monitor", Generation: 7, Environment: env, Platform: "linux/arm64"}
			p, err := compose.Load(t.Context(), archive(t, name+".yaml"), o)
			if err != nil {
				t.Fatalf("Load: %v", err)
			}
			got, err := json.MarshalIndent(p, "", "  ")
			if err != nil {
				t.Fatal(err)
			}
			golden := filepath.Join("testdata", "accepted", name+".golden.json")
			if os.Getenv("UPDATE_GOLDEN") == "1" {
				if err := os.WriteFile(golden, append(got, '\n'), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(string(want), string(got)+"\n"); diff != "" {
				t.Errorf("project differs from %s (-want +got):\n%s", golden, diff)
			}
			if _, ok := env["COMPOSE_PROJECT_NAME"]; ok {
				t.Error("Load wrote into the caller's environment")
			}
		})
	}
}

// A file may be read a hundred times: the same bytes give the same project, or services would be replaced for nothing.
func TestLoadIsStable(t *testing.T) {
	o := compose.Options{Deployment: "d", Component: "c", Environment: map[string]string{"POLL_SECONDS": "1"}}
	var first []byte
	for range 20 {
		p, err := compose.Load(t.Context(), archive(t, "line.yaml"), o)
		if err != nil {
			t.Fatal(err)
		}
		b, err := json.Marshal(p)
		if err != nil {
			t.Fatal(err)
		}
		if first == nil {
			first = b
		}
		if !bytes.Equal(first, b) {
			t.Fatal("two readings of one file differ")
		}
	}
}

func TestLoadReadsNoProcessEnvironment(t *testing.T) {
	t.Setenv("LEAK", "leaked")
	t.Setenv("COMPOSE_PROFILES", "x")
	a := of("services: {a: {image: \"a:1${LEAK}\", environment: [LEAK, \"L=${LEAK}\"]}}")
	p, err := compose.Load(t.Context(), a, compose.Options{AllowUnpinned: true})
	if err != nil {
		t.Fatal(err)
	}
	if got := p.Services[0].Image.Tag; got != "1" {
		t.Errorf("Image.Tag = %q, want %q", got, "1")
	}
	if diff := cmp.Diff([]string{"L="}, p.Services[0].Environment); diff != "" {
		t.Errorf("Environment (-want +got):\n%s", diff)
	}
}

func TestLoadReadsNoHostFile(t *testing.T) {
	dir := t.TempDir()
	secret := filepath.Join(dir, "secret.env")
	if err := os.WriteFile(secret, []byte("A=secret\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for _, path := range []string{secret, "secret.env", "./secret.env", "../" + filepath.Base(dir) + "/secret.env", "~/secret.env"} {
		a := of("services: {a: {image: a, env_file: [\"" + path + "\"]}}")
		_, err := compose.Load(t.Context(), a, compose.Options{AllowUnpinned: true})
		wantFault(t, err, "services.a.env_file[0]", "is not in the archive")
	}
}

func wantFault(t *testing.T, err error, path, message string) {
	t.Helper()
	var e *strict.Error
	if !errors.As(err, &e) {
		t.Errorf("error = %v, want faults", err)
		return
	}
	if !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("error %v is no fault.ErrInvalid", err)
	}
	for _, f := range e.Faults {
		if f.Path == path && strings.Contains(f.Message, message) {
			if f.Line == 0 || f.Column == 0 {
				t.Errorf("fault %+v has no position", f)
			}
			return
		}
	}
	t.Errorf("faults:\n%v\nwant one at %s with %q", err, path, message)
}

func TestAllFaultsAtOnceWithPositions(t *testing.T) {
	const file = `services:
  web:
    build: .
    image: caddy
    prots: ["80:80"]
    isolation: hyperv
    volumes:
      - ./conf:/conf
    deploy:
      replicas: 3
      mode: global
  db:
    image: redis
    depends_on: [cache]
models: {a: {model: b}}
x-mine: {build: is fine}
networks:
  back: {driver: macvlan, driver_opts: {parent: eth0}, external: true}
`
	_, err := compose.Load(t.Context(), of(file), compose.Options{AllowUnpinned: true})
	want := `line/compose.yaml:3:5: services.web.build: not possible on a device: images are built before they are pushed
line/compose.yaml:5:5: services.web.prots: unknown key, did you mean "ports"?
line/compose.yaml:6:5: services.web.isolation: Windows only
line/compose.yaml:8:9: services.web.volumes[0]: "./conf" is no absolute path on the device
line/compose.yaml:11:7: services.web.deploy.mode: global is one container on a device, and replicas asks for 3
line/compose.yaml:14:18: services.db.depends_on[0]: service "cache" is not defined
line/compose.yaml:15:1: models: not possible on a device: a device runs containers only
line/compose.yaml:18:10: networks.back.driver: the site configures an external network
line/compose.yaml:18:27: networks.back.driver_opts: the site configures an external network`
	if err == nil {
		t.Fatal("Load succeeded")
	}
	if diff := cmp.Diff(want, err.Error()); diff != "" {
		t.Errorf("faults (-want +got):\n%s", diff)
	}
	if h := fault.Hint(err); h == "" {
		t.Error("no hint")
	}
}

func TestRefused(t *testing.T) {
	web := func(fields string) string { return "services:\n  web: {image: \"caddy:2\", " + fields + "}\n" }
	cases := []struct{ name, file, path, message string }{
		{"empty", "", "", "empty"},
		{"spaces", " \n\n", "", "empty"},
		{"comment", "# nothing\n", "", "empty"},
		{"byte order mark", "\ufeff" + web("init: true"), "", "begins with a byte order mark"},
		{"directive", "%YAML 1.1\n---\n" + web("init: true"), "", "directives are not allowed"},
		{"end of a line for some", web("command: a\u2028b"), "", "U+2028 ends a line for some readers of YAML"},
		{"mapping as a key", "{services: {}}: x\n", "", "keys must be plain text"},
		{"keys in keys", strings.Repeat("? ", 1000), "", "nested deeper than 64"},
		{"not UTF-8", "services: \xff", "", "not UTF-8"},
		{"list", "- a", "", "must be a mapping"},
		{"no services", "name: x", "", "no services"},
		{"services empty", "services: {}", "", "no services"},
		{"service null", "services: {a: }", "services.a", ""},
		{"two documents", "services: {}\n---\nservices: {}\n", "", "second document"},
		{"duplicate key", "services:\n  a: {image: x}\n  a: {image: y}\n", "services.a", "written twice"},
		{"syntax", "services: {a: [}", "", ""},
		{"custom tag", "services: {a: !reset {image: x}}", "services.a", "!reset"},
		{"deep", "services: " + strings.Repeat("[", 40) + strings.Repeat("]", 40), "services" + strings.Repeat("[0]", 32), "nested deeper"},
		{"self alias", "services: &a {a: *a}", "services" + strings.Repeat(".a", 16), ""},
		{"build", web("build: ."), "services.web.build", "images are built"},
		{"profiles", web("profiles: [a]"), "services", "no services left: its profiles are off"},
		{"extends", web("extends: {service: a}"), "services.web.extends", "one file"},
		{"include", "include: [a.yaml]\n" + web(""), "include", "one file"},
		{"own extension unknown", web("x-longshore-own-shmi: true"), "services.web.x-longshore-own-shmi", "did you mean"},
		{"own extension type", web("x-longshore-own-shim: 3"), "services.web.x-longshore-own-shim", "true or false"},
		{"port at random", web("ports: [\"80\"]"), "services.web.ports[0]", "no host port"},
		{"port number at random", web("ports: [80]"), "services.web.ports[0]", "no host port"},
		{"port from a range", web("ports: [\"8000-8001:80\"], scale: 3"), "services.web.ports[0]", "are 2, and each of 3 replicas needs one"},
		{"port too many", web("ports: [\"1-65000:1-65000\"]"), "services.web.ports[0]", "more than"},
		{"port address", web("ports: [{target: 80, published: 80, host_ip: eth0}]"), "services.web.ports[0]", "no address"},
		{"port zero", web("ports: [{target: 0, published: 80}]"), "services.web.ports[0]", "no port"},
		{"ports no list", web("ports: {a: 1}"), "services.web.ports", ""},
		{
			"ports clash", "services:\n  a: {image: x, ports: [\"80:1\"]}\n  b: {image: x, ports: [\"127.0.0.1:80:2\"]}\n",
			"services.b.ports[0]", "taken by services.a.ports[0]",
		},
		{"bind relative", web("volumes: [\"./a:/a\"]"), "services.web.volumes[0]", "no absolute path on the device"},
		{"bind home", web("volumes: [\"~/a:/a\"]"), "services.web.volumes[0]", "no absolute path on the device"},
		{"bind option of a volume", "volumes: {a: }\n" + web("volumes: [\"a:/a:rshared\"]"), "services.web.volumes[0]", "rshared"},
		{"option nobody knows", web("volumes: [\"/a:/a:rw,fast\"]"), "services.web.volumes[0]", "fast"},
		{"volume undefined", web("volumes: [\"data:/a\"]"), "services.web.volumes[0]", "not defined"},
		{"volume on root", web("volumes: [\"/a:/\"]"), "services.web.volumes[0]", "on / itself"},
		{"mount twice", web("volumes: [\"/a:/x\", \"/b:/x/\"]"), "services.web", "two mounts"},
		{"network undefined", web("networks: [back]"), "services.web.networks[0]", "not defined"},
		{"network address", "networks: {n: }\n" + web("networks: {n: {ipv4_address: 10.0.0.2}}"), "services.web.networks.n.ipv4_address", "no subnet that holds"},
		{"network extension name", "networks: {x-n: }\n" + web("user: a"), "networks.x-n", ""},
		{"alias", "networks: {n: }\n" + web("networks: {n: {aliases: [\"a b\"]}}"), "services.web.networks.n.aliases[0]", "no host name"},
		{"cycle", "services:\n  a: {image: x, depends_on: [b]}\n  b: {image: x, depends_on: [a]}\n", "services.a.depends_on", "a → b → a"},
		{"self", "services: {a: {image: x, depends_on: [a]}}", "services.a.depends_on", "a → a"},
		{"healthy without health", "services:\n  a: {image: x, healthcheck: {disable: true}}\n  b: {image: x, depends_on: {a: {condition: service_healthy}}}\n", "services.b.depends_on.a", "never becomes healthy"},
		{"grace too long", web("stop_grace_period: 10m1s"), "services.web.stop_grace_period", "longer than 10m0s"},
		{"image by sha512", "services: {a: {image: \"x@sha512:" + strings.Repeat("a", 128) + "\"}}", "services.a.image", "sha512"},
		{"label of containerd", web("labels: {containerd.io/gc.root: x}"), "services.web.labels.containerd.io/gc.root", "containerd's own"},
		{"health two", web("healthcheck: {test: a, x-longshore-probe: {tcp: 80}}"), "services.web.healthcheck.x-longshore-probe", "test beside"},
		{"health probe", web("healthcheck: {x-longshore-probe: {tcp: 80, http: {port: 80}}}"), "services.web.healthcheck.x-longshore-probe", "must be"},
		{"health probe key", web("healthcheck: {x-longshore-probe: {http: {prot: 80}}}"), "services.web.healthcheck.x-longshore-probe.http.prot", "did you mean"},
		{"health probe port", web("healthcheck: {x-longshore-probe: {tcp: 80000}}"), "services.web.healthcheck.x-longshore-probe.tcp", "no port"},
		{"health list", web("healthcheck: {test: [curl]}"), "services.web.healthcheck.test", ""},
		{"health interval", web("healthcheck: {test: a, interval: fast}"), "services.web.healthcheck.interval", ""},
		{"restart", web("restart: sometimes"), "services.web.restart", "none of"},
		{"restart count", web("restart: \"always:3\""), "services.web.restart", "only on-failure"},
		{"restart attempts", web("restart: \"on-failure:x\""), "services.web.restart", "attempts"},
		{"signal", web("stop_signal: SIGNAL"), "services.web.stop_signal", "no signal"},
		{"hostname", web("hostname: \"a b\""), "services.web.hostname", "no host name"},
		{"working dir", web("working_dir: a"), "services.web.working_dir", "absolute"},
		{"entrypoint empty", web("entrypoint: []"), "services.web.entrypoint", "nothing to run"},
		{"memory", web("mem_limit: lots"), "services.web.mem_limit", ""},
		{"memory twice", web("mem_limit: 1g, deploy: {resources: {limits: {memory: 2g}}}"), "services.web.deploy.resources.limits.memory", "differs from"},
		{"label reserved", web("labels: {dev.longshore.device: x}"), "services.web.labels.dev.longshore.device", "agent's own"},
		{"label long", web("labels: {a: " + strings.Repeat("b", 5000) + "}"), "services.web.labels.a", "longer"},
		{"environment name", web("environment: {\"A=B\": x}"), "services.web.environment.A=B", "no name"},
		{"environment list", web("environment: {A: [x]}"), "services.web.environment.A", "must be text"},
		{"image missing", "services: {a: {user: x}}", "services.a", "no image"},
		{"image scheme", "services: {a: {image: \"oci://x/y:1\"}}", "services.a.image", "oci://"},
		{"image upper case", "services: {a: {image: \"Caddy:2\"}}", "services.a.image", "Caddy"},
		{"variable broken", web("user: \"${A\""), "services.web.user", "no valid use"},
		{"variable required", web("user: \"${A:?who runs it}\""), "services.web.user", "variable A has no value: who runs it"},
		{"variables nested", web("user: \"" + strings.Repeat("${A:-", 10) + strings.Repeat("}", 10) + "\""), "services.web.user", "too deep"},
		{"service name", "services: {\"a b\": {image: x}}", "services.a b", ""},
		{"environment file missing", web("env_file: a.env"), "services.web.env_file", "not in the archive"},
		{"environment file missing, raw", web("env_file: [{path: a.env, format: raw}]"), "services.web.env_file[0]", "not in the archive"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := compose.Load(t.Context(), of(c.file), compose.Options{AllowUnpinned: true})
			wantFault(t, err, c.path, c.message)
		})
	}
}
