package main

import (
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// listening notes what a registry is told.
func listening(s *testenv.RegistryServer) (told func() []string) {
	var (
		mu  sync.Mutex
		all []string
	)
	s.Faults.Add(testenv.Rule{Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		mu.Lock()
		all = append(all, r.Header.Get("Authorization"))
		mu.Unlock()
		next.ServeHTTP(w, r)
	}})
	return func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(all)
	}
}

// Who may push to a branch writes fleet.yaml: its registry and its endpoint get the environment's credentials only when
// they are named outside of the files, too.
func TestFleetFilesNameNoPlaceForCredentials(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	t.Setenv("TMPDIR", t.TempDir())
	private := testenv.Registry(t, testenv.DistributionHtpasswd)
	told := listening(private)
	s.write("certs.d/private.example/hosts.toml", "server = \""+private.URL+"\"\n")
	s.change("plant/fleet.yaml", "registry: "+host, "registry: private.example")
	s.commit("another registry")
	server := testenv.ServeGit(t, ".", "ci", "glcbt-secret")
	s.env["LONGSHORE_USERNAME"], s.env["LONGSHORE_PASSWORD"] = private.Username, private.Password
	commands := [][]string{
		{"fleet", "check", "plant"},
		{"fleet", "plan", "plant"},
		{"fleet", "status", "plant"},
		{"fleet", "publish", "--key", "release.key", "plant"},
		{"fleet", "rollback", "--previous", "--key", "release.key", "plant"},
		{"fleet", "prune", "--keep", "3", "plant"},
		{"fleet", "watch", "--once", "--key", "release.key", "--path", "plant", server.URL},
	}
	for _, args := range commands {
		_, _, stderr := s.try(args...)
		if !strings.Contains(stderr, "not sent to private.example") || !strings.Contains(stderr, "--registry-host private.example") {
			t.Errorf("%v does not say why it was not let in:\n%s", args, stderr)
		}
	}
	if all := told(); len(all) == 0 || slices.ContainsFunc(all, func(a string) bool { return a != "" }) {
		t.Errorf("the registry of fleet.yaml was told %q, want questions without credentials", all)
	}
	s.env["LONGSHORE_REGISTRY_HOST"] = "private.example"
	for _, args := range commands {
		_, _, stderr := s.try(args...)
		if strings.Contains(stderr, "not sent to") || strings.Contains(stderr, "not authenticated") {
			t.Errorf("%v is not let in where the host is named:\n%s", args, stderr)
		}
	}
	s.do(outcome.Auth, "component", "push", "./line-monitor", private.Host+"/plant/line-monitor:1.4.0") // it is for that host alone
	s.env["LONGSHORE_REGISTRY_HOST"] = "https://private.example"
	s.do(outcome.Misused, "fleet", "check", "plant")
}

// The viewers' password goes to an address that the command line or the environment names.
func TestFleetFilesNameNoEndpointForThePassword(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.stock()
	s.do(outcome.OK, "app", "push", "-q", "./app", host+"/plant/apps/line")
	// endpoint is one that refuses everybody, and what it has received. A request may arrive after the command that sent it has ended.
	endpoint := func() (url string, received func() []string) {
		var mu sync.Mutex
		var told []string
		server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			told = append(told, r.Header.Get("Authorization"))
			mu.Unlock()
			http.Error(w, "no", http.StatusUnauthorized)
		}))
		t.Cleanup(server.Close)
		return server.URL, func() []string {
			mu.Lock()
			defer mu.Unlock()
			return slices.Clone(told)
		}
	}
	ofFile, receivedOfFile := endpoint()
	s.write("viewers", "viewers' secret\n")
	s.change("plant/fleet.yaml", "include:", "endpoint: "+ofFile+"\ninclude:")
	for _, flag := range []string{"--endpoint-password-file", "--endpoint-token-file"} {
		s.do(outcome.Auth, "fleet", "status", flag, "viewers", "plant")
		named, received := endpoint()
		s.do(outcome.Auth, "fleet", "status", flag, "viewers", "--endpoint", named, "plant")
		if got := received(); len(got) == 0 || got[0] == "" {
			t.Errorf("%s: the endpoint that was named received %q", flag, got)
		}
		if got := receivedOfFile(); len(got) != 0 {
			t.Errorf("%s: the endpoint of fleet.yaml received %q", flag, got)
		}
	}
}
