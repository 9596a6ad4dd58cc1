package compose_test

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/composefile"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// project is a directory of a developer's machine.
func project(files map[string]string) fstest.MapFS {
	out := fstest.MapFS{}
	for name, text := range files {
		out[name] = &fstest.MapFile{Data: []byte(text)}
	}
	return out
}

// several is a project in several files that uses whatever packing resolves.
func several() map[string]string {
	return map[string]string{
		"compose.yaml": `
name: line
include:
  - db/compose.yaml
  - path: [tools/compose.yaml, tools/override.yaml]
    project_directory: tools
x-shared: &shared
  labels: {team: line, "price": "3$$"}
services:
  web:
    <<: *shared
    extends: {file: common/base.yaml, service: base}
    image: caddy:${CADDY:-2}
    command: [run, --config, /etc/caddy]
    environment: {LEVEL: debug, "PORT": "${PORT:-80}", EMPTY: }
    ports: ["8080:80"]
    depends_on: {db: {condition: service_healthy}}
    develop: {watch: [{path: ., action: rebuild}]}
    attach: false
    build: {context: .}
    configs: [site]
    secrets: [{source: key, target: tls.key}]
    security_opt: ["seccomp=profiles/seccomp.json"]
    healthcheck: {interval: 5s}
    ulimits: {nofile: 100}
    logging: {options: {max-size: 1m}}
  worker:
    extends: web
    command: work
    ports: !override ["9090:90"]
    labels: !reset null
    volumes: ["cache:/cache:ro", "/new:/data"]
    networks: {back: {aliases: [w]}}
  db:
    environment: [TUNED=yes]
configs:
  site: {file: ./site/site.conf}
secrets:
  key: {file: secrets/key}
networks: {back: }
volumes: {cache: }
`,
		"common/base.yaml": `
services:
  root:
    restart: always
    environment: [LEVEL=info, "BASE=${BASE:-1}", NAMED]
    env_file: [root.env]
    volumes: ["/old:/data", "/logs:/logs"]
    networks: [back]
    healthcheck: {test: curl localhost, interval: 1s, retries: 3}
    ulimits: {nofile: {soft: 1, hard: 2}, nproc: 3}
    logging: {driver: json-file, options: {max-file: "3"}}
    dns: 10.0.0.1
    cap_add: [NET_ADMIN]
    tmpfs: /run
  base:
    extends: {service: root}
    image: scratch
    env_file: extra.env
    command: [never, seen]
    dns: [10.0.0.2]
    cap_add: [NET_ADMIN, SYS_TIME]
    tmpfs: [/tmp]
    label_file: base.labels
    extra_hosts: ["a:10.0.0.1"]
networks: {back: }
volumes: {data: }
`,
		"common/root.env": "ROOT=1\n", "common/extra.env": "EXTRA=${ROOT}\n", "common/base.labels": "from=file\n",
		"db/compose.yaml": `
services:
  db:
    image: postgres:16
    env_file: [{path: db.env, required: true}]
    environment: {PGDATA: /data}
    volumes: ["data:/data"]
    healthcheck: {test: [CMD, pg_isready]}
    configs: [init]
    pre_start: [{command: [chown, -R, "70", /data], user: root, env_file: [db.env]}]
volumes: {data: {labels: {keep: "yes"}}}
configs: {init: {file: init.sql}}
`,
		"db/db.env": "POSTGRES_PASSWORD=hunter2\n", "db/init.sql": "select 1;\n",
		"tools/compose.yaml":    "services:\n  shell: {image: \"busybox\", profiles: [tools], env_file: [{path: none.env, required: false}], command: [sh], label_file: [l.env]}\n",
		"tools/override.yaml":   "services:\n  shell: {command: [ash], environment: {A: \"1\"}}\n",
		"tools/l.env":           "l=1\n",
		"site/site.conf":        "server {}\n",
		"secrets/key":           "PRIVATE\n",
		"profiles/seccomp.json": "{}\n",
		"README.md":             "not named by anything\n",
		".env":                  "CADDY=9\n",
	}
}

