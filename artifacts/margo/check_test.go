package margo_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

// constraints parses deviceConstraints as a deployment carries them.
func constraints(t *testing.T, flow string) (*margo.DeviceConstraints, error) {
	t.Helper()
	d, err := margo.ParseApplicationDeployment("f", []byte(strings.Replace(frame(" []\n"), "    components:", "    deviceConstraints: "+flow+"\n    components:", 1)))
	if err != nil {
		return nil, err
	}
	return d.Spec.DeploymentProfile.DeviceConstraints, nil
}

func device() *margo.DeviceCapabilities {
	yes := true
	return &margo.DeviceCapabilities{
		Properties: margo.DeviceProperties{
			ID: "press-07", Vendor: "Acme", ModelNumber: "M1", SerialNumber: "7",
			CPUs:          []margo.CPU{{Cores: 2, Architecture: "amd64"}, {Cores: 8, Architecture: "arm"}, {Cores: 1, Architecture: "riscv64"}},
			Memory:        "2Gi",
			Storage:       "59 Gi",
			Peripherals:   []margo.Peripheral{{Type: "gpu", Manufacturer: "Intel"}, {Type: "camera", Manufacturer: "NVIDIA"}},
			OTELCollector: &yes, SupportedRuntimes: []string{"oci"}, SupportedDeploymentTypes: []string{"compose"},
		},
		Labels: map[string]any{"site/line": "a", "slots": 4.0, "spare": true, "zones": []string{"x", "y"}, "sizes": []float64{1, 2}},
	}
}

