package compose_test

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/compose-spec/compose-go/v2/loader"
	"github.com/compose-spec/compose-go/v2/types"
	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/artifacts/composefile"
)

// modelOf is what compose-go makes of the files of a directory, with env for variables, as YAML.
func modelOf(t *testing.T, files map[string]string, env types.Mapping, layers ...string) (string, error) {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		file := filepath.Join(dir, filepath.FromSlash(name))
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	details := types.ConfigDetails{WorkingDir: dir, Environment: env}
	for _, name := range layers {
		details.ConfigFiles = append(details.ConfigFiles, types.ConfigFile{Filename: filepath.Join(dir, name)})
	}
	p, err := loader.LoadWithContext(t.Context(), details, func(o *loader.Options) { o.SetProjectName("line", true); o.Profiles = []string{"*"} })
	if err != nil {
		return "", err
	}
	for name, s := range p.Services { // what packing leaves out
		s.Build, s.Develop, s.Attach, s.EnvFiles = nil, nil, nil, nil
		p.Services[name] = s
	}
	out, err := p.MarshalYAML()
	if err != nil {
		t.Fatal(err)
	}
	return strings.ReplaceAll(string(out), dir, "ROOT"), nil
}

// packedModel is modelOf what is packed of the files.
func packedModel(t *testing.T, files map[string]string, env types.Mapping, layers ...string) (string, error) {
	t.Helper()
	p, err := compose.Pack(t.Context(), "d", project(files), layers...)
	if err != nil {
		return "", err
	}
	packed := map[string]string{}
	for _, name := range names(t, p.Files) {
		data, err := fs.ReadFile(p.Files, name)
		if err != nil {
			t.Fatal(err)
		}
		packed[name] = string(data)
	}
	return modelOf(t, packed, env, composefile.Name)
}

// sameAsComposeGo packs files, each laid over the one before it. other is the text of other.yaml.
func sameAsComposeGo(t *testing.T, other string, texts ...string) {
	t.Helper()
	files := map[string]string{"other.yaml": other, "e.env": "E=1\n", "l.env": "l=1\n"}
	var layers []string
	for i, text := range texts {
		layers = append(layers, fmt.Sprintf("f%d.yaml", i))
		files[layers[i]] = text
	}
	want, err := modelOf(t, files, nil, layers...)
	if err != nil {
		t.Fatalf("compose-go: %v", err)
	}
	got, err := packedModel(t, files, nil, layers...)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("the packed project differs (-compose-go +packed):\n%s", diff)
	}
}

