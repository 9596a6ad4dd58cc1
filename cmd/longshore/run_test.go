package main

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/testenv"
)

// host is what the registry is called in these tests: hosts.toml says where it really is. So references, and with them
// digests, are the same in every run.
const host = "harbor.acme.example"

// epoch is the time of everything that is pushed here.
const epoch = "1763654400"

// shell types command lines in a directory of its own.
type shell struct {
	t            *testing.T
	env          map[string]string
	server       *testenv.RegistryServer
	log          bytes.Buffer  // what was typed and what came of it
	race         bool          // others write the same tags
	completeWait time.Duration // see program
}

// newShell starts a registry with images for the line monitor in it, and copies its Compose project and a key.
func newShell(t *testing.T, kind testenv.Kind) *shell {
	t.Helper()
	testdata, err := filepath.Abs("testdata")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	t.Chdir(dir)
	s := &shell{t: t, server: testenv.Registry(t, kind), completeWait: time.Minute, env: map[string]string{
		"HOME": dir, "SOURCE_DATE_EPOCH": epoch, "LONGSHORE_CERTS_DIR": filepath.Join(dir, "certs.d"), "COSIGN_PASSWORD": "longshore",
	}}
	s.write("certs.d/"+host+"/hosts.toml", "server = \""+s.server.URL+"\"\n")
	if err := os.CopyFS(".", os.DirFS(testdata)); err != nil {
		t.Fatal(err)
	}
	for _, key := range []string{"release.key", "root.key"} {
		if err := os.Chmod(key, 0o600); err != nil { // which git does not keep
			t.Fatal(err)
		}
	}
	for _, image := range []string{"library/caddy:2.10", "library/nats:2.12"} {
		s.pushImage(image, "linux/amd64", "linux/arm64")
	}
	return s
}

func (s *shell) pushImage(reference string, platforms ...string) {
	s.t.Helper()
	var images []v1.Image
	for _, p := range platforms {
		image, err := testenv.BuildImage(p, v1.Config{}, []testenv.File{{Path: "app", Data: []byte(reference + p)}})
		if err != nil {
			s.t.Fatal(err)
		}
		images = append(images, image)
	}
	if _, err := s.server.Push(s.t.Context(), reference, images...); err != nil {
		s.t.Fatal(err)
	}
}

func (s *shell) write(name, text string) {
	s.t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		s.t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
		s.t.Fatal(err)
	}
}

// try runs a command line and returns what came of it.
func (s *shell) try(args ...string) (code int, stdout, stderr string) {
	s.t.Helper()
	var out, errs bytes.Buffer
	p := testProgram(&out, &errs)
	p.stdin, p.lookup = strings.NewReader(s.env["stdin"]), s.lookup
	p.tagWait = time.Millisecond
	if s.race {
		p.tagWait = busyTagWait
	}
	p.completeWait = s.completeWait
	code = p.run(s.t.Context(), args)
	return code, out.String(), errs.String()
}

var unlocked sync.Map // sign.PrivateKey by the file's bytes and the password

// unlockOnce unlocks a key once for all command lines of the tests: scrypt is slow on purpose, and with the race detector
// takes seconds. Whom it lets in is remembered, nobody else: a wrong password meets scrypt every time.
func unlockOnce(private, password []byte) (sign.PrivateKey, error) {
	file := [2]string{string(private), string(password)}
	if key, known := unlocked.Load(file); known {
		return key.(sign.PrivateKey), nil
	}
	key, err := sign.Unlock(private, password)
	if err == nil {
		unlocked.Store(file, key)
	}
	return key, err
}

func (s *shell) lookup(name string) (string, bool) {
	value, set := s.env[name]
	return value, set
}

// busyTagWait is the wait of commands that write one tag at once, on a machine that may hold each of them up.
const busyTagWait = 400 * time.Millisecond

// processVariable makes this test binary the program itself.
const processVariable = "LONGSHORE_TEST_PROCESS"

func TestMain(m *testing.M) {
	if os.Getenv(processVariable) != "" {
		p := newProgram(os.Stdin, os.Stdout, os.Stderr, os.LookupEnv)
		p.tagWait, p.completeWait = busyTagWait, time.Minute
		os.Exit(p.run(context.Background(), os.Args[1:]))
	}
	os.Exit(m.Run())
}

