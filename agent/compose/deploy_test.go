package compose_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/compose"
	"github.com/longshore-dev/longshore/agent/workload"
)

func load(t *testing.T, file string, env map[string]string) *workload.Project {
	t.Helper()
	p, err := compose.Load(t.Context(), of(file), compose.Options{AllowUnpinned: true, Environment: env})
	if err != nil {
		t.Fatalf("Load: %v", err)
	}
	return p
}

func serviceNames(p *workload.Project) []string {
	var out []string
	for _, s := range p.Services {
		out = append(out, s.Name)
	}
	return out
}

// The deployment's parameter COMPOSE_PROFILES says which services exist.
func TestProfiles(t *testing.T) {
	const file = `services:
  web: {image: x, depends_on: {debug: {condition: service_started, required: false}}}
  debug: {image: x, profiles: [debug]}
  tools: {image: x, profiles: [tools, debug]}
  never: {image: x, scale: 0}
`
	for active, want := range map[string][]string{
		"": {"web"}, "debug": {"web", "debug", "tools"}, "tools": {"web", "tools"}, "a,tools": {"web", "tools"}, "*": {"web", "debug", "tools"}, "x": {"web"},
	} {
		p := load(t, file, map[string]string{"COMPOSE_PROFILES": active})
		if diff := cmp.Diff(want, serviceNames(p)); diff != "" {
			t.Errorf("services with profiles %q (-want +got):\n%s", active, diff)
		}
		if got := len(p.Services[0].DependsOn) == 1; got != slices.Contains(want, "debug") {
			t.Errorf("web depends on debug = %v with profiles %q", got, active)
		}
	}
	for _, c := range []struct{ file, path, message string }{
		{"services:\n  web: {image: x, depends_on: [debug]}\n  debug: {image: x, profiles: [debug]}\n", "services.web.depends_on[0]", "does not exist here: its profiles are off (debug)"},
		{"services:\n  web: {image: x, depends_on: [none]}\n  none: {image: x, deploy: {replicas: 0}}\n", "services.web.depends_on[0]", "does not exist here: it has no replicas"},
		{"services:\n  web: {image: x, links: [debug]}\n  debug: {image: x, profiles: [debug]}\n", "services.web.links[0]", "not defined"},
		{"services:\n  web: {image: x, network_mode: \"service:debug\"}\n  debug: {image: x, profiles: [debug]}\n", "services.web.network_mode", "not defined"},
	} {
		_, err := compose.Load(t.Context(), of(c.file), compose.Options{AllowUnpinned: true})
		wantFault(t, err, c.path, c.message)
	}
}

// Where the old and the new container cannot run beside each other the device stops first, and says why.
func TestStartFirst(t *testing.T) {
	const order = "deploy: {update_config: {order: start-first}, rollback_config: {order: start-first}}"
	cases := []struct{ name, fields, rest, why string }{
		{"nothing in the way", "ports: [\"80:80\"]", "", ""},
		{"read-only volume", "volumes: [\"data:/d:ro\", \"/etc/ssl:/ssl:ro\"]", "volumes: {data: }", ""},
		{"tmpfs and image", "volumes: [{type: tmpfs, target: /t}, {type: image, source: y, target: /i}]", "", ""},
		{"several networks", "networks: [a, b]", "networks: {a: , b: }", ""},
		{"volume", "volumes: [\"data:/d\"]", "volumes: {data: }", "would write to data at once"},
		{"volume without a name", "volumes: [/d]", "", "the volume at /d"},
		{"directory", "volumes: [\"/srv:/srv\"]", "", "would write to /srv at once"},
		{"network of the device", "network_mode: host", "", "network of the device itself"},
		{"network of another service", "network_mode: \"service:b\"", "", "network of b"},
		{"fixed address", "networks: {a: {ipv4_address: 10.1.0.9}}", "networks: {a: {ipam: {config: [{subnet: 10.1.0.0/24}]}}}", "fixed"},
		{"fixed hardware address", "mac_address: \"02:42:00:00:00:01\"", "", "fixed"},
		{"macvlan", "networks: [a]", "networks: {a: {driver: macvlan, driver_opts: {parent: eth0}}}", "no service address"},
		{"network of the site", "networks: [a]", "networks: {a: {external: true}}", "no service address"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			p := load(t, "services:\n  web: {image: x, "+c.fields+", "+order+"}\n  b: {image: x}\n"+c.rest+"\n", nil)
			want := workload.StartFirst
			if c.why != "" {
				want = ""
			}
			if u := p.Services[0].Update.Order; u != want {
				t.Errorf("order = %q, want %q", u, want)
			}
			if u := p.Services[0].Rollback.Order; u != want {
				t.Errorf("order of a rollback = %q, want %q", u, want)
			}
			told := 0
			for _, n := range p.Notices {
				if strings.HasPrefix(n.Message, "stop-first: ") && strings.Contains(n.Message, c.why) && strings.HasSuffix(n.Path, ".order") {
					told++
				}
			}
			if c.why != "" && told != 2 || c.why == "" && len(p.Notices) > 0 {
				t.Errorf("notices = %+v", p.Notices)
			}
		})
	}
	p := load(t, "services:\n  web: {image: x, "+order+"}\n  b: {image: x, network_mode: \"service:web\"}\n", nil)
	if p.Services[0].Update.Order != "" || len(p.Notices) != 2 {
		t.Errorf("a service whose network another is in: %+v, %+v", p.Services[0].Update, p.Notices)
	}
}

