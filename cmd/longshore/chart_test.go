package main

import (
	"encoding/json"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

const charts = host + "/plant/charts/line"

func (s *shell) chart() {
	s.write("chart/Chart.yaml", "apiVersion: v2\nname: line\nversion: 1.4.0\ndescription: Watches a line.\n")
	s.write("chart/values.yaml", "poll: 30\n")
	s.write("chart/templates/config.yaml", "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: line}\ndata: {poll: {{ .Values.poll | quote }}}\n")
}

// A chart is pushed as helm push does, pinned by a state and a fleet, and verified with them.
func TestChart(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.chart()
	s.do(outcome.OK, "check", "chart")
	s.do(outcome.OK, "component", "push", "--key", "release.key", "./chart", charts)
	s.do(outcome.OK, "component", "push", "-o", "json", "./chart", charts+":1.4.0") // the same again
	s.do(outcome.Misused, "component", "push", "./chart", charts+":1.5.0")
	s.do(outcome.Misused, "component", "push", "./chart", host+"/plant/charts/other")
	s.do(outcome.Misused, "component", "push", "--env", "A=1", "./chart", charts)
	s.write("chart/values.yaml", "poll: 31\n")
	s.do(outcome.Refused, "component", "push", "./chart", charts) // 1.4.0 stands for something else
	s.do(outcome.OK, "inspect", charts+":1.4.0")
	s.write("broken-chart/Chart.yaml", "apiVersion: v1\nname: line\nversion: one\nhoem: x\n")
	s.do(outcome.Misused, "check", "broken-chart")
	s.do(outcome.Misused, "component", "push", "./broken-chart", charts)

	s.write("helm.yaml", "id: 0d7b6b5e-1d43-4d0a-9c67-0c64a8a4b2f1\nmetadata: {name: line, namespace: plant, deviceId: press-07}\nspec: {applicationId: line, deploymentProfile: {type: helm,\n"+
		"  components: [{name: line, properties: {repository: \"oci://"+charts+"\", revision: 1.4.0}}]}}\n")
	s.do(outcome.OK, "state", "push", "--device", "press-07", "--key", "release.key", "--deployment", "helm.yaml", states)
	s.do(outcome.OK, "verify", "--key", "release.pub", states+":press-07")
	var shown stateInfo
	if err := json.Unmarshal([]byte(s.do(outcome.OK, "state", "show", "-o", "json", "-d", "press-07", states)), &shown); err != nil {
		t.Fatal(err)
	}
	if c := shown.Deployments[0].Components[0]; c.Digest == "" || c.Version != "1.4.0" {
		t.Errorf("component %+v, want the chart, pinned", c)
	}
	s.golden(golden)
}

// Fleets place charts, pin them, and look whether they are there.
func TestChartInFleet(t *testing.T) {
	s := newShell(t, testenv.Referrers)
	s.chart()
	s.do(outcome.OK, "component", "push", "./chart", charts)
	s.write("helm-app/margo.yaml", "apiVersion: v1\nid: line\nmetadata: {name: Line, version: 1.0.0, catalog: {organization: [{name: Acme}]}}\n"+
		"deploymentProfiles: [{type: helm, id: cluster, components: [{name: line, properties: {repository: \"oci://"+charts+"\", revision: 1.4.0}}]}]\n")
	s.do(outcome.OK, "app", "push", "./helm-app", host+"/plant/apps/line")
	s.write("one/fleet.yaml", "fleet: one\nregistry: "+host+"/plant\nstates: one\napplications: {line: {package: apps/line, version: 1.0.0}}\ndeployments: {line: {application: line, select: \"*\"}}\ndevices: [{id: press-07, capabilities: unchecked}]\n")
	s.do(outcome.OK, "fleet", "check", "one")
	s.server.Faults.Add(testenv.Rule{Method: http.MethodHead, Path: "/charts/line/blobs/", Effect: testenv.Status(http.StatusNotFound, 0)})
	s.refuses(outcome.Refused, []string{"component " + charts + "@", "of it is not at"}, "fleet", "publish", "--key", "release.key", "one")
	s.server.Faults.Clear()
	s.do(outcome.OK, "fleet", "publish", "--key", "release.key", "one")
	s.do(outcome.OK, "verify", "-q", "--key", "release.pub", host+"/plant/one:press-07")
	// A Compose component is no chart.
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", host+"/plant/charts/line:9.0.0")
	s.change("helm-app/margo.yaml", "revision: 1.4.0", "revision: 9.0.0")
	s.change("helm-app/margo.yaml", "version: 1.0.0", "version: 1.1.0")
	s.do(outcome.OK, "app", "push", "./helm-app", host+"/plant/apps/line")
	s.change("one/fleet.yaml", "version: 1.0.0", "version: 1.1.0")
	s.refuses(outcome.Refused, []string{"press-07", "open chart"}, "fleet", "publish", "--key", "release.key", "one")
}

// What we push is what helm pulls, and what helm packed keeps its bytes.
func TestHelmPulls(t *testing.T) {
	helm := testenv.Program(t, "helm")
	s := newShell(t, testenv.Distribution)
	s.chart()
	run := func(args ...string) string {
		t.Helper()
		cmd := exec.CommandContext(t.Context(), helm, args...)
		cmd.Env = append(os.Environ(), "HOME="+t.TempDir())
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("helm %s: %v\n%s", strings.Join(args, " "), err, out)
		}
		return string(out)
	}
	s.do(outcome.OK, "component", "push", "./chart", charts)
	direct := "oci://" + s.server.Host + "/plant/charts/line"
	run("pull", "--plain-http", "--untar", "--untardir", "pulled", direct, "--version", "1.4.0")
	if string(mustRead(t, "pulled/line/values.yaml")) != "poll: 30\n" {
		t.Error("helm pulled other values")
	}
	if out := run("template", "--plain-http", direct, "--version", "1.4.0", "--set", "poll=5"); !strings.Contains(out, `poll: "5"`) {
		t.Errorf("helm template: %s", out)
	}
	if out := run("show", "chart", "--plain-http", direct, "--version", "1.4.0"); !strings.Contains(out, "description: Watches a line.") {
		t.Errorf("helm show: %s", out)
	}
	// And back: what helm packed is pushed as it is.
	s.change("chart/Chart.yaml", "1.4.0", "1.5.0")
	run("package", "chart")
	packed := mustRead(t, "line-1.5.0.tgz")
	s.do(outcome.OK, "component", "push", "line-1.5.0.tgz", charts)
	if err := os.Mkdir("again", 0o755); err != nil {
		t.Fatal(err)
	}
	run("pull", "--plain-http", "-d", "again", direct, "--version", "1.5.0")
	if string(mustRead(t, filepath.Join("again", "line-1.5.0.tgz"))) != string(packed) {
		t.Error("helm pulled other bytes than it packed")
	}
	// What helm pushes is what we pin.
	s.change("chart/Chart.yaml", "1.5.0", "1.6.0")
	run("package", "chart")
	run("push", "--plain-http", "line-1.6.0.tgz", "oci://"+s.server.Host+"/plant/charts")
	s.do(outcome.OK, "inspect", charts+":1.6.0")
}
