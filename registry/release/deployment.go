package release

import (
	"cmp"
	"fmt"
	"path"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// DocumentHint is for a deployment that needs more than variables.
const DocumentHint = "write its document and publish that: longshore state push --deployment FILE"

// Single describes the deployment of one component.
type Single struct {
	Device     artifacts.DeviceID
	Repository string            // "host/path"
	Tag        string            // the component's version
	Digest     digest.Digest     // "": the tag's digest when it is pinned
	Name       string            // of the component and the deployment; "": the repository's last element
	Namespace  string            // "": that of Before, else default
	Parameters map[string]string // environment variables of the Compose project
	Unset      []string          // variables of Before to remove
	// Before is the device's current deployment with this id: values that are not set here are taken from it, also the
	// component's name. nil: none.
	Before *artifacts.Deployment
}

// ID is the id of the deployment. It returns an error if the name is not valid.
func (s Single) ID() (string, error) {
	name := s.name()
	if !margo.ValidComponentName(name) {
		err := fmt.Errorf("component name %q: %w: lower-case letters, digits and dashes", name, fault.ErrInvalid)
		return "", fault.WithHint(err, "give it a name with --name")
	}
	return artifacts.DeploymentID(s.Device, name), nil
}

func (s Single) name() string { return cmp.Or(s.Name, path.Base(s.Repository)) }

// Deployment writes the ApplicationDeployment of one component: the same bytes as a fleet with an application of this
// name.
func (s Single) Deployment() ([]byte, error) {
	if s.Tag == "" {
		err := fmt.Errorf("component %s: %w: no version", s.Repository, fault.ErrInvalid)
		return nil, fault.WithHint(err, "write "+s.Repository+":VERSION")
	}
	d, err := s.base()
	if err != nil {
		return nil, err
	}
	if s.Namespace != "" {
		d.Metadata.Namespace = s.Namespace
	}
	c := &d.Spec.DeploymentProfile.Components[0]
	c.Properties.Repository, c.Properties.Revision = "oci://"+s.Repository, s.Tag
	delete(c.Extensions, margo.PinExtension)
	if s.Digest != "" {
		if c.Extensions == nil {
			c.Extensions = margo.Extensions{}
		}
		c.Extensions[margo.PinExtension] = map[string]any{"digest": s.Digest.String()}
	}
	for _, k := range s.Unset {
		d.UnsetVariable(k)
	}
	for k, v := range s.Parameters {
		if err := d.SetVariable(k, v, []string{c.Name}); err != nil {
			return nil, fmt.Errorf("deployment %s: %w", d.Metadata.Name, err)
		}
	}
	data, err := d.Encode()
	if err != nil && s.Before != nil {
		err = fault.WithHint(err, DocumentHint)
	}
	if err == nil {
		_, err = margo.ParseApplicationDeployment("deployment of "+s.name(), data)
	}
	return data, err
}

// base is the device's current deployment, otherwise one with a component that has only a name.
func (s Single) base() (*margo.ApplicationDeployment, error) {
	id, err := s.ID()
	if err != nil {
		return nil, err
	}
	name := s.name()
	if s.Before == nil {
		return &margo.ApplicationDeployment{
			ID:       id,
			Metadata: margo.DeploymentMetadata{Name: name, Namespace: artifacts.DefaultNamespace, DeviceID: string(s.Device)},
			Spec: margo.DeploymentSpec{ApplicationID: name, DeploymentProfile: margo.DeploymentProfile{
				Type: "compose", Components: []margo.Component{{Name: name, Properties: margo.ComponentProperties{Wait: true}}},
			}},
		}, nil
	}
	d, err := margo.ParseApplicationDeployment("deployment of "+name, s.Before.Bytes) // a copy
	if err != nil {
		return nil, err
	}
	if p := d.Spec.DeploymentProfile; p.Type != "compose" || len(p.Components) != 1 {
		err := fmt.Errorf("deployment %s is not of one Compose component: it is of type %s with %d: %w", name, p.Type, len(p.Components), fault.ErrConflict)
		return nil, fault.WithHint(err, DocumentHint)
	}
	return d, nil
}
