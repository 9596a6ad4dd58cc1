package audit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/fstest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/audit"
)

// world is all registries, in memory.
type world map[string]*place

func (w world) Place(_ context.Context, repository string) (signing.Source, error) {
	if w[repository] == nil {
		return nil, fmt.Errorf("open %s: %w", repository, fault.ErrNotFound)
	}
	return w[repository], nil
}

func (w world) ImagePlace(ctx context.Context, reference string) (signing.Source, error) {
	name, _, _ := strings.Cut(reference, ":")
	return w.Place(ctx, name)
}

// scripted judges as it is told, and remembers what it was asked.
type scripted struct {
	mu    sync.Mutex
	asked []string
	fail  map[string]error // by kind
}

func (s *scripted) Judge(_ context.Context, src signing.Source, one audit.Subject) []audit.Check {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.asked = append(s.asked, fmt.Sprintf("%s %s %v", one.Kind, src.Name(), one.Below))
	if err := s.fail[string(one.Kind)]; err != nil {
		return []audit.Check{{Name: "signature", Result: audit.Failed, Err: err}}
	}
	return []audit.Check{{Name: "signature", Result: audit.Passed}}
}

func (s *scripted) Unchecked() []audit.Unchecked { return nil }

func deployment(id int, device, components string) []byte {
	return fmt.Appendf(nil, "id: 00000000-0000-4000-8000-%012d\nmetadata: {name: app-%d, namespace: default, deviceId: %s}\nspec:\n  applicationId: app\n  deploymentProfile:\n    type: compose\n    components:\n%s", id, id, device, components)
}

func use(name, repository string, pin digest.Digest) string {
	s := fmt.Sprintf("      - name: %s\n        properties: {repository: \"oci://%s\", revision: 1.0.0}\n", name, repository)
	if pin != "" {
		s += fmt.Sprintf("        x-longshore-extensions: {digest: %q}\n", pin)
	}
	return s
}

func component(t *testing.T, p *place, images ...artifacts.LockedImage) digest.Digest {
	t.Helper()
	o := artifacts.ComponentOptions{Name: "web", Version: "1.0.0"}
	if images != nil {
		o.Lock = &artifacts.Lock{Images: images}
	}
	a, err := artifacts.PackComponent(fstest.MapFS{"compose.yaml": {Data: []byte("services: {}\n")}}, o)
	if err != nil {
		t.Fatal(err)
	}
	return p.putArtifact("1.0.0", a).Digest
}

func state(t *testing.T, p *place, expires time.Time, deployments ...[]byte) {
	t.Helper()
	a, err := artifacts.PackState(artifacts.StateOptions{Device: "press-07", Generation: 3, Expires: expires, Deployments: deployments})
	if err != nil {
		t.Fatal(err)
	}
	p.putArtifact("press-07", a)
}

func image(name string) artifacts.LockedImage {
	return artifacts.LockedImage{Reference: name + ":1", Digest: digest.FromString(name), Platforms: []artifacts.LockedPlatform{{Platform: "linux/amd64", Digest: digest.FromString(name)}}}
}

// lines writes a tree of results for comparison.
func lines(n *audit.Node, indent string) (out []string) {
	line := indent + n.Kind
	for _, c := range n.Checks {
		line += " " + c.Name + "=" + string(c.Result)
	}
	out = append(out, line)
	for _, child := range n.Below {
		out = append(out, lines(child, indent+"  ")...)
	}
	return out
}

