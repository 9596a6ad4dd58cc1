package agenttest_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
	foreign "github.com/longshore-dev/longshore/testenv/manager"
)

// TestContainerdManager is a device on a real containerd that takes orders from a manager that is not ours, over real TLS with bearer
// tokens: from an application that never ran to one that is updated, rolled back and kept through everything that the manager does.
func TestContainerdManager(t *testing.T) {
	w := agenttest.NewWorld(t, newReal(t).env(t))
	w.Manage(t, nil)
	server := httptest.NewTLSServer(w.Manager)
	t.Cleanup(server.Close)
	token := filepath.Join(t.TempDir(), "token")
	if err := os.WriteFile(token, []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Connect(t, func(o *manager.Options) {
		o.URL, o.TokenFile, o.Transport = server.URL, token, server.Client().Transport
	})
	w.Edit = func(o *agent.Options) { o.Reporter = w.Client() }

	w.Publish(t, 1, line("broken:1")) // the first: there is nothing to go back to
	r := w.Start(t)
	if res := w.Sync(t, r); res.Outcome != status.SyncFailed || len(w.Observe(t)) != 0 {
		t.Fatalf("sync to an image that cannot be unpacked = %+v", res)
	}
	w.Publish(t, 2, line("web:1"))
	installed(t, w, r, 2)
	w.Publish(t, 3, line("web:2"))
	installed(t, w, r, 3)
	before := w.Observe(t)

	w.Publish(t, 4, line("broken:1"))
	if res := w.Sync(t, r); res.Outcome != status.SyncFailed || res.Generation != 4 {
		t.Errorf("sync to an update that fails = %+v", res)
	}
	w.Same(t, before)
	w.Publish(t, 5, line("web:2"))
	w.Sync(t, r)
	w.Committed(t, r, 5)
	w.Same(t, before)

	w.Manager.Requests()
	if res := w.Sync(t, r); res.Outcome != status.SyncUnchanged {
		t.Errorf("sync to nothing new = %+v", res)
	}
	if got := w.Manager.Requests(); !slices.Contains(got, "GET /api/v1/deployments 304") {
		t.Errorf("requests %q, want a 304", got)
	}
	answer := func(status int, body string, header ...string) {
		w.Manager.Intercept(func(rw http.ResponseWriter, q *http.Request, _ string) bool {
			if q.Method != http.MethodGet {
				return false
			}
			for i := 0; i < len(header); i += 2 {
				rw.Header().Set(header[i], header[i+1])
			}
			rw.WriteHeader(status)
			_, _ = io.WriteString(rw, body) // the device hangs up on what is too long
			return true
		})
	}
	other := `"` + digest.FromString("another").String() + `"`
	for _, tc := range []struct {
		code   codes.Code
		status int
		body   string
		header []string
	}{
		{codes.StateDigest, 200, `{"manifestVersion":6,"bundle":null,"deployments":[]}`, []string{"Content-Type", foreign.TypeManifest, "ETag", other}},
		{codes.StateTooLarge, 200, strings.Repeat(" ", 64<<20), []string{"Content-Type", foreign.TypeManifest}},
		{codes.SourceDenied, 403, `{"type":"https://docs.margo.org/specification/problem-types#not-authorized","title":"no","status":403,"retryable":false}`, []string{"Content-Type", "application/problem+json"}},
		{codes.SourceUnreachable, 503, "", []string{"Retry-After", "999999999"}},
	} {
		answer(tc.status, tc.body, tc.header...)
		if res := w.Sync(t, r); res.Code != tc.code {
			t.Errorf("sync = %+v, want %s", res, tc.code)
		}
		w.Same(t, before)
	}
	if s := r.Status(); s.NextCheck.Sub(s.Now) > 70*time.Minute {
		t.Errorf("next check in %v although at most an hour is given", s.NextCheck.Sub(s.Now))
	}
	w.Manager.Intercept(nil)

	server.CloseClientConnections()
	w.Registry.Fail(func(request string) error { return fmt.Errorf("%s: away: %w", request, fault.ErrTemporary) })
	answer(500, "")
	r.Stop(t)
	r = w.Start(t) // without a manager and without a registry
	w.Sync(t, r)
	w.Same(t, before)
	w.Registry.Fail(nil)
	w.Manager.Intercept(nil)
	w.Publish(t, 6)
	installed(t, w, r, 6)
	if got := w.Observe(t); len(got) != 0 {
		t.Errorf("containers are left: %v", got)
	}
	w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
	last := w.Manager.Statuses()
	if n := len(last); n == 0 || last[n-1].State != "removed" || last[n-1].Adopted != 6 {
		t.Errorf("the manager knows %+v", last)
	}
}

// line is an application of one service.
func line(image string) agenttest.App { return app(1, web(image)) }
