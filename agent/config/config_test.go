package config_test

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestParseFillsDefaults(t *testing.T) {
	c, err := config.Parse("/etc/longshore/agent.yaml", []byte("device: press-07\nstate: oci://harbor.acme.example/plant/state\n"))
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct{ name, got, want string }{
		{"device", string(c.Device), "press-07"},
		{"state", c.State, "harbor.acme.example/plant/state"},
		{"trust", c.Trust, "/etc/longshore/trust.yaml"},
		{"dataDir", c.DataDir, "/var/lib/longshore"},
		{"runDir", c.RunDir, "/run/longshore"},
		{"address", c.Containerd.Address, "/run/containerd/containerd.sock"},
		{"namespace", c.Containerd.Namespace, "longshore"},
		{"interval", c.Poll.Interval.String(), "1m0s"},
		{"trust.interval", c.TrustInterval.String(), "1h0m0s"},
		{"timeout", c.Registry.Timeout.String(), "1m0s"},
		{"pool", c.Network.Pool.String(), "10.210.0.0/16"},
	} {
		if tc.got != tc.want {
			t.Errorf("%s = %q, want %q", tc.name, tc.got, tc.want)
		}
	}
	if c.Logs.MaxSize != 10<<20 || c.AllowNoSeccomp {
		t.Errorf("logs.maxSize = %d, allowNoSeccomp = %v, want 10 MiB and false", c.Logs.MaxSize, c.AllowNoSeccomp)
	}
}

func TestParseReadsEverySection(t *testing.T) {
	doc := `
device: plant/press-07
state: harbor.acme.example:5000/plant/state
trust: keys/trust.yaml
dataDir: data
runDir: /run/elsewhere
allowNoSeccomp: true
containerd: {address: /run/c.sock, namespace: edge, snapshotter: native}
poll: {interval: 5s}
fleet: {url: "https://fleet.example", tokenFile: token, caFile: ca.pem}
registry: {authFile: auth.json, caFile: r.pem, certFile: c.pem, keyFile: k.pem, certsDir: certs.d, timeout: 5m, plainHTTP: ["127.0.0.1:5000"]}
runtime: {allowPrivileged: true, allowed: {kata: io.containerd.kata.v2}, cdiDirs: [/opt/cdi]}
capabilities: {vendor: Acme, modelNumber: E1, serialNumber: "7", labels: {site: graz, rack: 3}}
network: {pool: 10.99.0.0/16, table: edge, cni: {confDir: net.d}, shared: [{name: plant, subnet: 172.30.0.7/24}, {name: lab}]}
logs: {maxSize: 1MiB, maxFiles: 2, budget: 20M}
images: {minFree: 7%}
observability: {otlp: {endpoint: "https://192.0.2.7:4318", grpcEndpoint: "https://192.0.2.7:4317", protocol: grpc, caFile: otlp.pem}, traces: {endpoint: "http://127.0.0.1:4318", caFile: traces.pem}}
x-note: kept out
`
	c, err := config.Parse("/srv/dev/agent.yaml", []byte(doc))
	if err != nil {
		t.Fatal(err)
	}
	if c.Trust != "/srv/dev/keys/trust.yaml" || c.DataDir != "/srv/dev/data" || c.Fleet.TokenFile != "/srv/dev/token" {
		t.Errorf("relative paths = %q %q %q, want them below /srv/dev", c.Trust, c.DataDir, c.Fleet.TokenFile)
	}
	wantShared := []config.Shared{{Name: "plant", Subnet: netip.MustParsePrefix("172.30.0.0/24")}, {Name: "lab"}}
	if !slices.Equal(c.Network.Shared, wantShared) || c.Network.CNI != (config.CNI{ConfDir: "/srv/dev/net.d", BinDir: "/opt/cni/bin"}) {
		t.Errorf("networks of the site = %+v %+v", c.Network.Shared, c.Network.CNI)
	}
	if want := (config.OTLP{Endpoint: "https://192.0.2.7:4318", GRPCEndpoint: "https://192.0.2.7:4317", Protocol: "grpc", CAFile: "/srv/dev/otlp.pem"}); c.OTLP != want {
		t.Errorf("OTLP = %+v", c.OTLP)
	}
	if want := (config.Traces{Endpoint: "http://127.0.0.1:4318", CAFile: "/srv/dev/traces.pem"}); c.Traces != want {
		t.Errorf("Traces = %+v", c.Traces)
	}
	if c.Images.MinFree != 0 || c.Images.MinFreePercent != 7 {
		t.Errorf("images = %+v, want 7 percent", c.Images)
	}
	inBytes, err := config.Parse("agent.yaml", []byte(strings.Replace(doc, "minFree: 7%", "minFree: 512000000", 1)))
	if err != nil || inBytes.Images.MinFree != 512000000 {
		t.Errorf("minFree in bytes: %+v, %v", inBytes, err)
	}
	if c.Poll.Interval != 5*time.Second || c.Logs.Budget != 20e6 || c.Logs.MaxFiles != 2 || !c.AllowNoSeccomp {
		t.Errorf("poll, logs, seccomp = %v %d %d %v", c.Poll.Interval, c.Logs.Budget, c.Logs.MaxFiles, c.AllowNoSeccomp)
	}
	if rt := c.Runtime; !rt.AllowPrivileged || rt.Allowed["kata"] != "io.containerd.kata.v2" || len(rt.CDIDirs) != 1 || rt.CDIDirs[0] != "/opt/cdi" {
		t.Errorf("runtime = %+v", rt)
	}
	if c.Registry.Timeout != 5*time.Minute {
		t.Errorf("registry.timeout = %v, want 5m", c.Registry.Timeout)
	}
	if c.Capabilities.Labels["site"] != "graz" || c.Network.Table != "edge" || c.Registry.PlainHTTP[0] != "127.0.0.1:5000" {
		t.Errorf("labels, table, plainHTTP = %v %q %v", c.Capabilities.Labels, c.Network.Table, c.Registry.PlainHTTP)
	}
}

