package margo

// DeviceCapabilities is what a device tells of itself (DeviceCapabilitiesManifest).
type DeviceCapabilities struct {
	Properties DeviceProperties `json:"properties"`
	Labels     map[string]any   `json:"labels,omitempty"` // string, float64, bool, []string or []float64
	Extensions Extensions       `json:"-"`                // written at the root, by their full keys
}

// DeviceProperties identify a device and, when it hosts workloads, say what it has.
type DeviceProperties struct {
	ID                       string       `json:"id"`
	Vendor                   string       `json:"vendor"`
	ModelNumber              string       `json:"modelNumber"`
	SerialNumber             string       `json:"serialNumber"`
	CPUs                     []CPU        `json:"cpus,omitempty"`
	Memory                   string       `json:"memory,omitempty"`
	Storage                  string       `json:"storage,omitempty"`
	Peripherals              []Peripheral `json:"peripherals,omitempty"`
	Interfaces               []Interface  `json:"interfaces,omitempty"`
	OTELCollector            *bool        `json:"otelCollector,omitempty"`
	SupportedRuntimes        []string     `json:"supportedRuntimes,omitempty"`
	SupportedDeploymentTypes []string     `json:"supportedDeploymentTypes,omitempty"`
}

// CPU is one kind of processor of a device.
type CPU struct {
	Cores        float64 `json:"cores"`
	Architecture string  `json:"architecture,omitempty"`
}

// Peripheral is attached hardware.
type Peripheral struct {
	Type         string `json:"type"`
	Manufacturer string `json:"manufacturer,omitempty"`
	Model        string `json:"model,omitempty"`
}

// Interface is a communication interface.
type Interface struct {
	Type string `json:"type"`
}
