package fleet_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/fstest"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry/release"
)

// services reads the fixture's project as a device would: web has a variable, broker has none.
func services(_ context.Context, a *artifacts.Archive, env map[string]string, _ string) ([]fleet.Service, error) {
	if env["LEVEL"] == "warn" {
		return nil, fmt.Errorf("services.web: not with these parameters: %w", fault.ErrInvalid)
	}
	locked := map[string]artifacts.LockedImage{}
	for _, i := range a.Lock.Images {
		locked[i.Reference] = i
	}
	web, broker := locked["caddy:2.10"], locked["nats:2.12"]
	return []fleet.Service{
		{Name: "web", Image: "caddy:2.10", Digest: web.Digest, Hash: web.Digest.String() + env["POLL"] + env["RATE"]},
		{Name: "broker", Image: "nats:2.12", Digest: broker.Digest, Hash: broker.Digest.String()},
	}, nil
}

// layers are two of each image: one is of its content, one is everybody's.
func layers(_ context.Context, reference string, d digest.Digest) ([]ocispec.Descriptor, error) {
	return []ocispec.Descriptor{
		{Digest: d, Size: 6_000_000}, {Digest: digest.FromString("base"), Size: 3_000_000}, {Digest: digest.FromString(reference), Size: 500_000},
	}, nil
}

// options keep the first artifacts only, so that both ways of publishing are gone.
func options() fleet.Options { return fleet.Options{Services: services, Layers: layers, Keep: 6000} }

