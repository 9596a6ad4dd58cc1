package desired_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/margo"
)

func fuzzPath(t *testing.T, w *world, path string) {
	r := httptest.NewRequest("GET", "/", http.NoBody)
	r.URL = &url.URL{Path: "/api/v1/" + path}
	r.Header.Set("Client", "press-08")
	got := httptest.NewRecorder()
	w.http.Config.Handler.ServeHTTP(got, r)
	switch {
	case got.Code == 200:
		if m, err := margo.ParseStateManifest("manifest", got.Body.Bytes()); err != nil || len(m.Deployments) > 0 {
			t.Errorf("GET %q = %s", path, got.Body)
		}
	case got.Code >= 300 && got.Code < 400:
	default:
		if _, err := margo.ParseProblem("problem", got.Body.Bytes()); err != nil {
			t.Errorf("GET %q = %d %s: %v", path, got.Code, got.Body, err)
		}
	}
}