func TestTimes(t *testing.T) {
	c, err := config.Parse("agent.yaml", []byte(`
device: d
state: h/r
poll: {jitter: 0%, phase: 20s, windows: [{hours: "06:00-22:00", zone: UTC}]}
changes:
  whenClockUnknown: open
  windows:
    - {days: Mon-Fri, hours: "22:00-05:00", zone: Europe/Berlin}
    - {only: [2026-11-01], zone: UTC}
downtime: [{days: Sun, zone: UTC}]
`))
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 11, 27, 23, 0, 0, 0, time.UTC) // a Friday
	if c.Poll.Jitter != 0 || c.Poll.Phase != 20*time.Second || c.Poll.Windows.At(at) || !c.Changes.Windows.At(at) || !c.Changes.OpenClockUnknown || c.Downtime.At(at) || !c.Downtime.At(at.AddDate(0, 0, 2)) {
		t.Errorf("%+v %+v %+v", c.Poll, c.Changes, c.Downtime)
	}
	if err := c.Over(at); err == nil || !strings.Contains(err.Error(), "agent.yaml:9:7: changes.windows[1]: does not open any more") || strings.Contains(err.Error(), "\n") {
		t.Errorf("over: %v", err)
	}
	plain, err := config.Parse("agent.yaml", []byte("device: d\nstate: h/r\n"))
	if err != nil || plain.Poll.Jitter != config.DefaultJitter || plain.Poll.Phase != 0 || !plain.Poll.Windows.Always() || !plain.Changes.Windows.Always() || plain.Changes.OpenClockUnknown || !plain.Downtime.Always() {
		t.Errorf("without times: %+v, %v", plain, err)
	}
}