// process runs a command line in a process of its own: the flags of the command line library are not for two at once.
func (s *shell) process(args ...string) (code int, output string) {
	self, err := os.Executable()
	if err != nil {
		return -1, err.Error()
	}
	cmd := exec.CommandContext(s.t.Context(), self, args...)
	cmd.Env = []string{processVariable + "=1", "PATH=" + os.Getenv("PATH")}
	for k, v := range s.env {
		cmd.Env = append(cmd.Env, k+"="+v)
	}
	out, err := cmd.CombinedOutput()
	if cmd.ProcessState == nil {
		return -1, err.Error()
	}
	return cmd.ProcessState.ExitCode(), string(out)
}

// do runs a command line that must end with a code, and writes it into the log.
func (s *shell) do(want int, args ...string) string {
	s.t.Helper()
	code, stdout, stderr := s.try(args...)
	fmt.Fprintf(&s.log, "$ longshore %s\n%s", strings.Join(args, " "), stdout)
	if stderr != "" {
		fmt.Fprintf(&s.log, "--- stderr\n%s", stderr)
	}
	fmt.Fprintf(&s.log, "--- exit %d\n\n", code)
	if code != want {
		s.t.Fatalf("longshore %s: exit %d, want %d\n%s%s", strings.Join(args, " "), code, want, stdout, stderr)
	}
	return stdout
}

// golden compares the log with testdata/NAME.golden, which UPDATE_GOLDEN=1 rewrites.
func (s *shell) golden(testdata string) {
	s.t.Helper()
	got := strings.ReplaceAll(s.log.String(), s.server.Host, "127.0.0.1:PORT")
	// No two signatures of the same thing are equal.
	got = regexp.MustCompile(`("format": "\w+",\n\s+"digest": "|"attestation": "|referrer )sha256:[0-9a-f]{64}`).ReplaceAllString(got, "${1}SIGNATURE")
	got = regexp.MustCompile(`(\$ longshore key generate -q \S+\n)sha256:[0-9a-f]{64}`).ReplaceAllString(got, "${1}KEY")
	got = signatureShown().ReplaceAllString(got, "${1}${3}${5}SIGNATURE${2}${4}${6}")
	file := filepath.Join(testdata, strings.ReplaceAll(s.t.Name(), "/", "-")+".golden")
	if os.Getenv("UPDATE_GOLDEN") == "1" {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			s.t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		s.t.Fatal(err)
	}
	if diff := cmp.Diff(string(want), got); diff != "" {
		s.t.Errorf("%s (-want +got):\n%s", file, diff)
	}
}

// signatureShown finds where inspect names a signature: in text, JSON and YAML.
func signatureShown() *regexp.Regexp {
	return regexp.MustCompile(`(\n[│ ]+[├└]─ )sha256:[0-9a-f]{12}…(  application/vnd.dev.sigstore.bundle)|` +
		`("digest": ")sha256:[0-9a-f]{64}(",\n\s+"artifactType": "application/vnd.dev.sigstore.bundle)|` +
		`(digest: "?)sha256:[0-9a-f]{64}("?\n\s+tag: )`)
}

// golden files are beside the other test data, wherever a test has gone meanwhile.
func goldenDir(t *testing.T) string {
	t.Helper()
	dir, err := filepath.Abs("testdata/golden")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

const (
	monitor = host + "/plant/components/line-monitor"
	states  = host + "/plant/state"
)

// The road of UX.md: from a Compose project to a signed state, and on from there.
func TestRelease(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "check", "line-monitor")
	s.do(outcome.OK, "component", "push", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "--device", "press-07", "--key", "release.key", states, "--component", "oci://"+monitor+":1.4.0", "--set", "POLL_SECONDS=30")
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
	s.do(outcome.OK, "state", "show", "--device", "press-07", states)
	s.write("line-monitor/config/limits.json", `{"max": 12}`)
	s.do(outcome.OK, "component", "push", "-o", "json", "./line-monitor", monitor+":1.4.1")
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--key=release.key", "--component="+monitor+":1.4.1", "--set", "POLL_SECONDS=30", states, "-o", "json")
	s.do(outcome.OK, "state", "show", "-o", "yaml", states+":press-07")
	s.do(outcome.OK, "state", "show", "-o", "json", states+":press-07.v1")
	s.do(outcome.OK, "bundle", "push", "vision.yaml", host+"/plant/bundles/press:2026.11")
	s.do(outcome.OK, "component", "push", "-q", "./sensor", host+"/plant/components/vision:0.9.2")
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--key", "release.key", "--bundle", host+"/plant/bundles/press:2026.11", states)
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--key", "release.key", "--replace", "--deployment", "vision.yaml", "--expires", "2099-01-01T00:00:00Z", states)
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--unsigned", "--empty", "--generation", "10", states)
	s.do(outcome.OK, "state", "show", "-d", "press-07", states)
	s.golden(golden)
}