func TestCheck(t *testing.T) {
	property := func(e string) string {
		return "{eligibilityRules: [{propertySelector: {matchExpressions: [" + e + "]}}]}"
	}
	label := func(e string) string {
		return "{eligibilityRules: [{labelSelector: {matchExpressions: [" + e + "]}}]}"
	}
	tests := []struct {
		name, in string
		want     string // "": fits
	}{
		{"nothing asked", "{}", ""},
		{"no rules", "{eligibilityRules: []}", ""},
		{"one processor has both", "{capacityRequirements: {cpu: {cores: 1.5, architectures: [amd64, arm64]}}}", ""},
		{"any architecture", "{capacityRequirements: {cpu: {cores: 8}}}", ""},
		{"no summing of processors", "{capacityRequirements: {cpu: {cores: 9}}}", "needs 9 cores in one processor, device has 2 amd64, 8 arm, 1 riscv64 (capacityRequirements.cpu)"},
		{"cores and architecture in one entry", "{capacityRequirements: {cpu: {cores: 4, architectures: [amd64]}}}", "needs 4 cores of amd64 in one processor"},
		{"memory in other units", "{capacityRequirements: {memory: 2048Mi, storage: 61865984Ki}}", ""},
		{"memory one too much", "{capacityRequirements: {memory: 2097153Ki}}", "needs memory 2097153Ki, device has 2Gi (capacityRequirements.memory)"},
		{"storage huge", "{capacityRequirements: {storage: 9999999999999999999Ei}}", "needs storage 9999999999999999999Ei"},
		{"all unmet are told", "{capacityRequirements: {cpu: {cores: 9}, memory: 3Gi, storage: 1Ti}}", "(capacityRequirements.memory); needs storage 1Ti, device has 59 Gi (capacityRequirements.storage)"},

		{"In", property("{key: /vendor, operator: In, values: [Other, Acme]}"), ""},
		{"In is case-sensitive", property("{key: /vendor, operator: In, values: [acme]}"), `needs /vendor In ["acme"], device has "Acme" (eligibilityRules[0].propertySelector.matchExpressions[0])`},
		{"In boolean", property("{key: /otelCollector, operator: In, values: [true]}"), ""},
		{"In wrong type", property("{key: /serialNumber, operator: In, values: [7]}"), "device has \"7\""},
		{"In of a list is false", property("{key: /supportedRuntimes, operator: In, values: [oci]}"), "needs /supportedRuntimes In"},
		{"In missing key", property("{key: /nothing, operator: In, values: [x]}"), "device has nothing there"},
		{"In number by index", property("{key: /cpus/1/cores, operator: In, values: [8]}"), ""},
		{"index with a leading zero", property("{key: /cpus/01/cores, operator: Exists}"), "needs /cpus/01/cores Exists"},
		{"NotIn", property("{key: /vendor, operator: NotIn, values: [Other]}"), ""},
		{"NotIn listed", property("{key: /vendor, operator: NotIn, values: [Other, Acme]}"), "NotIn"},
		{"NotIn missing key", property("{key: /nothing, operator: NotIn, values: [x]}"), "NotIn"},
		{"NotIn wrong type", property("{key: /vendor, operator: NotIn, values: [7]}"), "NotIn"},
		{"Exists", property("{key: /memory, operator: Exists}"), ""},
		{"Exists for an empty list", property("{key: /interfaces, operator: Exists}"), ""},
		{"DoesNotExist", property("{key: /tpm, operator: DoesNotExist}"), ""},
		{"DoesNotExist but does", property("{key: /memory, operator: DoesNotExist}"), "DoesNotExist"},
		{"Gt", property("{key: /cpus/0/cores, operator: Gt, values: [1.5]}"), ""},
		{"Gt equal", property("{key: /cpus/0/cores, operator: Gt, values: [2]}"), "Gt"},
		{"Gt of a string", property("{key: /memory, operator: Gt, values: [1]}"), "Gt"},
		{"Lt", label("{key: slots, operator: Lt, values: [5]}"), ""},
		{"Lt equal", label("{key: slots, operator: Lt, values: [4]}"), "Lt"},
		{"escaped pointer", property("{key: /a~1b~0c, operator: DoesNotExist}"), ""},

		{"ContainsAll by one element", property("{key: /peripherals, operator: ContainsAll, itemSelector: {matchExpressions: [{key: /type, operator: In, values: [camera]}, {key: /manufacturer, operator: In, values: [NVIDIA]}]}}"), ""},
		{"ContainsAll not by two elements", property("{key: /peripherals, operator: ContainsAll, itemSelector: {matchExpressions: [{key: /type, operator: In, values: [gpu]}, {key: /manufacturer, operator: In, values: [NVIDIA]}]}}"), `needs /peripherals ContainsAll (/type In ["gpu"], /manufacturer In ["NVIDIA"])`},
		{"ContainsAny", property("{key: /peripherals, operator: ContainsAny, itemSelector: {matchExpressions: [{key: /type, operator: In, values: [gpu]}, {key: /manufacturer, operator: In, values: [None]}]}}"), ""},
		{"ContainsAny none", property("{key: /peripherals, operator: ContainsAny, itemSelector: {matchExpressions: [{key: /type, operator: In, values: [speaker]}]}}"), "ContainsAny"},
		{"Contains in a string", property("{key: /vendor, operator: ContainsAny, itemSelector: {matchExpressions: [{key: '', operator: Exists}]}}"), "ContainsAny"},
		{"Contains in a list of strings", property("{key: /supportedRuntimes, operator: ContainsAny, itemSelector: {matchExpressions: [{key: '', operator: In, values: [oci]}]}}"), ""},
		{"Contains in labels", label("{key: zones, operator: ContainsAll, itemSelector: {matchExpressions: [{key: '', operator: In, values: [y]}]}}"), ""},
		{"Contains numbers in labels", label("{key: sizes, operator: ContainsAll, itemSelector: {matchExpressions: [{key: '', operator: Gt, values: [1]}, {key: '', operator: Lt, values: [3]}]}}"), ""},

		{"label with a slash is no pointer", label("{key: site/line, operator: In, values: [a]}"), ""},
		{"label key exactly", label("{key: Site/line, operator: Exists}"), "labelSelector"},
		{"expressions AND", label("{key: slots, operator: Exists}, {key: nothing, operator: Exists}"), "labelSelector.matchExpressions[1]"},
		{"selectors AND", "{eligibilityRules: [{propertySelector: {matchExpressions: [{key: /vendor, operator: Exists}]}, labelSelector: {matchExpressions: [{key: nothing, operator: Exists}]}}]}", "eligibilityRules[0].labelSelector"},
		{"rules OR", "{eligibilityRules: [{labelSelector: {matchExpressions: [{key: nothing, operator: Exists}]}}, {labelSelector: {matchExpressions: [{key: spare, operator: In, values: [true]}]}}]}", ""},
		{"no rule holds, all told", "{eligibilityRules: [{labelSelector: {matchExpressions: [{key: one, operator: Exists}]}}, {labelSelector: {matchExpressions: [{key: two, operator: Exists}]}}]}", "(eligibilityRules[0].labelSelector.matchExpressions[0]); needs two Exists"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c, err := constraints(t, tt.in)
			if err != nil {
				t.Fatal(err)
			}
			switch err := c.Check(device()); {
			case tt.want == "" && err != nil:
				t.Errorf("Check = %v, want nil", err)
			case tt.want != "" && (!errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("Check = %v, want fault.ErrUnfit with %q", err, tt.want)
			}
		})
	}
	var none *margo.DeviceConstraints
	if err := none.Check(device()); err != nil {
		t.Errorf("Check of nil constraints = %v", err)
	}
	c, err := constraints(t, "{capacityRequirements: {cpu: {cores: 1}, memory: 1Ki}}")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Check(&margo.DeviceCapabilities{}); err == nil || err.Error() != "device does not fit: needs 1 cores in one processor, device has told none (capacityRequirements.cpu); needs memory 1Ki, device has told none (capacityRequirements.memory)" {
		t.Errorf("Check of a device that tells nothing = %v", err)
	}
}

