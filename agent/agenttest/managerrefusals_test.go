package agenttest

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/intake"
	"github.com/longshore-dev/longshore/artifacts/fault"
	foreign "github.com/longshore-dev/longshore/testenv/manager"
)

// Problems are what a manager may answer in place of a State Manifest, by name.
var problems = map[string]string{
	"not-authorized":   `{"type":"https://docs.margo.org/specification/problem-types#not-authorized","title":"no","status":403,"retryable":false}`,
	"device-not-found": `{"type":"https://docs.margo.org/specification/problem-types#device-not-found","title":"no","status":404,"retryable":false}`,
	"busy":             `{"type":"about:blank","title":"busy","status":503,"retryable":true,"retryAfterSeconds":7,"backoffStrategy":"exponential"}`,
}

// answers has the manager answer a client's requests of one path: a status code, headers as "name", "value", and a body.
func answers(w *World, path string, status int, body string, header ...string) {
	w.Manager.Intercept(func(rw http.ResponseWriter, r *http.Request, _ string) bool {
		if !strings.HasPrefix(r.URL.Path, path) {
			return false
		}
		for i := 0; i < len(header); i += 2 {
			rw.Header().Set(header[i], header[i+1])
		}
		rw.WriteHeader(status)
		_, _ = rw.Write([]byte(body)) // the device may have hung up
		return true
	})
}

const (
	manifestPath = "/api/v1/deployments"
	problemType  = "application/problem+json"
)

// deployed writes the deployments of apps, as a manager has them.
func (w *World) deployed(t *testing.T, apps ...App) []foreign.Deployment {
	t.Helper()
	var out []foreign.Deployment
	for _, a := range apps {
		out = append(out, foreign.Deployment{ID: a.DeploymentID(), YAML: w.Deployment(t, a)})
	}
	return out
}

// named has the manager name a State Manifest of any text.
func named(t *testing.T, w *World, text string) {
	t.Helper()
	w.Verifier.Sign(digest.Digest(w.Manager.SetBytes(string(Device), []byte(text), nil)))
}