func chain(t *testing.T, w world, j audit.Judge, change func(*audit.Options)) *audit.Report {
	t.Helper()
	o := audit.Options{Judge: j, Places: w, Now: time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)}
	if change != nil {
		change(&o)
	}
	r, err := audit.Chain(t.Context(), w["r.example/state"], "press-07", o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

func newWorld() world {
	w := world{}
	for _, name := range []string{"r.example/state", "r.example/web", "r.example/bare", "r.example/caddy", "r.example/nats"} {
		w[name] = newPlace(name)
	}
	return w
}

func TestChainGoesDownToImages(t *testing.T) {
	w := newWorld()
	web := component(t, w["r.example/web"], image("r.example/caddy"), image("r.example/nats"))
	component(t, w["r.example/bare"])
	state(t, w["r.example/state"], time.Time{},
		deployment(1, "press-07", use("web", "r.example/web", web)+use("bare", "r.example/bare", "")),
		deployment(2, "press-07", use("web", "r.example/web", web)))
	j := &scripted{}
	r := chain(t, w, j, nil)
	want := []string{
		"state signature=passed generation=passed content=passed",
		"  deployment",
		"    component pin=passed signature=passed content=passed",
		"      image pin=passed signature=passed",
		"      image pin=passed signature=passed",
		"    component pin=insecure signature=passed lock=insecure",
		"  deployment",
		"    component pin=passed signature=passed content=passed",
		"      image pin=passed signature=passed",
		"      image pin=passed signature=passed",
	}
	if diff := cmp.Diff(want, lines(r.Node, "")); diff != "" {
		t.Errorf("chain (-want +got):\n%s", diff)
	}
	if r.Err() != nil || !r.Insecure() {
		t.Errorf("Err = %v, Insecure = %v, want nil and true", r.Err(), r.Insecure())
	}
	if len(j.asked) != 5 {
		t.Errorf("asked %d times, want once for each artifact: %v", len(j.asked), j.asked)
	}
	if r := chain(t, w, &scripted{}, func(o *audit.Options) { o.Alone = true }); len(r.Below) != 0 || r.Err() != nil {
		t.Errorf("alone: %v", lines(r.Node, ""))
	}
}

// What speaks against an artifact stands where it is, and is told with the sentinel that an exit code is made of.
func TestChainFindsFaults(t *testing.T) {
	past := time.Date(2025, 1, 1, 0, 0, 0, 0, time.UTC)
	for _, tt := range []struct {
		name  string
		spoil func(w world, web digest.Digest, j *scripted)
		want  error
		line  string
	}{
		{"unsigned component", func(_ world, _ digest.Digest, j *scripted) {
			j.fail = map[string]error{"component": fault.ErrUnsigned}
		}, fault.ErrUnsigned, "    component pin=passed signature=failed content=passed"},
		{"image rejected", func(_ world, _ digest.Digest, j *scripted) { j.fail = map[string]error{"image": fault.ErrRejected} }, fault.ErrRejected, "      image pin=passed signature=failed"},
		{"component gone", func(w world, web digest.Digest, _ *scripted) { delete(w["r.example/web"].manifests, web) }, fault.ErrNotFound, "    component pin=passed content=failed"},
		{"registry away", func(w world, web digest.Digest, _ *scripted) {
			w["r.example/web"].fail[web.String()] = fault.ErrTemporary
		}, fault.ErrTemporary, "    component pin=passed content=unknown"},
		{"archive tampered", func(w world, _ digest.Digest, _ *scripted) {
			for d := range w["r.example/web"].blobs {
				w["r.example/web"].blobs[d] = []byte("x")
			}
		}, fault.ErrDigestMismatch, "    component pin=passed signature=passed content=failed"},
		{"document tampered", func(w world, _ digest.Digest, _ *scripted) {
			for d, data := range w["r.example/state"].blobs {
				w["r.example/state"].blobs[d] = append([]byte(" "), data...)
			}
		}, fault.ErrDigestMismatch, "state signature=passed generation=passed content=failed"},
		{"expired", func(w world, web digest.Digest, _ *scripted) {
			state(t, w["r.example/state"], past, deployment(1, "press-07", use("web", "r.example/web", web)))
		}, fault.ErrRejected, "state signature=passed generation=passed expiry=failed content=passed"},
		{"a deployment behind the device", func(w world, web digest.Digest, _ *scripted) {
			state(t, w["r.example/state"], time.Time{}, deployment(1, "press-07/plc", use("web", "r.example/web", web)))
		}, fault.ErrUnfit, "state signature=passed generation=passed content=failed"},
		{"another artifact", func(w world, _ digest.Digest, _ *scripted) {
			w["r.example/state"].tags["press-07"] = w["r.example/state"].putManifest(t, "", manifestOf("application/x")).Digest
		}, nil, " signature=passed"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld()
			web := component(t, w["r.example/web"], image("r.example/caddy"))
			state(t, w["r.example/state"], time.Time{}, deployment(1, "press-07", use("web", "r.example/web", web)))
			j := &scripted{}
			tt.spoil(w, web, j)
			r := chain(t, w, j, nil)
			if !errors.Is(r.Err(), tt.want) {
				t.Errorf("Err = %v, want %v", r.Err(), tt.want)
			}
			if all := strings.Join(lines(r.Node, ""), "\n"); !strings.Contains("\n"+all+"\n", "\n"+tt.line+"\n") {
				t.Errorf("chain has no line %q:\n%s", tt.line, all)
			}
		})
	}
}

