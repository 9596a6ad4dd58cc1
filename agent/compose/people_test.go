package compose_test

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// packedAndLoaded packs a project as its author does and loads it as a device does.
func packedAndLoaded(t *testing.T, text string, files map[string]string) (*workload.Project, *compose.Packed) {
	t.Helper()
	fsys := fstest.MapFS{"compose.yaml": {Data: []byte(text)}}
	for name, data := range files {
		fsys[name] = &fstest.MapFile{Data: []byte(data)}
	}
	packed, err := compose.Pack(t.Context(), "dir", fsys)
	if err != nil {
		t.Fatalf("Pack: %v", err)
	}
	p, err := compose.Load(t.Context(), &artifacts.Archive{Root: "dir", FS: packed.Files, Compose: packed.Compose}, compose.Options{AllowUnpinned: true})
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return p, packed
}

// A file beside compose.yaml is packed without :ro too, with a notice; a path where there is nothing is refused.
func TestRelativeMountsWithoutReadOnly(t *testing.T) {
	p, packed := packedAndLoaded(t, `services:
  a:
    image: x
    volumes:
      - ./site.conf:/etc/site.conf
      - ./html:/srv:rw
      - {type: bind, source: ./one.txt, target: /one.txt}
      - ./two.txt:/two.txt:ro
`, map[string]string{"site.conf": "s", "html/index.html": "i", "one.txt": "1", "two.txt": "2"})
	var got []string
	for _, f := range p.Services[0].Files {
		got = append(got, f.Target+" "+f.Path+" "+string(f.Content))
	}
	if diff := cmp.Diff([]string{"/etc/site.conf  s", "/srv index.html i", "/one.txt  1", "/two.txt  2"}, got); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	said := 0
	for _, n := range packed.Notices {
		if strings.Contains(n.Message, "mounted read-only") {
			said++
		}
	}
	if said != 3 {
		t.Errorf("%d notices of %v, want one for each of three", said, packed.Notices)
	}
	for _, source := range []string{"./data", "./empty", "../up", "./", "~/data"} {
		fsys := fstest.MapFS{
			"compose.yaml": {Data: []byte("services: {a: {image: x, volumes: [\"" + source + ":/data\"]}}\n")}, "other": {},
			"empty": {Mode: 0o755 | 1<<31},
		}
		_, err := compose.Pack(t.Context(), "dir", fsys)
		wantFault(t, err, "services.a.volumes[0]", "no absolute path on the device")
	}
}

// A namespace of a container that has a name in the file is that of its service.
func TestNamespacesByContainerName(t *testing.T) {
	p := load(t, `services:
  vpn: {image: x, container_name: gluetun}
  app: {image: x, network_mode: "container:gluetun", pid: "container:gluetun", ipc: "container:gluetun", volumes_from: ["container:gluetun:ro"]}
`, nil)
	app := p.Services[1]
	want := workload.Namespaces{Network: "service:vpn", PID: "service:vpn", IPC: "service:vpn"}
	if diff := cmp.Diff(want, app.Namespaces); diff != "" {
		t.Errorf("namespaces (-want +got):\n%s", diff)
	}
	if len(app.DependsOn) != 1 || app.DependsOn[0].Service != "vpn" {
		t.Errorf("it depends on %+v, want vpn", app.DependsOn)
	}
	for _, key := range []string{"network_mode: ", "pid: ", "ipc: "} {
		_, err := compose.CheckFile(t.Context(), "f", []byte("services: {a: {image: x, "+key+"\"container:other\"}}"), nil)
		wantFault(t, err, "services.a."+strings.TrimSuffix(key, ": "), "no service of the file has container_name")
	}
}

