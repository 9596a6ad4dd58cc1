package conform

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/google/uuid"
)

const states = "pending installing installed failed removing removed"

func statusPath(id string) string { return manifestPath + "/" + id + "/status" }

// status is a report about a deployment.
func status(id, state string) object {
	return object{
		"deploymentId": id, "adoptedManifestVersion": 1, "status": object{"state": state},
		"components": []any{object{"name": "web", "state": state}},
	}
}

// deployment is the id of a deployment of the client, or else a new one.
func (s *session) deployment(ctx context.Context) (string, error) {
	if err := s.client.register(ctx, s.client.device); err != nil {
		return "", err
	}
	m, err := s.client.manifest(ctx)
	if err != nil || len(m.deployments) == 0 {
		return uuid.NewString(), nil //nolint:nilerr // a manager need not serve desired state to take reports
	}
	return m.deployments[0].DeploymentID, nil
}

// onStatus makes a case of a check with a deployment.
func onStatus(id, rules, title string, check func(ctx context.Context, s *session, id string) error) Case {
	return Case{id, strings.Fields(rules), title, func(ctx context.Context, s *session) error {
		deployment, err := s.deployment(ctx)
		if err != nil {
			return err
		}
		return check(ctx, s, deployment)
	}}
}

// badStatus makes a case of reports that are a semantic error.
func badStatus(id, rules, title string, bad map[string]func(object)) Case {
	return onStatus(id, rules, title, func(ctx context.Context, s *session, id string) error {
		var all []error
		for name, change := range bad {
			doc := status(id, "installed")
			change(doc)
			if err := s.client.rejects(ctx, "POST", statusPath(id), doc, 422, "semantic-error"); err != nil {
				all = append(all, fmt.Errorf("%s: %w", name, err))
			}
		}
		return errors.Join(all...)
	})
}

// component replaces the components by one.
func component(doc object) func(object) { return root("components", []any{doc}) }

func statusCases() []Case {
	none := func(name string) func(object) { return func(doc object) { delete(doc, name) } }
	return []Case{
		onStatus("status.accepted", "7.1.3 4.1.4", "each state is accepted", func(ctx context.Context, s *session, id string) error {
			var all []error
			for state := range strings.FieldsSeq(states) {
				all = append(all, s.client.expect(ctx, "POST", statusPath(id), status(id, state), 200, 201))
			}
			return errors.Join(append(all, s.client.expect(ctx, "POST", statusPath(id), status(id, "installed"), 200))...)
		}),
		{"status.created", []string{"7.1.3"}, "201 for the first report about a deployment", func(ctx context.Context, s *session) error {
			if err := s.client.register(ctx, s.client.device); err != nil {
				return err
			}
			if s.Assign == nil { // only a manager that takes part is known to accept a deployment that it has not assigned
				return skip("a way to assign deployments (--assign)")
			}
			m, err := s.assigned(ctx, 2)
			if err != nil {
				return err
			}
			id := m.deployments[0].DeploymentID
			return errors.Join(s.client.expect(ctx, "POST", statusPath(id), status(id, "pending"), 201), s.client.expect(ctx, "POST", statusPath(id), status(id, "installing"), 200))
		}},
		badStatus("status.path", "4.1.1", "deploymentId equals the path", changes{"another": root("deploymentId", uuid.NewString()), "none": none("deploymentId")}),
		badStatus("status.version", "4.1.3", "adoptedManifestVersion is required", changes{"none": none("adoptedManifestVersion"), "zero": root("adoptedManifestVersion", 0)}),
		badStatus("status.state", "4.1.4", "status.state is one of six", changes{
			"another": root("status", object{"state": "running"}), "of 2024": root("status", object{"state": "Installed"}), "none": root("status", object{}), "no status": none("status"),
		}),
		badStatus("status.components", "4.1.5", "components have name and state", changes{
			"no list": none("components"), "no name": component(object{"state": "installed"}), "no state": component(object{"name": "web"}), "another state": component(object{"name": "web", "state": "running"}),
		}),
		onStatus("status.gateway", "4.3.1", "gateway errors 101 to 103 are accepted, for a child too", gatewayErrors),
		onStatus("status.order", "4.2.2", "both orders of removed and installed are accepted", func(ctx context.Context, s *session, id string) error {
			var all []error
			for _, state := range []string{"removed", "installed"} {
				doc := status(id, state)
				doc["components"] = []any{object{"name": "web", "state": "removed"}, object{"name": "db", "state": "installed"}}
				all = append(all, s.client.expect(ctx, "POST", statusPath(id), doc, 200, 201))
			}
			return errors.Join(all...)
		}),
		onStatus("status.codes", "4.3.2", "error codes are free strings", func(ctx context.Context, s *session, id string) error {
			doc := status(id, "failed")
			doc["status"] = object{"state": "failed", "error": object{"code": "acme:E-4711 ü", "source": "line-monitor", "message": "no disk"}}
			return s.client.expect(ctx, "POST", statusPath(id), doc, 200, 201)
		}),
		onStatus("status.malformed", "7.2.2", "what is no JSON is answered 400", func(ctx context.Context, s *session, id string) error {
			return s.client.rejects(ctx, "POST", statusPath(id), []byte(`{"deploymentId`), 400, "invalid-request")
		}),
		onStatus("status.scope", "8.3.2", "no client reports about a device of another", func(ctx context.Context, s *session, id string) error {
			other, err := s.other()
			if err != nil {
				return err
			}
			doc := status(id, "installed")
			doc["deviceId"] = other.device
			return s.client.rejects(ctx, "POST", statusPath(id), doc, 403, "not-authorized")
		}),
	}
}

func gatewayErrors(ctx context.Context, s *session, id string) error {
	child := s.client.device + "/conform-1"
	if err := s.client.register(ctx, child); err != nil {
		return err
	}
	var all []error
	for _, code := range []string{"101", "102", "103"} {
		doc := status(id, "failed")
		doc["status"] = object{"state": "failed", "error": object{"code": code, "source": s.client.device, "message": "the child device"}}
		doc["components"] = []any{}
		all = append(all, s.client.expect(ctx, "POST", statusPath(id), doc, 200, 201))
		doc["deviceId"] = child
		all = append(all, s.client.expect(ctx, "POST", statusPath(id), doc, 200, 201))
	}
	return errors.Join(append(all, s.client.expect(ctx, "DELETE", capabilitiesPath(child), nil, 204))...)
}