// managerChecks are what a device does not take from a manager: checks 1 to 7.
func managerChecks() []refusal {
	asked := func(_ *testing.T, w *World, status int, body string, header ...string) {
		answers(w, manifestPath, status, body, header...)
	}
	set := func(t *testing.T, w *World, version uint64, apps ...App) {
		t.Helper()
		w.Verifier.Sign(digest.Digest(w.Manager.Set(string(Device), version, w.deployed(t, apps...)...)))
	}
	return []refusal{
		{codes.SourceUnreachable, "manager away", func(_ *testing.T, w *World) {
			w.Registry.Fail(func(request string) error {
				if isManager(request) {
					return unreachable(request)
				}
				return nil
			})
		}},
		{codes.SourceUnreachable, "busy", func(t *testing.T, w *World) { asked(t, w, 503, problems["busy"], "Content-Type", problemType) }},
		{codes.SourceUnreachable, "login page", func(t *testing.T, w *World) { asked(t, w, 200, "<html>", "Content-Type", "text/html") }},
		{codes.SourceUnreachable, "sent to another host", func(t *testing.T, w *World) {
			asked(t, w, 307, "", "Location", "https://attacker.example/api/v1/deployments")
		}},
		{codes.SourceUnreachable, "sent away from TLS", func(t *testing.T, w *World) {
			asked(t, w, 301, "", "Location", "http://manager.example/api/v1/deployments")
		}},
		{codes.SourceUnreachable, "broken", func(t *testing.T, w *World) { asked(t, w, 500, "Internal Server Error") }},
		{codes.SourceUnauthenticated, "credentials", func(t *testing.T, w *World) { asked(t, w, 401, "") }},
		{codes.SourceDenied, "not an accepted client", func(_ *testing.T, w *World) { w.Manager.Accept("press-08") }},
		{codes.SourceDenied, "not authorized, in another status", func(t *testing.T, w *World) {
			asked(t, w, 404, problems["not-authorized"], "Content-Type", problemType)
		}},
		{codes.StateNotFound, "no such device", func(t *testing.T, w *World) {
			asked(t, w, 404, problems["device-not-found"], "Content-Type", problemType)
		}},
		{codes.StateNotFound, "no such path", func(t *testing.T, w *World) { asked(t, w, 404, "page not found", "Content-Type", "text/plain") }},
		{codes.StateDigest, "State Manifest changed on the way", func(t *testing.T, w *World) {
			set(t, w, 6, Line("2"))
			tamper(w, "manager GET "+manifestPath)
		}},
		{codes.StateDigest, "ETag of another State Manifest", func(t *testing.T, w *World) {
			text := `{"manifestVersion":6,"bundle":null,"deployments":[]}`
			w.Verifier.Sign(digest.Digest("sha256:" + strings.Repeat("a", 64)))
			asked(t, w, 200, text, "Content-Type", foreign.TypeManifest, "ETag", `"sha256:`+strings.Repeat("a", 64)+`"`)
		}},
		{codes.StateUnsupported, "ETag that is no digest", func(t *testing.T, w *World) {
			asked(t, w, 200, `{"manifestVersion":6,"bundle":null,"deployments":[]}`, "Content-Type", foreign.TypeManifest, "ETag", `"6"`)
		}},
		{codes.StateTooLarge, "endless State Manifest", func(t *testing.T, w *World) {
			asked(t, w, 200, `{"manifestVersion":6,`+strings.Repeat(" ", 5<<20)+`"bundle":null,"deployments":[]}`, "Content-Type", foreign.TypeManifest)
		}},
		{codes.StateInvalid, "10,000 deployments", func(t *testing.T, w *World) {
			d, all := "sha256:"+strings.Repeat("a", 64), make([]string, 10_000)
			for i := range all {
				id := fmt.Sprintf("a3e2f5dc-912e-494f-8395-%012d", i)
				all[i] = fmt.Sprintf(`{"deploymentId":%q,"digest":%q,"url":"/api/v1/deployments/%s/%s"}`, id, d, id, d)
			}
			named(t, w, fmt.Sprintf(`{"manifestVersion":6,"bundle":{"mediaType":%q,"digest":%q,"url":"/api/v1/bundles/%s"},"deployments":[%s]}`, foreign.TypeBundle, d, d, strings.Join(all, ",")))
		}},
		{codes.SignatureRejected, "no rule for the manager", func(t *testing.T, w *World) {
			set(t, w, 6, Line("2"))
			verdict(w, intake.KindState, fault.ErrRejected)
		}},
		{codes.WrongDevice, "State Manifest of another device", func(t *testing.T, w *World) {
			a := Line("2")
			a.DeviceID = "press-08"
			set(t, w, 6, a)
		}},
		{codes.WrongDevice, "one deployment of another device", func(t *testing.T, w *World) {
			a := other()
			a.DeviceID = "press-0"
			set(t, w, 6, Line("2"), a)
		}},
		{codes.Rollback, "older version", func(t *testing.T, w *World) { set(t, w, 4, Line("2")) }},
		{codes.GenerationConflict, "same version with other content", func(t *testing.T, w *World) { set(t, w, 5, Line("2")) }},
		{codes.StateInvalid, "version 0", func(t *testing.T, w *World) { named(t, w, `{"manifestVersion":0,"bundle":null,"deployments":[]}`) }},
		{codes.StateInvalid, "version above 64 bits", func(t *testing.T, w *World) {
			named(t, w, `{"manifestVersion":18446744073709551616,"bundle":null,"deployments":[]}`)
		}},
		{codes.StateInvalid, "no member bundle", func(t *testing.T, w *World) { named(t, w, `{"manifestVersion":6,"deployments":[]}`) }},
		{codes.StateInvalid, "URL at another host", func(t *testing.T, w *World) {
			d := "sha256:" + strings.Repeat("a", 64)
			named(t, w, fmt.Sprintf(`{"manifestVersion":6,"bundle":{"mediaType":%q,"digest":%q,"url":"https://attacker.example/api/v1/bundles/%s"},"deployments":[{"deploymentId":%q,"digest":%q,"url":"/api/v1/deployments/%s/%s"}]}`,
				foreign.TypeBundle, d, d, Line("2").DeploymentID(), d, Line("2").DeploymentID(), d))
		}},
		{codes.ContentDigest, "deployment changed on the way", func(t *testing.T, w *World) {
			set(t, w, 6, Line("2"))
			tamper(w, "manager GET "+manifestPath+"/")
		}},
		{codes.ContentDigest, "bundle changed on the way", func(t *testing.T, w *World) {
			set(t, w, 6, Line("2"), other(), third())
			tamper(w, "manager GET /api/v1/bundles")
		}},
		{codes.ContentMissing, "deployment not found", func(t *testing.T, w *World) {
			set(t, w, 6, Line("2"))
			answers(w, manifestPath+"/", 404, `{"type":"https://docs.margo.org/specification/problem-types#deployment-not-found","title":"no","status":404,"retryable":false}`, "Content-Type", problemType)
		}},
		{codes.SourceUnreachable, "endless deployment", func(t *testing.T, w *World) {
			set(t, w, 6, Line("2"))
			answers(w, manifestPath+"/", 200, strings.Repeat("x", 2<<20), "Content-Type", "application/yaml")
		}},
		{codes.SourceUnreachable, "manager goes away in the middle", func(t *testing.T, w *World) {
			set(t, w, 6, Line("2"))
			answerTo(w, "manager GET "+manifestPath+"/", fault.ErrTemporary)
		}},
	}
}

// third is one more application, so that a bundle is the cheaper way.
func third() App {
	return App{ID: 3, Name: "third", Components: []Comp{{Name: "third", Services: []Service{{Name: "sensor", Image: "sensor:1"}}}}}
}

// ManagerRefusals is [Refusals] of a device that takes orders from a manager: what managers and whoever stands between may do, and
// what may be wrong with components and images, which come from the registry.
func ManagerRefusals(t *testing.T, s Setup) {
	s.refusals(t, append(managerChecks(), contentChecks()...))
}

// isManager reports whether a request goes to the manager.
func isManager(request string) bool { return strings.HasPrefix(request, "manager ") }
