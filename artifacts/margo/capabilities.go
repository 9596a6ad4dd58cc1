package margo

import (
	"strings"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

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

// Closed sets of the capabilities, and of what a deployment may ask for: constraints know more architectures.
var (
	reported       = []string{"amd64", "arm64", "arm"}
	architectures  = []string{"amd64", "arm64", "arm", "riscv64", "other"}
	peripherals    = []string{"gpu", "display", "camera", "microphone", "speaker"}
	interfaceTypes = []string{"ethernet", "wifi", "cellular", "bluetooth", "usb", "canbus", "rs232"}
	runtimes       = []string{"oci", "custom"}
	deployable     = []string{"helm", "compose", "custom"}
	hosting        = []string{"cpus", "memory", "storage", "peripherals", "interfaces", "otelCollector", "supportedRuntimes", "supportedDeploymentTypes"}
)

// ParseDeviceCapabilities reads what a device tells of itself (JSON).
func ParseDeviceCapabilities(file string, data []byte) (*DeviceCapabilities, error) {
	return parse(strict.JSON, capabilitiesOf, file, data)
}

// ParseDeviceCapabilitiesYAML reads what a device tells of itself in its YAML form.
func ParseDeviceCapabilitiesYAML(file string, data []byte) (*DeviceCapabilities, error) {
	return parse(strict.YAML, capabilitiesOf, file, data)
}

func capabilitiesOf(root *strict.Node) (*DeviceCapabilities, error) {
	c := &DeviceCapabilities{Properties: deviceProperties(root.Need("properties"))}
	if l := root.Get("labels"); l != nil {
		c.Labels = make(map[string]any)
		for _, m := range l.Members() {
			c.Labels[m.Key()] = label(m)
		}
	}
	c.Extensions = extensions(root)
	root.Close(isExtension)
	return strict.Result(root, c)
}

func deviceProperties(n *strict.Node) DeviceProperties {
	p := DeviceProperties{
		ID:           n.Need("id").Matching(deviceFormat, "a device id"),
		Vendor:       n.Need("vendor").Text(),
		ModelNumber:  n.Need("modelNumber").Text(),
		SerialNumber: n.Need("serialNumber").Text(),
		Memory:       capacity(n.Get("memory")),
		Storage:      capacity(n.Get("storage")),
	}
	for _, i := range n.Get("cpus").Items() {
		cores := i.Need("cores")
		cpu := CPU{Cores: cores.Float64(), Architecture: i.Get("architecture").OneOf(reported...)}
		if cpu.Cores < 0 {
			cores.Faultf("must not be negative")
		}
		p.CPUs = append(p.CPUs, cpu)
	}
	for _, i := range n.Get("peripherals").Items() {
		p.Peripherals = append(p.Peripherals, Peripheral{i.Need("type").OneOf(peripherals...), i.Get("manufacturer").Text(), i.Get("model").Text()})
	}
	for _, i := range n.Get("interfaces").Items() {
		p.Interfaces = append(p.Interfaces, Interface{i.Need("type").OneOf(interfaceTypes...)})
	}
	if o := n.Get("otelCollector"); o != nil {
		p.OTELCollector = new(o.Bool())
	}
	p.SupportedRuntimes = oneOrMore(n.Get("supportedRuntimes"), runtimes)
	p.SupportedDeploymentTypes = oneOrMore(n.Get("supportedDeploymentTypes"), deployable)
	p.needHosting(n)
	return p
}

// needHosting records what a device that hosts workloads leaves out. One that only relays leaves out all of it.
func (DeviceProperties) needHosting(n *strict.Node) {
	var missing []string
	for _, k := range hosting {
		if n.Get(k) == nil {
			missing = append(missing, k)
		}
	}
	if len(missing) > 0 && len(missing) < len(hosting) {
		n.Faultf("a device that hosts workloads must tell %s too", strings.Join(missing, ", "))
	}
}

func oneOrMore(n *strict.Node, set []string) []string {
	var out []string
	for _, i := range n.Items() {
		out = append(out, i.OneOf(set...))
	}
	if n.Kind() == strict.List && len(out) == 0 {
		n.Faultf("must have at least one entry")
	}
	return out
}

// capacity reads an amount; the specification's own examples have a space in it, which is taken out.
func capacity(n *strict.Node) string {
	return strings.Replace(n.Matching(capacityFormat, "an amount like 16Gi"), " ", "", 1)
}

func label(n *strict.Node) any {
	switch n.Kind() {
	case strict.String:
		return n.Text()
	case strict.Number:
		return n.Float64()
	case strict.Bool:
		return n.Bool()
	case strict.List:
		items := n.Items()
		if len(items) > 0 && items[0].Kind() == strict.Number {
			out := make([]float64, 0, len(items))
			for _, i := range items {
				out = append(out, i.Float64())
			}
			return out
		}
		out := make([]string, 0, len(items))
		for _, i := range items {
			out = append(out, i.Text())
		}
		return out
	}
	n.Faultf("must be a string, a number, a boolean, or a list of strings or numbers, is %s", n.Kind())
	return nil
}
