package fleet_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/registry/release"
)

// Two parameters that give one variable different values: the devices take no such document, so the files are refused.
func TestParametersOfOneVariable(t *testing.T) {
	m := stocked(t)
	text := strings.Replace(fmt.Sprintf(description, "1.4.0"), "pointer: SCALE", "pointer: POLL", 1) // poll is 30, scale is 1.5
	a, _, err := artifacts.PackPackage(fstest.MapFS{"margo.yaml": {Data: []byte(text)}}, artifacts.PackageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Push(base+"/apps/line", "1.4.0", a)
	const files = `fleet: acme-plant
registry: harbor.acme.example/plant
states: state
applications: {line: {package: apps/line, version: 1.4.0, profile: small}}
deployments:
  line: {application: line, select: "*", parameters: {name: Graz%s}}
devices:
  - {id: press-07, capabilities: unchecked, parameters: {line: {level: debug%s}}}
`
	const ending = ` of line 1.4.0 both set POLL of component line-monitor, on press-07 for one`
	for _, c := range []struct{ name, all, device, want string }{
		{"different", ", poll: 10", ", scale: 9.5", `fleet.yaml:6:73: deployments.line.parameters.poll: the parameters "poll" (10, fleet.yaml:6:73) and "scale" (9.5, fleet.yaml:8:86)` + ending},
		{"one of the package", ", poll: 10", "", `fleet.yaml:6:73: deployments.line.parameters.poll: the parameters "poll" (10, fleet.yaml:6:73) and "scale" (1.5, of the package)` + ending},
		{"the other of the package", "", ", scale: 9.5", `fleet.yaml:8:86: devices[0].parameters.line.scale: the parameters "poll" (30, of the package) and "scale" (9.5, fleet.yaml:8:86)` + ending},
		{"both of the package", "", "", `fleet.yaml:6:3: deployments.line: the parameters "poll" (30, of the package) and "scale" (1.5, of the package)` + ending},
		{"the same", ", poll: 5", ", scale: 5.0", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			for range 8 { // a map is gone through in another order each time
				_, err := compile(fstest.MapFS{"fleet.yaml": {Data: []byte(fmt.Sprintf(files, c.all, c.device))}}, m)
				var document *strict.Error
				if c.want == "" && err != nil || c.want != "" && (!errors.As(err, &document) || !strings.Contains(err.Error(), c.want)) {
					t.Fatalf("error = %v\nwant %q", err, c.want)
				}
			}
		})
	}
}

// The same of documents that a person wrote.
func TestOneParametersOfOneVariable(t *testing.T) {
	m := newShelf()
	m.component(t, "web", "1.0.0", "one")
	document := single(t, component("d", "web", "1.0.0"))
	d, err := margo.ParseApplicationDeployment("web", document.Data)
	if err != nil {
		t.Fatal(err)
	}
	component := d.Spec.DeploymentProfile.Components[0].Name
	to := []margo.ParameterTarget{{Pointer: "PORT", Components: []string{component}}}
	d.Spec.Parameters = map[string]margo.Parameter{"a": {Value: "80", Targets: to}, "b": {Value: "81", Targets: to}}
	if document.Data, err = d.Encode(); err != nil {
		t.Fatal(err)
	}
	want := "deployment " + d.Metadata.Name + ": parameters a and b both set PORT of component " + component
	if _, err := stateOf(t, m, asked{Device: "d", Deployments: []release.Document{document}}); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), want) {
		t.Errorf("PlanOne = %v, want %q", err, want)
	}
}
