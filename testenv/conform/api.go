package conform

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

const (
	floodRequests = 64
	floodBytes    = 200 << 10 // of a body
)

func apiCases() []Case {
	none := strings.Trim(otherETag, `"`)
	return []Case{
		{"api.http", []string{"7.1.6"}, "HTTP/1.1 is served", func(ctx context.Context, s *session) error {
			a, err := s.client.get(ctx, manifestPath)
			if err == nil && a.proto != "HTTP/1.1" {
				err = fmt.Errorf("%s is served", a.proto)
			}
			return err
		}},
		{"api.bundle", []string{"7.1.4", "7.2.1"}, "an unknown bundle is answered 404 invalid-bundle", func(ctx context.Context, s *session) error {
			var all []error
			for _, d := range []string{none, "sha256:x", "md5:d41d8cd98f00b204e9800998ecf8427e", strings.ToUpper(none)} {
				all = append(all, s.client.rejects(ctx, "GET", "/api/v1/bundles/"+d, nil, 404, "invalid-bundle"))
			}
			return errors.Join(all...)
		}},
		{"api.deployment", []string{"7.1.5", "7.2.1"}, "an unknown deployment is answered 404 deployment-not-found", func(ctx context.Context, s *session) error {
			var all []error
			for _, path := range []string{uuid.NewString() + "/" + none, uuid.NewString() + "/latest", "x/" + none} {
				all = append(all, s.client.rejects(ctx, "GET", manifestPath+"/"+path, nil, 404, "deployment-not-found"))
			}
			return errors.Join(all...)
		}},
		onManifest("api.digest", "7.1.5", "a deployment with another digest is not found", func(ctx context.Context, s *session, m *manifest) error {
			return errors.Join(
				s.client.rejects(ctx, "GET", manifestPath+"/"+m.deployments[0].DeploymentID+"/"+none, nil, 404, "deployment-not-found"),
				s.client.rejects(ctx, "GET", manifestPath+"/"+uuid.NewString()+"/"+m.deployments[0].Digest, nil, 404, "deployment-not-found"))
		}),
		{"api.blank", []string{"7.2.1", "7.2.4"}, "unknown paths and methods are problems of type about:blank", func(ctx context.Context, s *session) error {
			var all []error
			for _, r := range [][2]string{
				{"GET", "/api/v1/conform-unknown"},
				{"GET", "/conform-unknown"},
				{"GET", "/api/v1/bundles"},
				{"GET", manifestPath + "/"},
				{"POST", manifestPath},
				{"DELETE", manifestPath},
				{"GET", capabilitiesPath(s.client.device)},
				{"POST", capabilitiesPath(s.client.device)},
				{"PATCH", "/api/v1/bundles/" + none},
			} {
				a, err := s.client.do(ctx, r[0], r[1], nil)
				if err == nil && a.status < 400 {
					err = fmt.Errorf("%s, want an error", a)
				}
				if err == nil {
					err = a.problem(a.status, blank)
				}
				all = append(all, err)
			}
			return errors.Join(all...)
		}},
		{"api.busy", []string{"7.2.5"}, "429 and 503 are retryable and have Retry-After", busy},
	}
}

// busy sends more than a manager is likely to take, until it says so.
func busy(ctx context.Context, s *session) error {
	p, err := s.other()
	if err != nil {
		return err
	}
	doc := hosting(p.device)
	doc["x-conform-extensions"] = object{"padding": strings.Repeat("x", floodBytes)}
	for range floodRequests {
		a, err := p.once(ctx, "PUT", capabilitiesPath(p.device), doc)
		if err != nil {
			return err
		}
		if a.status == 429 || a.status == 503 {
			return a.problem(a.status, blank)
		}
	}
	return skip("a manager that limits requests")
}
