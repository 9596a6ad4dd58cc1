package margo

import "time"

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

// DeviceConstraints say which devices fit (SPEC section 6 of the deployment profile).
type DeviceConstraints struct {
	CapacityRequirements *CapacityRequirements
	EligibilityRules     []EligibilityRule // OR between rules; empty: no rule
}

// CapacityRequirements are minimums.
type CapacityRequirements struct {
	CPU     *CPURequirement
	Memory  string // ^[0-9]+(Mi|Gi|Ki)$; "": none
	Storage string // ^[0-9]+(Mi|Gi|Ki|Ti|Pi|Ei)$; "": none
}

// CPURequirement must be met by a single entry of the device's cpus.
type CPURequirement struct {
	Cores         float64
	Architectures []string
}

// EligibilityRule holds when all of its selectors hold.
type EligibilityRule struct {
	PropertySelector *Selector
	LabelSelector    *Selector
}

// Selector holds when all of its expressions hold.
type Selector struct{ MatchExpressions []MatchExpression }

// MatchExpression compares one value.
type MatchExpression struct {
	Key          string
	Operator     string // In, NotIn, Exists, DoesNotExist, Gt, Lt, ContainsAll, ContainsAny
	Values       []any
	ItemSelector *Selector
}