// A tag forgets what is below the file that has it: other files, and what its services extend and include. It has no say in
// what is laid over that file.
func TestTagsForgetWhatIsBelow(t *testing.T) {
	of := func(fields string) string { return "services: {a: {" + fields + "}}\n" }
	two := func(a, b string) string { return "services:\n  a: {" + a + "}\n  b: {" + b + "}\n" }
	const including = "include: [other.yaml]\nservices:\n"
	cases := []struct {
		name  string
		files []string
		other string
	}{
		{"reset below a text", []string{of("image: x, command: !reset b"), of("command: c")}, ""},
		{"reset below a list", []string{of("image: x, expose: !reset [\"80\"]"), of("expose: [\"81\"]")}, ""},
		{"reset below a mapping", []string{of("image: x, environment: !reset {A: 1}"), of("environment: {B: 2}")}, ""},
		{"reset of nothing", []string{of("image: x"), of("command: !reset null, expose: !reset []")}, ""},
		{"reset", []string{of("image: x, command: b, expose: [\"80\"], environment: {A: 1, B: 2}"), of("command: !reset null, expose: !reset [], environment: {A: !reset null}")}, ""},
		{"reset, then a value", []string{of("image: x, expose: [\"80\"]"), of("expose: !reset []"), of("expose: [\"81\"]")}, ""},
		{"a value, then reset", []string{of("image: x, expose: [\"80\"]"), of("expose: [\"81\"]"), of("expose: !reset []")}, ""},
		{"override below a value", []string{of("image: x, expose: !override [\"80\"]"), of("expose: [\"81\"]")}, ""},
		{"override", []string{of("image: x, expose: [\"80\"]"), of("expose: !override [\"81\"]")}, ""},
		{"override in both", []string{of("image: x, expose: !override [\"80\"]"), of("expose: !override [\"81\"]")}, ""},
		{"override, then a value", []string{of("image: x, expose: [\"80\"]"), of("expose: !override [\"81\"]"), of("expose: [\"82\"]")}, ""},
		{"override of a service", []string{of("image: x, expose: [\"80\"]"), "services: {a: !override {image: y}}\n"}, ""},
		{"override of a service, then a value", []string{of("image: x, expose: [\"80\"]"), "services: {a: !override {image: y}}\n", of("expose: [\"82\"]")}, ""},
		{"reset of a service", []string{two("image: x", "image: y, command: c"), "services: {b: !reset null}\n"}, ""},
		{"reset of a service, then a service", []string{two("image: x", "image: y, command: c"), "services: {b: !reset null}\n", "services: {b: {image: z}}\n"}, ""},
		{"reset within a mapping", []string{of("image: x, healthcheck: {test: a, interval: 1s}"), of("healthcheck: {interval: !reset null, timeout: 1s}"), of("healthcheck: {interval: 3s}")}, ""},
		{"override within a mapping", []string{of("image: x, healthcheck: {test: a}, logging: {options: {max-size: 1m}}"), of("logging: {options: !override {max-file: \"2\"}}"), of("logging: {options: {max-size: 2m}}")}, ""},
		{"reset of an entry", []string{of("image: x, expose: [\"80\"]"), of("expose: [!reset \"80\", \"81\"]")}, ""},
		{"override of an entry", []string{of("image: x, volumes: [\"/a:/a\"]"), of("volumes: [!override {type: bind, source: /b, target: /a}]")}, ""},
		{"behind an anchor", []string{of("image: x, expose: [\"80\"]"), "x-a: &a {expose: !reset []}\nservices:\n  a: {<<: *a}\n"}, ""},

		{"extended service with override", []string{of("image: x, expose: [\"80\"]"), two("extends: b", "image: y, expose: !override [\"81\"]")}, ""},
		{"extended service with reset", []string{of("image: x, expose: [\"80\"]"), two("extends: b", "image: y, expose: !reset [\"81\"]")}, ""},
		{"extends with reset", []string{of("image: x, expose: [\"80\"]"), two("extends: b, expose: !reset []", "image: y, expose: [\"81\"]")}, ""},
		{"extends with override", []string{of("image: x, expose: [\"80\"]"), two("extends: b, expose: !override [\"82\"]", "image: y, expose: [\"81\"]")}, ""},
		{"extends one that overrides", []string{two("extends: b, expose: [\"80\"]", "extends: c, expose: !override [\"81\"]") + "  c: {image: z, expose: [\"82\"]}\n"}, ""},
		{"extends one that resets", []string{two("extends: b, expose: [\"80\"]", "extends: c, expose: !reset []") + "  c: {image: z, expose: [\"82\"]}\n"}, ""},
		{"override of a service that extends", []string{of("image: x, expose: [\"80\"]"), "services:\n  a: !override {extends: b, command: c}\n  b: {image: y, expose: [\"81\"]}\n"}, ""},
		{
			"extends another file that has tags",
			[]string{of("image: x, expose: [\"80\"], cap_add: [CHOWN]"), of("extends: {file: other.yaml, service: b}, expose: [\"83\"]")},
			"services:\n  b: {extends: c, expose: !override [\"81\"], cap_add: !reset []}\n  c: {image: y, expose: [\"82\"], cap_add: [KILL]}\n",
		},

		{"include with reset", []string{including + "  a: {expose: !reset [], command: c}\n"}, of("image: x, expose: [\"80\"]")},
		{"include with override", []string{including + "  a: {expose: !override [\"81\"]}\n"}, of("image: x, expose: [\"80\"]")},
		{"included file with tags", []string{including + "  a: {expose: [\"81\"], command: d}\n"}, of("image: x, expose: !override [\"80\"], command: !reset c")},
		{"include with reset of a service", []string{including + "  a: !reset null\n  b: {image: y}\n"}, of("image: x")},
		{"include with override of a service", []string{including + "  a: !override {image: y}\n"}, of("image: x, command: c")},
		{"include with tags over a file", []string{of("image: x, expose: [\"80\"], cap_add: [CHOWN]"), including + "  a: {expose: !override [\"81\"], cap_add: !reset []}\n"}, of("image: x, expose: [\"82\"], cap_add: [KILL]")},
		{"included file with tags over a file", []string{of("image: x, expose: [\"80\"], cap_add: [CHOWN]"), "include: [other.yaml]\n"}, of("image: x, expose: !override [\"82\"], cap_add: !reset [KILL]")},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) { sameAsComposeGo(t, c.other, c.files...) })
	}
}