func plan(t testing.TB, files fstest.MapFS, m *memory, o fleet.Options) *fleet.Plan {
	t.Helper()
	p, err := compiled(t, files, m).Plan(t.Context(), m, o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// publish publishes what a plan says and returns how many states that were.
func publish(t testing.TB, p *fleet.Plan, m *memory) int {
	t.Helper()
	r, err := p.Publish(t.Context(), m, nil)
	if err != nil {
		t.Fatal(err)
	}
	return len(r.Published)
}

// The life of a fleet, as people see it: every kind of change, in text, Markdown and JSON.
func TestPlanGolden(t *testing.T) {
	m := stocked(t)
	var b strings.Builder
	show := func(title string, p *fleet.Plan) {
		fmt.Fprintf(&b, "######## %s\n", title)
		p.Text(&b)
		fmt.Fprintln(&b, "---- markdown")
		p.Markdown(&b)
		fmt.Fprintln(&b)
	}
	files := with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0")
	show("nothing is there", plan(t, files, m, options()))
	publish(t, plan(t, files, m, options()), m)
	show("everything is there", plan(t, files, m, options()))

	show("a parameter of a group", plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, options()))
	show("a parameter that no service uses", plan(t, with(files, "fleet.yaml", "[8080, 8443]", "[8080]"), m, options()))
	show("a new version", plan(t, with(files, "fleet.yaml", "1.4.0", `"~1.4"`), m, options()))
	show("without looking into images and projects", plan(t, with(files, "fleet.yaml", "1.4.0", `"~1.4"`), m, fleet.Options{}))
	gone := with(files, "fleet.yaml", "select: group in (line-a)", "select: device=press-08")
	show("a deployment goes", plan(t, gone, m, options()))
	spare := with(with(files, "fleet.yaml", "exclude: device=spare-*", "exclude: device=press-08"), "devices/b.yaml", "capabilities: unchecked", "capabilities: capabilities/press.json")
	show("a deployment comes to a device without any", plan(t, spare, m, options()))
	show("a parameter that may not change", plan(t, with(files, "fleet.yaml", "name: Graz", "name: Wien"), m, options()))
	show("a project that does not load", plan(t, with(files, "devices/a.yaml", "level: debug", "level: warn"), m, options()))
	show("a device that does not fit", plan(t, with(files, "capabilities/small.json", `"1Gi"`, `"1Mi"`), m, options()))
	o := options()
	o.Devices = func(d *fleet.Device) bool {
		return slices.ContainsFunc(d.Groups, func(g *fleet.Group) bool { return g.Name == "line-b" })
	}
	show("one group only", plan(t, with(files, "fleet.yaml", "1.4.0", `"~1.4"`), m, o))
	m.AddComponent(t, "moved", "1.4.0") // another component under the same tag
	moved := m.Named[base+"/components/moved:1.4.0"]
	m.Named[base+"/components/sensor:1.4.0"] = moved
	show("a tag was moved", plan(t, files, m, options()))
	golden(t, "plan.golden", b.String())

	doc, err := json.MarshalIndent(plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, options()).Document(), "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "plan.json", string(doc)+"\n")
}

// What was published is what the next plan finds: whatever changes, the second plan has nothing to do.
func TestPublishIsIdempotent(t *testing.T) {
	m := stocked(t)
	for i, files := range []fstest.MapFS{
		with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0"), plant(), with(plant(), "fleet.yaml", "poll: 10", "poll: 11"),
		with(plant(), "fleet.yaml", "select: group in (line-a)", "select: device=press-08"),
		with(plant(), "fleet.yaml", "exclude: device=spare-*", "exclude: device=gateway-1/*"),
	} {
		if publish(t, plan(t, files, m, options()), m) == 0 {
			t.Errorf("step %d published nothing", i)
		}
		before := len(m.Published)
		again := plan(t, files, m, options())
		if n := again.Count(fleet.Publish); n != 0 || publish(t, again, m) != 0 || len(m.Published) != before {
			t.Errorf("step %d: %d states would change again", i, n)
		}
	}
	d, err := m.Resolve(t.Context(), base+"/state/graz", "press-07.v4")
	if err != nil {
		t.Fatal(err)
	}
	if tag, err := m.Resolve(t.Context(), base+"/state/graz", "press-07"); err != nil || tag.Digest == "" {
		t.Errorf("press-07 = %v, %v", tag, err)
	}
	_, manifest, err := m.Manifest(t.Context(), base+"/state/graz", d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	x, err := artifacts.OpenState(manifest)
	if err != nil || x.Generation != 4 || x.Previous != m.Named[base+"/state/graz:press-07.v3"] {
		t.Errorf("generation %d follows %s, %v", x.Generation, x.Previous, err)
	}
}

// answering is a publisher with given results.
type answering map[string]error // by moving tag

func (a answering) Publish(_ context.Context, _ string, _ *artifacts.Artifact, p fleet.Publication) error {
	return a[p.Tag]
}

// What waits for signatures is no published state, and conflicts of two kinds have an error each.
func TestPublishProposals(t *testing.T) {
	p := plan(t, plant(), stocked(t), options())
	r, err := p.Publish(t.Context(), answering{
		"press-07": &fleet.Proposed{Waiting: "root"}, "press-08": fault.ErrConflict, "gateway-1__press-19": release.ErrProposed, "spare-1": release.ErrProposed,
	}, nil)
	var tags []string
	for _, d := range p.Devices {
		tags = append(tags, d.Device.Tag())
	}
	if err == nil || len(r.Published) != 0 || len(r.Proposed) != 1 || r.Waiting["press-07"] != "root" || len(r.Failed) != 2 {
		t.Fatalf("of %q published = %v, proposed = %v, failed = %v, %v", tags, r.Published, r.Proposed, r.Failed, err)
	}
	one, two, _ := strings.Cut(err.Error(), "\n")
	for text, want := range map[string]string{one: "0 of 3 states published and 1 proposed, another publisher published press-08", two: "another state of gateway-1/press-19 waits for signatures: is proposed already"} {
		if !strings.Contains(text, want) {
			t.Errorf("error %q, want %q in it", text, want)
		}
	}
}

// A run that ended anywhere is taken up by the next one: whatever is there, every device ends with what the files say.
func TestPublishResumes(t *testing.T) {
	files := plant()
	for _, cut := range []string{"history", "half"} {
		m := stocked(t)
		p := plan(t, files, m, options())
		if cut == "half" {
			m.Refused["press-08"] = true
			r, err := p.Publish(t.Context(), m, nil)
			if !errors.Is(err, fault.ErrConflict) || len(r.Published) != 2 || r.Failed["press-08"] == nil || !strings.Contains(err.Error(), "2 of 3 states published, another publisher published press-08") {
				t.Errorf("report %+v, %v, want two published and press-08 told", r, err)
			}
			m.Refused = map[string]bool{}
		} else {
			publish(t, p, m)
			delete(m.Named, base+"/state/graz:press-08") // only its history tag was set
		}
		again := plan(t, files, m, options())
		if n := again.Count(fleet.Publish); n != 1 || publish(t, again, m) != 1 {
			t.Errorf("%s: %d states would change, want the one that is missing", cut, n)
		}
		if m.Named[base+"/state/graz:press-08"] != m.Named[base+"/state/graz:press-08.v1"] || m.Named[base+"/state/graz:press-08.v2"] != "" {
			t.Errorf("%s: press-08 is not generation 1: %v", cut, m.Named)
		}
	}
}

// A tag that was moved back is moved forward: devices take nothing older.
func TestPlanGoesForward(t *testing.T) {
	m, files := stocked(t), plant()
	publish(t, plan(t, files, m, options()), m)
	changed := with(files, "fleet.yaml", "poll: 10", "poll: 11")
	publish(t, plan(t, changed, m, options()), m)
	tag := base + "/state/graz:press-07"
	m.Named[tag] = m.Named[tag+".v1"]
	for _, c := range []struct {
		files fstest.MapFS
		want  string
	}{{changed, ".v2"}, {files, ".v3"}} {
		publish(t, plan(t, c.files, m, options()), m)
		if m.Named[tag] != m.Named[tag+c.want] || m.Named[tag] == "" {
			t.Errorf("the tag names %s, want %s, %s", m.Named[tag], c.want, m.Named[tag+c.want])
		}
	}
}

// Half of a manifest under a tag, which a lax registry keeps when a publisher is killed, is as good as nothing.
func TestPlanOverTornTags(t *testing.T) {
	files := plant()
	for torn, want := range map[string]string{"press-08": ".v1", "press-08.v1": ".v2"} {
		m := stocked(t)
		publish(t, plan(t, files, m, options()), m)
		tag := base + "/state/graz:press-08"
		delete(m.Named, tag)
		m.Torn = base + "/state/graz:" + torn
		p := plan(t, files, m, options())
		if m.Torn == tag {
			m.Torn = ""
		}
		if n := publish(t, p, m); n != 1 || m.Named[tag] == "" || m.Named[tag] != m.Named[tag+want] {
			t.Errorf("%s torn: %d published, the tag names %s, want %s", torn, n, m.Named[tag], want)
		}
	}
	m := stocked(t)
	publish(t, plan(t, files, m, options()), m)
	m.Torn = base + "/state/graz:press-08.v2"
	if p := plan(t, files, m, options()); p.Count(fleet.Same) != 4 {
		t.Errorf("%d devices are the same, want all: half a generation above is none", p.Count(fleet.Same))
	}
}

// What nobody vouches for is not followed.
func TestPlanVerifies(t *testing.T) {
	m, files := stocked(t), plant()
	publish(t, plan(t, files, m, options()), m)
	o := options()
	o.Verify = func(_ context.Context, _ string, d digest.Digest) error {
		return fmt.Errorf("look at %s: %w", d, fault.ErrUnsigned)
	}
	if p := plan(t, files, m, o); p.Count(fleet.Same) != 4 {
		t.Errorf("%d devices are the same, want all: what stays is not followed", p.Count(fleet.Same))
	}
	p := plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, o)
	if err := p.Unfit(); p.Count(fleet.Cannot) != 2 || !errors.Is(err, fault.ErrUnsigned) || strings.Contains(err.Error(), "\n") {
		t.Errorf("%d cannot: %v, want one sentence of both", p.Count(fleet.Cannot), err)
	}
	for _, kind := range []error{
		fault.ErrBadSignature, fault.ErrThreshold, fault.ErrKeyExpired, fault.ErrKeyRevoked, fault.ErrDigestRevoked, fault.ErrNoAttestation, fault.ErrBadAttestation, fault.ErrRejected,
	} {
		o.Verify = func(context.Context, string, digest.Digest) error { return fmt.Errorf("look: %w", kind) }
		p := plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, o)
		if p.Count(fleet.Cannot) != 2 || p.Count(fleet.Same) != 2 || !errors.Is(p.Unfit(), kind) || fault.Hint(p.Unfit()) == "" {
			t.Errorf("%v: %d cannot, %d stay: %v", kind, p.Count(fleet.Cannot), p.Count(fleet.Same), p.Unfit())
		}
	}
	o.Verify = func(context.Context, string, digest.Digest) error { return fmt.Errorf("look: %w", fault.ErrTemporary) }
	if _, err := compiled(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m).Plan(t.Context(), m, o); !errors.Is(err, fault.ErrTemporary) {
		t.Errorf("could not look: %v", err)
	}
	// What is no state, or another device's.
	m.Named[base+"/state/graz:press-07"] = m.Named[base+"/state/graz:press-08"]
	m.Named[base+"/state/graz:press-08"] = m.Named[base+"/apps/line:1.4.0"]
	p = plan(t, files, m, options())
	if p.Count(fleet.Cannot) != 2 || !strings.Contains(p.Unfit().Error(), "is the state of press-08") || !strings.Contains(p.Unfit().Error(), "artifact type") {
		t.Errorf("%d cannot: %v", p.Count(fleet.Cannot), p.Unfit())
	}
}

