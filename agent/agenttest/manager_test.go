package agenttest_test

import (
	"bytes"
	"fmt"
	"math"
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/agenttest"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/agent/manager"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/margo"
	foreign "github.com/longshore-dev/longshore/testenv/manager"
)

// managed runs f on a device in memory that takes orders from a manager.
func managed(t *testing.T, f func(t *testing.T, w *agenttest.World)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		w := agenttest.NewWorld(t, memoryEnv(nil)(t))
		w.Patience = 5 * time.Minute
		w.Manage(t, nil)
		f(t, w)
	})
}

// installed wants a generation to run after a sync.
func installed(t *testing.T, w *agenttest.World, r *agenttest.Running, generation uint64) {
	t.Helper()
	if res := w.Sync(t, r); res.Outcome != status.SyncInstalled || res.Generation != generation {
		t.Fatalf("sync = %+v, want generation %d installed", res, generation)
	}
}

// Whatever the published documents of the specification lead a manager to do, the device runs what it says.
func TestManagerDeviations(t *testing.T) {
	for name, d := range map[string]foreign.Deviations{
		"as most":                    {},
		"names that the schema asks": {SchemaNames: true},
		"ETag of the manifest":       {ManifestETag: true},
		"sizes that are wrong":       {WrongSizes: true},
		"sizes left out":             {NoSizes: true},
		"304 for deployments":        {Unchanged: true},
		"URLs of 1.0.0":              {ClientsInURLs: true},
		"compressed, weak ETags":     {Compressed: true},
		"strict capacities":          {StrictCapacity: true},
		"no bundles":                 {NoBundles: true},
		"annotations of deployments": {Annotations: true},
		"enumerations of the schema": {SchemaEnums: true},
	} {
		t.Run(name, func(t *testing.T) {
			managed(t, func(t *testing.T, w *agenttest.World) {
				w.Manager.Deviate(d)
				w.Edit = func(o *agent.Options) { o.Reporter = w.Client() }
				var annotated atomic.Bool
				w.Registry.Change(func(request string, data []byte) []byte {
					if strings.HasPrefix(request, "manager GET /api/v1/deployments/") && bytes.Contains(data, []byte("\n  annotations: ")) {
						annotated.Store(true)
					}
					return data
				})
				apps := []agenttest.App{app(1, web("web:1")), app(2, web("web:1")), app(3, web("web:1"))}
				w.Publish(t, math.MaxUint64-2, apps...) // above what a float64 can hold
				r := w.Start(t)
				if !d.ClientsInURLs { // whose paths this manager only names
					installed(t, w, r, math.MaxUint64-2)
				} else if res := w.Sync(t, r); res.Code != codes.StateNotFound && res.Code != codes.ContentMissing {
					t.Fatalf("sync = %+v", res)
				} else {
					return
				}
				apps[1] = app(2, web("web:2"))
				w.Publish(t, math.MaxUint64-1, apps...)
				w.Manager.Requests()
				installed(t, w, r, math.MaxUint64-1)
				want := 1
				for _, q := range w.Manager.Requests() {
					if strings.HasPrefix(q, "GET /api/v1/deployments/") && strings.HasSuffix(q, " 200") {
						want--
					}
					if strings.Contains(q, "/bundles/") {
						t.Errorf("a bundle was asked for, for one deployment: %s", q)
					}
				}
				if want != 0 {
					t.Errorf("%d deployments too few or too many were asked for", want)
				}
				if annotated.Load() != d.Annotations {
					t.Errorf("the deployment has annotations: %v", annotated.Load())
				}
				r.Stop(t)
				r = w.Start(t)
				w.Manager.Requests()
				if res := w.Sync(t, r); res.Outcome != status.SyncUnchanged {
					t.Errorf("sync after a restart = %+v", res)
				}
				got := slices.DeleteFunc(w.Manager.Requests(), func(q string) bool { return !strings.HasPrefix(q, "GET ") })
				if len(got) == 0 || slices.ContainsFunc(got, func(q string) bool { return q != "GET /api/v1/deployments 304" }) {
					t.Errorf("requests after a restart %q, want 304 only", got)
				}
				w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
				if known := w.Manager.Devices(); known["press-07"].Client != "press-07" {
					t.Errorf("the manager knows the devices %+v", known)
				}
			})
		})
	}
}

// One request brings everything to a fresh device.
func TestManagerGivesABundleToAFreshDevice(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		w.Publish(t, 1, app(1, web("web:1")), app(2, web("web:1")), app(3, web("web:1")))
		r := w.Start(t)
		installed(t, w, r, 1)
		got := w.Manager.Requests()
		if len(got) < 2 || !strings.HasPrefix(got[1], "GET /api/v1/bundles/sha256:") || slices.ContainsFunc(got[2:], func(q string) bool { return !strings.HasSuffix(q, "/deployments 304") }) {
			t.Errorf("requests %q, want the manifest and the bundle", got)
		}
	})
}

