package conformance

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

const (
	// binVariable names the folder with the programs; it is set in the network namespace that the tests run in.
	binVariable = "LONGSHORE_CONFORMANCE_BIN"
	// suiteVariable names a clone of the public suite.
	suiteVariable = "LONGSHORE_CONFORMANCE_SUITE"
	// suiteCommands replaces the suite's own list of commands, which is its place for other implementations.
	suiteCommands = "name: longshore\ncommand: compose\nps_command: compose ps\nglobal_opts: [{name: -f, value: compose.yaml}]\nup: {name: up}\ndown: {name: down}\n"

	patience  = time.Minute
	maxAnswer = 1 << 16
)

// TestCompose starts itself again in a network namespace of its own: projects publish fixed ports of 127.0.0.1, and the
// registry is there too.
func TestCompose(t *testing.T) {
	if os.Getenv(binVariable) != "" {
		inside(t)
		return
	}
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "containers need root")
	}
	ctx := t.Context()
	if err := testenv.InstallDebian(ctx, os.Stderr, "nftables", "iproute2", "util-linux"); err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	bin := t.TempDir()
	if err := testenv.BuildOwn(ctx, bin, "longshore", "longshore-agent"); err != nil {
		t.Fatal(err)
	}
	if suite := os.Getenv(suiteVariable); suite != "" {
		buildSuite(t, suite, bin)
	}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(ctx, "unshare", "--net", "--", self, "-test.run=^TestCompose$", "-test.v")
	cmd.Env = append(os.Environ(), binVariable+"="+bin)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	t.Logf("%s", out)
}

// buildSuite compiles the public suite and the programs of its images. Its own sources stay as they are.
func buildSuite(t *testing.T, suite, bin string) {
	t.Helper()
	for _, args := range [][]string{
		{"test", "-c", "-o", filepath.Join(bin, "suite.test"), "."},
		{"build", "-o", filepath.Join(bin, "conformance-tests-server"), "./server"},
		{"build", "-o", filepath.Join(bin, "conformance-tests-client"), "./client"},
	} {
		cmd := exec.CommandContext(t.Context(), "go", args...)
		cmd.Dir = suite
		cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=-mod=mod", "GOWORK=off")
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("go %s in %s: %v\n%s", strings.Join(args, " "), suite, err, out)
		}
	}
}

// world is a registry, a device that follows it, and where the compose command finds both.
type world struct {
	t   *testing.T
	box *testenv.Box
	env []string
}

