package fleet_test

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
)

// partly is a registry that does not answer for some repositories.
type partly struct {
	*memory
	down string // in their names
	err  error
}

func (r partly) Manifest(ctx context.Context, repository string, d digest.Digest) (ocispec.Descriptor, []byte, error) {
	if strings.Contains(repository, r.down) {
		return ocispec.Descriptor{}, nil, fmt.Errorf("fetch %s@%s: %w", repository, d, r.err)
	}
	return r.memory.Manifest(ctx, repository, d)
}

// What a device had may be out of reach for good, in a registry that was switched off for one: that keeps nobody from what
// comes.
func TestPlanWithoutWhatWas(t *testing.T) {
	for _, kind := range []error{fault.ErrTemporary, fault.ErrDenied, fault.ErrUnauthenticated, fault.ErrNotFound} {
		m := stocked(t)
		m.Lock()
		m.Named["old.example/sensor:1.4.0"] = m.Named[base+"/components/sensor:1.4.0"]
		m.Unlock()
		old := with(plant(), "fleet.yaml", "components/sensor", "oci://old.example/sensor")
		publish(t, plan(t, old, m, options()), m)
		from := partly{m, "old.example", kind}
		p, err := compiled(t, with(plant(), "fleet.yaml", "version: 1.4.0", "version: 1.4.1"), from).Plan(t.Context(), from, options())
		if err != nil {
			t.Fatalf("%v: %v", kind, err)
		}
		if n := p.Count(fleet.Publish); n != 2 || p.Count(fleet.Cannot) != 0 {
			t.Errorf("%v: %d would change, want the two that run it: %v", kind, n, p.Unfit())
		}
		d := p.Devices[1]
		if len(d.Changes) != 1 || !strings.Contains(d.Changes[0].Note, "what it runs could not be read: fetch old.example/sensor") || d.Changes[0].Starts != nil {
			t.Errorf("%v: %s: %+v", kind, d.Device, d.Changes)
		}
		if d.Cost.Blobs == 0 {
			t.Errorf("%v: costs %+v, want that nothing of the sensor counts as there", kind, d.Cost)
		}
		gone := with(old, "fleet.yaml", "select: group in (line-a)", "select: device=press-08")
		gone = with(gone, "fleet.yaml", "oci://old.example/sensor", "components/sensor")
		if p, err = compiled(t, gone, from).Plan(t.Context(), from, options()); err != nil || p.Devices[1].Changes[0].Change != fleet.Removed {
			t.Errorf("%v: it goes: %v", kind, err)
		}
	}
}

// A document of one device's state that is not there, or is none, is told with the device; the others are planned.
func TestPlanOverLostDocuments(t *testing.T) {
	for what, lose := range map[string]func(m *memory, d digest.Digest){
		"missing": func(m *memory, d digest.Digest) { delete(m.Blobs, d) },
		"garbage": func(m *memory, d digest.Digest) { m.Blobs[d] = []byte("no document") },
	} {
		m, files := stocked(t), plant()
		publish(t, plan(t, files, m, options()), m)
		x, err := artifacts.OpenState(m.Manifests[m.Named[base+"/state/graz:press-07"]])
		if err != nil {
			t.Fatal(err)
		}
		m.Uncarry(m.Named[base+"/state/graz:press-07"])
		for _, l := range x.Deployments {
			lose(m, l.Digest)
		}
		p := plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, options())
		if n := p.Count(fleet.Publish); n != 2 {
			t.Errorf("%s: %d would change: %v", what, n, p.Unfit())
		}
		for _, d := range p.Devices {
			told := strings.Contains(strings.Join(d.Reasons, " "), "what it has could not be read")
			if told != (d.Device == "press-07") {
				t.Errorf("%s: %s: %v", what, d.Device, d.Reasons)
			}
		}
	}
}

// A document writes 1.0 as 1: what may not change has not changed for that, and nothing is shown as changed.
func TestPlanComparesAsWritten(t *testing.T) {
	m := stocked(t)
	a, _, err := artifacts.PackPackage(fstest.MapFS{"margo.yaml": {Data: []byte(strings.Replace(fmt.Sprintf(description, "1.4.0"),
		"name: Scale, schema: scale", "name: Scale, schema: scale, immutable: true", 1))}}, artifacts.PackageOptions{})
	if err != nil {
		t.Fatal(err)
	}
	m.Push(base+"/apps/line", "1.4.0", a)
	files := with(with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0"), "fleet.yaml", "name: Graz,", "name: Graz, scale: 1.0,")
	publish(t, plan(t, files, m, options()), m)
	p := plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, options())
	if p.Count(fleet.Cannot) != 0 || p.Count(fleet.Publish) != 2 {
		t.Errorf("%d cannot: %v", p.Count(fleet.Cannot), p.Unfit())
	}
	if d := p.Devices[1]; len(d.Changes) != 1 || len(d.Changes[0].Parameters) != 1 || d.Changes[0].Parameters[0].Name != "poll" {
		t.Errorf("changes %+v, want poll only", d.Changes)
	}
	if p := plan(t, with(files, "fleet.yaml", "scale: 1.0", "scale: 1.5"), m, options()); p.Count(fleet.Cannot) != 3 {
		t.Errorf("%d cannot, want all: the value is another one", p.Count(fleet.Cannot))
	}
}
