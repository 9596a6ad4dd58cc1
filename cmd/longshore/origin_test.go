package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// git works in the shell's directory, which becomes a repository with the first call.
func (s *shell) git(args ...string) string {
	s.t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		testenv.Unavailable(s.t, "git: %v", err)
	}
	for name, value := range map[string]string{
		"GIT_CONFIG_GLOBAL": os.DevNull, "GIT_AUTHOR_NAME": "Anna", "GIT_AUTHOR_EMAIL": "anna@acme.example", "GIT_COMMITTER_NAME": "Anna",
		"GIT_COMMITTER_EMAIL": "anna@acme.example", "GIT_AUTHOR_DATE": "1763654400 +0000", "GIT_COMMITTER_DATE": "1763654400 +0000",
	} {
		if os.Getenv(name) != value {
			s.t.Setenv(name, value)
		}
	}
	out, err := exec.CommandContext(s.t.Context(), "git", args...).CombinedOutput()
	if err != nil {
		s.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

// commit commits everything but keys and what newShell needs.
func (s *shell) commit(message string) string {
	s.t.Helper()
	if _, err := os.Stat(".git"); err != nil {
		s.git("init", "-q", "-b", "main")
		s.git("remote", "add", "origin", "https://anna:secret@git.acme.example/plants/graz.git")
		s.write(".gitignore", "*.key\n*.pub\ncerts.d/\nplan.json\n")
	}
	s.git("add", "-A")
	s.git("commit", "-q", "-m", message)
	return s.git("rev-parse", "HEAD")
}

// annotations are those that the registry has on an artifact.
func (s *shell) annotations(reference string) map[string]string {
	s.t.Helper()
	repository, tag, _ := strings.Cut(strings.TrimPrefix(reference, host+"/"), ":")
	client := s.server.Client()
	defer client.CloseIdleConnections()
	request, err := http.NewRequestWithContext(s.t.Context(), http.MethodGet, s.server.URL+"/v2/"+repository+"/manifests/"+tag, nil)
	if err != nil {
		s.t.Fatal(err)
	}
	request.Header.Set("Accept", ocispec.MediaTypeImageManifest)
	response, err := client.Do(request)
	if err != nil {
		s.t.Fatal(err)
	}
	defer response.Body.Close()
	var m ocispec.Manifest
	if err := json.NewDecoder(response.Body).Decode(&m); err != nil || response.StatusCode != 200 {
		s.t.Fatalf("%s: %s, %v", reference, response.Status, err)
	}
	return m.Annotations
}

const gitSource = "https://git.acme.example/plants/graz"

// What is pushed says of which commit it is, and what is not committed is not pushed.
func TestOrigin(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	first := s.commit("first")
	wants := func(reference, revision string) {
		t.Helper()
		a := s.annotations(reference)
		source := gitSource
		if revision == "" {
			source = ""
		}
		if a[ocispec.AnnotationRevision] != revision || a[ocispec.AnnotationSource] != source {
			t.Errorf("%s: revision %q, source %q, want %q", reference, a[ocispec.AnnotationRevision], a[ocispec.AnnotationSource], revision)
		}
	}
	bundle := host + "/plant/bundles/press"
	for _, c := range []struct {
		name, reference, dirty string
		args                   []string
	}{
		{"component", monitor, "line-monitor/config/new.json", []string{"component", "push", "./line-monitor", monitor}},
		{"app", host + "/plant/apps/line", "app/new.md", []string{"app", "push", "./app", host + "/plant/apps/line"}},
		{"bundle", bundle, "vision.yaml", []string{"bundle", "push", "vision.yaml", bundle}},
	} {
		t.Run(c.name, func(t *testing.T) {
			push := func(version string, flags ...string) (int, string) {
				args := append(append([]string{}, c.args...), flags...)
				args[len(c.args)-1] += ":" + version
				code, stdout, stderr := s.try(args...)
				return code, stdout + stderr
			}
			if code, out := push("1.4.0"); code != outcome.OK {
				t.Fatalf("exit %d\n%s", code, out)
			}
			wants(c.reference+":1.4.0", first)
			before, _ := os.ReadFile(c.dirty)
			s.write(c.dirty, string(before)+"\n")
			code, out := push("1.4.0", "--overwrite")
			if code != outcome.Refused || !strings.Contains(out, "has uncommitted changes") || !strings.Contains(out, "--allow-dirty") {
				t.Errorf("dirty: exit %d\n%s", code, out)
			}
			wants(c.reference+":1.4.0", first)
			if code, out := push("1.4.0", "--overwrite", "--allow-dirty"); code != outcome.OK {
				t.Errorf("--allow-dirty: exit %d\n%s", code, out)
			}
			wants(c.reference+":1.4.0", first+"-dirty")
			if code, out := push("1.4.0", "--overwrite", "-a", ocispec.AnnotationRevision+"=v1", "-a", ocispec.AnnotationSource+"="+gitSource); code != outcome.OK {
				t.Errorf("named: exit %d\n%s", code, out)
			}
			wants(c.reference+":1.4.0", "v1")
			s.git("checkout", "-q", "--", ".")
			s.git("clean", "-fdq")
		})
	}
}

// A fleet's states say of which commit they are. A commit that changes nothing for a device publishes nothing for it, and a
// plan that was looked at before a merge holds behind it.
func TestFleetOrigin(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.commit("first")
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	first := s.git("rev-parse", "HEAD")
	revision := func(device, want string) {
		t.Helper()
		if got := s.annotations(states + ":" + device); got[ocispec.AnnotationRevision] != want || got[ocispec.AnnotationSource] != gitSource {
			t.Errorf("%s: %v, want revision %s", device, got, want)
		}
	}
	publish := []string{"fleet", "publish", "-q", "--key", "release.key", "plant"}
	s.do(outcome.OK, publish...)
	revision("press-07", first)
	s.write("readme", "x\n")
	s.commit("nothing of the fleet")
	s.do(outcome.OK, "fleet", "plan", "plant")
	s.do(outcome.OK, publish...)
	revision("press-07", first)
	s.do(outcome.NotFound, "state", "show", "-q", states+":press-07.v2")
	// Looked at on a branch, not committed even; published from another commit.
	s.change("plant/fleet.yaml", "poll: 10", "poll: 12")
	code, _, stderr := s.try("fleet", "plan", "--out", "plan.json", "plant")
	if code != outcome.Differs || !strings.Contains(stderr, "note: plant has uncommitted changes: fleet.yaml") {
		t.Errorf("plan of what is not committed: exit %d\n%s", code, stderr)
	}
	for _, args := range [][]string{publish, append(publish, "--dry-run"), append(publish, "--plan", "plan.json")} {
		if code, _, stderr := s.try(args...); code != outcome.Refused || !strings.Contains(stderr, "plant has uncommitted changes: fleet.yaml") {
			t.Errorf("%v: exit %d\n%s", args, code, stderr)
		}
	}
	merged := s.commit("merged")
	s.do(outcome.OK, append(publish, "--plan", "plan.json")...)
	revision("press-07", merged)
	s.write("readme", "y\n")
	s.commit("behind the merge")
	s.do(outcome.OK, append(publish, "--plan", "plan.json")...) // again: it is done
	revision("press-07", merged)
	s.change("plant/fleet.yaml", "poll: 12", "poll: 13")
	other := s.commit("not what was shown")
	s.do(outcome.Refused, append(publish, "--plan", "plan.json")...)
	s.change("plant/fleet.yaml", "poll: 13", "poll: 14")
	s.do(outcome.OK, append(publish, "--allow-dirty")...)
	revision("press-07", other+"-dirty")
	if strings.Contains(s.log.String(), "secret") {
		t.Error("the password of the remote is in the output")
	}
}