// What goes wrong has one shape, and a code that scripts can branch on.
func TestErrors(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Referrers)
	component := monitor + ":1.4.0"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	push := []string{"state", "push", "-d", "press-07", "--key", "release.key", "--component", component, states}
	s.do(outcome.OK, append(push, "-q")...)
	s.do(outcome.Refused, append(push, "--generation", "1")...)
	s.do(outcome.NotFound, "state", "push", "-d", "press-07", "--key", "release.key", "--component", monitor+":9.9.9", states)
	s.do(outcome.NotFound, "state", "show", "-d", "press-08", states)
	s.do(outcome.Misused, "state", "push", "-d", "press-07", "--component", component, states)
	s.do(outcome.Misused, "state", "push", "-d", "press-07", "--unsigned", states)
	s.do(outcome.Misused, "state", "push", "-d", "press 07", "--unsigned", "--empty", states)
	s.do(outcome.Misused, "state", "push", "-d", "press-08", "--unsigned", "--deployment", "vision.yaml", states)
	s.do(outcome.Misused, "state", "push", "-d", "press-07", "--unsigned", "--component", host+"/library/caddy:2.10", states)
	s.do(outcome.Misused, "state", "push", "-d", "press-07", "--unsigned", "--component", monitor, states)
	s.do(outcome.Misused, "component", "push", "./line-monitor", monitor)
	s.do(outcome.NotFound, "component", "push", "./nothing", component)
	s.do(outcome.Misused, "component", "push", "./broken", component)
	s.do(outcome.NotFound, "component", "push", "./missing", component)
	s.write("line-monitor/config/line.json", "{}")
	s.do(outcome.Refused, "component", "push", "./line-monitor", component)
	s.do(outcome.OK, "component", "push", "-q", "--overwrite", "./line-monitor", component)
	s.do(outcome.Verification, "verify", "--key", "release.pub", component)
	s.do(outcome.Verification, "verify", "--key", "other.pub", states+":press-07")
	s.do(outcome.NotFound, "verify", "--key", "release.pub", states+":press-09")
	s.do(outcome.Refused, "verify", "--policy", "reject.yaml", states+":press-07")
	s.do(outcome.Misused, "verify", states+":press-07")
	s.do(outcome.Misused, "verify", "--key", "release.key", states+":press-07")
	s.do(outcome.Misused, "verify", "--policy", "broken/trust.yaml", states+":press-07")
	s.env["COSIGN_PASSWORD"] = "wrong"
	s.do(outcome.Auth, append(push, "-q")...)
	s.env["COSIGN_PASSWORD"] = ""
	s.do(outcome.Auth, append(push, "-q")...)
	s.env["COSIGN_PASSWORD"] = "longshore"
	s.do(outcome.Misused, "state", "pull")
	s.do(outcome.Misused, "--bogus")
	s.do(outcome.Misused, "state", "--bogus")
	s.do(outcome.Misused, "help", "bogus")
	s.do(outcome.Misused, "help", "state", "bogus")
	s.do(outcome.Misused, "stat")
	s.do(outcome.Misused, "component", "psuh", "./line-monitor", component)
	s.do(outcome.Misused, "component", "push", "./line-monitor")
	s.do(outcome.Misused, "component", "push", "./line-monitor/compose.yaml", component)
	s.do(outcome.Misused, "state", "rollback", "-d", "press-07", "--to", "one", "--key", "release.key", states)
	s.do(outcome.Misused, "state", "show", states, "-d")
	s.do(outcome.Misused, "state", "show", "--timeout=soon", states)
	s.do(outcome.Misused, append(push, "--set", "POLL_SECONDS")...)
	s.do(outcome.Misused, append(push, "--set", "POLL_SECOND=30", "--set", "POLL_SECONDS=30", "--set", "NOTHING=1")...)
	s.do(outcome.Misused, "verify", "--kye", "release.pub", states+":press-07")
	s.do(outcome.Misused, "verify", "-o", "xml", "--key", "release.pub", states+":press-07")
	s.do(outcome.Misused, "verify", "--key", "release.pub", "http://"+states+":press-07")
	s.do(outcome.Misused, "sign", states+":press-07")
	s.do(outcome.Misused, "login", host)
	s.do(outcome.Misused, "login", "-u", "anna", "https://"+host+"/")
	s.do(outcome.Misused, "login", "-u", "anna", host+"/plant/state")
	s.do(outcome.Misused, "component", "push", "./line-monitor", monitor+":v1")
	s.do(outcome.Misused, "component", "push", "./line-monitor", monitor+":latest")
	s.do(outcome.Misused, "completion", "tcsh")
	s.golden(golden)
}