// What a manager asks for is obeyed within bounds, and told.
func TestManagerSetsThePace(t *testing.T) {
	const problem = `{"type":"about:blank","title":"busy","status":503,"retryable":true,"retryAfterSeconds":%d,"backoffStrategy":"exponential"}`
	for _, tc := range []struct {
		name        string
		status      int
		header      string // Retry-After
		body        string
		least, most time.Duration
		says        string
	}{
		{"a moment", 503, "", fmt.Sprintf(problem, 7), 50 * time.Second, 2 * time.Minute, "asks to wait 7s"},
		{"ten minutes", 429, "600", fmt.Sprintf(problem, 0), 10 * time.Minute, 11 * time.Minute, "asks to wait 10m"},
		{"nothing", 503, "0", "", 50 * time.Second, 2 * time.Minute, ""},
		{"a date long ago", 503, "Thu, 01 Jan 1970 00:00:00 GMT", "", 50 * time.Second, 2 * time.Minute, ""},
		{"years", 503, "999999999", "", time.Hour, time.Hour + time.Minute, "asks to wait"},
		{"no backoff", 503, "", `{"type":"about:blank","title":"no","status":503,"backoffStrategy":"none"}`, 14 * time.Minute, 17 * time.Minute, "says that a retry does not help"},
		{"no retry", 403, "", `{"type":"https://docs.margo.org/specification/problem-types#not-authorized","title":"no","status":403,"retryable":false}`, 14 * time.Minute, 17 * time.Minute, "says that a retry does not help"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			managed(t, func(t *testing.T, w *agenttest.World) {
				w.Publish(t, 1, app(1, web("web:1")))
				r := w.Start(t)
				installed(t, w, r, 1)
				w.Manager.Intercept(func(rw http.ResponseWriter, _ *http.Request, _ string) bool {
					if tc.header != "" {
						rw.Header().Set("Retry-After", tc.header)
					}
					rw.Header().Set("Content-Type", "application/problem+json")
					rw.WriteHeader(tc.status)
					_, _ = rw.Write([]byte(tc.body)) // the device may have hung up
					return true
				})
				w.Sync(t, r)
				s := r.Status()
				if pause := s.NextCheck.Sub(s.Now); pause < tc.least || pause > tc.most {
					t.Errorf("next check in %v, want from %v to %v", pause, tc.least, tc.most)
				}
				if len(s.Problems) == 0 || !strings.Contains(s.Problems[0].Doing, tc.says) {
					t.Errorf("problems %+v, want %q", s.Problems, tc.says)
				}
				w.Manager.Intercept(nil)
				if res := w.Sync(t, r); res.Outcome != status.SyncUnchanged { // a person does not wait for it
					t.Errorf("sync = %+v", res)
				}
			})
		})
	}
}

// After several failures the pause has grown, unless the manager asks for the same one each time.
func TestManagerAsksForASteadyPace(t *testing.T) {
	for strategy, want := range map[string][2]time.Duration{"fixed": {80 * time.Second, 2 * time.Minute}, "exponential": {4 * time.Minute, 6 * time.Minute}} {
		t.Run(strategy, func(t *testing.T) {
			managed(t, func(t *testing.T, w *agenttest.World) {
				w.Publish(t, 1, app(1, web("web:1")))
				r := w.Start(t)
				installed(t, w, r, 1)
				w.Manager.Intercept(func(rw http.ResponseWriter, _ *http.Request, _ string) bool {
					rw.Header().Set("Content-Type", "application/problem+json")
					rw.WriteHeader(http.StatusServiceUnavailable)
					_, _ = fmt.Fprintf(rw, `{"type":"about:blank","title":"busy","status":503,"retryable":true,"retryAfterSeconds":90,"backoffStrategy":%q}`, strategy)
					return true
				})
				for range 6 {
					w.Sync(t, r)
				}
				if s := r.Status(); s.NextCheck.Sub(s.Now) < want[0] || s.NextCheck.Sub(s.Now) > want[1] {
					t.Errorf("next check in %v, want from %v to %v", s.NextCheck.Sub(s.Now), want[0], want[1])
				}
			})
		})
	}
}

// A month without the manager stops nothing.
func TestManagerAwayForAMonth(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		w.Publish(t, 1, agenttest.Line("1"))
		r := w.Start(t)
		installed(t, w, r, 1)
		before := w.Observe(t)
		w.Registry.Fail(func(request string) error { return fmt.Errorf("%s: no route to host", request) })
		time.Sleep(30 * 24 * time.Hour)
		if s := r.Status(); len(s.Problems) == 0 || s.Problems[0].Code != codes.SourceUnreachable || s.NextCheck.Sub(s.Now) > 10*time.Minute {
			t.Errorf("problems %+v, next check %v", s.Problems, s.NextCheck)
		}
		w.Same(t, before)
		w.Registry.Fail(nil)
		w.Publish(t, 7, agenttest.Line("2"))
		w.Committed(t, r, 7) // by itself
	})
}

