package fleetserver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/fleetserver"
)

// workshop is where a plant's files are: in a Git repository on another machine, and in a clone of it beside the manager.
type workshop struct {
	s            *server
	origin, keys string
	clone        string
}

func (w *workshop) run(code int, argv ...string) string {
	w.s.t.Helper()
	cmd := exec.CommandContext(w.s.t.Context(), argv[0], argv[1:]...)
	cmd.Env = append(os.Environ(), "HOME="+w.keys, "DOCKER_CONFIG="+w.keys, "LONGSHORE_KEY_PASSWORD=secret", "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_CONFIG_SYSTEM="+os.DevNull,
		"GIT_AUTHOR_NAME=ci", "GIT_AUTHOR_EMAIL=ci@acme.example", "GIT_COMMITTER_NAME=ci", "GIT_COMMITTER_EMAIL=ci@acme.example")
	out, err := cmd.CombinedOutput()
	if err != nil && cmd.ProcessState == nil || cmd.ProcessState.ExitCode() != code {
		w.s.t.Fatalf("%s: %v, want exit code %d\n%s", strings.Join(argv, " "), err, code, out)
	}
	return string(out)
}

func (w *workshop) git(args ...string) { w.run(0, append([]string{"git", "-C", w.clone}, args...)...) }

func (w *workshop) longshore(code int, args ...string) string {
	return w.run(code, append([]string{w.s.Path("longshore")}, args...)...)
}

func (w *workshop) publish() string {
	return w.longshore(0, "fleet", "publish", "--key", filepath.Join(w.keys, "release.key"), filepath.Join(w.clone, "plant"))
}

// edit replaces text in a file of the repository, and commits it.
func (w *workshop) edit(name, from, to string) {
	w.s.t.Helper()
	file := filepath.Join(w.clone, name)
	data, err := os.ReadFile(file)
	if err == nil && !bytes.Contains(data, []byte(from)) {
		err = fmt.Errorf("%q is not in\n%s", from, data)
	}
	if err == nil {
		err = os.WriteFile(file, bytes.Replace(data, []byte(from), []byte(to), 1), 0o644)
	}
	if err != nil {
		w.s.t.Fatal(err)
	}
	w.git("commit", "--quiet", "--all", "--message", "plant: "+to)
	w.git("push", "--quiet", "origin", "HEAD:main")
}

func openWorkshop(s *server, clients string) *workshop {
	s.t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		testenv.Unavailable(s.t, "git: %v", err)
	}
	w := &workshop{s: s, keys: s.t.TempDir(), clone: s.Path("clone")}
	w.origin = filepath.Join(w.keys, "plant.git")
	image, err := testenv.SoftwareImage(s.t.Context(), os.Stderr, "toolbox", testenv.HostPlatform())
	if err == nil {
		_, err = s.Registry.Push(s.t.Context(), "plant/toolbox:1", image)
	}
	if err == nil {
		err = testenv.BuildOwn(s.t.Context(), s.Dir, "longshore")
	}
	if err == nil {
		err = os.MkdirAll(s.Path("web"), 0o755)
	}
	if err == nil {
		err = os.WriteFile(s.Path("web/compose.yaml"), fmt.Appendf(nil, "services: {web: {image: %s/plant/toolbox:1, command: [serve, '8080', one], environment: {RATE: '${RATE:-1}'}}}\n", s.Registry.Host), 0o644)
	}
	if err != nil {
		s.t.Fatal(err)
	}
	w.longshore(0, "key", "generate", filepath.Join(w.keys, "release"))
	w.longshore(0, "component", "push", s.Path("web"), s.Registry.Host+"/plant/components/web:1.0.0")
	w.run(0, "git", "init", "--quiet", "--bare", "--initial-branch=main", w.origin)
	w.run(0, "git", "clone", "--quiet", w.origin, w.clone)
	w.longshore(0, "fleet", "init", "--name", "plant", "--registry", s.Registry.Host+"/plant", "--component", "components/web:1.0.0", "--device", "press-07", "--device", "press-08", filepath.Join(w.clone, "plant"))
	if err := os.WriteFile(filepath.Join(w.clone, "clients.yaml"), []byte(clients), 0o644); err != nil {
		s.t.Fatal(err)
	}
	w.git("add", "--all")
	w.git("commit", "--quiet", "--message", "plant: begin")
	w.git("push", "--quiet", "origin", "HEAD:main")
	return w
}