func TestRestartPolicies(t *testing.T) {
	cases := map[string]workload.Restart{
		"restart: always":                               {Policy: workload.RestartAlways},
		"restart: \"no\"":                               {},
		"deploy: {restart_policy: {}}":                  {Policy: workload.RestartAlways},
		"deploy: {restart_policy: {condition: none}}":   {},
		"deploy: {restart_policy: {condition: any}}":    {Policy: workload.RestartAlways},
		"deploy: {restart_policy: {max_attempts: 3}}":   {Policy: workload.RestartAlways, Max: 3},
		"deploy: {restart_policy: {delay: 5s}}":         {Policy: workload.RestartAlways, Delay: 5 * time.Second},
		"deploy: {restart_policy: {window: \"1m30s\"}}": {Policy: workload.RestartAlways, Window: 90 * time.Second},
		"restart: on-failure:4, deploy: {restart_policy: {condition: on-failure, delay: 1s}}": {Policy: workload.RestartOnFailure, Max: 4, Delay: time.Second},
		"restart: unless-stopped, deploy: {restart_policy: {condition: any}}":                 {Policy: workload.RestartUnlessStopped},
	}
	for fields, want := range cases {
		p := load(t, "services: {web: {image: x, "+fields+"}}", nil)
		if diff := cmp.Diff(want, p.Services[0].Restart); diff != "" {
			t.Errorf("%s (-want +got):\n%s", fields, diff)
		}
	}
}

// Names of a service: a link's alias is one on the networks that both share, and a shared namespace starts its owner first.
func TestWiring(t *testing.T) {
	p := load(t, `services:
  web: {image: x, links: ["db:sql", cache], networks: [a, b]}
  db: {image: x, networks: [b, c], container_name: the-db}
  cache: {image: x, networks: [a], depends_on: {db: {condition: service_healthy, required: false}}}
  side: {image: x, network_mode: "service:web", pid: "service:db"}
  twice: {image: x, network_mode: "service:side"}
networks: {a: , b: , c: }
`, nil)
	got := map[string]workload.Service{}
	for _, s := range p.Services {
		got[s.Name] = s
	}
	if diff := cmp.Diff([]workload.Dependency{{Service: "db", Condition: workload.Started}, {Service: "cache", Condition: workload.Started}}, got["web"].DependsOn); diff != "" {
		t.Errorf("dependencies of web (-want +got):\n%s", diff)
	}
	aliases := map[string][]string{}
	for _, a := range got["db"].Networks {
		aliases[a.Network] = a.Aliases
	}
	if diff := cmp.Diff(map[string][]string{"b": {"the-db", "sql"}, "c": {"the-db"}}, aliases); diff != "" {
		t.Errorf("aliases of db (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]workload.Dependency{{Service: "db", Condition: workload.Healthy, Optional: true}}, got["cache"].DependsOn); diff != "" {
		t.Errorf("dependencies of cache (-want +got):\n%s", diff)
	}
	side := []workload.Dependency{{Service: "web", Condition: workload.Started, Restart: true}, {Service: "db", Condition: workload.Started, Restart: true}}
	if diff := cmp.Diff(side, got["side"].DependsOn); diff != "" {
		t.Errorf("dependencies of side (-want +got):\n%s", diff)
	}
	if ns := got["twice"].Namespaces.Network; ns != workload.ServiceNamespace("web") {
		t.Errorf("network of twice = %q, want web's, in which side is", ns)
	}
}

// A healthcheck that only changes intervals leaves the question to the image.
func TestHealthOfTheImage(t *testing.T) {
	p := load(t, "services: {web: {image: x, healthcheck: {interval: 5s, start_interval: 1s}}, b: {image: x, depends_on: {web: {condition: service_healthy}}}}", nil)
	h := p.Services[0].Health
	if h == nil || h.Probe.Exec != nil || h.Probe.HTTP != nil || h.Probe.TCP != 0 || h.Interval != 5*time.Second || h.StartInterval != time.Second {
		t.Errorf("Health = %+v, want no probe of its own and an interval of 5 s", h)
	}
}