// Every fault of everything is told, with its position, and nothing else is needed for that.
func TestCheck(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Lax)
	s.do(outcome.OK, "check", "line-monitor", "vision.yaml", "trust.yaml", "agent.yaml", "state.json", "capabilities.json", "status.json", "problem.json")
	s.do(outcome.Misused, "check", "broken", "broken/trust.yaml", "broken/deployment.yaml", "broken/state.json", "broken/empty.json", "broken/what.yaml", "vision.yaml")
	s.do(outcome.Misused, "check", "-o", "json", "broken/trust.yaml", "vision.yaml")
	s.do(outcome.NotFound, "check", "gone.yaml")
	s.env["stdin"] = string(mustRead(t, "vision.yaml"))
	s.do(outcome.OK, "check", "-")
	s.do(outcome.Misused, "check", "--kind", "trust", "-")
	s.do(outcome.Misused, "check", "--kind", "letter", "-")
	s.golden(golden)
}

func mustRead(t *testing.T, name string) []byte {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return data
}

// Archives are checked as they travel.
func TestCheckArchives(t *testing.T) {
	s := newShell(t, testenv.Lax)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "bundle", "push", "-q", "vision.yaml", host+"/plant/bundles/press:1")
	for _, c := range []struct{ name, repository, tag, kind string }{
		{"component.tar.gz", "plant/components/line-monitor", "1.4.0", kindArchive},
		{"bundle.tar.gz", "plant/bundles/press", "1", kindBundle},
	} {
		data := s.firstLayer(c.repository, c.tag)
		s.write(c.name, string(data))
		var r checkResult
		if err := json.Unmarshal([]byte(s.do(outcome.OK, "check", "-o", "json", c.name)), &r); err != nil {
			t.Fatal(err)
		}
		if len(r.Files) != 1 || r.Files[0].Kind != c.kind || !r.Files[0].Valid {
			t.Errorf("check %s = %+v, want a valid %s", c.name, r.Files, c.kind)
		}
		s.write("cut-"+c.name, string(data[:len(data)/2]))
		s.do(outcome.Misused, "check", "cut-"+c.name)
		s.write("noise-"+c.name, "\x1f\x8bnoise")
		s.do(outcome.Misused, "check", "noise-"+c.name)
	}
}

// firstLayer asks the registry for what was pushed, past all of our code.
func (s *shell) firstLayer(repository, tag string) []byte {
	s.t.Helper()
	client := s.server.Client()
	defer client.CloseIdleConnections()
	get := func(path string) []byte {
		response, err := client.Get(s.server.URL + "/v2/" + repository + path)
		if err != nil {
			s.t.Fatal(err)
		}
		defer response.Body.Close()
		var b bytes.Buffer
		if _, err := b.ReadFrom(response.Body); err != nil || response.StatusCode != 200 {
			s.t.Fatalf("GET %s: %s, %v", path, response.Status, err)
		}
		return b.Bytes()
	}
	var m struct{ Layers []struct{ Digest string } }
	if err := json.Unmarshal(get("/manifests/"+tag), &m); err != nil {
		s.t.Fatal(err)
	}
	return get("/blobs/" + m.Layers[0].Digest)
}

