package main

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// What a bundle in the same registry holds already is shared and not sent.
func TestStateMountsItsBundle(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	component := strings.TrimSpace(s.do(outcome.OK, "component", "push", "-q", "./line-monitor", host+"/plant/components/vision:0.9.2"))
	pinned, err := margo.Pin("vision.yaml", mustRead(t, "vision.yaml"), map[string]digest.Digest{"vision": digest.Digest(component)})
	if err != nil {
		t.Fatal(err)
	}
	s.write("pinned.yaml", string(pinned))
	s.do(outcome.OK, "bundle", "push", "pinned.yaml", host+"/plant/bundles/press:1")
	var mounted atomic.Int32
	s.server.Faults.Add(testenv.Rule{Method: http.MethodPost, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		seen := httptest.NewRecorder()
		next.ServeHTTP(seen, r)
		if r.URL.Query().Get("from") == "plant/bundles/press" && seen.Code == http.StatusCreated {
			mounted.Add(1)
		}
		for k, v := range seen.Header() {
			w.Header()[k] = v
		}
		w.WriteHeader(seen.Code)
		_, _ = w.Write(seen.Body.Bytes())
	}})
	s.do(outcome.OK, "state", "push", "-d", "press-07", "--key", "release.key", "--bundle", host+"/plant/bundles/press:1", states)
	if got := mounted.Load(); got == 0 {
		t.Error("nothing was mounted")
	}
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
}