// seen is everything that a device gets for its desired state.
func (s *server) seen(device string) (etag string, version uint64, all map[string][]byte) {
	s.t.Helper()
	c := s.as(device)
	all = map[string][]byte{}
	get := func(path string) *fleetserver.Answer {
		s.t.Helper()
		a := s.do(c, "GET", path, "")
		if a.Code != http.StatusOK {
			s.t.Fatalf("GET %s as %s = %d %s", path, device, a.Code, a.Body)
		}
		all[path] = a.Body
		return a
	}
	a := get("/api/v1/deployments")
	var m struct {
		ManifestVersion uint64
		Bundle          struct{ URL string }
		Deployments     []struct{ URL string }
	}
	if err := json.Unmarshal(a.Body, &m); err != nil || len(m.Deployments) == 0 {
		s.t.Fatalf("manifest of %s: %v\n%s", device, err, a.Body)
	}
	get(m.Bundle.URL)
	for _, d := range m.Deployments {
		get(d.URL)
	}
	return a.Header.Get("ETag"), m.ManifestVersion, all
}

// report has a device report a deployment.
func (s *server) report(device, deployment string) int {
	s.t.Helper()
	return s.do(s.as(device), "POST", "/api/v1/deployments/"+deployment+"/status", fmt.Sprintf(
		`{"deploymentId":%q,"adoptedManifestVersion":1,"status":{"state":"installed"},"components":[{"name":"web","state":"installed"}]}`, deployment)).Code
}

// A manager is restored from nothing but the registry and Git: what devices get is the same to the last byte, with the same digests and ETags;
// what they have reported is asked for; the files of the clone find nothing to publish, and the next change continues the count.
func TestNothingButRegistryAndGit(t *testing.T) {
	const clients = "accept: [press-07, press-08]\n"
	s := start(t, fleetserver.Options{Clients: clients})
	w := openWorkshop(s, clients)
	w.publish()
	w.edit("plant/fleet.yaml", "# parameters: {KEY: value}", "parameters: {RATE: 5}")
	w.publish()

	const deployment = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	devices := []string{"press-07", "press-08"}
	type state struct {
		etag    string
		version uint64
		all     map[string][]byte
	}
	before := map[string]state{}
	for _, d := range devices {
		etag, version, all := s.seen(d)
		before[d] = state{etag, version, all}
		if put, post := s.register(s.as(d), d), s.report(d, deployment); version != 2 || put != 201 || post != 201 {
			t.Errorf("%s: version %d, PUT %d, POST %d", d, version, put, post)
		}
	}
	s.Kill()
	s.lose("fleet.db", "fleet.db-wal", "fleet.db-shm", "states", "clients.yaml", "clone")

	w.run(0, "git", "clone", "--quiet", w.origin, w.clone)
	if data, err := os.ReadFile(filepath.Join(w.clone, "clients.yaml")); err != nil || os.WriteFile(s.Path("clients.yaml"), data, 0o600) != nil {
		t.Fatal(err)
	}
	s.restart()
	w.longshore(0, "fleet", "plan", filepath.Join(w.clone, "plant")) // 1: something would change
	w.publish()
	for _, d := range devices {
		was := before[d]
		etag, version, all := s.seen(d)
		if etag != was.etag || version != was.version || len(all) != len(was.all) {
			t.Errorf("%s: ETag %s, version %d, %d documents, want %s, %d, %d", d, etag, version, len(all), was.etag, was.version, len(was.all))
		}
		for path, body := range was.all {
			if !bytes.Equal(all[path], body) {
				t.Errorf("%s: GET %s = %s, want %s", d, path, all[path], body)
			}
		}
		c := s.as(d)
		if a := s.do(c, "GET", "/api/v1/deployments", "", "If-None-Match", was.etag); a.Code != http.StatusNotModified {
			t.Errorf("%s: poll with the ETag from before = %d", d, a.Code)
		}
		for _, want := range []int{201, 200} { // 201: the device reports everything again
			if put, post := s.register(c, d), s.report(d, deployment); put != want || post != want {
				t.Errorf("%s: PUT %d, POST %d, want %d", d, put, post, want)
			}
		}
	}
	if a := s.do(s.as("press-09"), "GET", "/api/v1/deployments", ""); a.Code != http.StatusForbidden {
		t.Errorf("a client that the policy from Git does not accept: %d", a.Code)
	}
	w.edit("plant/fleet.yaml", "RATE: 5", "RATE: 6")
	w.publish()
	testenv.Eventually(t, time.Minute, "the next change is served", func() error {
		if _, version, _ := s.seen("press-07"); version != 3 {
			return fmt.Errorf("version %d", version)
		}
		return nil
	})
}