// The same input gives the same digest, in another registry, too.
func TestReproducible(t *testing.T) {
	var first []string
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			s := newShell(t, kind)
			push := func(args ...string) string { return strings.TrimSpace(s.do(outcome.OK, append(args, "-q")...)) }
			component := push("component", "push", "./line-monitor", monitor+":1.4.0")
			if again := push("component", "push", "./line-monitor", monitor+":1.4.0"); component != again {
				t.Errorf("pushed twice: %s and %s", component, again)
			}
			got := []string{
				component,
				push("bundle", "push", "vision.yaml", host+"/plant/bundles/press:1"),
				push("state", "push", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states),
			}
			if first == nil {
				first = got
			}
			if diff := cmp.Diff(first, got); diff != "" {
				t.Errorf("digests differ between registries:\n%s", diff)
			}
		})
	}
}

// A flag beats its variable, and a variable that may hold several has one a line.
func TestVariables(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.change("line-monitor/compose.yaml", "POLL_SECONDS: ${POLL_SECONDS:-10}\n      LINE_PLACE: ${PLACE:-}", "{POLL: $A, PLACE: $B}")
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.env["LONGSHORE_KEY"] = "release.key"
	s.env["LONGSHORE_DEVICE"] = "press-07"
	s.env["LONGSHORE_COMPONENT"] = monitor + ":1.4.0"
	s.env["LONGSHORE_SET"] = "A=1,2\nB=x=y\n"
	s.env["LONGSHORE_OUTPUT"] = "json"
	var shown stateInfo
	s.do(outcome.OK, "state", "push", states)
	s.do(outcome.OK, "state", "push", "--device", "press-08", states)
	for _, device := range []string{"press-07", "press-08"} {
		if err := json.Unmarshal([]byte(s.do(outcome.OK, "state", "show", "--device", device, states)), &shown); err != nil {
			t.Fatal(err)
		}
		if shown.Device != device || shown.Generation != 1 {
			t.Errorf("state = %+v, want generation 1 of %s", shown, device)
		}
		if diff := cmp.Diff(map[string]any{"A": "1,2", "B": "x=y"}, shown.Deployments[0].Parameters); diff != "" {
			t.Errorf("parameters:\n%s", diff)
		}
	}
	s.env["LONGSHORE_PUBLIC_KEY"] = "other.pub\nrelease.pub"
	s.do(outcome.OK, "verify", states+":press-07")
	s.env["LONGSHORE_OUTPUT"] = "xml"
	if code, _, stderr := s.try("verify", states+":press-07"); code != outcome.Misused || !strings.Contains(stderr, "LONGSHORE_OUTPUT") {
		t.Errorf("exit %d, want %d and the name of the variable\n%s", code, outcome.Misused, stderr)
	}
	s.env["LONGSHORE_TIMEOUT"] = "soon"
	if code, _, stderr := s.try("verify", states+":press-07"); code != outcome.Misused || !strings.Contains(stderr, "LONGSHORE_TIMEOUT") {
		t.Errorf("exit %d, want %d and the name of the variable\n%s", code, outcome.Misused, stderr)
	}
}

