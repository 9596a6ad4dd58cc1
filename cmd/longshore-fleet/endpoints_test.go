package main

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/testenv"
)

// Every endpoint is asked by every method, by the device that it is about, by another device of this manager and by a client that is not
// accepted. Nobody but the device has its data, or changes it; whatever is rejected is a problem document.
func TestEveryEndpoint(t *testing.T) {
	p := newPublisher(t, testenv.Distribution)
	p.publish("press-07", 1, "web")
	m := startManager(t, "--state", p.repo.Name())
	clients := map[string]*http.Client{"own": m.of(t, "press-07"), "other": m.of(t, "press-08"), "stranger": m.of(t, "press-09")}
	var manifest *margo.StateManifest
	testenv.Eventually(t, time.Minute, "press-07 has its state", func() error {
		code, body := do(t, clients["own"], "GET", m.url+"/api/v1/deployments", "", "")
		var err error
		if manifest, err = margo.ParseStateManifest("manifest", []byte(body)); err != nil || code != 200 || len(manifest.Deployments) != 1 {
			return fmt.Errorf("%d %s", code, body)
		}
		return nil
	})
	d := manifest.Deployments[0]
	report := `{"deploymentId":"` + d.DeploymentID + `","deviceId":"press-07","adoptedManifestVersion":1,"status":{"state":"installed"},"components":[{"name":"web","state":"installed"}]}`
	own := map[string]int{"own": 200, "other": 404, "stranger": 403} // of content that a client can name
	only := func(code int) map[string]int { return map[string]int{"own": code, "other": 403, "stranger": 403} }
	all := func(code int) map[string]int { return map[string]int{"own": code, "other": code, "stranger": code} }
	for _, tt := range []struct {
		path, body string
		allowed    map[string]map[string]int // codes of each client, by method
		otherwise  int
	}{
		{"/api/v1/deployments", "", map[string]map[string]int{"GET": {"own": 200, "other": 200, "stranger": 403}}, 405},
		{d.URL, "", map[string]map[string]int{"GET": own}, 405},
		{manifest.Bundle.URL, "", map[string]map[string]int{"GET": own}, 405},
		{"/api/v1/deployments/" + d.DeploymentID + "/status", report, map[string]map[string]int{"POST": only(201)}, 405},
		{"/api/v1/capabilities/press-07", gateway, map[string]map[string]int{"PUT": only(201), "DELETE": only(204)}, 405},
		{"/api/v1/capabilities/press-07/child", about("press-07/child"), map[string]map[string]int{"PUT": only(404), "DELETE": only(404)}, 405},
		{"/api/v1/deployments/" + d.DeploymentID, "", nil, 404},
		{"/.well-known/spiffe/bundle.json", "", map[string]map[string]int{"GET": all(200)}, 405},
		{"/.well-known/margo", "", map[string]map[string]int{"GET": all(404)}, 405},
		{"/enroll/v1/device", "{}", nil, 404},
		{"/fleet/v1/devices", "", nil, 404},
		{"/metrics", "", nil, 404},
		{"/", "", nil, 404},
	} {
		for _, method := range []string{"GET", "HEAD", "PUT", "POST", "PATCH", "DELETE", "OPTIONS", "TRACE", "BREW"} {
			for _, who := range []string{"stranger", "other", "own"} {
				rule := tt.allowed[method]
				if method == "HEAD" {
					rule = tt.allowed["GET"]
				}
				want := tt.otherwise
				if rule != nil {
					want = rule[who]
				}
				code, body := do(t, clients[who], method, m.url+tt.path, "", tt.body)
				if code != want {
					t.Errorf("%s %s by %s = %d %s, want %d", method, tt.path, who, code, body, want)
				}
				var problem margo.Problem
				if err := json.Unmarshal([]byte(body), &problem); method != "HEAD" && code >= 400 && (err != nil || problem.Status != code || problem.Type == "") {
					t.Errorf("%s %s by %s is no problem document: %s", method, tt.path, who, body)
				}
				if who != "own" && slices.ContainsFunc([]string{d.Digest.String(), manifest.Bundle.Digest.String()}, func(s string) bool {
					return strings.Contains(strings.ReplaceAll(body, tt.path, ""), s)
				}) {
					t.Errorf("%s %s tells %s what press-07 is to run: %s", method, tt.path, who, body)
				}
			}
		}
	}
}