func inside(t *testing.T) {
	w := newWorld(t)
	for _, c := range cases() {
		t.Run(c.name, func(t *testing.T) { w.play(t, c) })
	}
	if suite := os.Getenv(suiteVariable); suite != "" {
		t.Run("public suite", func(t *testing.T) { w.suite(t, suite) })
	}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	ctx, bin := t.Context(), os.Getenv(binVariable)
	if out, err := exec.CommandContext(ctx, "ip", "link", "set", "lo", "up").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	daemon, registry := testenv.Containerd(t), testenv.Registry(t, testenv.Distribution)
	box := testenv.NewBox(t)
	testenv.Image(t, registry, "library/toolbox:latest", "toolbox")
	for _, name := range []string{"conformance-tests-server", "conformance-tests-client"} {
		data, err := os.ReadFile(filepath.Join(bin, name))
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		img, err := testenv.BuildImage(testenv.HostPlatform(), v1.Config{Entrypoint: []string{"/main"}}, []testenv.File{{Path: "main", Mode: 0o755, Data: data}})
		if err == nil {
			_, err = registry.Push(ctx, "composespec/"+name+":latest", img)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	w := &world{t: t, box: box}
	at := func(name string) string { return filepath.Join(box.Dir(), name) }
	for _, host := range []string{"docker.io", "plant.example"} {
		w.write(at("certs.d/"+host+"/hosts.toml"), fmt.Sprintf("server = %q\n", registry.URL))
	}
	w.write(at("version"), "0\n")
	script, err := os.ReadFile(filepath.Join("testdata", "compose"))
	if err != nil {
		t.Fatal(err)
	}
	w.write(at("bin/compose"), string(script))
	w.env = []string{
		"PATH=" + at("bin") + ":" + bin + ":" + os.Getenv("PATH"), "HOME=" + box.Dir(), "DOCKER_CONFIG=" + at("docker"), "LONGSHORE_KEY_PASSWORD=conformance",
		"LONGSHORE_CERTS_DIR=" + at("certs.d"), "LONGSHORE_CONFIG_DIR=" + at("etc"), "LONGSHORE_CONFIG=" + at("etc/agent.yaml"),
		"LONGSHORE_CONTAINERD=" + daemon.Address, "LONGSHORE_CONTAINERD_NAMESPACE=" + daemon.Namespace, "LONGSHORE_NETWORK_POOL=10.214.0.0/16",
		"LONGSHORE_DATA_DIR=" + at("data"), "LONGSHORE_RUN_DIR=" + at("run"),
	}
	w.must(t, "", "longshore", "key", "generate", "release")
	w.must(t, "", "longshore-agent", "init", "--device", "device", "--state", "oci://plant.example/line/state", "--key", "release.pub", "--poll", "1h")
	config, err := os.ReadFile(at("etc/agent.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	w.write(at("etc/agent.yaml"), string(config)+"registry:\n  certsDir: "+at("certs.d")+"\n")
	agent, err := box.Start("longshore-agent", w.env, filepath.Join(bin, "longshore-agent"), "run")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if log, err := os.ReadFile(agent.LogFile); err == nil && t.Failed() {
			t.Logf("agent:\n%s", log)
		}
	})
	testenv.Eventually(t, patience, "the agent's socket", func() error {
		_, err := os.Stat(at("run/agent.sock"))
		return err
	})
	return w
}

func (w *world) write(file, text string) {
	w.t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		w.t.Fatal(err)
	}
	if err := os.WriteFile(file, []byte(text), 0o755); err != nil {
		w.t.Fatal(err)
	}
}

// must runs a program with the world's environment in a directory, "" is the box's.
func (w *world) must(t *testing.T, dir string, argv ...string) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "env", append(slices.Clone(w.env), argv...)...) // env finds it in the new PATH
	cmd.Dir = dir
	if dir == "" {
		cmd.Dir = w.box.Dir()
	}
	w.box.Mark(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s: %v\n%s", strings.Join(argv, " "), err, out)
	}
	return string(out)
}

// play brings a project up, asks what it must answer, takes it down, and looks that nothing is left.
func (w *world) play(t *testing.T, c example) {
	dir := filepath.Join(w.box.Dir(), "projects", c.name)
	w.write(filepath.Join(dir, "compose.yaml"), c.compose)
	for name, text := range c.files {
		w.write(filepath.Join(dir, name), text)
	}
	w.must(t, dir, "compose", "up")
	if c.check != nil {
		testenv.Eventually(t, patience, c.name, func() error { return c.check(t.Context()) })
	}
	w.must(t, dir, "compose", "down")
	if left := strings.TrimSpace(w.must(t, dir, "compose", "ps")); strings.Contains(left, "\n") {
		t.Errorf("containers are left after down:\n%s", left)
	}
}

// suite runs the public suite on a copy of its projects with the compose command in place of its own list.
func (w *world) suite(t *testing.T, suite string) {
	dir := filepath.Join(w.box.Dir(), "suite")
	if err := os.CopyFS(filepath.Join(dir, "tests"), os.DirFS(filepath.Join(suite, "tests"))); err != nil {
		t.Fatal(err)
	}
	w.write(filepath.Join(dir, "commands", "longshore.yml"), suiteCommands)
	out := w.must(t, dir, "suite.test", "-test.v")
	if n := strings.Count(out, "--- PASS: Test"); n < 9 || strings.Contains(out, "--- SKIP") {
		t.Errorf("%d tests of the suite passed, want all 9\n%s", n, out)
	}
	t.Logf("%s", out)
}

