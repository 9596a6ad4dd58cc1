package margo

// DeploymentStatus is a device's report on one deployment (DeploymentStatusManifest).
type DeploymentStatus struct {
	DeploymentID           string            `json:"deploymentId"`
	DeviceID               string            `json:"deviceId,omitempty"`
	AdoptedManifestVersion uint64            `json:"adoptedManifestVersion"`
	Status                 OverallStatus     `json:"status"`
	Components             []ComponentStatus `json:"components"` // never null in JSON
}

// OverallStatus sums up the components by precedence (SPEC section 4.2).
type OverallStatus struct {
	State State        `json:"state"`
	Error *StatusError `json:"error,omitempty"`
}

// ComponentStatus is the state of one component.
type ComponentStatus struct {
	Name  string       `json:"name"`
	State State        `json:"state"`
	Error *StatusError `json:"error,omitempty"`
}

// StatusError says what failed. Source is the deployment's metadata.name or the component's name.
type StatusError struct {
	Code    string `json:"code"`
	Source  string `json:"source"`
	Message string `json:"message"`
}