func TestTrustIsAPathOrASection(t *testing.T) {
	for _, tc := range []struct {
		doc, file string
		interval  time.Duration
	}{
		{"trust: keys/trust.yaml", "/etc/longshore/keys/trust.yaml", time.Hour},
		{"trust: {file: /x/trust.yaml}", "/x/trust.yaml", time.Hour},
		{"trust: {interval: 5m}", "/etc/longshore/trust.yaml", 5 * time.Minute},
		{"trust:", "/etc/longshore/trust.yaml", time.Hour},
	} {
		c, err := config.Parse("/etc/longshore/agent.yaml", []byte("device: d\nstate: h/r\n"+tc.doc+"\n"))
		if err != nil || c.Trust != tc.file || c.TrustInterval != tc.interval {
			t.Errorf("%s: %+v, %v, want %s and %v", tc.doc, c, err, tc.file, tc.interval)
		}
	}
}

func TestParseTellsEveryFaultWithItsPlace(t *testing.T) {
	const good = "device: d\nstate: h/r\n"
	for _, tc := range []struct{ name, doc, want string }{
		{"empty", "", "agent.yaml"},
		{"no device", "state: h/r\n", "device"},
		{"unknown key", good + "pol: 1\n", `agent.yaml:3:1: pol: unknown`},
		{"wrong type", "device: [a]\nstate: h/r\n", "agent.yaml:1:9: device:"},
		{"tagged state", "device: d\nstate: h/r:press-07\n", "agent.yaml:2:8: state: must be a repository without tag"},
		{"state is no repository", "device: d\nstate: http://h/r\n", "state: not a repository"},
		{"trust too fast", good + "trust: {interval: 10ms}\n", "trust.interval: must be at least 1s"},
		{"unknown key of trust", good + "trust: {files: x}\n", "trust.files: unknown"},
		{"trust is a list", good + "trust: [x]\n", "trust: must be"},
		{"poll too fast", good + "poll: {interval: 10ms}\n", "poll.interval: must be at least 1s"},
		{"bad phase", good + "poll: {phase: 1m}\n", "agent.yaml:3:15: poll.phase: must be below the interval, 1m0s"},
		{"phase of no kind", good + "poll: {phase: early}\n", "poll.phase: \"early\" is no duration"},
		{"bad jitter", good + "poll: {jitter: 120%}\n", "agent.yaml:3:16: poll.jitter: not a percentage"},
		{"window for polls", good + "poll: {windows: [{days: Mon}]}\n", "poll.windows[0]: zone is missing"},
		{"window for changes", good + "changes: {windows: [{cron: \"0 2 30 2 *\", duration: 1h, zone: UTC}]}\n", "agent.yaml:3:21: changes.windows[0]: never opens"},
		{"no boot", good + "changes: {maxBoots: 0}\n", "must be from 1 to 100"},
		{"clock unknown", good + "changes: {whenClockUnknown: opn}\n", "changes.whenClockUnknown: \"opn\" is none of"},
		{"downtime", good + "downtime: {days: Mon}\n", "downtime: must be a list"},
		{"bad url", good + "fleet: {url: fleet}\n", "fleet.url: not a web address"},
		{"fast reports", good + "fleet: {url: \"https://f.example\", interval: 100ms}\n", "fleet.interval: must be whole seconds"},
		{"rare reports", good + "fleet: {url: \"https://f.example\", interval: 200h}\n", "fleet.interval: must be whole seconds"},
		{"all too often", good + "fleet: {url: \"https://f.example\", fullInterval: 1s}\n", "fleet.fullInterval: must be from 1m0s"},
		{"unknown place of a key", good + "report: {key: pkcs11}\n", "report.key: not a place of a key"},
		{"TPM without a path", good + "report: {key: \"tpm:tpm0\"}\n", "report.key: not a place of a key"},
		{"file with a path", good + "report: {key: \"file:/k\"}\n", "report.key: not a place of a key"},
		{"a token without an object", good + "report: {key: \"pkcs11:token=a\"}\n", "report.key: key pkcs11:token=a: invalid: which key?"},
		{"a token and a file", good + "report: {key: \"pkcs11:token=a;object=b?pin-value=4711\", keyFile: k.key}\n", "report.key: pkcs11 and keyFile exclude each other"},
		{"key in two places", good + "report: {key: tpm, keyFile: k.key}\n", "report.key: tpm and keyFile exclude each other"},
		{"url with a query", good + "fleet: {url: \"https://f.example?x=1\"}\n", "fleet.url: not a web address"},
		{"huge number of files", good + "logs: {maxFiles: 18446744073709551615}\n", "logs.maxFiles: must be at most 100"},
		{"comma in runDir", good + "runDir: /run/a,b\n", "runDir: must not contain a comma"},
		{"shared without a name", good + "network: {shared: [{}]}\n", "network.shared[0]: name is missing"},
		{"shared twice", good + "network: {shared: [{name: a}, {name: a}]}\n", "twice"},
		{"shared name", good + "network: {shared: [{name: a/b}]}\n", "network.shared[0].name"},
		{"shared subnet", good + "network: {shared: [{name: a, subnet: fd00::/64}]}\n", "must be an IPv4 range"},
		{"shared subnets overlap", good + "network: {shared: [{name: a, subnet: 172.30.0.0/16}, {name: b, subnet: 172.30.1.0/24}]}\n", "overlaps 172.30.0.0/16"},
		{"collector without an endpoint", good + "observability: {otlp: {grpcEndpoint: \"http://c:4317\"}}\n", "observability.otlp: endpoint is missing"},
		{"collector that is no URL", good + "observability: {otlp: {endpoint: \"c:4318\"}}\n", "observability.otlp.endpoint: not the address of a collector"},
		{"collector in the container", good + "observability: {otlp: {endpoint: \"http://localhost:4318\"}}\n", "finds only itself"},
		{"collector in the container, by address", good + "observability: {otlp: {endpoint: \"http://[::ffff:127.0.0.2]:4318\"}}\n", "finds only itself"},
		{"gRPC without an endpoint", good + "observability: {otlp: {endpoint: \"http://c:4318\", protocol: grpc}}\n", "grpc needs grpcEndpoint"},
		{"unknown protocol", good + "observability: {otlp: {endpoint: \"http://c:4318\", protocol: grcp}}\n", "observability.otlp.protocol: \"grcp\" is none of"},
		{"unknown key of otlp", good + "observability: {otlp: {endpoint: \"http://c:4318\", headers: x}}\n", "observability.otlp.headers: unknown"},
		{"traces without an endpoint", good + "observability: {traces: {}}\n", "observability.traces: endpoint is missing"},
		{"traces to no URL", good + "observability: {traces: {endpoint: \"c:4318\"}}\n", "observability.traces.endpoint: not the address of a collector"},
		{"unknown key of traces", good + "observability: {traces: {endpoint: \"http://c:4318\", headers: x}}\n", "observability.traces.headers: unknown"},
		{"unknown key of observability", good + "observability: {otel: {}}\n", "observability.otel: unknown"},
		{"unknown key of cni", good + "network: {cni: {dir: x}}\n", "network.cni"},
		{"bad pool", good + "network: {pool: 10.0.0.0/30}\n", "network.pool: must be an IPv4 range"},
		{"bad share", good + "images: {minFree: 91%}\n", "images.minFree: not a percentage"},
		{"share of nothing", good + "images: {minFree: 0}\n", "images.minFree: must be more than nothing"},
		{"bad size", good + "logs: {maxSize: big}\n", "logs.maxSize: not a size"},
		{"huge size", good + "logs: {maxSize: 999999999999999GiB}\n", "logs.maxSize: out of range"},
		{"no patience", good + "registry: {timeout: 10ms}\n", "registry.timeout: must be at least 1s"},
		{"half a key pair", good + "registry: {certFile: c}\n", "certFile and keyFile belong together"},
		{"duplicate", good + "device: e\n", "device"},
		{"runtimes", good + "runtime: {allowed: [kata]}\n", "runtime.allowed: must be a mapping"},
		{"source without manager", "device: d\nsource: {}\n", "source: margo is missing"},
		{"manager without TLS", good + "source: {margo: \"http://m.example\", tokenFile: t}\n", "source.margo: must begin with https://"},
		{"manager without credentials", "device: d\nsource: {margo: \"https://m.example\"}\n", "source: has no credentials"},
		{"half of the manager's credentials", good + "source: {margo: \"https://m.example\", certFile: c}\n", "source: certFile and trustBundle belong together"},
		{"two kinds of the manager's credentials", good + "source: {margo: \"https://m.example\", certFile: c, keyFile: k, trustBundle: b, tokenFile: t}\n", "source: certFile excludes"},
		{"enrollment without credentials", good + "enrollment: {interval: 5m}\n", "enrollment: needs certFile and trustBundle"},
		{"enrollment asks all the time", good + "fleet: {url: \"https://m.example\", certFile: c, trustBundle: b}\nenrollment: {interval: 1ms}\n", "enrollment.interval: must be at least 1s"},
		{"credentials of no endpoint", good + "source: {margo: \"https://m.example\", tokenFile: t}\nfleet: {tokenFile: u}\n", "fleet: has credentials but no url"},
		{"reports without repository", "device: d\nsource: {margo: \"https://m.example\", tokenFile: t}\nreport: {registry: true}\n", "report: needs repository"},
		{"labels", good + "capabilities: {labels: [1]}\n", "capabilities.labels: must be a mapping"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := config.Parse("agent.yaml", []byte(tc.doc))
			if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("Parse = %v, want a fault with %q", err, tc.want)
			}
		})
	}
	_, err := config.Parse("agent.yaml", []byte("pol: 1\nlogs: {maxSize: x}\n"))
	if n := strings.Count(err.Error(), "\n") + 1; n < 4 {
		t.Errorf("Parse told %d faults, want all 4 together:\n%v", n, err)
	}
}

