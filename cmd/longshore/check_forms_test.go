package main

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

// Documents of the management API are read in both forms, found out or said; architectures that only constraints know are no
// capabilities (rc.3).
func TestCheckForms(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	const device = "properties: {id: a, vendor: v, modelNumber: m, serialNumber: '7'"
	hosting := func(arch string) string {
		return device + ", cpus: [{cores: 4, architecture: " + arch + "}], memory: 1Gi, storage: 1Gi, peripherals: [], interfaces: [], otelCollector: true," +
			" supportedRuntimes: [oci], supportedDeploymentTypes: [compose]}\n"
	}
	for name, text := range map[string]string{
		"device.yaml": "# of a device\n" + device + "}\n", "hosting.yaml": hosting("arm64"), "device.json": `{"properties":{"id":"a","vendor":"v","modelNumber":"m","serialNumber":"7"}}`,
		"problem.yaml": "type: about:blank\ntitle: Not found\nstatus: 404\n", "problem.json": `{"type":"about:blank","title":"Not found","status":404}`,
		"status.yaml": "deploymentId: a3e2f5dc-912e-494f-8395-52cf3769bc06\nadoptedManifestVersion: 1\nstatus: {state: installed}\ncomponents: []\n",
	} {
		s.write(name, text)
		s.do(outcome.OK, "check", name)
	}
	s.do(outcome.OK, "check", "--kind", "problem", "problem.yaml")
	s.do(outcome.OK, "check", "--kind", "capabilities", "device.yaml")
	s.write("docker-compose.yml", "x-all: &all {restart: always}\nservices:\n  web: {<<: *all, image: caddy, configs: [{source: c, mode: 0440}]}\nconfigs: {c: {content: text}}\n")
	s.do(outcome.OK, "check", "docker-compose.yml")
	for _, arch := range []string{"riscv64", "other"} {
		s.write("wrong.yaml", hosting(arch))
		s.refuses(outcome.Misused, []string{"wrong.yaml:1:", "properties.cpus[0].architecture", arch}, "check", "wrong.yaml")
	}
}

// A library warns of variables without a value on standard error; what a user sees is our own notice, with its place.
func TestCheckTellsOfVariablesItself(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.write("web/compose.yaml", "services:\n  web: {image: caddy, env_file: web.env}\n")
	s.write("web/web.env", "A=${GONE}\n")
	code, output := s.process("check", "web")
	want := "web/compose.yaml:2:23: services.web.env_file: notice: line 1 of web.env refers to a variable without a value"
	if code != outcome.OK || !strings.Contains(output, want) || strings.Contains(output, "level=warning") {
		t.Errorf("check: exit code %d:\n%s\nwant %q and nothing of a library", code, output, want)
	}
}