func TestPolicies(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	component := monitor + ":1.4.0"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--key", "release.key", "--component", component, states)
	for _, c := range []struct {
		args []string
		code int
		want string // in stdout
	}{
		{[]string{"--policy", "trust.yaml", "--no-recurse", states + ":press-07"}, outcome.OK, "release"},
		{[]string{"--policy", "trust.yaml", states + ":press-07"}, outcome.Verification, "✗ signature"},
		{[]string{"--policy", "trust.yaml", "--kind", "component", component}, outcome.Verification, ""},
		{[]string{"--policy", "trust.yaml", "--kind", "image", host + "/library/caddy:2.10"}, outcome.OK, "no signature"},
		{[]string{"--policy", "trust.yaml", "--kind", "thing", component}, outcome.Misused, ""},
		{[]string{"--policy", "allow.yaml", states + ":press-07"}, outcome.OK, "the policy has allowUnsigned"},
		{[]string{"--policy", "reject.yaml", states + ":press-07"}, outcome.Refused, ""},
	} {
		code, stdout, stderr := s.try(append([]string{"verify"}, c.args...)...)
		if code != c.code || !strings.Contains(stdout, c.want) {
			t.Errorf("verify %v: exit %d\n%s%s", c.args, code, stdout, stderr)
		}
	}
	s.do(outcome.OK, "sign", "--key", "release.key", "-a", "approved=yes", component)
	s.do(outcome.OK, "verify", "--policy", "trust.yaml", "--kind", "component", component)
	s.do(outcome.OK, "verify", "--key", "release.pub", "-a", "approved=yes", component)
	s.do(outcome.Verification, "verify", "--key", "release.pub", "-a", "approved=no", "-a", "by=anna", component)
	if !strings.Contains(s.log.String(), "approved=no, by=anna") {
		t.Errorf("the claims are not told as they are written:\n%s", s.log.String())
	}
	first := s.do(outcome.OK, "sign", "--key", "release.key", "-a", "approved=yes", "-o", "json", component)
	if again := s.do(outcome.OK, "sign", "--key", "release.key", "-a", "approved=yes", "-o", "json", component); first != again {
		t.Errorf("signed twice:\n%s\n%s", first, again)
	}
}