func TestSourceIsAlsoTheFleetEndpoint(t *testing.T) {
	const doc = "device: d\nsource: {margo: \"https://m.example/wfm/\", certFile: c.crt, keyFile: c.key, trustBundle: b.json}\n"
	manager := config.Endpoint{URL: "https://m.example/wfm", CertFile: "/x/c.crt", KeyFile: "/x/c.key", TrustBundle: "/x/b.json"}
	other := config.Endpoint{URL: "https://f.example", TokenFile: "/x/t"}
	for _, tc := range []struct {
		name, more string
		state      string
		fleet      config.Endpoint
	}{
		{"alone", "", "", manager},
		{"with states", "state: oci://h/r\n", "h/r", manager},
		{"reports elsewhere", "fleet: {url: \"https://f.example\", tokenFile: t}\n", "", other},
	} {
		c, err := config.Parse("/x/agent.yaml", []byte(doc+tc.more))
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		if c.Source.Manager != manager || c.State != tc.state || c.Fleet.Endpoint != tc.fleet || c.Fleet.Interval != config.DefaultReportInterval {
			t.Errorf("%s: source %+v, state %q, fleet %+v", tc.name, c.Source, c.State, c.Fleet)
		}
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte("device: d\nstate: h/r\n"))
	f.Add([]byte("device: d\nsource: {margo: \"https://m.example\", tokenFile: t}\n"))
	f.Add([]byte("device: d\nstate: h/r\nlogs: {maxSize: 1MiB}\nnetwork: {pool: 10.0.0.0/16}\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		if c, err := config.Parse("agent.yaml", data); err == nil && (c.Device == "" || c.State == "" && c.Source.Manager.URL == "" || c.Poll.Interval <= 0) {
			t.Errorf("Parse accepted a config without device, state or interval: %+v", c)
		}
	})
}