// A plan file keeps its promise or nothing is published.
func TestPromise(t *testing.T) {
	m, files := stocked(t), with(plant(), "fleet.yaml", `"~1.4"`, "1.4.0")
	data, err := json.Marshal(plan(t, files, m, options()).Document())
	if err != nil {
		t.Fatal(err)
	}
	promise, err := fleet.ReadSavedPlan("plan.json", data)
	if err != nil {
		t.Fatal(err)
	}
	if err := plan(t, files, m, options()).Keep(promise); err != nil {
		t.Errorf("nothing has changed: %v", err)
	}
	o := options()
	o.Created = time.Unix(1, 0)
	for what, p := range map[string]*fleet.Plan{
		"other files":    plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, options()),
		"other version":  plan(t, plant(), m, options()),
		"other creation": plan(t, files, m, o),
		"a device less":  plan(t, with(files, "devices/a.yaml", "\n  - {id: press-08, labels: {site: graz, line: a}}", ""), m, options()),
		"other fleet":    plan(t, with(files, "fleet.yaml", "fleet: acme-plant", "fleet: other"), m, options()),
		"does not fit":   plan(t, with(files, "capabilities/small.json", `"1Gi"`, `"1Mi"`), m, options()),
	} {
		if err := p.Keep(promise); !errors.Is(err, fault.ErrConflict) {
			t.Errorf("%s: %v, want a conflict", what, err)
		}
	}
	// Half of it is done: the rest may follow. Somebody else was there: it may not.
	half := plan(t, files, m, options())
	m.Refused["press-08"] = true
	if _, err := half.Publish(t.Context(), m, nil); !errors.Is(err, fault.ErrConflict) {
		t.Fatal(err)
	}
	m.Refused = map[string]bool{}
	rest := plan(t, files, m, options())
	if err := rest.Keep(promise); err != nil || publish(t, rest, m) != 1 {
		t.Errorf("the rest: %v", err)
	}
	publish(t, plan(t, with(files, "fleet.yaml", "poll: 10", "poll: 11"), m, options()), m)
	if err := plan(t, files, m, options()).Keep(promise); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("another publisher published: %v", err)
	}
	for _, bad := range []string{"", "{}", `{"version": 2, "fleet": "a"}`, `{"version": 1, "fleet": "a", "states": [null]}`, "[]"} {
		if _, err := fleet.ReadSavedPlan("plan.json", []byte(bad)); !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "plan.json") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// An error that is of no single device ends the run, and says how far it came.
