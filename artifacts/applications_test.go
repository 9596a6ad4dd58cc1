package artifacts_test

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// A state says which packages it was made of; what is no version is refused when it is packed, and left out when it is read.
func TestStateApplications(t *testing.T) {
	want := map[string]artifacts.ApplicationVersion{
		"line":     {Version: "1.4.0", Digest: digest.FromString("line")},
		"vision-2": {Version: "0.9.2-rc.1_b", Digest: digest.FromString("vision")},
	}
	o := artifacts.StateOptions{Device: "press-07", Generation: 1, Applications: want}
	x, err := artifacts.OpenState(pack(t, o).Manifest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, x.Applications); diff != "" {
		t.Errorf("applications (-want +got):\n%s", diff)
	}
	o.Applications = nil
	if x, err = artifacts.OpenState(pack(t, o).Manifest); err != nil || len(x.Applications) != 0 || x.Annotations[artifacts.AnnotationApplications] != "" {
		t.Errorf("none: %v, %v", x, err)
	}
	for _, bad := range []map[string]artifacts.ApplicationVersion{
		{"": want["line"]}, {"a,b": want["line"]}, {"line": {Version: "1,0", Digest: want["line"].Digest}}, {"line": {Version: "1.0.0"}},
	} {
		o.Applications = bad
		if _, err := artifacts.PackState(o); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("%v: %v", bad, err)
		}
	}
}