// TestDocumentedKeysAreKnown holds docs/configuration.md to what is read, and what is read to it.
func TestDocumentedKeysAreKnown(t *testing.T) {
	page, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	_, table, _ := strings.Cut(string(page), "## agent.yaml")
	table, _, _ = strings.Cut(table, "\n## ")
	keys, parts := 0, map[string]bool{}
	for _, line := range strings.Split(table, "\n") {
		if !strings.HasPrefix(line, "| `") {
			continue
		}
		section := ""
		for _, m := range regexp.MustCompile("`([^`]+)`").FindAllStringSubmatch(strings.SplitN(line, "|", 3)[1], -1) {
			key := m[1]
			if rest, ok := strings.CutPrefix(key, "."); ok {
				key = section + "." + rest
			}
			section, _, _ = strings.Cut(key, ".")
			doc := strings.ReplaceAll(key, ".", ": {") + ": {}" + strings.Repeat("}", strings.Count(key, ".")) + "\n"
			_, err := config.Parse("agent.yaml", []byte(doc))
			if err != nil && strings.Contains(err.Error(), key+": unknown") {
				t.Errorf("docs/configuration.md has %q, which is no key", key)
			}
			keys++
			for part := range strings.SplitSeq(strings.ReplaceAll(key, "[]", ""), ".") {
				parts[part] = true
			}
		}
	}
	var source []byte
	files, err := filepath.Glob("*.go")
	for _, file := range files {
		data, readErr := os.ReadFile(file)
		source, err = append(source, data...), errors.Join(err, readErr)
	}
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range regexp.MustCompile(`\b(?:Get|Need)\("(\w+)"\)`).FindAllStringSubmatch(string(source), -1) {
		// Members of lists stand in the words of the row.
		if !parts[m[1]] && !strings.Contains(table, "`"+m[1]+"`") {
			t.Errorf("docs/configuration.md has no row for %q", m[1])
		}
	}
	if keys < 25 {
		t.Errorf("found %d keys in docs/configuration.md, want the whole table", keys)
	}
}

