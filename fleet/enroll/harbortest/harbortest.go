// Package harbortest simulates Harbor for tests: the part of its API v2.0 that is about robot accounts of projects. It was written after
// Harbor's own handlers of 2.2 to 2.14 (src/server/v2.0/handler/robot.go) and has not been compared with a running Harbor.
package harbortest

import (
	"crypto/rand"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"testing"
)

// Account of the operator, and the project that there is.
const (
	Username  = "admin"
	Password  = "Harbor12345"
	Robot     = "robot$ci" // with the same password; it creates accounts, and may not set the secret of another one
	Project   = "plant"
	projectID = 7
)

// Account is a robot account.
type Account struct {
	ID          int64        `json:"id"`
	Name        string       `json:"name"`
	Description string       `json:"description"`
	Level       string       `json:"level"`
	Duration    int64        `json:"duration"`
	Permissions []Permission `json:"permissions"`
	Secret      string       `json:"-"`
}

// Permission is what a robot account may do in a project.
type Permission struct {
	Kind      string   `json:"kind"`
	Namespace string   `json:"namespace"`
	Access    []Access `json:"access"`
}

// Access is one thing that is permitted.
type Access struct {
	Resource string `json:"resource"`
	Action   string `json:"action"`
}

// Harbor is a running server.
type Harbor struct {
	URL string

	mu     sync.Mutex
	next   int64
	robots map[int64]*Account
	down   bool
}

// Start runs a Harbor until the test ends.
func Start(t testing.TB) *Harbor {
	h := &Harbor{robots: map[int64]*Account{}, next: 1}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /api/v2.0/projects/{name}", h.project)
	mux.HandleFunc("POST /api/v2.0/robots", h.create)
	mux.HandleFunc("GET /api/v2.0/robots", h.list)
	mux.HandleFunc("PATCH /api/v2.0/robots/{id}", h.refresh)
	mux.HandleFunc("DELETE /api/v2.0/robots/{id}", h.remove)
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h.mu.Lock()
		defer h.mu.Unlock()
		user, password, _ := r.BasicAuth()
		switch {
		case h.down:
			fail(w, http.StatusServiceUnavailable, "SERVICE_UNAVAILABLE", "down")
		case user != Username && user != Robot || password != Password:
			fail(w, http.StatusUnauthorized, "UNAUTHORIZED", "unauthorized")
		default:
			mux.ServeHTTP(w, r)
		}
	}))
	t.Cleanup(s.Close)
	h.URL = s.URL
	return h
}

// Down lets every request fail, or not.
func (h *Harbor) Down(down bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.down = down
}

// Robots are the accounts by their names.
func (h *Harbor) Robots() map[string]Account {
	h.mu.Lock()
	defer h.mu.Unlock()
	out := map[string]Account{}
	for _, r := range h.robots {
		out[r.Name] = *r
	}
	return out
}

func fail(w http.ResponseWriter, status int, code, message string) {
	answer(w, status, map[string]any{"errors": []map[string]string{{"code": code, "message": message}}})
}

func answer(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(v)
}

func (h *Harbor) project(w http.ResponseWriter, r *http.Request) {
	name := r.PathValue("name")
	if name != Project && (name != strconv.Itoa(projectID) || r.Header.Get("X-Is-Resource-Name") == "true") {
		fail(w, http.StatusNotFound, "NOT_FOUND", "project "+name+" not found")
		return
	}
	answer(w, http.StatusOK, map[string]any{"project_id": projectID, "name": Project})
}

var robotName = regexp.MustCompile(`^[a-z0-9]+(?:[._-][a-z0-9]+)*$`)

func (h *Harbor) create(w http.ResponseWriter, r *http.Request) {
	var in Account
	if err := json.NewDecoder(r.Body).Decode(&in); err != nil {
		fail(w, http.StatusUnprocessableEntity, "UNPROCESSABLE_ENTITY", err.Error())
		return
	}
	switch {
	case !robotName.MatchString(in.Name):
		fail(w, http.StatusBadRequest, "BAD_REQUEST", "robot name is not in lower case or contains illegal characters")
		return
	case in.Level != "project" || in.Duration < -1 || in.Duration == 0 || len(in.Permissions) != 1 || len(in.Permissions[0].Access) == 0:
		fail(w, http.StatusBadRequest, "BAD_REQUEST", "bad request permission")
		return
	case in.Permissions[0].Kind != "project" || in.Permissions[0].Namespace != Project:
		fail(w, http.StatusForbidden, "FORBIDDEN", "forbidden")
		return
	}
	in.Name = "robot$" + Project + "+" + in.Name
	for _, other := range h.robots {
		if other.Name == in.Name {
			fail(w, http.StatusConflict, "CONFLICT", fmt.Sprintf("robot %s already exists", in.Name))
			return
		}
	}
	in.ID, in.Secret = h.next, secret()
	h.next++
	h.robots[in.ID] = &in
	w.Header().Set("Location", "/api/v2.0/robots/"+strconv.FormatInt(in.ID, 10))
	answer(w, http.StatusCreated, map[string]any{"id": in.ID, "name": in.Name, "secret": in.Secret, "expires_at": -1, "creation_time": "2026-11-20T12:00:00.000Z"})
}

// secret has what Harbor asks for: 8 characters and more, with upper case, lower case and a number.
func secret() string { return "Aa1" + rand.Text() }

func (h *Harbor) list(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query().Get("q")
	if !strings.Contains(q, "Level=project") || !strings.Contains(q, "ProjectID=") {
		fail(w, http.StatusBadRequest, "BAD_REQUEST", "must with project ID when to query project robots")
		return
	}
	list := []map[string]any{}
	for id := int64(1); id < h.next; id++ {
		if x := h.robots[id]; x != nil && strings.Contains(q, fmt.Sprintf("ProjectID=%d", projectID)) {
			list = append(list, map[string]any{"id": x.ID, "name": x.Name, "level": x.Level})
		}
	}
	n, size := number(r, "page", 1), number(r, "page_size", 10)
	from := min((n-1)*size, len(list))
	answer(w, http.StatusOK, list[from:min(from+size, len(list))])
}

func number(r *http.Request, name string, fallback int) int {
	if n, err := strconv.Atoi(r.URL.Query().Get(name)); err == nil {
		return n
	}
	return fallback
}

// find finds the account that a path names; nil: it was answered.
func (h *Harbor) find(w http.ResponseWriter, r *http.Request) *Account {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	x := h.robots[id]
	if err != nil || x == nil {
		fail(w, http.StatusNotFound, "NOT_FOUND", "robot not found")
		return nil
	}
	return x
}

func (h *Harbor) refresh(w http.ResponseWriter, r *http.Request) {
	if user, _, _ := r.BasicAuth(); user == Robot {
		fail(w, http.StatusForbidden, "FORBIDDEN", user)
		return
	}
	if x := h.find(w, r); x != nil {
		x.Secret = secret()
		answer(w, http.StatusOK, map[string]string{"secret": x.Secret})
	}
}

func (h *Harbor) remove(w http.ResponseWriter, r *http.Request) {
	if x := h.find(w, r); x != nil {
		delete(h.robots, x.ID)
		w.WriteHeader(http.StatusOK)
	}
}