func TestPublishEnds(t *testing.T) {
	m := stocked(t)
	p := plan(t, plant(), m, options())
	m.Err = fault.WithHint(fmt.Errorf("push: %w", fault.ErrDenied), "log in again")
	r, err := p.Publish(t.Context(), m, nil)
	if !errors.Is(err, fault.ErrDenied) || !strings.Contains(err.Error(), "0 of 3 states published") || fault.Hint(err) != "log in again" || len(r.Published) != 0 {
		t.Errorf("report %+v, %v", r, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	m.Err = nil
	if _, err := p.Publish(ctx, m, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("ended by the caller: %v", err)
	}
	var seen []int
	if _, err := p.Publish(t.Context(), m, func(x fleet.Progress) { seen = append(seen, x.Done*10+x.All) }); err != nil || !cmp.Equal(seen, []int{13, 23, 33}) {
		t.Errorf("progress %v, %v", seen, err)
	}
}

// A state that is packed as something else than was planned is nobody else's doing: the run ends, and says what to do.
func TestPublishWhatIsPackedOtherwise(t *testing.T) {
	m := stocked(t)
	p := plan(t, plant(), m, options())
	for _, d := range p.Devices {
		d.Digest = digest.FromString("planned")
	}
	r, err := p.Publish(t.Context(), m, nil)
	if !errors.Is(err, fault.ErrDigestMismatch) || errors.Is(err, fault.ErrConflict) || !strings.Contains(err.Error(), "generation 1 is packed as sha256:") || fault.Hint(err) == "" || len(m.Published) != 0 {
		t.Errorf("report %+v, %v", r, err)
	}
}

// slow is a registry that refuses one device while it is busy with another one.
type slow struct {
	fleet.Publisher
	refuses, busy string
	begun         chan struct{}
}

func (s slow) Publish(ctx context.Context, repository string, a *artifacts.Artifact, p fleet.Publication) error {
	if p.Tag == s.refuses {
		<-s.begun
		return fmt.Errorf("push: %w", fault.ErrTemporary)
	}
	if p.Tag == s.busy {
		close(s.begun)
		synctest.Wait()
	}
	return s.Publisher.Publish(ctx, repository, a, p)
}

// A state that is on its way when another one fails arrives, and is told: nobody could say of it otherwise whether devices
// see it.
func TestPublishTellsWhatArrived(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := stocked(t)
		p := plan(t, plant(), m, options())
		r, err := p.Publish(t.Context(), slow{m, "press-08", "press-07", make(chan struct{})}, nil)
		told := fmt.Sprintf("%d of 3 states published: publish press-08: push: temporarily unavailable", len(m.Published))
		if err == nil || err.Error() != told || len(r.Published) != len(m.Published) || m.Named[base+"/state/graz:press-07"] == "" || fault.Hint(err) == "" {
			t.Errorf("report %+v, %v", r, err)
		}
	})
}

// A plan looks at what a device has with as few requests as there can be.
func TestPlanRequests(t *testing.T) {
	m, files := stocked(t), plant()
	publish(t, plan(t, files, m, options()), m)
	c := compiled(t, files, m)
	m.Asked = map[string]int{}
	p, err := c.Plan(t.Context(), m, options())
	if err != nil {
		t.Fatal(err)
	}
	// Per device that has a state: its tag, the next one of the history, the manifest. spare-1 has none.
	if want := map[string]int{"resolve": 7, "manifest": 3}; !cmp.Equal(m.Asked, want) {
		t.Errorf("asked %v, want %v", m.Asked, want)
	}
	var b bytes.Buffer
	p.Text(&b)
	if !strings.Contains(b.String(), "0 of 4 devices would change") {
		t.Error(b.String())
	}
}
