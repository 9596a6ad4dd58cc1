package release

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"path"
	"regexp"
	"slices"
	"strings"

	"github.com/google/uuid"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// deploymentNamespace is the name space of the ids that [DeploymentID] makes.
const deploymentNamespace = "https://longshore.dev/deployment"

// componentName is what the specification allows as a component's name.
var componentName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)

// DeploymentID is the id of the deployment of one component on one device: the same whenever it is asked for (UUID
// version 5), so that a later release of the component is a change of the deployment and not another one.
func DeploymentID(device artifacts.DeviceID, component string) string {
	space := uuid.NewSHA1(uuid.NameSpaceURL, []byte(deploymentNamespace))
	return uuid.NewSHA1(space, []byte(string(device)+"\n"+component)).String()
}

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

// Deployment writes the ApplicationDeployment of one component.
func (s Single) Deployment() ([]byte, error) {
	name := cmp.Or(s.Name, path.Base(s.Repository))
	if !componentName.MatchString(name) {
		err := fmt.Errorf("component name %q: %w: lower-case letters, digits and dashes", name, fault.ErrInvalid)
		return nil, fault.WithHint(err, "give it a name with --name")
	}
	if s.Tag == "" {
		err := fmt.Errorf("component %s: %w: no version", s.Repository, fault.ErrInvalid)
		return nil, fault.WithHint(err, "write "+s.Repository+":VERSION")
	}
	var b strings.Builder
	line := func(indent int, key, value string) {
		b.WriteString(strings.Repeat("  ", indent) + key + ":")
		if value != "" {
			b.WriteString(" " + value)
		}
		b.WriteByte('\n')
	}
	line(0, "id", quoted(DeploymentID(s.Device, name)))
	line(0, "metadata", "")
	line(1, "name", quoted(name))
	line(1, "namespace", quoted(cmp.Or(s.Namespace, "default")))
	line(1, "deviceId", quoted(string(s.Device)))
	line(0, "spec", "")
	line(1, "applicationId", quoted(name))
	line(1, "deploymentProfile", "")
	line(2, "type", "compose")
	line(2, "components", "")
	line(3, "- name", quoted(name))
	line(4, "properties", "")
	line(5, "repository", quoted("oci://"+s.Repository))
	line(5, "revision", quoted(s.Tag))
	if len(s.Parameters) > 0 {
		line(1, "parameters", "")
	}
	for _, k := range slices.Sorted(maps.Keys(s.Parameters)) {
		line(2, quoted(k), "")
		line(3, "value", quoted(s.Parameters[k]))
		line(3, "targets", "")
		line(4, "- pointer", quoted(k))
		line(5, "components", "["+quoted(name)+"]")
	}
	data := []byte(b.String())
	if s.Digest != "" {
		return margo.Pin("deployment of "+name, data, map[string]digest.Digest{name: s.Digest})
	}
	_, err := margo.ParseApplicationDeployment("deployment of "+name, data)
	return data, err
}

// quoted is a JSON string, which is a YAML string too.
func quoted(s string) string {
	b, err := json.Marshal(s)
	if err != nil { // strings always marshal
		return `""`
	}
	return string(b)
}