func TestPlaceOfTheKey(t *testing.T) {
	for text, want := range map[string]string{"": "", "report: {key: file, keyFile: k.key}\n": "", "report: {key: tpm}\n": "/dev/tpmrm0", "report: {key: \"tpm:/run/t.sock\"}\n": "/run/t.sock", "report: {key: \"pkcs11:token=a;object=b\"}\n": "pkcs11:token=a;object=b"} {
		c, err := config.Parse("agent.yaml", []byte("device: d\nstate: h/r\n"+text))
		if err != nil || c.Report.TPM+c.Report.Token != want {
			t.Errorf("%q: %+v, %v, want %q", text, c, err, want)
		}
	}
}

func TestMutualTLS(t *testing.T) {
	const head = "device: press-07\nstate: r.example/state\nfleet:\n  url: https://fleet.example\n"
	c, err := config.Parse("/etc/longshore/agent.yaml", []byte(head+"  certFile: press.crt\n  keyFile: press.key\n  trustBundle: bundle.json\n"))
	if err != nil || c.Fleet.CertFile != "/etc/longshore/press.crt" || c.Fleet.KeyFile != "/etc/longshore/press.key" || c.Fleet.TrustBundle != "/etc/longshore/bundle.json" {
		t.Fatalf("Parse = %+v, %v", c, err)
	}
	for more, want := range map[string]string{
		"  certFile: a\n": "belong together", "  trustBundle: a\n": "belong together",
		"  certFile: a\n  keyFile: b\n  trustBundle: c\n  tokenFile: d\n": "excludes tokenFile",
		"  workloadAPI: unix:///run/a.sock\n  trustBundle: c\n":           "workloadAPI excludes", "  workloadAPI: unix:///run/a.sock\n  tokenFile: d\n": "workloadAPI excludes",
		"  workloadAPI: tcp://10.0.0.1:8081\n": "fleet.workloadAPI: not the address", "  workloadAPI: unix://run/a.sock\n": "not the address", "  workloadAPI: \"unix:///a?b\"\n": "not the address",
		"  workloadAPI: unix:///run/a.sock\nenrollment: {}\n": "enrollment: needs certFile",
	} {
		if _, err := config.Parse("agent.yaml", []byte(head+more)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", more, err, want)
		}
	}
	plain := strings.Replace(head, "https:", "http:", 1) + "  certFile: a\n  keyFile: b\n  trustBundle: c\n"
	if _, err := config.Parse("agent.yaml", []byte(plain)); err == nil || !strings.Contains(err.Error(), "must begin with https://") {
		t.Errorf("plain HTTP: %v", err)
	}
	plain = strings.Replace(head, "https:", "http:", 1) + "  workloadAPI: unix:///run/a.sock\n"
	if _, err := config.Parse("agent.yaml", []byte(plain)); err == nil || !strings.Contains(err.Error(), "must begin with https://") {
		t.Errorf("plain HTTP with the Workload API: %v", err)
	}
	c, err = config.Parse("agent.yaml", []byte("device: d\nsource: {margo: \"https://m.example\", workloadAPI: \"unix:///run/a.sock\"}\n"))
	if want := (config.Endpoint{URL: "https://m.example", WorkloadAPI: "unix:///run/a.sock"}); err != nil || c.Source.Manager != want || c.Fleet.Endpoint != want {
		t.Errorf("workloadAPI: %+v, %v", c, err)
	}
}