func TestConstraintFaults(t *testing.T) {
	rule := func(e string) string { return "{eligibilityRules: [{labelSelector: {matchExpressions: [" + e + "]}}]}" }
	for name, tt := range map[string]struct{ in, want string }{
		"memory unit":        {"{capacityRequirements: {memory: 1Ti}}", `memory: "1Ti" is not an amount like 512Mi`},
		"memory space":       {"{capacityRequirements: {memory: 1 Gi}}", `memory: "1 Gi" is not an amount`},
		"storage":            {"{capacityRequirements: {storage: 10GB}}", `storage: "10GB" is not an amount`},
		"no cores":           {"{capacityRequirements: {cpu: {architectures: [arm]}}}", "cpu: cores is missing"},
		"architecture":       {"{capacityRequirements: {cpu: {cores: 1, architectures: [x86]}}}", `architectures[0]: "x86" is none of amd64`},
		"empty rule":         {"{eligibilityRules: [{propertiesSelector: {}}]}", "eligibilityRules[0]: has neither propertySelector nor labelSelector"},
		"rule type":          {"{eligibilityRules: [x]}", "eligibilityRules[0]: must be an object, is a string"},
		"operator":           {rule("{key: a, operator: Equals, values: [b]}"), `operator: "Equals" is none of In,`},
		"no key":             {rule("{operator: Exists}"), "key is missing"},
		"In without values":  {rule("{key: a, operator: In}"), "values is missing"},
		"In null":            {rule("{key: a, operator: In, values: }"), "values: must be a list, is null"},
		"Gt null":            {rule("{key: a, operator: Gt, values: }"), "values: must be a list, is null"},
		"Gt empty":           {rule("{key: a, operator: Gt, values: []}"), "must be exactly one number"},
		"Contains, null":     {rule("{key: a, operator: ContainsAny, itemSelector: }"), "itemSelector: must be an object, is null"},
		"In empty":           {rule("{key: a, operator: In, values: []}"), "must be strings, or numbers, or one boolean"},
		"In mixed":           {rule("{key: a, operator: In, values: [b, 1]}"), "must be strings, or numbers, or one boolean"},
		"In two booleans":    {rule("{key: a, operator: NotIn, values: [true, false]}"), "must be strings, or numbers, or one boolean"},
		"Exists with values": {rule("{key: a, operator: Exists, values: [b]}"), "values: must not be there with Exists"},
		"Gt two":             {rule("{key: a, operator: Gt, values: [1, 2]}"), "must be exactly one number"},
		"Lt string":          {rule("{key: a, operator: Lt, values: ['1']}"), "must be exactly one number"},
		"Contains, values":   {rule("{key: a, operator: ContainsAll, values: [b], itemSelector: {matchExpressions: [{key: '', operator: Exists}]}}"), "values: must not be there with ContainsAll"},
		"Contains, no items": {rule("{key: a, operator: ContainsAny}"), "itemSelector is missing"},
		"Contains, empty":    {rule("{key: a, operator: ContainsAny, itemSelector: {matchExpressions: []}}"), "needs at least one expression"},
		"In with items":      {rule("{key: a, operator: In, values: [b], itemSelector: {matchExpressions: [{key: '', operator: Exists}]}}"), "itemSelector: must not be there with In"},
		"pointer":            {"{eligibilityRules: [{propertySelector: {matchExpressions: [{key: memory, operator: Exists}]}}]}", `"memory" is not a JSON Pointer`},
		"pointer escape":     {"{eligibilityRules: [{propertySelector: {matchExpressions: [{key: /a~2, operator: Exists}]}}]}", `"/a~2" is not a JSON Pointer`},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := constraints(t, tt.in); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parse = %v, want %q", err, tt.want)
			}
		})
	}
}