// A volume without a name that another service mounts is one volume of both.
func TestVolumesFromUnnamed(t *testing.T) {
	p := load(t, "services:\n  a: {image: x, volumes: [/data, named:/other]}\n  b: {image: x, volumes_from: [a]}\n  c: {image: x, volumes_from: [\"b:ro\"]}\nvolumes: {named: {}}\n", nil)
	var got []string
	for _, s := range p.Services {
		for _, m := range s.Mounts {
			entry := s.Name + " " + m.Source + " " + m.Target
			if m.ReadOnly {
				entry += " ro"
			}
			got = append(got, entry)
		}
	}
	if diff := cmp.Diff([]string{"a a-data /data", "a named /other", "b a-data /data", "b named /other", "c a-data /data ro", "c named /other ro"}, got); diff != "" {
		t.Errorf("mounts (-want +got):\n%s", diff)
	}
	if len(p.Volumes) != 2 || p.Volumes[0].Name != "a-data" {
		t.Errorf("volumes are %+v", p.Volumes)
	}
}

// Volumes without names that others mount are never one volume by accident, however alike their services and places are.
func TestVolumesFromUnnamedApart(t *testing.T) {
	p := load(t, `services:
  a: {image: x, volumes: [/b-c, /b/c, /b-d]}
  a-b: {image: x, volumes: [/c]}
  user: {image: x, volumes_from: [a]}
  other: {image: x, volumes_from: [a-b]}
`, nil)
	places := map[string]string{} // volume -> service and place that it was made for
	for _, s := range p.Services {
		for _, m := range s.Mounts {
			from := map[string]string{"user": "a", "other": "a-b"}[s.Name]
			if from == "" {
				from = s.Name
			}
			place := from + " " + m.Target
			if was, ok := places[m.Source]; ok && was != place {
				t.Errorf("volume %q is at %s and at %s", m.Source, was, place)
			}
			places[m.Source] = place
		}
	}
	if len(places) != 4 || len(p.Volumes) != 4 || places["a-b-c"] != "a /b/c" {
		t.Errorf("volumes are %v and %v", places, p.Volumes)
	}
}