// What one list holds has no say in what becomes of the others: the library stops at the first entry that it cannot read, and
// goes through mappings in no order.
func TestMergeIsTheSameEveryTime(t *testing.T) {
	const base = "services:\n  base: {image: x, volumes: [\"/old:/a\", \"/b:/b\"], expose: [\"80\"], dns: [10.0.0.1], tmpfs: [\"/t=1\"], cap_add: [KILL]}\n"
	t.Run("with entries that are no text", func(t *testing.T) {
		files := project(map[string]string{"compose.yaml": base + "  a: {extends: base, profiles: [1], networks: {n: {aliases: [5]}}, volumes: [\"/new:/a\"], expose: [80], cap_add: [KILL]}\nnetworks: {n: }\n"})
		var first []byte
		for range 100 {
			p, err := compose.Pack(t.Context(), "d", files)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = p.Compose
			}
			if diff := cmp.Diff(string(first), string(p.Compose)); diff != "" {
				t.Fatalf("two packings of one project differ:\n%s", diff)
			}
			if !strings.Contains(string(first), "- /new:/a\n      - /b:/b\n") {
				t.Fatalf("the volumes are not /new:/a, in the place of the one that it replaces, and /b:/b:\n%s", first)
			}
		}
	})
	t.Run("with values of other forms", func(t *testing.T) {
		files := project(map[string]string{"compose.yaml": base + "  a:\n    extends: base\n    volumes: {a: b}\n    expose: 80\n    cap_add: KILL\n    image: y\n"})
		want := "d/compose.yaml:5:5: services.a.volumes: cannot be merged over services.base.volumes, which has another form\n" +
			"d/compose.yaml:6:5: services.a.expose: cannot be merged over services.base.expose, which has another form\n" +
			"d/compose.yaml:7:5: services.a.cap_add: cannot be merged over services.base.cap_add, which has another form"
		for range 100 {
			_, err := compose.Pack(t.Context(), "d", files)
			if err == nil || err.Error() != want {
				t.Fatalf("Pack: %v\nwant %s", err, want)
			}
		}
	})
}

// A key without a value says nothing, and what is below it stays; but for a command, which is forgotten.
func TestNullKeepsWhatIsBelow(t *testing.T) {
	const rest = "  b: {image: y}\nnetworks: {n: }\nconfigs: {c: {content: q}}\nsecrets: {s: {environment: q}}\n"
	for _, field := range []string{
		"user: u", "init: true", "stop_grace_period: 3s", "restart: always", "mem_limit: 1g", "command: b", "entrypoint: [b]",
		"expose: [\"80\"]", "ports: [\"80:80\"]", "volumes: [\"/a:/a\"]", "cap_add: [KILL]", "security_opt: [\"no-new-privileges:true\"]",
		"devices: [\"/dev/a:/dev/a\"]", "configs: [c]", "secrets: [s]", "profiles: [p]", "group_add: [\"5\"]",
		"environment: {A: 1}", "environment: [A=1]", "labels: {a: b}", "labels: [a=b]", "annotations: {a: b}", "sysctls: {net.core.somaxconn: 1}",
		"tmpfs: /t", "tmpfs: [/t]", "dns: 10.0.0.1", "dns: [10.0.0.1]", "dns_search: [a]", "dns_opt: [a]", "extra_hosts: {a: 10.0.0.1}",
		"healthcheck: {test: a, interval: 1s}", "deploy: {replicas: 2}", "ulimits: {nofile: 5}", "networks: [n]", "networks: {n: {aliases: [q]}}",
		"depends_on: [b]", "depends_on: {b: {condition: service_started}}", "env_file: [e.env]", "label_file: [l.env]",
	} {
		key, _, _ := strings.Cut(field, ":")
		t.Run(field, func(t *testing.T) {
			sameAsComposeGo(t, "", "services:\n  a: {image: x, "+field+"}\n"+rest, "services:\n  a: {"+key+": }\n")
		})
	}
	t.Run("a service", func(t *testing.T) {
		sameAsComposeGo(t, "", "services: {a: {image: x, command: b}}\nnetworks: {n: {internal: true}}\n", "services: {a: }\nnetworks: {n: }\n")
	})
	for field, want := range map[string]string{
		"user: [1]":             "d/compose.yaml:1:26: services.a.user: must be text",
		"init: 5":               "d/compose.yaml:1:26: services.a.init: must be true or false",
		"mem_limit: q":          "d/compose.yaml:1:26: services.a.mem_limit: \"q\" is no size",
		"ports: {a: b}":         "d/compose.yaml:1:26: services.a.ports: must be a list",
		"ports: [x]":            "d/compose.yaml:1:34: services.a.ports[0]: ",
		"healthcheck: 5":        "d/compose.yaml:1:26: services.a.healthcheck: must be a mapping",
		"environment: [\"=5\"]": "d/compose.yaml:1:40: services.a.environment[0]: there is no name",
	} {
		t.Run("position of "+field, func(t *testing.T) {
			key, _, _ := strings.Cut(field, ":")
			_, err := compose.Pack(t.Context(), "d", project(map[string]string{
				"compose.yaml": "services: {a: {image: x, " + field + "}}\n", "over.yaml": "services:\n  a:\n    " + key + ":\n",
			}), "compose.yaml", "over.yaml")
			if err == nil || !strings.HasPrefix(err.Error(), want) {
				t.Errorf("Pack: %v\nwant %s", err, want)
			}
		})
	}
}