func names(t *testing.T, fsys fs.FS) []string {
	t.Helper()
	var out []string
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			out = append(out, name)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func TestPackSeveralFiles(t *testing.T) {
	p, err := compose.Pack(t.Context(), "line", project(several()))
	if err != nil {
		t.Fatalf("Pack: %v", err)
	}
	want := []string{
		"common/base.labels", "common/extra.env", "common/root.env", "compose.yaml", "db/db.env", "db/init.sql", "profiles/seccomp.json",
		"secrets/key", "site/site.conf", "tools/l.env",
	}
	if diff := cmp.Diff(want, names(t, p.Files)); diff != "" {
		t.Errorf("packed files (-want +got):\n%s", diff)
	}
	golden := filepath.Join("testdata", "packed", "several.yaml")
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(golden, p.Compose, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(data), string(p.Compose)); diff != "" {
		t.Errorf("compose.yaml (-want +got):\n%s", diff)
	}
	for range 20 {
		again, err := compose.Pack(t.Context(), "line", project(several()))
		if err != nil || string(again.Compose) != string(p.Compose) {
			t.Fatalf("two packings of one project differ: %v", err)
		}
	}
	images, err := p.Images(nil)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"caddy:2", "postgres:16", "busybox"}, images); diff != "" {
		t.Errorf("images (-want +got):\n%s", diff)
	}
	p.Notices = slices.DeleteFunc(p.Notices, func(n strict.Fault) bool { return strings.Contains(n.Message, "runtime.allowPrivileged") })
	if len(p.Notices) != 1 || p.Notices[0].Path != "services.web.build" || p.Notices[0].File != "line/compose.yaml" || p.Notices[0].Line != 20 {
		t.Errorf("notices = %+v, want one at line/compose.yaml:20", p.Notices)
	}
	// A device takes what was packed.
	loaded, err := compose.Load(t.Context(), &artifacts.Archive{Root: "line", FS: p.Files, Compose: p.Compose}, compose.Options{AllowUnpinned: true})
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	if len(loaded.Services) != 3 {
		t.Errorf("the device has %d services, want web, worker and db: tools are off", len(loaded.Services))
	}
}

// Packing resolves what compose-go would: a project is the same before and after.
func TestPackMeansTheSame(t *testing.T) {
	files, env := several(), types.Mapping{"BASE": "2"}
	want, err := modelOf(t, files, env, composefile.Name)
	if err != nil {
		t.Fatalf("compose-go: %v", err)
	}
	got, err := packedModel(t, files, env)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the packed project differs (-before +after):\n%s", diff)
	}
}