// Temporary failures say so, and change nothing.
func TestTemporary(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	component := monitor + ":1.4.0"
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", component)
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", component, states)
	s.server.Down()
	for _, args := range [][]string{
		{"state", "push", "-d", "press-07", "--key", "release.key", "--component", component, states},
		{"state", "show", "-d", "press-07", states},
		{"verify", "--key", "release.pub", states + ":press-07"},
	} {
		code, _, stderr := s.try(append(args, "--timeout", "2s")...)
		if code != outcome.Temporary || !strings.Contains(stderr, "temporar") {
			t.Errorf("%v without a registry: exit %d, want %d\n%s", args, code, outcome.Temporary, stderr)
		}
	}
	if err := s.server.Up(); err != nil {
		t.Fatal(err)
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
}

func TestLogin(t *testing.T) {
	s := newShell(t, testenv.DistributionTLS)
	private := testenv.Registry(t, testenv.DistributionHtpasswd)
	s.write("certs.d/private.example/hosts.toml", "server = \""+private.URL+"\"\n")
	target := "private.example/plant/state"
	push := []string{"state", "push", "-d", "press-07", "--key", "release.key", "--empty", target}
	s.do(outcome.Auth, push...)
	s.env["stdin"] = "wrong\n"
	s.refuses(outcome.Auth, []string{"log in to private.example: the user name or the password is wrong", "hint: check both"}, "login", "private.example", "-u", private.Username, "--password-stdin")
	s.env["stdin"] = private.Password + "\n"
	s.do(outcome.OK, "login", "private.example", "-u", private.Username, "--password-stdin")
	s.do(outcome.OK, push...)
	s.do(outcome.OK, "verify", "--key", "release.pub", target+":press-07")
	s.do(outcome.OK, "logout", "private.example")
	terminal, person := testTerminal(t)
	if _, err := person.WriteString(private.Username + "\n" + private.Password + "\n"); err != nil {
		t.Fatal(err)
	}
	var out, errs bytes.Buffer
	if code := run(t.Context(), []string{"login", "private.example"}, terminal, &out, &errs, s.lookup); code != outcome.OK || !strings.Contains(errs.String(), "user name at private.example: ") {
		t.Errorf("login at a terminal: exit %d\n%s%s", code, &out, &errs)
	}
	if _, err := person.WriteString("\n"); err != nil {
		t.Fatal(err)
	}
	errs.Reset()
	if code := run(t.Context(), []string{"login", "-u", private.Username, "private.example"}, terminal, &out, &errs, s.lookup); code != outcome.Misused || !strings.Contains(errs.String(), "login: no password was typed") {
		t.Errorf("login without a password: exit %d\n%s", code, &errs)
	}
	s.do(outcome.OK, push...)
	s.do(outcome.OK, "logout", "private.example")
	s.do(outcome.Auth, "state", "show", "-d", "press-07", target)
	s.do(outcome.OK, "state", "show", "-d", "press-07", "-u", private.Username, "-p", private.Password, target)
	code, _, debug := s.try("state", "show", "--debug", "-d", "press-07", "-u", private.Username, "-p", private.Password, target)
	basic := base64.StdEncoding.EncodeToString([]byte(private.Username + ":" + private.Password))
	if code != outcome.OK || debug == "" || strings.Contains(debug, private.Password) || strings.Contains(debug, basic) {
		t.Errorf("--debug: exit %d, stderr:\n%s", code, debug)
	}
	if log := s.log.String(); strings.Contains(strings.ReplaceAll(log, "-p "+private.Password, ""), private.Password) {
		t.Errorf("the password is in the output:\n%s", log)
	}
}

func TestKeyGenerate(t *testing.T) {
	s := newShell(t, testenv.Lax)
	s.env["LONGSHORE_KEY_PASSWORD"] = "open sesame"
	s.do(outcome.OK, "key", "generate", "mine")
	info, err := os.Stat("mine.key")
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("mine.key: %v, %v, want mode 0600", info, err)
	}
	before := mustRead(t, "mine.key")
	s.do(outcome.Refused, "key", "generate", "mine")
	if !bytes.Equal(before, mustRead(t, "mine.key")) {
		t.Error("mine.key was overwritten")
	}
	if err := os.Remove("mine.key"); err != nil {
		t.Fatal(err)
	}
	s.do(outcome.Refused, "key", "generate", "mine")
	if _, err := os.Stat("mine.key"); err == nil {
		t.Error("mine.key was made although mine.pub is there")
	}
	s.do(outcome.Misused, "key", "generate", "a", "b")
	s.do(outcome.NotFound, "key", "generate", "no/such/folder/mine")
	delete(s.env, "LONGSHORE_KEY_PASSWORD")
	delete(s.env, "COSIGN_PASSWORD")
	s.do(outcome.Auth, "key", "generate", "other2")
	for n, name := range []string{"LONGSHORE_KEY_PASSWORD", "COSIGN_PASSWORD"} {
		s.env[name] = "" // set, to nothing
		file := fmt.Sprintf("empty%d", n)
		s.do(outcome.OK, "key", "generate", file)
		s.do(outcome.OK, "component", "push", "-q", "--key", file+".key", "./line-monitor", fmt.Sprintf("%s:0.0.%d", monitor, n))
		delete(s.env, name)
	}
	s.write("password", "from a file\r\n")
	s.do(outcome.OK, "key", "generate", "--key-password-file", "password", "other2")
	s.write("exact", "from a file")
	s.do(outcome.OK, "component", "push", "-q", "--key", "other2.key", "--key-password-file", "exact", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "verify", "--key", "other2.pub", monitor+":1.4.0")
}

// An OCI layout is as good a place as a registry.
func TestLayout(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", "oci-layout:stick")
	s.do(outcome.OK, "verify", "--key", "release.pub", "oci-layout:stick:press-07")
	s.do(outcome.OK, "state", "show", "oci-layout:stick:press-07.v1")
	for _, args := range [][]string{{"state", "history", "--device", "press-07"}, {"state", "proposals"}, {"app", "list"}, {"app", "channel", "list"}} {
		if out := s.do(outcome.OK, slices.Concat(args, []string{"-o", "json", "oci-layout:stick"})...); !strings.Contains(out, `"repository": "oci-layout:stick"`) {
			t.Errorf("%s: the repository has another name:\n%s", strings.Join(args, " "), out)
		}
	}
	s.refuses(outcome.Misused, []string{"hint: longshore state history --device press-07 oci-layout:stick"}, "state", "history", "oci-layout:stick:press-07")
	s.do(outcome.Misused, "verify", "--policy", "trust.yaml", "oci-layout:stick:press-07")
}