// A manager whose manifests are accepted unsigned is shown as long as one is accepted.
func TestManagerIsShownAsUnsigned(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		w.Verifier.Rule(func(kind intake.Kind, repository string, _ ocispec.Descriptor) (intake.Verdict, error) {
			return intake.Verdict{Insecure: kind == intake.KindState && margo.IsManager(repository)}, nil
		})
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		installed(t, w, r, 1)
		s := r.Status()
		if want := "state margo+" + agenttest.ManagerURL; !slices.Contains(s.Insecure, want) || len(s.Problems) != 1 || s.Problems[0].Code != codes.Insecure || !strings.Contains(s.Problems[0].Message, want) {
			t.Errorf("insecure %q, problems %+v, want %q", s.Insecure, s.Problems, want)
		}
		if s.Manager != agenttest.ManagerURL || !s.Accepted.Insecure {
			t.Errorf("manager %q, accepted %+v", s.Manager, s.Accepted)
		}
	})
}

// Beside a repository of signed states the manager cannot make the device run anything else.
func TestManagerNamesWhatNobodySigned(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		w.SignedIn = agenttest.Repository
		w.Publish(t, 1, app(1, web("web:1")))
		r := w.Start(t)
		installed(t, w, r, 1)
		before := w.Observe(t)
		evil := foreign.Deployment{ID: app(1).DeploymentID(), YAML: w.Deployment(t, app(1, web("web:2")))}
		w.Manager.Set(string(agenttest.Device), 2, evil)
		res := w.Sync(t, r)
		if res.Code != codes.SignatureMissing || !strings.Contains(res.Message, "version 2") || !strings.Contains(res.Message, agenttest.Repository) {
			t.Errorf("sync = %+v, want refused for want of a signature", res)
		}
		w.Same(t, before)
		// One that is there and not signed, and one that is signed for a version that is over.
		w.Offer(t, w.State(t, 3, nil, app(1, web("web:2"))))
		if res := w.Sync(t, r); res.Code != codes.SignatureMissing {
			t.Errorf("sync = %+v, want refused for want of a signature", res)
		}
		w.Same(t, before)
		w.Publish(t, 4, app(1, web("web:2")))
		installed(t, w, r, 4)
		w.Publish(t, 4, app(1, web("web:1")))
		if res := w.Sync(t, r); res.Code != codes.GenerationConflict {
			t.Errorf("sync = %+v, want a conflict", res)
		}
	})
}

// Another manager counts by itself.
func TestAnotherManager(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		w.Publish(t, 9, app(1, web("web:1")))
		r := w.Start(t)
		installed(t, w, r, 9)
		r.Stop(t)
		w.Manage(t, func(o *manager.Options) { o.URL = "https://second.example" })
		w.Publish(t, 1, app(1, web("web:2")))
		r = w.Start(t)
		installed(t, w, r, 1)
		w.Manager.Set(string(agenttest.Device), 1, foreign.Deployment{ID: app(1).DeploymentID(), YAML: w.Deployment(t, app(1, web("web:1")))})
		if res := w.Sync(t, r); res.Code != codes.SignatureMissing && res.Code != codes.GenerationConflict {
			t.Errorf("sync = %+v", res)
		}
		r.Stop(t)
		r = w.Start(t) // what was accepted is still there
		if s := r.Status(); s.Accepted != nil && s.Accepted.Generation != 1 {
			t.Errorf("accepted %+v", s.Accepted)
		}
	})
}

// The manager is told everything that it needs, by its own rules: capabilities first, then each state in order.
func TestManagerIsReportedTo(t *testing.T) {
	managed(t, func(t *testing.T, w *agenttest.World) {
		w.Edit = func(o *agent.Options) { o.Reporter = w.Client() }
		w.Publish(t, 3, app(1, web("web:1")))
		r := w.Start(t)
		installed(t, w, r, 3)
		w.Wait(t, "reports", func() bool { return r.Status().Outbox.Depth == 0 })
		if d := w.Manager.Devices(); len(d) != 1 || d["press-07"].Client != "press-07" {
			t.Errorf("devices %+v", d)
		}
		var states []string
		for _, s := range w.Manager.Statuses() {
			states = append(states, fmt.Sprintf("%s@%d", s.State, s.Adopted))
		}
		states = slices.Compact(states) // a manager that does not know the device yet is told everything once more
		if want := []string{"pending@3", "installing@3", "installed@3"}; !slices.Equal(states, want) {
			t.Errorf("states %q, want %q", states, want)
		}
	})
}