// A project that needs nothing resolved is packed byte for byte, comments and all.
func TestPackKeepsBytes(t *testing.T) {
	const text = "# mine\nservices:\n  a: {image: x, env_file: a.env} # kept\n"
	p, err := compose.Pack(t.Context(), "d", project(map[string]string{"compose.yaml": text, "a.env": "A=1\n", "b.env": "B=1\n"}))
	if err != nil {
		t.Fatal(err)
	}
	if string(p.Compose) != text {
		t.Errorf("compose.yaml = %q", p.Compose)
	}
	if diff := cmp.Diff([]string{"a.env", "compose.yaml"}, names(t, p.Files)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
}

func TestPackRefuses(t *testing.T) {
	chain := map[string]string{"compose.yaml": "services:\n  s0: {image: x}\n"}
	for i := range 40 {
		chain["compose.yaml"] += fmt.Sprintf("  s%d: {extends: s%d}\n", i+1, i)
	}
	diamonds := map[string]string{"compose.yaml": "include: [f0.yaml]\nservices: {a: {image: x}}\n", "f20.yaml": "services: {z: {image: x}}\n"}
	for i := range 20 {
		next := fmt.Sprintf("f%d.yaml", i+1)
		diamonds[fmt.Sprintf("f%d.yaml", i)] = "include: [" + next + ", " + next + "]\nservices: {}\n"
	}
	cases := []struct {
		name  string
		files map[string]string
		want  string // file:line:column: path: message
	}{
		{"nothing", nil, "d/compose.yaml:1:1: read compose.yaml"},
		{
			"include cycle",
			map[string]string{"compose.yaml": "include: [a.yaml]\nservices: {}", "a.yaml": "include: [compose.yaml]\n"},
			"d/a.yaml:1:11: include[0]: files include each other: compose.yaml → a.yaml → compose.yaml",
		},
		{"a tab", map[string]string{"compose.yaml": "services:\n  web:\n    image: x\n    init: true\n\tports: [1]\n"}, "d/compose.yaml:5:1: a tab, where only spaces may stand"},
		{"include itself", map[string]string{"compose.yaml": "include: [compose.yaml]\n"}, "d/compose.yaml:1:11: include[0]: files include each other"},
		{"include missing", map[string]string{"compose.yaml": "include: [a.yaml]\n"}, "d/compose.yaml:1:11: include[0]: read a.yaml"},
		{"include outside", map[string]string{"compose.yaml": "include: [../a.yaml]\n"}, "d/compose.yaml:1:11: include[0]: ../a.yaml is outside"},
		{"include remote", map[string]string{"compose.yaml": "include: [\"oci://x/y\"]\n"}, "is elsewhere"},
		{"include variable", map[string]string{"compose.yaml": "include: [\"${A}.yaml\"]\n"}, "holds a variable"},
		{"include env file", map[string]string{"compose.yaml": "include: [{path: a.yaml, env_file: a.env}]\n"}, "include[0].env_file: read env file: "},
		{"include broken", map[string]string{"compose.yaml": "include: [a/b.yaml]\n", "a/b.yaml": "a: [\n"}, "d/a/b.yaml:"},
		{"include often", diamonds, "reads more than"},
		{"extends cycle", map[string]string{"compose.yaml": "services:\n  a: {extends: b}\n  b: {extends: a}\n"}, "services.a.extends: services extend each other: a (compose.yaml) → b (compose.yaml) → a"},
		{"extends deep", chain, "more than 32 services extend each other"},
		{"extends missing", map[string]string{"compose.yaml": "services:\n  a: {extends: b}\n"}, "d/compose.yaml:2:7: services.a.extends: service \"b\" is not in compose.yaml"},
		{"extends without service", map[string]string{"compose.yaml": "services:\n  a: {extends: {file: b.yaml}}\n"}, "service is missing"},
		{"extends outside", map[string]string{"compose.yaml": "services:\n  a: {extends: {file: /etc/b.yaml, service: a}}\n"}, "services.a.extends.file: /etc/b.yaml is outside"},
		{"extends another form", map[string]string{"compose.yaml": "services:\n  a: {extends: b, ports: {a: b}}\n  b: {image: x, ports: [\"80:80\"]}\n"}, "cannot be merged over"},
		{"extends with odd values", map[string]string{"compose.yaml": "services:\n  a: {extends: b, configs: [{source: c, target: 5}], build: 5}\n  b: {image: x, configs: [{source: c, target: 6}], build: [6]}\n"}, "services.a.configs[1]: config \"c\" is not defined"},
		{"env file outside", map[string]string{"compose.yaml": "services: {a: {image: x, env_file: ../a.env}}"}, "d/compose.yaml:1:26: services.a.env_file: ../a.env is outside"},
		{"env file missing", map[string]string{"compose.yaml": "services: {a: {image: x, env_file: a.env}}"}, "services.a.env_file: \"a.env\" is not in the archive"},
		{"secret outside", map[string]string{"compose.yaml": "services: {a: {image: x}}\nsecrets: {s: {file: /etc/shadow}}"}, "secrets.s.file: /etc/shadow is outside"},
		{"config variable", map[string]string{"compose.yaml": "services: {a: {image: x}}\nconfigs: {s: {file: \"${F}\"}}"}, "configs.s.file: ${F} holds a variable"},
		{"config directory", map[string]string{"compose.yaml": "services: {a: {image: x}}\nconfigs: {s: {file: conf}}", "conf/a": ""}, "configs.s.file: conf is no file"},
		{
			"fault in an included file",
			map[string]string{"compose.yaml": "include: [a/b.yaml]\n", "a/b.yaml": "services:\n  a: {image: x, prots: []}\n"},
			"d/a/b.yaml:2:17: services.a.prots: unknown key, did you mean \"ports\"?",
		},
		{"tag of a file", map[string]string{"compose.yaml": "!reset {services: {a: {image: x}}}"}, "d/compose.yaml:1:1: tag !reset of a whole file"},
		{"build without image", map[string]string{"compose.yaml": "services: {a: {build: .}}"}, "services.a.build: not possible on a device"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := compose.Pack(t.Context(), "d", project(c.files))
			if err == nil || !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), c.want) {
				t.Errorf("Pack: %v\nwant a fault.ErrInvalid with %q", err, c.want)
			}
		})
	}
}

