package margo

import (
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// ApplicationDeployment assigns one application to one device.
type ApplicationDeployment struct {
	ID       string // UUID; stays when the content changes
	Metadata DeploymentMetadata
	Spec     DeploymentSpec
}

// DeploymentMetadata names a deployment and its device.
type DeploymentMetadata struct {
	Name        string
	Namespace   string
	DeviceID    string // "" in documents of the 1.0.0 line; may end in "/*"
	Labels      map[string]string
	Annotations map[string]string // only in documents of the 1.0.0 line
}

// DeploymentSpec says what is deployed and with which parameters.
type DeploymentSpec struct {
	ApplicationID     string
	DeploymentProfile DeploymentProfile
	Parameters        map[string]Parameter
	Extensions        Extensions
}

// DeploymentProfile is one way to run the application. Type is "compose", "helm" or "custom" after normalisation.
type DeploymentProfile struct {
	Type              string
	Components        []Component // installed in this order
	DeviceConstraints *DeviceConstraints
	Extensions        Extensions
}

// Component is one OCI artifact of a profile.
type Component struct {
	Name       string
	Properties ComponentProperties
	Extensions Extensions
}

// ComponentProperties locate a component.
type ComponentProperties struct {
	Repository string        // "oci://host/path"
	Revision   string        // OCI tag, SemVer with "_" for "+"
	Wait       bool          // default true
	Timeout    time.Duration // 0: not told

	// PackageLocation and KeyLocation are https URLs that documents of the 1.0.0 line may have in place of Repository
	// and Revision, which are "" then. Such a component cannot come from a registry.
	PackageLocation string
	KeyLocation     string
}

// Parameter is one value and the places that it goes to.
type Parameter struct {
	Value   any // string, int64, uint64, float64, bool, nil, []any or map[string]any
	Targets []ParameterTarget
}

// ParameterTarget says where a value goes. For Compose the pointer is an environment variable's name.
type ParameterTarget struct {
	Pointer    string
	Components []string
}

// oldKinds are the names that profile types had before rc.3.
var oldKinds = map[string]string{"helm.v3": "helm", "docker-compose": "compose"}

// knownVersions are the apiVersions of ApplicationDeployments before rc.3, which has none.
var knownVersions = []string{"application.margo.org/v1alpha1", "margo.org"}

// ParseApplicationDeployment reads an ApplicationDeployment (YAML) of rc.3, or of the 1.0.0 line, which it normalises: it
// has an envelope (apiVersion, kind), may keep its ids in annotations and calls its profile types by older names.
func ParseApplicationDeployment(file string, data []byte) (*ApplicationDeployment, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	r := deploymentReader{old: root.Get("apiVersion") != nil || root.Get("kind") != nil}
	if r.old {
		root.Need("apiVersion").OneOf(knownVersions...)
		root.Need("kind").OneOf("ApplicationDeployment")
	}
	d := &ApplicationDeployment{}
	metadata, spec := root.Need("metadata"), root.Need("spec")
	annotations := metadata.Get("annotations")
	d.Metadata.Annotations = annotations.Texts()
	d.Metadata.Labels = metadata.Get("labels").Texts()
	d.Metadata.Name = metadata.Need("name").Filled()
	id, application := root.Get("id"), spec.Get("applicationId")
	if r.old {
		if id == nil {
			id = annotations.Get("id")
		}
		if application == nil {
			application = annotations.Get("applicationId")
		}
		d.Metadata.Namespace = metadata.Get("namespace").Text()
		d.Metadata.DeviceID = metadata.Get("deviceId").Matching(assignmentFormat, "a device id")
	} else {
		d.Metadata.Namespace = metadata.Need("namespace").Filled()
		d.Metadata.DeviceID = metadata.Need("deviceId").Matching(assignmentFormat, "a device id")
	}
	if id == nil {
		id = root.Need("id")
	}
	if application == nil {
		application = spec.Need("applicationId")
	}
	d.ID = uuid(id)
	d.Spec.ApplicationID = application.Matching(applicationFormat, "an application id (lower-case letters, digits, dashes, at most 200)")
	d.Spec.DeploymentProfile = r.profile(spec.Need("deploymentProfile"))
	d.Spec.Parameters = parameters(spec.Get("parameters"), d.Spec.DeploymentProfile.Type == "compose", true)
	d.Spec.Extensions = r.closed(spec)
	return strict.Result(root, d)
}

// deploymentReader reads what ApplicationDeployments and ApplicationDescriptions have in common.
type deploymentReader struct {
	old  bool // a document of the 1.0.0 line
	open bool // the specification does not close this document's objects
}

// closed reads the extensions of an object, the only members that rc.3 allows beside those that were asked for.
func (r deploymentReader) closed(n *strict.Node) Extensions {
	x := extensions(n)
	if !r.old && !r.open {
		n.Close(isExtension)
	}
	return x
}

func (r deploymentReader) profile(n *strict.Node) DeploymentProfile {
	var p DeploymentProfile
	kinds := []string{"compose", "helm", "custom"}
	if r.old {
		kinds = append(kinds, "helm.v3", "docker-compose")
	}
	p.Type = n.Need("type").OneOf(kinds...)
	if now, ok := oldKinds[p.Type]; ok {
		p.Type = now
	}
	var names []*strict.Node
	for _, c := range n.Need("components").Items() {
		p.Components = append(p.Components, r.component(c))
		names = append(names, c.Get("name"))
	}
	unique(names, "component")
	p.DeviceConstraints = deviceConstraints(n.Get("deviceConstraints"))
	p.Extensions = r.closed(n)
	return p
}

func (r deploymentReader) component(n *strict.Node) Component {
	var c Component
	c.Name = n.Need("name").Matching(componentFormat, "a component name (lower-case letters, digits, dashes)")
	c.Properties = r.properties(n.Need("properties"))
	c.Extensions = r.closed(n)
	pin := n.Get(PinExtension).Get("digest")
	ReadDigest(pin)
	return c
}

func (r deploymentReader) properties(n *strict.Node) ComponentProperties {
	p := ComponentProperties{Wait: true, Timeout: timeout(n.Get("timeout"))}
	wait := n.Get("wait")
	switch {
	case r.old && wait.Kind() == strict.String:
		p.Wait = wait.OneOf("true", "false") == "true"
	case wait != nil:
		p.Wait = wait.Bool()
	}
	if l := n.Get("packageLocation"); r.old && l != nil && n.Get("repository") == nil {
		p.PackageLocation = l.Matching(packageLocation, "an https URL")
		p.KeyLocation = n.Get("keyLocation").Text()
		return p
	}
	p.Repository = n.Need("repository").Matching(repositoryFormat, `a repository of the form "oci://host/path"`)
	revision := n.Need("revision")
	if !r.old {
		p.Revision = revision.Matching(revisionFormat, `a version like 1.4.0 (SemVer, no leading v, "_" for "+")`)
		return p
	}
	p.Revision = strings.ReplaceAll(revision.Text(), "+", "_")
	if revision.Kind() == strict.String && !tagFormat.MatchString(p.Revision) {
		revision.Matching(tagFormat, "a tag")
	}
	return p
}

var packageLocation = strict.Expression(`^https?://[^\s]+$`)

// parameters reads values and their targets. For Compose a target is an environment variable; the "ENV." that older
// documents write before its name is taken off.
func parameters(n *strict.Node, compose, needValue bool) map[string]Parameter {
	if n == nil {
		return nil
	}
	out := make(map[string]Parameter)
	for _, m := range n.Members() {
		var p Parameter
		if needValue {
			p.Value = m.Need("value").Value()
		} else {
			p.Value = m.Get("value").Value()
		}
		for _, t := range m.Need("targets").Items() {
			pointer := t.Need("pointer")
			target := ParameterTarget{Pointer: pointer.Filled(), Components: t.Need("components").Strings()}
			if compose {
				target.Pointer = strings.TrimPrefix(target.Pointer, "ENV.")
				if target.Pointer != "" && !variableFormat.MatchString(target.Pointer) {
					pointer.Faultf("%q is not the name of an environment variable", target.Pointer)
				}
			}
			p.Targets = append(p.Targets, target)
		}
		out[m.Key()] = p
	}
	return out
}