// The trust policy waits only where the configuration names it: all is the changes of deployments.
func TestApprovalsOfTheTrustPolicy(t *testing.T) {
	for changes, want := range map[string]int{"[all]": 5, "[all, trust]": 6, "[trust]": 1} {
		c, err := config.Parse("agent.yaml", []byte("device: a\nstate: r.example/s\napprovals: {changes: "+changes+"}\n"))
		if err != nil || len(c.Approvals.Policy.Kinds) != want {
			t.Errorf("%s: %v, %v, want %d kinds", changes, c, err, want)
		}
	}
}

func TestPanel(t *testing.T) {
	const head = "device: press-07\nstate: r.example/state\npanel:\n"
	c, err := config.Parse("/etc/longshore/agent.yaml", []byte(head+"  listen: 192.0.2.7:8480\n  certFile: p.crt\n  keyFile: p.key\n  pinFile: pins\n  translations: de.yaml\n  hosts: [press-07.lan]\n"))
	want := config.Panel{
		Listen: "192.0.2.7:8480", CertFile: "/etc/longshore/p.crt", KeyFile: "/etc/longshore/p.key", PINFile: "/etc/longshore/pins",
		Translations: "/etc/longshore/de.yaml", Hosts: []string{"press-07.lan"},
	}
	if err != nil || !reflect.DeepEqual(c.Panel, want) {
		t.Errorf("Parse = %+v, %v, want %+v", c.Panel, err, want)
	}
	for more, want := range map[string]string{
		"  listen: 127.0.0.1:8480\n  pinFile: a\n":                  "",
		"  listen: \"[::1]:8480\"\n  anonymousViewers: true\n":      "",
		"  listen: 0.0.0.0:8480\n  pinFile: a\n  plainHTTP: true\n": "",
		"  pinFile: a\n": "listen",
		"  listen: localhost:8480\n  pinFile: a\n":                                              "agent.yaml:4:11: panel.listen: not an address and port",
		"  listen: 0.0.0.0:8480\n  pinFile: a\n":                                                "agent.yaml:4:11: panel.listen: is not loopback",
		"  listen: 127.0.0.1:8480\n":                                                            "panel: needs pinFile",
		"  listen: 127.0.0.1:8480\n  pinFile: a\n  keyFile: b\n":                                "belong together",
		"  listen: 127.0.0.1:1\n  pinFile: a\n  keyFile: b\n  certFile: c\n  plainHTTP: true\n": "exclude each other",
		"  listen: 127.0.0.1:1\n  pinFile: a\n  hosts: [\"press:80\"]\n":                        "host name without a port",
		"  listen: 127.0.0.1:1\n  pinFile: a\n  pin: 1\n":                                       "panel.pin: unknown",
	} {
		_, err := config.Parse("agent.yaml", []byte(head+more))
		if (want == "") != (err == nil) || err != nil && !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", more, err, want)
		}
	}
}