// FuzzPack holds packing to its promise on any bytes: an error or a project that a device reads.
func FuzzPack(f *testing.F) {
	files := several()
	for _, name := range slices.Sorted(maps.Keys(files)) {
		f.Add([]byte(files[name]), []byte(files["common/base.yaml"]))
	}
	f.Add([]byte("include: [b.yaml]\nservices: {a: {extends: {file: b.yaml, service: a}}}"), []byte("services: {a: {image: x, ports: !reset []}}"))
	f.Add([]byte("services: {a: {image: \"1\", extends: b}, b: {environment: {A: 0x10, B: yes, C: 1e3}, labels: [\"a=$$b\"]}}"), []byte(""))
	f.Fuzz(func(t *testing.T, a, b []byte) {
		fsys := fstest.MapFS{"compose.yaml": {Data: a}, "b.yaml": {Data: b}, "common/base.yaml": {Data: b}, "db/compose.yaml": {Data: b}, "a.env": {Data: b}}
		p, err := compose.Pack(t.Context(), "d", fsys)
		if err != nil {
			return
		}
		if _, err := compose.CheckFile(t.Context(), "d", p.Compose, p.Files); err != nil {
			t.Errorf("what was packed is refused: %v\n%s", err, p.Compose)
		}
	})
}

// The colon of a default parts no volume's name from its place: mounts at different places are different ones.
func TestMergeKeepsVolumesWithDefaults(t *testing.T) {
	p, err := compose.Pack(t.Context(), "d", project(map[string]string{"compose.yaml": `
services:
  base: {image: x, volumes: ["${DATA:-/srv}:/a", "${DATA:-/srv}:/b:ro", "/old:/c"]}
  web: {extends: base, volumes: ["${NEW:-/new}:/c", "${DATA:-/srv}:/d"], environment: ["A=${A:-1}"]}
`}))
	if err != nil {
		t.Fatal(err)
	}
	loaded, err := compose.Load(t.Context(), &artifacts.Archive{Root: "d", FS: p.Files, Compose: p.Compose}, compose.Options{AllowUnpinned: true})
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, m := range loaded.Services[1].Mounts {
		got = append(got, m.Source+":"+m.Target)
	}
	if diff := cmp.Diff([]string{"/srv:/a", "/srv:/b", "/new:/c", "/srv:/d"}, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
}

// Characters that end a line for some readers of YAML, or that some skip, are packed as escapes.
func TestPackEscapesWhatReadersTakeDifferently(t *testing.T) {
	for _, text := range []string{"a\u2028b", "a\u2029b", "a\u0085b", "a\ufeffb", "a\rb"} {
		quoted := strconv.QuoteToASCII(text)
		p, packed := packedAndLoaded(t, "services: {b: {image: x, command: ["+quoted+"], labels: {"+quoted+": 1}}, a: {extends: b}}\n", nil)
		for _, s := range p.Services {
			if len(s.Command) != 1 || s.Command[0] != text || s.Labels[text] != "1" {
				t.Errorf("service %s has command %q and labels %q, want %s in both", s.Name, s.Command, s.Labels, quoted)
			}
		}
		if bytes.ContainsAny(packed.Compose, "\u2028\u2029\u0085\ufeff\r") {
			t.Errorf("%s is not escaped:\n%s", quoted, packed.Compose)
		}
	}
}
