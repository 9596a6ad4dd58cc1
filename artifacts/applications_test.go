package artifacts_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A state says which packages it was made of; what is no version is refused when it is packed, and left out when it is read.
func TestStateApplications(t *testing.T) {
	want := map[string]artifacts.ApplicationVersion{
		"line":     {Repository: "harbor.acme.example/plant/apps/line", Version: "1.4.0", Digest: digest.FromString("line")},
		"old":      {Version: "1.4.0", Digest: digest.FromString("old")}, // of a publisher that does not say where
		"vision-2": {Repository: "[fe80::1]:5000/a/b__c-d.e", Version: "0.9.2-rc.1_b", Digest: digest.FromString("vision")},
	}
	o := artifacts.StateOptions{Device: "press-07", Generation: 1, Applications: want}
	x, err := artifacts.OpenState(pack(t, o).Manifest)
	if err != nil {
		t.Fatal(err)
	}
	first, _, _ := strings.Cut(x.Annotations[artifacts.AnnotationApplications], ",")
	if want := "line=harbor.acme.example/plant/apps/line:1.4.0@" + digest.FromString("line").String(); first != want {
		t.Errorf("written as %s, want %s", first, want)
	}
	if diff := cmp.Diff(want, x.Applications); diff != "" {
		t.Errorf("applications (-want +got):\n%s", diff)
	}
	o.Applications = nil
	if x, err = artifacts.OpenState(pack(t, o).Manifest); err != nil || len(x.Applications) != 0 || x.Annotations[artifacts.AnnotationApplications] != "" {
		t.Errorf("none: %v, %v", x, err)
	}
	for _, bad := range []map[string]artifacts.ApplicationVersion{
		{"": want["line"]},
		{"a,b": want["line"]},
		{"line": {Version: "1,0", Digest: want["line"].Digest}},
		{"line": {Version: "1.0.0"}},
		{"line": {Repository: "apps/line:5000", Version: "1.0.0", Digest: want["line"].Digest}},
		{"line": {Repository: "host", Version: "1.0.0", Digest: want["line"].Digest}},
		{"line": {Repository: "oci://host/line", Version: "1.0.0", Digest: want["line"].Digest}},
		{"line": {Repository: "host/Line", Version: "1.0.0", Digest: want["line"].Digest}},
	} {
		o.Applications = bad
		if _, err := artifacts.PackState(o); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}

// A state of 2500 deployments, each of a package of its own, has a manifest that every reader takes.
func TestStateOfManyApplications(t *testing.T) {
	const many = 2500
	o := artifacts.StateOptions{Device: "press-07", Generation: 1, Applications: map[string]artifacts.ApplicationVersion{}}
	for n := range many {
		name := fmt.Sprintf("line-monitor-%04d", n)
		o.Applications[name] = artifacts.ApplicationVersion{Repository: "harbor.acme.example/plant/apps/" + name, Version: "1.4.0", Digest: digest.FromString(name)}
		o.Deployments = append(o.Deployments, document(artifacts.DeploymentID("press-07", name), "press-07"))
	}
	a := pack(t, o)
	t.Logf("%d applications: a manifest of %d bytes, of %d", many, len(a.Manifest), artifacts.MaxManifest)
	x, err := artifacts.OpenState(a.Manifest)
	if err != nil || len(x.Applications) != many || len(x.Deployments) != many {
		t.Fatalf("%d applications, %d deployments, %v", len(x.Applications), len(x.Deployments), err)
	}
	o.Deployments = nil
	for n := range 4 * many {
		o.Applications[fmt.Sprintf("line-monitor-%05d", n)] = o.Applications["line-monitor-0000"]
	}
	if _, err := artifacts.PackState(o); !errors.Is(err, fault.ErrTooLarge) {
		t.Errorf("%d applications: %v, want that they are too many", len(o.Applications), err)
	}
}

// Whatever somebody writes as a state's applications, the state is read, and what is understood can be written again.
func FuzzApplications(f *testing.F) {
	const text = "line=host/line:1.4.0@sha256:9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0"
	f.Add(text)
	f.Add(text + ",old=1.4.0@sha256:9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0,,=,line=host:5000/line:@")
	one := artifacts.ApplicationVersion{Repository: "host/line", Version: "1.4.0", Digest: "sha256:9834876dcfb05cb167a5c24953eba58c4ac89b1adf57f28f2f9d09af107ee8f0"}
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "d", Generation: 1, Applications: map[string]artifacts.ApplicationVersion{"line": one}})
	if err != nil || bytes.Count(a.Manifest, []byte(`"`+text+`"`)) != 1 {
		f.Fatalf("%v\n%s", err, a.Manifest)
	}
	f.Fuzz(func(t *testing.T, s string) {
		quoted, err := json.Marshal(s)
		if err != nil {
			t.Fatal(err)
		}
		x, err := artifacts.OpenState(bytes.Replace(a.Manifest, []byte(`"`+text+`"`), quoted, 1))
		if errors.Is(err, fault.ErrTooLarge) {
			return
		}
		if err != nil {
			t.Fatalf("OpenState: %v", err)
		}
		again, err := artifacts.PackState(artifacts.StateOptions{Device: "d", Generation: 1, Applications: x.Applications})
		if err != nil {
			t.Fatalf("PackState of %v: %v", x.Applications, err)
		}
		y, err := artifacts.OpenState(again.Manifest)
		if diff := cmp.Diff(x.Applications, y.Applications); err != nil || diff != "" {
			t.Errorf("%v, written and read again (-want +got):\n%s", err, diff)
		}
	})
}
