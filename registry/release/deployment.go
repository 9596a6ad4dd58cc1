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

// Single describes the deployment of one component.
type Single struct {
	Device     artifacts.DeviceID
	Repository string            // "host/path"
	Tag        string            // the component's version
	Digest     digest.Digest     // "": what the tag means when it is pinned
	Name       string            // of the component and the deployment; "": the repository's last element
	Namespace  string            // "": default
	Parameters map[string]string // environment variables of the Compose project
}

// Deployment writes the ApplicationDeployment of one component: the same bytes that a fleet with an application of this name
// makes.
func (s Single) Deployment() ([]byte, error) {
	name := cmp.Or(s.Name, path.Base(s.Repository))
	if !margo.ValidComponentName(name) {
		err := fmt.Errorf("component name %q: %w: lower-case letters, digits and dashes", name, fault.ErrInvalid)
		return nil, fault.WithHint(err, "give it a name with --name")
	}
	if s.Tag == "" {
		err := fmt.Errorf("component %s: %w: no version", s.Repository, fault.ErrInvalid)
		return nil, fault.WithHint(err, "write "+s.Repository+":VERSION")
	}
	component := margo.Component{
		Name: name, Properties: margo.ComponentProperties{Repository: "oci://" + s.Repository, Revision: s.Tag, Wait: true},
	}
	if s.Digest != "" {
		component.Extensions = margo.Extensions{margo.PinExtension: map[string]any{"digest": s.Digest.String()}}
	}
	parameters := map[string]margo.Parameter{}
	for k, v := range s.Parameters {
		parameters[k] = margo.Parameter{Value: v, Targets: []margo.ParameterTarget{{Pointer: k, Components: []string{name}}}}
	}
	d := margo.ApplicationDeployment{
		ID:       artifacts.DeploymentID(s.Device, name),
		Metadata: margo.DeploymentMetadata{Name: name, Namespace: cmp.Or(s.Namespace, artifacts.DefaultNamespace), DeviceID: string(s.Device)},
		Spec: margo.DeploymentSpec{
			ApplicationID: name, Parameters: parameters,
			DeploymentProfile: margo.DeploymentProfile{Type: "compose", Components: []margo.Component{component}},
		},
	}
	data, err := d.Encode()
	if err != nil {
		return nil, err
	}
	_, err = margo.ParseApplicationDeployment("deployment of "+name, data)
	return data, err
}