// A component of others that claims more images than anybody has stays bounded, and so does a state.
func TestChainIsBounded(t *testing.T) {
	w := newWorld()
	web := component(t, w["r.example/web"])
	var all strings.Builder
	for i := range 1100 {
		all.WriteString(use(fmt.Sprintf("web-%d", i), "r.example/web", web))
	}
	state(t, w["r.example/state"], time.Time{}, deployment(1, "press-07", all.String()))
	if r := chain(t, w, &scripted{}, nil); !errors.Is(r.Err(), fault.ErrTooLarge) || len(r.Below[0].Below) != 1024 {
		t.Errorf("Err = %v, want %v", r.Err(), fault.ErrTooLarge)
	}
}

// What a project uses and its lock does not name is looked at as well; what a device would not run is told.
func TestChainLooksBeyondTheLock(t *testing.T) {
	w := newWorld()
	web := component(t, w["r.example/web"], image("r.example/caddy"))
	state(t, w["r.example/state"], time.Time{}, deployment(1, "press-07", use("web", "r.example/web", web)))
	w["r.example/nats"].putManifest(t, "2", manifestOf("application/x"))
	project := func(_ context.Context, _ *artifacts.Archive, u audit.Use) ([]audit.ImageUse, error) {
		if u.Component != "web" || u.Deployment.Metadata.Name != "app-1" {
			t.Errorf("asked for %+v", u)
		}
		return []audit.ImageUse{
			{Repository: "r.example/caddy", Tag: "1", Digest: digest.FromString("r.example/caddy")},
			{Repository: "r.example/nats", Tag: "2"},
			{Repository: "r.example/bare", Digest: digest.FromString("by digest")},
			{Repository: "r.example/gone"},
		}, nil
	}
	r := chain(t, w, &scripted{}, func(o *audit.Options) { o.Project = project })
	want := []string{
		"state signature=passed generation=passed content=passed",
		"  deployment",
		"    component pin=passed signature=passed content=passed",
		"      image pin=passed signature=passed",
		"      image pin=insecure signature=passed",
		"      image pin=passed signature=passed",
		"      image pin=failed",
	}
	if diff := cmp.Diff(want, lines(r.Node, "")); diff != "" {
		t.Errorf("chain (-want +got):\n%s", diff)
	}
	r = chain(t, w, &scripted{}, func(o *audit.Options) {
		o.Project = func(context.Context, *artifacts.Archive, audit.Use) ([]audit.ImageUse, error) {
			return nil, fault.ErrInvalid
		}
	})
	if all := strings.Join(lines(r.Node, ""), "\n"); !errors.Is(r.Err(), fault.ErrInvalid) || !strings.Contains(all, "content=passed project=failed") {
		t.Errorf("Err = %v\n%s", r.Err(), all)
	}
}
