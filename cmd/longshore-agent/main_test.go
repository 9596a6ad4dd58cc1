package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/store"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/signing/sign"
)

// command runs the program as main does.
func command(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), append([]string{"longshore-agent"}, args...), strings.NewReader(""), &out, &errs)
	return code, out.String(), errs.String()
}

func keyFile(t *testing.T) string {
	t.Helper()
	_, public, err := sign.GenerateKey([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	name := filepath.Join(t.TempDir(), "release.pub")
	if err := os.WriteFile(name, public, 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestInitWritesWhatCheckConfigAccepts(t *testing.T) {
	dir := t.TempDir()
	args := []string{
		"init", "--config-dir", dir, "--device", "press-07", "--state", "oci://harbor.acme.example/plant/state",
		"--key", keyFile(t), "--plain-http", "127.0.0.1:5000", "--poll", "5s", "--fleet-url", "https://fleet.acme.example",
		"--data-dir", filepath.Join(dir, "data"),
	}
	if code, _, errs := command(t, args...); code != 0 {
		t.Fatalf("init = %d\n%s", code, errs)
	}
	for _, name := range []string{"agent.yaml", "trust.yaml"} {
		if st, err := os.Stat(filepath.Join(dir, name)); err != nil || st.Mode().Perm() != 0o644 {
			t.Errorf("%s: %v, %v, want a file of mode 0644", name, st, err)
		}
	}
	code, out, errs := command(t, "check-config", "--config", filepath.Join(dir, "agent.yaml"))
	if code != 0 || !strings.Contains(out, "ok: device press-07, state harbor.acme.example/plant/state, 1 trust rules") {
		t.Errorf("check-config = %d\n%s%s", code, out, errs)
	}
	before, err := os.ReadFile(filepath.Join(dir, "agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	more := string(before) + "registry: {certsDir: " + filepath.Join(dir, "certs.d") + ", authFile: " + filepath.Join(dir, "auth.json") + "}\n"
	if strings.Contains(string(before), "\nregistry:") {
		more = strings.Replace(string(before), "\nregistry:\n", "\nregistry:\n  certsDir: "+filepath.Join(dir, "certs.d")+"\n  authFile: "+filepath.Join(dir, "auth.json")+"\n", 1)
	}
	for name, text := range map[string]string{
		"broken.yaml": more, "auth.json": `{"auths": [`,
		"certs.d/one.example/hosts.toml": "[host.\"https://mirror.example\"]\n  capabilities = [\"pull\",\n",
		"certs.d/two.example/hosts.toml": "ca = \"missing.crt\"\n",
	} {
		file := filepath.Join(dir, name)
		if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o644)); err != nil {
			t.Fatal(err)
		}
	}
	code, _, errs = command(t, "check-config", "--config", filepath.Join(dir, "broken.yaml"))
	if code != 2 || !strings.Contains(errs, "one.example/hosts.toml:") || !strings.Contains(errs, "two.example") || !strings.Contains(errs, "registry.authFile: credentials file") {
		t.Errorf("check-config of broken files = %d\n%s", code, errs)
	}
	if code, _, errs := command(t, args...); code == 0 || !strings.Contains(errs, "--force") {
		t.Errorf("second init = %d\n%s, want a refusal that names --force", code, errs)
	}
	if after, _ := os.ReadFile(filepath.Join(dir, "agent.yaml")); !bytes.Equal(before, after) {
		t.Error("a refused init changed agent.yaml")
	}
	if code, _, errs := command(t, append(args, "--force")...); code != 0 {
		t.Errorf("init --force = %d\n%s", code, errs)
	}
}

func TestKeysAreBesideThePolicy(t *testing.T) {
	dir := t.TempDir()
	public, err := os.ReadFile(keyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Chdir(dir)
	for name, text := range map[string]string{
		"etc/agent.yaml":              "device: d\nstate: h/r\ntrust: policy/trust.yaml\n",
		"etc/policy/trust.yaml":       "rules:\n  - {scope: h/r, keys: [{name: release, file: keys/release.pub}]}\n",
		"etc/policy/keys/release.pub": string(public),
	} {
		if err := errors.Join(os.MkdirAll(filepath.Dir(name), 0o755), os.WriteFile(name, []byte(text), 0o600)); err != nil {
			t.Fatal(err)
		}
	}
	if code, _, errs := command(t, "check-config", "--config", "etc/agent.yaml"); code != 0 {
		t.Errorf("check-config = %d\n%s", code, errs)
	}
	st, err := store.Open(store.Options{Path: filepath.Join(dir, "agent.db"), Device: "d"})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	v := &verifier{policy: followPolicy("etc/policy/trust.yaml", st, nil, time.Now)}
	before := v.policy.Fingerprint()
	if _, err := v.policy.Policy(); err != nil {
		t.Errorf("policy: %v", err)
	}
	if err := os.WriteFile("etc/policy/keys/release.pub", []byte("gone"), 0o600); err != nil {
		t.Fatal(err)
	}
	if after := v.policy.Fingerprint(); after == before {
		t.Error("a changed key does not change the fingerprint")
	}
	if _, err := v.Verify(t.Context(), intake.KindState, "h/r", ocispec.Descriptor{}); !errors.Is(err, fault.ErrRejected) {
		t.Errorf("Verify with a broken policy = %v, want rejected", err)
	}
}

// A certificate file without a certificate is found before the device starts, wherever agent.yaml names it.
func TestCheckConfigReadsCertificates(t *testing.T) {
	dir := t.TempDir()
	public, err := os.ReadFile(keyFile(t))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"trust.yaml":  "rules:\n  - {scope: h/r, keys: [{name: release, file: release.pub}]}\n",
		"release.pub": string(public), "words.pem": "not a certificate\n", "empty": "\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for key, more := range map[string]string{
		"fleet.caFile":    "fleet: {url: 'https://fleet.example', caFile: words.pem}\n",
		"registry.caFile": "registry: {caFile: words.pem}\n",

		"observability.otlp.caFile": "observability: {otlp: {endpoint: 'https://collector.example:4318', caFile: words.pem}}\n",
		"fleet.tokenFile":           "fleet: {url: 'https://fleet.example', tokenFile: empty}\n",
	} {
		config := filepath.Join(dir, "agent.yaml")
		if err := os.WriteFile(config, []byte("device: d\nstate: h/r\ntrust: trust.yaml\n"+more), 0o600); err != nil {
			t.Fatal(err)
		}
		_, name, _ := strings.Cut(strings.TrimRight(more, "}\n"), "File: ")
		code, out, errs := command(t, "check-config", "--config", config)
		if code != 2 || !regexp.MustCompile(regexp.QuoteMeta(config)+`:4:[0-9]+: `+regexp.QuoteMeta(key)+`: `).MatchString(errs) || !strings.Contains(errs, filepath.Join(dir, name)) || !strings.Contains(errs, "hint: ") {
			t.Errorf("%s: check-config = %d, want 2 with the key, the file and a hint\n%s%s", key, code, out, errs)
		}
	}
}

// Everything that is wrong is told at once, in whichever file it is, with its place.
func TestCheckConfigTellsEverything(t *testing.T) {
	dir := t.TempDir()
	for name, text := range map[string]string{
		"agent.yaml": `device: press-07
state: h/r
pol: {interval: 1m}
trust: trust.yaml
poll: {interval: never}
approvals:
  group: ls-nobody-here
  directory: panel
  owner: ls-no-such-user
panel:
  listen: 127.0.0.1:8480
  pinFile: pins
  translations: de.yaml
registry:
  caFile: words.pem
fleet: {url: 'https://fleet.example', caFile: absent.pem}
changes:
  windows: [{cron: "0 0 31 2 *", for: 1h}]
`,
		"trust.yaml": "rules:\n  - {scope: h/r, keys: [{name: release, file: absent.pub}]}\n  - {skope: x}\n",
		"pins":       "ana:481592\n", "de.yaml": "lang: de\nrejekt: nein\n", "words.pem": "not a certificate\n",
	} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	code, _, errs := command(t, "check-config", "--config", filepath.Join(dir, "agent.yaml"))
	for _, want := range []string{
		"agent.yaml:3:1: pol", "agent.yaml:5:18: poll.interval", `agent.yaml:7:10: approvals.group: this device has no group "ls-nobody-here"`,
		`agent.yaml:9:10: approvals.owner: this device has no user "ls-no-such-user"`, filepath.Join(dir, "pins") + ":1:1: ", filepath.Join(dir, "de.yaml") + ":2:9: rejekt: ",
		"agent.yaml:15:11: registry.caFile: ", "agent.yaml:16:47: fleet.caFile: ",
		"agent.yaml:18:", "trust.yaml:2:", "trust.yaml:3:", "hint: make it: groupadd ls-nobody-here",
	} {
		if !strings.Contains(errs, want) {
			t.Errorf("check-config does not tell %q", want)
		}
	}
	if code != 2 || t.Failed() {
		t.Errorf("check-config = %d\n%s", code, errs)
	}
}

// TestRelease of testenv/packaging shows it of a release.
func TestVersion(t *testing.T) {
	for _, arg := range []string{"version", "--version"} {
		if code, out, errs := command(t, arg); code != 0 || out != "longshore-agent "+build.Read().Text()+"\n" || errs != "" {
			t.Errorf("%s = %d %q\n%s", arg, code, out, errs)
		}
	}
	var got build.Info
	code, out, errs := command(t, "version", "-o", "json")
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != 0 || got != build.Read() {
		t.Errorf("version -o json = %d %v\n%s%s", code, err, out, errs)
	}
}

// A slip in what is only needed for something new must not keep workloads from starting after a boot.
func TestAgentStartsInSpiteOfASlip(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "agent.yaml")
	doc := "device: d\nstate: 127.0.0.1:1/r\ndataDir: data\nrunDir: run\ntrust: none.yaml\nregistry: {caFile: none.pem}\n" +
		"fleet: {url: 'https://127.0.0.1:1', caFile: none.pem}\ncontainerd: {address: none.sock}\nnetwork: {table: lsslip}\n"
	if err := errors.Join(os.WriteFile(file, []byte(doc), 0o600), os.MkdirAll(filepath.Join(dir, "data"), 0o700), os.MkdirAll(filepath.Join(dir, "run"), 0o700)); err != nil {
		t.Fatal(err)
	}
	cfg, err := readConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	var log bytes.Buffer
	parts, err := assemble(t.Context(), cfg, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatalf("assemble = %v\n%s", err, log.String())
	}
	defer func() {
		if err := parts.close(); err != nil {
			t.Error(err)
		}
	}()
	if !strings.Contains(log.String(), "until this is repaired") {
		t.Errorf("the fleet endpoint's slip is not told:\n%s", log.String())
	}
	if _, err := parts.registry.Resolve(t.Context(), "127.0.0.1:1/r", "d"); err == nil || !strings.Contains(err.Error(), "none.pem") {
		t.Errorf("Resolve = %v, want the registry's slip", err)
	}
	if _, err := (unreachable{fault.ErrInvalid}).Deliver(t.Context(), store.Report{}); !fault.Retryable(err) {
		t.Errorf("Deliver = %v, want temporary", err)
	}
}

func TestWrongUseIsTold(t *testing.T) {
	dir := t.TempDir()
	bad := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(bad, []byte("device: d\nstate: h/r\npol: 1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	notKey := filepath.Join(dir, "x.pub")
	if err := os.WriteFile(notKey, []byte("no key"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name string
		args []string
		code int
		want string
	}{
		{"unknown command", []string{"frobnicate"}, 2, "is no command"},
		{"flags behind arguments", []string{"logs", "line-monitor", "web", "-f", "--config", filepath.Join(dir, "behind.yaml")}, 4, "behind.yaml"},
		{"flags before the command", []string{"--config", filepath.Join(dir, "before.yaml"), "status"}, 4, "before.yaml"},
		{"unknown flag", []string{"status", "--colour"}, 2, "colour"},
		{"missing flag", []string{"init", "--device", "d"}, 2, "--state is missing"},
		{"no config", []string{"status", "--config", filepath.Join(dir, "none.yaml")}, 4, "longshore-agent init"},
		{"bad config", []string{"check-config", "--config", bad}, 2, "agent.yaml:3:1: pol"},
		{"no agent", []string{"status", "--config", writeConfig(t)}, 4, "agent"},
		{"bad key", []string{"init", "--config-dir", dir, "--force", "--device", "d", "--state", "h/r/s", "--key", notKey}, 2, "x.pub"},
		{"bad device", []string{"init", "--config-dir", dir, "--force", "--device", "a b", "--state", "h/r/s", "--key", keyFile(t)}, 2, "device"},
		{"bad output", []string{"status", "-o", "xml", "--config", writeConfig(t)}, 2, "text, json or yaml"},
		{"bad log format", []string{"run", "--log-format", "xml", "--config", writeConfig(t)}, 2, "--log-format"},
		{"too many arguments", []string{"check-config", "here"}, 2, "takes no argument"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			code, out, errs := command(t, tc.args...)
			if code != tc.code || !strings.Contains(errs, tc.want) || errs == "" {
				t.Errorf("%v = %d, want %d with %q\n%s", tc.args, code, tc.code, tc.want, errs)
			}
			if out != "" && tc.code != 0 && !strings.Contains(out, "USAGE") {
				t.Errorf("stdout = %q, want nothing", out)
			}
		})
	}
	if left, _ := os.ReadFile(bad); string(left) != "device: d\nstate: h/r\npol: 1\n" {
		t.Errorf("a refused init changed agent.yaml:\n%s", left)
	}
}

func writeConfig(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	name := filepath.Join(dir, "agent.yaml")
	if err := os.WriteFile(name, []byte("device: d\nstate: h/r\ndataDir: data\nrunDir: run\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return name
}

func TestStatusText(t *testing.T) {
	now := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	running := &status.Generation{
		Generation: 42, Digest: "sha256:c0de000000000000000000000000000000000000000000000000000000000000",
		SignedBy: []string{"release"}, AcceptedAt: now.Add(-50 * time.Hour),
	}
	s := &status.Status{
		Device: "press-07", Repository: "harbor.acme.example/plant/state", Tag: "press-07", Version: "1.0.0", Phase: status.PhaseInSync,
		Progress: &status.Progress{Progress: store.Progress{
			Phase: store.PhaseAwaitingWindow, Since: now.Add(-3 * time.Hour), Generation: 43, Code: string(codes.OutsideWindow), Until: now.Add(9 * time.Hour),
		}},
		CheckedAt: now.Add(-12 * time.Second), NextCheck: now.Add(48 * time.Second), Now: now, Accepted: running, Running: running,
		Problems: []status.Problem{{
			Code: codes.SignatureInvalid, Message: "generation 43 refused: signature of sha256:dead… matches no key",
			Doing: "the device keeps generation 42", Hint: "check who signed it: longshore verify", Since: now.Add(-5 * time.Minute),
		}},
		Deployments: []status.Deployment{{
			Name: "line-monitor", State: margo.StateInstalled, Since: now.Add(-49 * time.Hour),
			Components: []status.Component{{
				Name: "line-monitor", Revision: "1.4.0", State: margo.StateInstalled, Since: now.Add(-49 * time.Hour),
				Services: []status.Service{
					{Name: "web", Status: workload.Running, Health: "healthy"},
					{Name: "sensor", Status: workload.Exited, ExitCode: 3, Restarts: 3},
					{Name: "migrate", Status: workload.Exited},
					{Name: "loop", Status: workload.Exited, NextStart: now.Add(time.Second)},
				},
			}},
		}},
		KeptVolumes: []status.Volume{{Name: "shop-0a1b2c3d/orders", Deployment: "shop"}},
		Outbox:      status.Outbox{Enabled: true},

		PollWindow: &status.Window{Windows: []string{"every day 06:00-22:00 (UTC)"}, Open: true, Until: now.Add(10 * time.Hour)},
		ChangeWindow: &status.Window{
			Windows: []string{"Mon-Fri 22:00-05:00 (Europe/Berlin)", "and also only every day 23:00-03:00 (UTC)"}, Until: now.Add(9 * time.Hour),
			Sources: []status.WindowSource{
				{From: status.WindowsOfOwner, Windows: []string{"Mon-Fri 22:00-05:00 (Europe/Berlin)"}},
				{From: status.WindowsOfState, Generation: 42, Windows: []string{"every day 23:00-03:00 (UTC)"}},
			},
		},
		Downtime: &status.Window{Windows: []string{"Fri (UTC)"}, Open: true, Until: now.Add(12 * time.Hour)},
	}
	var b bytes.Buffer
	writeStatus(&b, s)
	golden(t, "status.golden", b.Bytes())
	s.Progress = &status.Progress{Progress: store.Progress{Phase: store.PhaseRolledBack, Since: now.Add(-time.Minute), Generation: 42, Attempt: 3, Code: string(codes.BootLoop)}}
	s.PollWindow, s.Downtime, s.ChangeWindow = nil, nil, &status.Window{Windows: s.ChangeWindow.Windows, Sources: s.ChangeWindow.Sources[:1], ClockUnknown: true}

	s.Deployments, s.Phase, s.Problems = []status.Deployment{{
		Name: "line-monitor", State: margo.StateFailed, Since: now.Add(-time.Minute),
		Refused: &status.RefusedRevision{
			Digest: "sha256:bad0000000000000000000000000000000000000000000000000000000000000", Generation: 42, Component: "line-monitor",
			Revision: "1.4.1", Code: codes.ContainerExited, Since: now.Add(-time.Minute), RunningGeneration: 41,
		},
		Components: []status.Component{{
			Name: "line-monitor", Revision: "1.4.0", State: margo.StateFailed, Since: now.Add(-time.Minute),
			Error: &margo.StatusError{
				Code: string(codes.ContainerExited), Source: "line-monitor",
				Message: "service web: exited with code 3; rolled back to generation 41; its last output:\n  cannot open /data\n  giving up",
			},
			Services: []status.Service{
				{Name: "web", Replica: 1, Status: workload.Running, Health: "healthy"}, {Name: "web", Replica: 2, Status: workload.Running, Health: "healthy"},
			},
			Notices: []workload.Notice{{Path: "services.web.deploy.update_config.order", Message: "start-first is done as stop-first: it writes to data"}},
		}},
	}}, status.PhaseDegraded, []status.Problem{{
		Code: codes.ContainerExited, Doing: "keeps what generation 41 brought; not tried again until the state changes",
		Message: "line-monitor failed: service web: exited with code 3; rolled back to generation 41; its last output:\n  cannot open /data\n  giving up",
	}}
	b.Reset()
	writeStatus(&b, s)
	golden(t, "status-rolled-back.golden", b.Bytes())

	b.Reset()
	writeStatus(&b, &status.Status{Device: "d", Repository: "h/r", Tag: "d", Phase: status.PhaseEmpty, Now: now, Version: "1.0.0"})
	golden(t, "status-empty.golden", b.Bytes())
}

func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.MkdirAll("testdata", 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(path, got, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(string(want), string(got)); d != "" {
		t.Errorf("%s (-want +got):\n%s", name, d)
	}
}

func TestAgo(t *testing.T) {
	for d, want := range map[time.Duration]string{
		-time.Second: "0 s", 12 * time.Second: "12 s", 61 * time.Second: "1 min", 3 * time.Hour: "3 h", 47 * time.Hour: "47 h", 50 * time.Hour: "2 d",
	} {
		if got := ago(d); got != want {
			t.Errorf("ago(%v) = %q, want %q", d, got, want)
		}
	}
}

// A start that does not succeed ends with its own error and exit code, whatever was open by then.
func TestRunReportsWhyItDoesNotStart(t *testing.T) {
	for _, tc := range []struct {
		name  string
		spoil func(t *testing.T, data string)
		code  int
		want  string
	}{
		{"another agent", func(t *testing.T, data string) {
			st, err := store.Open(store.Options{Path: filepath.Join(data, "agent.db"), Device: "d"})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { st.Close() })
		}, 6, "another process holds it"},
		{"the data of another device", func(t *testing.T, data string) {
			st, err := store.Open(store.Options{Path: filepath.Join(data, "agent.db"), Device: "other"})
			if err == nil {
				err = st.Close()
			}
			if err != nil {
				t.Fatal(err)
			}
		}, 6, "it belongs to device"},
		{"a file in the way of the content", func(t *testing.T, data string) {
			if err := os.WriteFile(filepath.Join(data, "content"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}, 75, "content"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			file := writeConfig(t)
			cfg, err := readConfig(file)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(cfg.DataDir, 0o700); err != nil {
				t.Fatal(err)
			}
			tc.spoil(t, cfg.DataDir)
			if code, _, errs := command(t, "run", "--config", file); code != tc.code || !strings.Contains(errs, tc.want) || strings.Contains(errs, "panic") {
				t.Errorf("run = %d, want %d with %q\n%s", code, tc.code, tc.want, errs)
			}
		})
	}
}
