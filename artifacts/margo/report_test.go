package margo_test

import (
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/margo"
)

const (
	id    = "a3e2f5dc-912e-494f-8395-52cf3769bc06"
	other = "ad9b614e-8912-45f4-a523-372358765def"
)

func manifest() *margo.StateManifest {
	return &margo.StateManifest{
		ManifestVersion: math.MaxUint64,
		Bundle:          &margo.BundleRef{MediaType: margo.BundleMediaType, Digest: pinB, SizeBytes: 7, URL: margo.BundlePath(pinB)},
		Deployments:     []margo.DeploymentRef{{DeploymentID: id, Digest: pinA, SizeBytes: math.MaxUint64, URL: margo.DeploymentPath(id, pinA)}},
	}
}

func TestStateManifestEncode(t *testing.T) {
	got, err := manifest().Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"bundle":{"digest":"` + pinB.String() + `","mediaType":"application/vnd.margo.bundle.v1+tar+gzip","sizeBytes":7,"url":"/api/v1/bundles/` + pinB.String() + `"},` +
		`"deployments":[{"deploymentId":"` + id + `","digest":"` + pinA.String() + `","sizeBytes":18446744073709551615,"url":"/api/v1/deployments/` + id + `/` + pinA.String() + `"}],` +
		`"manifestVersion":18446744073709551615}`
	if diff := cmp.Diff(want, string(got)); diff != "" {
		t.Errorf("Encode (-want +got):\n%s", diff)
	}
	back, err := margo.ParseStateManifest("f", got)
	if diff := cmp.Diff(manifest(), back); err != nil || diff != "" {
		t.Errorf("parsed again: %v (-want +got):\n%s", err, diff)
	}
	empty, err := (&margo.StateManifest{ManifestVersion: 1}).Encode()
	if want := `{"bundle":null,"deployments":[],"manifestVersion":1}`; err != nil || string(empty) != want {
		t.Errorf("Encode of nothing = %s, %v, want %s", empty, err, want)
	}
	if _, err := (&margo.StateManifest{}).Encode(); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Encode of version 0 = %v, want fault.ErrInvalid", err)
	}
}

func TestStateManifestFaults(t *testing.T) {
	b, err := manifest().Encode()
	if err != nil {
		t.Fatal(err)
	}
	ref := `{"deploymentId":"` + id + `","digest":"` + pinA.String() + `","url":"/api/v1/deployments/` + id + `/` + pinA.String() + `"}`
	for name, tt := range map[string]struct{ old, new, want string }{
		"version too large":   {`"manifestVersion":18446744073709551615`, `"manifestVersion":18446744073709551616`, `manifestVersion: "18446744073709551616" is no whole number`},
		"version fraction":    {`"manifestVersion":18446744073709551615`, `"manifestVersion":1.0`, `manifestVersion: "1.0" is no whole number`},
		"version text":        {`"manifestVersion":18446744073709551615`, `"manifestVersion":"1"`, `manifestVersion: must be a number, is a string`},
		"no bundle":           {`"bundle":`, `"bundel":`, "bundle is missing"},
		"bundle null":         {`"bundle":{"digest"`, `"bundle":null,"x":{"digest"`, "bundle: must name the bundle of the 1 deployments, is null"},
		"bundle without":      {`"deployments":[`, `"deployments":[],"x":[`, "bundle: must be null when there are no deployments"},
		"deployments null":    {`"deployments":[`, `"deployments":null,"x":[`, "deployments: must be a list, is null"},
		"bundle type":         {"bundle.v1+tar+gzip", "bundle.v1+tar", "is none of application/vnd.margo.bundle.v1+tar+gzip"},
		"bundle algorithm":    {`"digest":"sha256:b`, `"digest":"sha512:b`, "bundle.digest:"},
		"bundle url":          {"/api/v1/bundles/sha256:b", "/api/v1/bundles/sha256:c", "bundle.url: must be"},
		"deployment url":      {"/api/v1/deployments/a3", "/api/v1/deployments/b3", "deployments[0].url: must be"},
		"deployment id":       {`"deploymentId":"a3`, `"deploymentId":"x3`, "deployments[0].deploymentId:"},
		"size text":           {`"sizeBytes":7`, `"sizeBytes":"7"`, "bundle.sizeBytes: must be a number, is a string"},
		"deployment twice":    {`"deployments":[`, `"deployments":[` + ref + `,`, "deployments[1].deploymentId: the deployment \"" + id + "\" is there already"},
		"digest upper case":   {`"digest":"sha256:a`, `"digest":"sha256:A`, "deployments[0].digest:"},
		"deployment no digit": {`"digest":"sha256:a`, `"digest":" sha256:a`, "deployments[0].digest:"},
	} {
		t.Run(name, func(t *testing.T) {
			in := strings.Replace(string(b), tt.old, tt.new, 1)
			if _, err := margo.ParseStateManifest("f", []byte(in)); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parse of %s = %v, want %q", in, err, tt.want)
			}
		})
	}
	tolerated := strings.NewReplacer(`"sizeBytes":7`, `"sizeBytes":-1.5`, `"manifestVersion"`, `"unknown":{},"manifestVersion"`).Replace(string(b))
	if m, err := margo.ParseStateManifest("f", []byte(tolerated)); err != nil || m.Bundle.SizeBytes != 0 {
		t.Errorf("advisory size and open objects: %v", err)
	}
}

func TestOverall(t *testing.T) {
	order := []margo.State{margo.StateFailed, margo.StateRemoving, margo.StateInstalling, margo.StatePending, margo.StateRemoved, margo.StateInstalled}
	for i, want := range order {
		for j := i; j < len(order); j++ {
			for _, c := range [][]margo.ComponentStatus{{{State: want}, {State: order[j]}}, {{State: order[j]}, {State: want}}} {
				if got := margo.Overall(c); got != want {
					t.Errorf("Overall(%v) = %s, want %s", c, got, want)
				}
			}
		}
	}
	if got := margo.Overall(nil); got != margo.StateInstalled {
		t.Errorf("Overall of nothing = %s, want installed", got)
	}
}

func TestDeploymentStatus(t *testing.T) {
	s := &margo.DeploymentStatus{
		DeploymentID: id, DeviceID: "gateway-1/press-07", AdoptedManifestVersion: math.MaxUint64,
		Status:     margo.OverallStatus{State: margo.StateFailed, Error: &margo.StatusError{Code: "image-missing", Source: "d", Message: "<a & b>"}},
		Components: []margo.ComponentStatus{{Name: "web", State: margo.StateInstalled}},
	}
	b, err := s.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"adoptedManifestVersion":18446744073709551615,"components":[{"name":"web","state":"installed"}],"deploymentId":"` + id + `","deviceId":"gateway-1/press-07",` +
		`"status":{"error":{"code":"image-missing","message":"<a & b>","source":"d"},"state":"failed"}}`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Errorf("Encode (-want +got):\n%s", diff)
	}
	for name, tt := range map[string]struct{ old, new, want string }{
		"id":             {`"deploymentId":"a`, `"deploymentId":"`, "deploymentId:"},
		"device":         {"gateway-1/press-07", "/press-07", "deviceId:"},
		"version":        {`"adoptedManifestVersion":18446744073709551615`, `"adoptedManifestVersion":0`, "must be 1 or more"},
		"state":          {`"state":"failed"`, `"state":"Failed"`, `did you mean "failed"?`},
		"component":      {`"name":"web"`, `"name":""`, "components[0].name: must not be empty"},
		"no components":  {`"components":`, `"component":`, "components is missing"},
		"error type":     {`"code":"image-missing"`, `"code":7`, "status.error.code: must be a string"},
		"error no obect": {`"status":{`, `"status":{"x":1,"error":"boom"},"y":{`, "status.error: must be an object"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := margo.ParseDeploymentStatus("f", []byte(strings.Replace(want, tt.old, tt.new, 1))); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parse = %v, want %q", err, tt.want)
			}
		})
	}
	if _, err := (&margo.DeploymentStatus{DeploymentID: id, AdoptedManifestVersion: 1, Status: margo.OverallStatus{State: "gone"}}).Encode(); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Encode of an unknown state = %v, want fault.ErrInvalid", err)
	}
}

func TestDeviceCapabilities(t *testing.T) {
	c := device()
	if _, err := c.Encode(); err == nil || !strings.Contains(err.Error(), `"riscv64" is none of amd64, arm64, arm`) {
		t.Errorf("Encode of an architecture that only constraints know = %v", err)
	}
	c.Properties.CPUs = c.Properties.CPUs[:2]
	c.Extensions = margo.Extensions{"x-acme-extensions": map[string]any{"a": int64(1)}}
	b, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := margo.ParseDeviceCapabilities("f", b)
	if err != nil {
		t.Fatal(err)
	}
	c.Properties.Storage = "59Gi" // emitted by a careless caller with a space, read without
	if diff := cmp.Diff(c, back); diff != "" {
		t.Errorf("parsed again (-want +got):\n%s", diff)
	}
	if !strings.Contains(string(b), `"interfaces":[]`) {
		t.Errorf("Encode = %s, want a hosting device to tell that it has no interfaces", b)
	}
	relay := &margo.DeviceCapabilities{Properties: margo.DeviceProperties{ID: "gw", Vendor: "v", ModelNumber: "m", SerialNumber: "s"}}
	if b, err := relay.Encode(); err != nil || string(b) != `{"properties":{"id":"gw","modelNumber":"m","serialNumber":"s","vendor":"v"}}` {
		t.Errorf("Encode of a relay = %s, %v", b, err)
	}
	for name, tt := range map[string]struct{ old, new, want string }{
		"root closed":   {`{"labels"`, `{"lables":1,"labels"`, `lables: unknown key, did you mean "labels"?`},
		"extension":     {`"x-acme-extensions":{"a":1}`, `"x-acme-extensions":1`, "must be an object"},
		"id":            {`"id":"press-07"`, `"id":"press-07/*"`, "properties.id:"},
		"no vendor":     {`"vendor":`, `"vender":`, "properties: vendor is missing"},
		"not hosting":   {`"memory":"2Gi",`, ``, "a device that hosts workloads must tell memory too"},
		"memory":        {`"2Gi"`, `"2 GB"`, `properties.memory: "2 GB" is not an amount`},
		"architecture":  {`"architecture":"amd64"`, `"architecture":"x86_64"`, "cpus[0].architecture:"},
		"cores":         {`"cores":2`, `"cores":"2"`, "cpus[0].cores: must be a number"},
		"peripheral":    {`"type":"gpu"`, `"type":"GPU"`, "peripherals[0].type:"},
		"runtime":       {`["oci"]`, `["containerd-direct"]`, "supportedRuntimes[0]:"},
		"no runtime":    {`["oci"]`, `[]`, "supportedRuntimes: must have at least one entry"},
		"label object":  {`"slots":4`, `"slots":{}`, "labels.slots: must be a string, a number"},
		"label null":    {`"slots":4`, `"slots":null`, "labels.slots: must be a string, a number"},
		"label mixed":   {`["x","y"]`, `["x",1]`, "labels.zones[1]: must be a string"},
		"otel":          {`"otelCollector":true`, `"otelCollector":"yes"`, "otelCollector: must be a boolean"},
		"no properties": {`"properties":`, `"x-a-extensions":`, "properties is missing"},
	} {
		t.Run(name, func(t *testing.T) {
			if !strings.Contains(string(b), tt.old) {
				t.Fatalf("%s is not in %s", tt.old, b)
			}
			if _, err := margo.ParseDeviceCapabilities("f", []byte(strings.Replace(string(b), tt.old, tt.new, 1))); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("parse = %v, want %q", err, tt.want)
			}
		})
	}
}

func TestProblem(t *testing.T) {
	no := false
	p := &margo.Problem{
		Type: margo.ProblemBase + "semantic-error", Title: "Semantic error", Status: 422, Retryable: &no, RetryAfterSeconds: 3,
		BackoffStrategy: "none", Errors: []margo.ProblemField{{Field: "a.b", Message: "is missing"}},
	}
	b, err := p.Encode()
	if err != nil {
		t.Fatal(err)
	}
	want := `{"backoffStrategy":"none","errors":[{"field":"a.b","message":"is missing"}],"retryAfterSeconds":3,"retryable":false,"status":422,"title":"Semantic error",` +
		`"type":"https://docs.margo.org/specification/problem-types#semantic-error"}`
	if diff := cmp.Diff(want, string(b)); diff != "" {
		t.Errorf("Encode (-want +got):\n%s", diff)
	}
	back, err := margo.ParseProblem("f", append([]byte(`{"vendor_code":[1],`), b[1:]...))
	if diff := cmp.Diff(p, back); err != nil || diff != "" {
		t.Errorf("parsed again: %v (-want +got):\n%s", err, diff)
	}
	for old, want := range map[string]string{`"status":422`: "status is missing", `"type":`: "type is missing", `"title":`: "title is missing"} {
		if _, err := margo.ParseProblem("f", []byte(strings.Replace(string(b), old, `"x`+old[1:], 1))); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("parse without %s = %v, want %q", old, err, want)
		}
	}
	for _, bad := range []string{`"status":42`, `"status":4220`, `"status":"422"`} {
		if _, err := margo.ParseProblem("f", []byte(strings.Replace(string(b), `"status":422`, bad, 1))); err == nil {
			t.Errorf("parse with %s: no error", bad)
		}
	}
}