// The subnets of the later file are those of a network. One that both files have keeps what the later one does not say, and
// nothing of another subnet.
func TestMergeOfSubnets(t *testing.T) {
	const (
		a    = "{subnet: 10.1.0.0/24, gateway: 10.1.0.9, aux_addresses: {x: 10.1.0.3}}"
		a2   = "{subnet: 10.1.0.0/24, ip_range: 10.1.0.128/25, aux_addresses: {y: 10.1.0.4}}"
		both = "{subnet: 10.1.0.0/24, gateway: 10.1.0.9, aux_addresses: {x: 10.1.0.3, y: 10.1.0.4}, ip_range: 10.1.0.128/25}"
		b    = "{subnet: 10.2.0.0/24, gateway: 10.2.0.9}"
		c    = "{subnet: 10.3.0.0/24}"
	)
	of := func(subnets string) string {
		return "services: {a: {image: x, networks: [n]}}\nnetworks: {n: {ipam: {config: [" + subnets + "]}}}\n"
	}
	for _, tc := range []struct {
		earlier, later, want string
		docker               bool // compose-go does the same
	}{
		{a, a, a, true},
		{a, a2, both, true},
		{a, c, c, true},
		{a, b + "," + c, b + "," + c, true},
		{a, a2 + "," + b, both + "," + b, true},
		{a + "," + b, c, c, false},
		{a + "," + b, a2, both, false},
		{b + "," + a, a2 + "," + b, both + "," + b, false},
	} {
		t.Run(tc.earlier+" below "+tc.later, func(t *testing.T) {
			if tc.docker {
				sameAsComposeGo(t, "", of(tc.earlier), of(tc.later))
			}
			files := map[string]string{"a.yaml": of(tc.earlier), "b.yaml": of(tc.later), "compose.yaml": of(tc.want)}
			got, err := packedModel(t, files, nil, "a.yaml", "b.yaml")
			if err != nil {
				t.Fatal(err)
			}
			want, err := modelOf(t, files, nil, composefile.Name)
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("the packed project (-want +got):\n%s", diff)
			}
		})
	}
	t.Run("of an included file", func(t *testing.T) {
		got, err := packedModel(t, map[string]string{"compose.yaml": "include: [a.yaml]\n" + of(a2), "a.yaml": of(a + "," + b)}, nil, "compose.yaml")
		if err != nil {
			t.Fatal(err)
		}
		want, err := modelOf(t, map[string]string{"compose.yaml": of(both)}, nil, "compose.yaml")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("the packed project (-want +got):\n%s", diff)
		}
	})
	_, err := packedModel(t, map[string]string{"a.yaml": of(a), "b.yaml": of("{subnet: 10.1.0.0/24, aux_addresses: [q]}")}, nil, "a.yaml", "b.yaml")
	if want := "networks.n.ipam.config: cannot be merged over networks.n.ipam.config, which has another form"; err == nil || !strings.HasSuffix(err.Error(), want) {
		t.Errorf("Pack of a list over a mapping: %v, want %q", err, want)
	}
}