// The real cosign, of both lines, verifies what state push signed, and signs what verify takes.
func TestCosign(t *testing.T) {
	for _, name := range []string{"cosign2", "cosign3"} {
		t.Run(name, func(t *testing.T) {
			program := testenv.Program(t, name)
			s := newShell(t, testenv.Distribution)
			s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
			s.do(outcome.OK, "state", "push", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
			s.write("root.json", `{"mediaType":"application/vnd.dev.sigstore.trustedroot+json;version=0.1"}`)
			s.write("config.json", `{"mediaType":"application/vnd.dev.sigstore.signingconfig.v0.2+json","rekorTlogConfig":{},"tsaConfig":{}}`)
			verify := []string{"verify", "--key", "release.pub", "--insecure-ignore-tlog", s.server.Reference("plant/state:press-07")}
			sign := []string{"sign", "--key", "release.key", "--yes", s.server.Reference("plant/components/line-monitor:1.4.0")}
			if name == "cosign2" {
				verify = append(verify, "--trusted-root", "root.json")
				sign = append(sign, "--tlog-upload=false")
			} else {
				sign = append(sign, "--signing-config", "config.json")
			}
			for _, args := range [][]string{verify, sign} {
				cmd := exec.CommandContext(t.Context(), program, args...)
				cmd.Env = append(os.Environ(), "HOME="+s.env["HOME"], "COSIGN_PASSWORD=longshore", "HTTPS_PROXY=http://127.0.0.1:1", "NO_PROXY=127.0.0.1")
				if out, err := cmd.CombinedOutput(); err != nil {
					t.Fatalf("%s %v: %v\n%s", name, args, err, out)
				}
			}
			s.do(outcome.OK, "verify", "--key", "release.pub", monitor+":1.4.0")
		})
	}
}

// Registry credentials of flags are for hosts that the command line names, not for those that documents name.
func TestCredentialsStayWithTheCommandLine(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	elsewhere, private := testenv.Registry(t, testenv.DistributionHtpasswd), testenv.Registry(t, testenv.DistributionHtpasswd)
	var told []string
	elsewhere.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		told = append(told, r.Header.Get("Authorization"))
		next.ServeHTTP(w, r)
	}})
	s.write("certs.d/elsewhere.example/hosts.toml", "server = \""+elsewhere.URL+"\"\n")
	s.write("certs.d/private.example/hosts.toml", "server = \""+private.URL+"\"\n")
	s.write("elsewhere.yaml", strings.ReplaceAll(string(mustRead(t, "vision.yaml")), host, "elsewhere.example"))
	login := []string{"-u", private.Username, "-p", private.Password}
	s.do(outcome.OK, append(login, "bundle", "push", "elsewhere.yaml", "private.example/plant/bundles/press:1")...)
	push := append(login, "state", "push", "-d", "press-07", "--key", "release.key", "private.example/plant/state")
	s.do(outcome.Auth, append(push, "--deployment", "elsewhere.yaml")...)
	s.do(outcome.Auth, append(push, "--bundle", "private.example/plant/bundles/press:1")...)
	if got := strings.Join(told, ""); got != "" || len(told) == 0 {
		t.Errorf("the registry of a document was asked %d times and told %q", len(told), got)
	}
	s.do(outcome.OK, append(login, "component", "push", "./line-monitor", "private.example/plant/line-monitor:1.4.0")...)
	s.do(outcome.OK, append(push, "--component", "private.example/plant/line-monitor:1.4.0")...)
}

// Help and version are asked for in every way that people try.
func TestHelpAndVersion(t *testing.T) {
	s := &shell{t: t, env: map[string]string{}}
	same := func(args ...[]string) {
		t.Helper()
		first := s.do(outcome.OK, args[0]...)
		for _, other := range args[1:] {
			if got := s.do(outcome.OK, other...); got != first || got == "" {
				t.Errorf("%v and %v differ:\n%s\n%s", args[0], other, first, got)
			}
		}
	}
	same([]string{"version"}, []string{"--version"}, []string{"-v"})
	same([]string{"state", "push", "--help"}, []string{"help", "state", "push"}, []string{"state", "push", "-h"}, []string{"state", "help", "push"})
	same([]string{"state", "--help"}, []string{"help", "state"})
	same([]string{"--help"}, []string{"help"}, []string{"-h"})
}
