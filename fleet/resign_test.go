package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// What nobody signed is signed again as it is, whatever commit it is from; what is not of the files is not.
func TestPlanResigns(t *testing.T) {
	for _, keep := range []int{0, 1 << 20} {
		m, files := stocked(t), plant()
		o := options()
		o.Keep, o.Annotations = keep, map[string]string{"org.opencontainers.image.revision": "4be2d1c"}
		publish(t, plan(t, files, m, o), m)
		before := fmt.Sprint(m.Named)
		signed := map[digest.Digest]bool{m.Named[base+"/state/graz:press-08"]: true}
		o.Annotations = map[string]string{"org.opencontainers.image.revision": "99aa001"}
		o.Verify = func(_ context.Context, _ string, d digest.Digest) error {
			if signed[d] {
				return nil
			}
			return fmt.Errorf("look at %s: %w", d, fault.ErrUnsigned)
		}
		if p := plan(t, files, m, o); p.Count(fleet.Same) != 4 {
			t.Errorf("%d stay, want all: nobody asked", p.Count(fleet.Same))
		}
		o.Resign = true
		p := plan(t, files, m, o)
		if p.Count(fleet.Publish) != 2 || p.Devices[1].Resigned() != true || p.Devices[1].Generation != 1 {
			t.Errorf("%d would be signed, %+v", p.Count(fleet.Publish), p.Devices[1])
		}
		if publish(t, p, m) != 2 || fmt.Sprint(m.Named) != before {
			t.Errorf("tags are %v, want %s", m.Named, before)
		}
		// Somebody who may push, and not sign, has given a device a generation of his own.
		documents, err := compiled(t, files, m).Assignments[1].Documents(&fleet.Fleet{Name: "acme-plant", Namespace: artifacts.DefaultNamespace})
		if err != nil {
			t.Fatal(err)
		}
		foreign, err := artifacts.PackState(artifacts.StateOptions{Device: "press-07", Generation: 1, Deployments: documents, Annotations: map[string]string{"a": "b"}})
		if err != nil {
			t.Fatal(err)
		}
		m.Push(base+"/state/graz", "press-07", foreign)
		p = plan(t, files, m, o)
		if p.Devices[1].Action != fleet.Cannot || !strings.Contains(p.Devices[1].Reasons[0], "is not what the files make") {
			t.Errorf("%s: %s %v, want that it is not signed", p.Devices[1].Device, p.Devices[1].Action, p.Devices[1].Reasons)
		}
		// States of before do not say where their packages are; one that says another place is not what the files make.
		for where, action := range map[string]string{"": fleet.Publish, "evil.example/line": fleet.Cannot} {
			line := artifacts.ApplicationVersion{Repository: where, Version: "1.4.1", Digest: m.Named[base+"/apps/line:1.4.1"]}
			older, err := artifacts.PackState(artifacts.StateOptions{
				Device: "press-07", Generation: 1, Deployments: documents, Applications: map[string]artifacts.ApplicationVersion{"line": line},
			})
			if err != nil {
				t.Fatal(err)
			}
			m.Push(base+"/state/graz", "press-07", older)
			p = plan(t, files, m, o)
			if p.Devices[1].Action != action || p.Devices[1].Digest != older.Descriptor.Digest {
				t.Errorf("a package in %q: %s %v, want %s", where, p.Devices[1].Action, p.Devices[1].Reasons, action)
			}
			if action == fleet.Publish {
				publish(t, p, m)
			}
		}
		o.Verify = func(context.Context, string, digest.Digest) error { return fmt.Errorf("look: %w", fault.ErrTemporary) }
		if _, err := compiled(t, files, m).Plan(t.Context(), m, o); err == nil {
			t.Error("who signed could not be asked, and that is no error")
		}
	}
}
