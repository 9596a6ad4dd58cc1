package testenv

import (
	"net/http"
	"net/http/cgi"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
)

// gitPath is where the repository is on its server.
const gitPath = "/plant.git"

// GitServer serves one Git repository over HTTP, by git's own http-backend, to one user.
type GitServer struct {
	URL string // with user and password in it, as CI systems hand it out

	away atomic.Bool
}

// Away makes the server answer 503, or ends that.
func (s *GitServer) Away(away bool) { s.away.Store(away) }

// ServeGit serves the repository of a checkout until the test ends.
func ServeGit(t testing.TB, dir, user, password string) *GitServer {
	t.Helper()
	path, err := exec.CommandContext(t.Context(), "git", "--exec-path").Output()
	if err != nil {
		Unavailable(t, "git: %v", err)
	}
	backend := filepath.Join(strings.TrimSpace(string(path)), "git-http-backend")
	if _, err := os.Stat(backend); err != nil {
		Unavailable(t, "git http-backend: %v", err)
	}
	full, err := filepath.Abs(dir)
	if err != nil {
		t.Fatal(err)
	}
	handler := &cgi.Handler{Path: backend, Root: gitPath, Env: []string{
		"GIT_PROJECT_ROOT=" + filepath.Join(full, ".git"), "GIT_HTTP_EXPORT_ALL=1", "REMOTE_USER=" + user, "GIT_CONFIG_GLOBAL=" + os.DevNull,
	}}
	s := &GitServer{}
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		u, p, _ := r.BasicAuth()
		switch {
		case s.away.Load():
			w.WriteHeader(http.StatusServiceUnavailable)
		case u != user || p != password:
			w.Header().Set("WWW-Authenticate", `Basic realm="git"`)
			w.WriteHeader(http.StatusUnauthorized)
		default:
			handler.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(server.Close)
	s.URL = strings.Replace(server.URL, "://", "://"+user+":"+password+"@", 1) + gitPath
	return s
}