// Ports that nothing leads to are found at the desk, as on a device.
func TestUnreachablePorts(t *testing.T) {
	for text, want := range map[string]string{
		`services: {a: {image: x, ports: ["[::1]:9102:9000"]}}`:                                                            "IPv6 loopback",
		`services: {a: {image: x, networks: [n], ports: ["8080:80"]}}` + "\nnetworks: {n: {internal: true}}":               "none of its networks leads there",
		`services: {a: {image: x, networks: [n], ports: ["[2001:db8::1]:8080:80"]}}` + "\nnetworks: {n: {}}":               "none of its networks leads there",
		`services: {a: {image: x, networks: [n], ports: ["127.0.0.1:8080:80"]}}` + "\nnetworks: {n: {enable_ipv4: false}}": "none of its networks leads there",
	} {
		_, err := compose.CheckFile(t.Context(), "f", []byte(text), nil)
		wantFault(t, err, "services.a.ports[0]", want)
	}
	for _, text := range []string{
		`services: {a: {image: x, ports: ["8080:80", "127.0.0.1:81:81", "[::]:82:82"]}}`,
		`services: {a: {image: x, networks: [n, m], ports: ["8080:80"]}}` + "\nnetworks: {n: {internal: true}, m: {}}",
		`services: {a: {image: x, networks: [n], ports: ["8080:80"]}}` + "\nnetworks: {n: {internal: \"${X}\"}}",
		`services: {a: {image: x, networks: [n], ports: ["8080:80"]}}` + "\nnetworks: {n: {external: true, name: m}}",
	} {
		if _, err := compose.CheckFile(t.Context(), "f", []byte(text), nil); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

// What an OCI runtime refuses is found before anything is stopped for it.
func TestTargetsOfRuntimes(t *testing.T) {
	for text, path := range map[string]string{
		`services: {a: {image: x, tmpfs: [/proc]}}`:                                                                      "services.a.tmpfs[0]",
		`services: {a: {image: x, tmpfs: /proc/x}}`:                                                                      "services.a.tmpfs",
		`services: {a: {image: x, volumes: ["/opt/a:/proc/sys"]}}`:                                                       "services.a.volumes[0]",
		`services: {a: {image: x, volumes: ["vol:/proc/cpuinfo"]}}` + "\nvolumes: {vol: {}}":                             "services.a.volumes[0]",
		`services: {a: {image: x, volumes: ["/opt:/proc"]}}`:                                                             "services.a.volumes[0]",
		`services: {a: {image: x, configs: [{source: c, target: /proc/sys/kernel/x}]}}` + "\nconfigs: {c: {content: c}}": "services.a.configs[0]",
	} {
		_, err := compose.CheckFile(t.Context(), "f", []byte(text), nil)
		wantFault(t, err, path, "nothing can be mounted on /proc")
	}
	for _, text := range []string{
		`services: {a: {image: x, volumes: ["/proc:/proc", "/opt/cpu:/proc/cpuinfo", "/proc:/host/proc:ro", "/opt/a:/process"]}}`,
		`services: {a: {image: x, user: "2147483647:0"}}`,
	} {
		if _, err := compose.CheckFile(t.Context(), "f", []byte(text), nil); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
	for _, user := range []string{"4294967296", "0:4294967296", "2147483648", "99999999999999999999"} {
		_, err := compose.CheckFile(t.Context(), "f", []byte(`services: {a: {image: x, user: "`+user+`"}}`), nil)
		wantFault(t, err, "services.a.user", "no number of a user or group")
	}
}

// A service that others wait for until it is healthy needs something that says so.
func TestHealthyWithoutAHealthCheckIsNoticed(t *testing.T) {
	notices, err := compose.CheckFile(t.Context(), "f", []byte(`services:
  a: {image: x}
  b: {image: x, healthcheck: {test: "true"}}
  c: {image: x, healthcheck: {test: "${T}"}}
  d: {image: x, depends_on: {a: {condition: service_healthy}, b: {condition: service_healthy}, c: {condition: service_healthy}}}
`), nil)
	if err != nil || len(notices) != 1 || notices[0].Path != "services.d.depends_on.a" || !strings.Contains(notices[0].Message, "no healthcheck") {
		t.Errorf("notices %v, %v; want one of a", notices, err)
	}
}

// What a device allows only with its owner's permission is told at the desk, where it stands.
func TestPrivilegesAreNoticed(t *testing.T) {
	files := fstest.MapFS{"conf": {Data: []byte("x")}}
	notices, err := compose.CheckFile(t.Context(), "f", []byte("services:\n  a:\n    image: x\n    pid: host\n    volumes: [\"./conf:/c:ro\", /opt/plant:/p, /etc:/e]\n"+
		"    cap_add: [SYS_ADMIN]\n    devices: [vendor.com/class=x, /dev]\n"), files)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, n := range notices {
		got = append(got, n.Path)
		if !strings.Contains(n.Message, "runtime.allowPrivileged") {
			t.Errorf("%v", n)
		}
	}
	if diff := cmp.Diff([]string{"services.a.pid", "services.a.volumes[2]", "services.a.cap_add", "services.a.devices[1]"}, got); diff != "" {
		t.Errorf("notices (-want +got):\n%s", diff)
	}
}

// The env files of an included project give its variables their defaults; parameters of the deployment come before them.
func TestIncludedEnvFile(t *testing.T) {
	const text = `include:
  - path: db/compose.yaml
    env_file: db/.env
services:
  web: {image: "x:${TAG:-1}"}
`
	files := map[string]string{
		"db/.env": "TAG=17\nMODE=fast$$1\nEMPTY=\nUNUSED=x\n",
		"db/compose.yaml": `services:
  db:
    image: postgres:$TAG
    environment:
      - TAG
      - OTHER
      - A=${MODE}
      - B=${MODE:-slow}
      - C=${MODE:?needed}
      - D=${MODE:+set}
      - E=${EMPTY:-empty}
      - F=${EMPTY-x}
      - G=${NONE:-${MODE}}
      - H=$$MODE
`,
	}
	_, packed := packedAndLoaded(t, text, files)
	for env, want := range map[string]string{
		"":     "A=fast$1 B=fast$1 C=fast$1 D=set E=empty F= G=fast$1 H=$MODE TAG=17 postgres:17 x:1",
		"slow": "A=slow B=slow C=slow D=set E=empty F= G=slow H=$MODE TAG=17 postgres:17 x:1",
	} {
		o := compose.Options{AllowUnpinned: true, Environment: map[string]string{}}
		if env != "" {
			o.Environment["MODE"] = env
		}
		p, err := compose.Load(t.Context(), &artifacts.Archive{Root: "dir", FS: packed.Files, Compose: packed.Compose}, o)
		if err != nil {
			t.Fatal(err)
		}
		var got []string
		for _, s := range p.Services {
			got = append(got, s.Environment...)
		}
		for _, s := range p.Services {
			got = append(got, s.Image.Repository[strings.LastIndex(s.Image.Repository, "/")+1:]+":"+s.Image.Tag)
		}
		slices.Sort(got)
		if diff := cmp.Diff(want, strings.Join(got, " ")); diff != "" {
			t.Errorf("MODE=%q (-want +got):\n%s", env, diff)
		}
	}
	for name, wrong := range map[string]string{"no env file: ": "db/none", "holds a brace": "db/brace"} {
		fsys := fstest.MapFS{
			"compose.yaml": {Data: []byte(strings.Replace(text, "db/.env", wrong, 1))}, "db/compose.yaml": {Data: []byte(files["db/compose.yaml"])},
			"db/brace": {Data: []byte("MODE=a}b\n")},
		}
		if _, err := compose.Pack(t.Context(), "dir", fsys); err == nil {
			t.Errorf("%s: packed", name)
		}
	}
}

// A mapping in a list of texts is told by its place.
func TestListsOfTexts(t *testing.T) {
	for key, entry := range map[string]string{"environment": "{A: 1}", "labels": "{a: b}", "command": "[a]", "entrypoint": "{a: b}"} {
		_, err := compose.CheckFile(t.Context(), "f", []byte("services: {a: {image: x, "+key+": [ok, "+entry+"]}}"), nil)
		wantFault(t, err, "services.a."+key+"[1]", "must be text")
	}
}

// A variable without a value in an env file is told by its line, and not by a name that may be half a password.
func TestEnvFileRefersToNothing(t *testing.T) {
	text := "A=1\nB=pa$word\nC=${A}${D:-4}\n# $word\nE\n"
	p, packed := packedAndLoaded(t, "services: {a: {image: x, env_file: a.env}}\n", map[string]string{"a.env": text})
	if diff := cmp.Diff([]string{"A=1", "B=pa", "C=14"}, p.Services[0].Environment); diff != "" {
		t.Errorf("environment (-want +got):\n%s", diff)
	}
	want := "line 2 of a.env refers to a variable without a value: it is empty unless a parameter of the deployment gives it one"
	if len(p.Notices) != 1 || p.Notices[0].Message != want || p.Notices[0].Path != "services.a.env_file" {
		t.Errorf("the device notes %+v, want %q", p.Notices, want)
	}
	if len(packed.Notices) != 1 || packed.Notices[0].Message != want || packed.Notices[0].Line != 1 {
		t.Errorf("the publisher notes %+v, want %q", packed.Notices, want)
	}
}

// A file that has something to note at each of very many places costs no more than its length explains, and what is listed
// is as much as of faults.
func TestNoticesAreBounded(t *testing.T) {
	const many = 20_000
	text := "services: {a: {image: x, env_file: a.env, logging: {options: [" + strings.Repeat("mode=, ", many) + "]}}}\n"
	p, packed := packedAndLoaded(t, text, map[string]string{"a.env": strings.Repeat("A=$b\n", many)})
	last := "and 19901 more notices" // of the options and the env file, without the 100 that are listed
	if n := len(p.Notices); n != 101 || p.Notices[100] != (workload.Notice{Message: last}) {
		t.Errorf("the device notes %d, at last %+v, want 101 and %q", n, p.Notices[n-1], last)
	}
	if n := len(packed.Notices); n != 101 || packed.Notices[100] != (strict.Fault{Message: last}) {
		t.Errorf("the publisher notes %d, at last %+v, want 101 and %q", n, packed.Notices[n-1], last)
	}
	want := "lines 1, 2, 3, 4, 5, 6, 7, 8, 9, 10 and 19990 more of a.env refer to variables without a value: " +
		"they are empty unless parameters of the deployment give them one"
	if packed.Notices[0].Message != want || p.Notices[0].Message != want {
		t.Errorf("of the env file: %q and %q, want %q", packed.Notices[0].Message, p.Notices[0].Message, want)
	}
}