// example is a project and what it must answer once it is up.
type example struct {
	name    string
	compose string
	files   map[string]string
	check   func(context.Context) error
}

// cases are the promises of the public suite, with projects of our own.
func cases() []example {
	const entry = "services:\n  entry:\n    image: toolbox\n    command: serve 8080\n    dns: 127.0.0.1\n    ports: [\"8080:8080\"]\n" // no resolver: unknown names fail at once
	two := func(ours, theirs string) string {
		return entry + "    networks: [" + ours + "]\n  target:\n    image: toolbox\n    command: serve 8080 reached\n    networks: [" + theirs + "]\nnetworks: {left: , right: }\n"
	}
	get := func(host string) string { return "/get?url=" + url.QueryEscape("http://"+host+":8080/") }
	const file = "/file?path=/files/text"
	text := map[string]string{"text": "what the file says"}
	return []example{
		{"nothing but a service", "services:\n  one: {image: toolbox, command: sleep}\n", nil, nil},
		{"service by its name", two("left", "left"), nil, says(get("target"), http.StatusOK, "reached\n")},
		{"no such service", two("left", "left"), nil, says(get("other"), http.StatusBadGateway, "")},
		{"service of another network", two("left", "right"), nil, says(get("target"), http.StatusBadGateway, "")},
		{"file beside the project", entry + "    volumes: [\"./text:/files/text\"]\n", text, says(file, http.StatusOK, text["text"])},
		{"secret", entry + "    secrets: [{source: s, target: /files/text}]\nsecrets: {s: {file: ./text}}\n", text, says(file, http.StatusOK, text["text"])},
		{"config", entry + "    configs: [{source: c, target: /files/text}]\nconfigs: {c: {file: ./text}}\n", text, says(file, http.StatusOK, text["text"])},
		{"port for udp", "services:\n  echo:\n    image: toolbox\n    command: udp 10001\n    ports: [{target: 10001, published: 10001, protocol: udp, mode: host}]\n", nil, echoes},
		{"three replicas", entry + "    deploy: {replicas: 3}\n", nil, threeHosts},
	}
}

// says asks the project's first service for a path.
func says(path string, status int, want string) func(context.Context) error {
	return func(ctx context.Context) error {
		got, body, err := ask(ctx, path)
		if err == nil && (got != status || want != "" && body != want) {
			err = fmt.Errorf("%s answered %d %q, want %d %q", path, got, body, status, want)
		}
		return err
	}
}

func ask(ctx context.Context, path string) (status int, body string, err error) {
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8080"+path, nil)
	if err != nil {
		return 0, "", err
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(io.LimitReader(resp.Body, maxAnswer))
	return resp.StatusCode, string(data), err
}

func echoes(ctx context.Context) error {
	conn, err := (&net.Dialer{}).DialContext(ctx, "udp", "127.0.0.1:10001")
	if err != nil {
		return err
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(time.Second)); err != nil {
		return err
	}
	sent, got := []byte("over and back"), make([]byte, maxAnswer)
	if _, err := conn.Write(sent); err != nil {
		return err
	}
	n, err := conn.Read(got)
	if err == nil && !bytes.Equal(got[:n], sent) {
		err = fmt.Errorf("sent %q, got %q", sent, got[:n])
	}
	return err
}

// threeHosts reports whether the port leads to three containers: each answers its host name.
func threeHosts(ctx context.Context) error {
	seen := map[string]bool{}
	for range 60 {
		if _, body, err := ask(ctx, "/"); err == nil {
			seen[body] = true
		}
	}
	if len(seen) != 3 {
		return fmt.Errorf("%d containers answer, want 3: %v", len(seen), seen)
	}
	return nil
}
