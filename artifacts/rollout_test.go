package artifacts_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// rollout has every member that there is.
func rollout() *artifacts.Rollout {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	return &artifacts.Rollout{
		Fleet: "acme-plant", Number: 3, Phase: artifacts.RolloutRunning, Reason: "a reason", Content: digest.FromString("content"),
		By: "ci@runner-7", Claim: "0195f6a0-0000-7000-8000-000000000001", Began: at, Changed: at.Add(time.Hour),
		States: artifacts.RolloutStates{Created: at, Expires: at.Add(720 * time.Hour), Annotations: map[string]string{ocispec.AnnotationRevision: "abc"}},
		Waves: []artifacts.RolloutWave{
			{
				Name: "canary", Group: "line-a", Devices: 1, Soak: 30 * time.Minute, Deadline: 4 * time.Hour, Success: 95, Rollback: true,
				State: artifacts.WaveFailed, Published: at, Well: at.Add(time.Minute), Ended: at.Add(time.Hour), Reason: "why",
				Left: []artifacts.DeviceID{"gateway-1/press-07"},
			},
			{Name: "rest", Devices: 1, State: artifacts.WavePending},
		},
		Targets: []artifacts.RolloutTarget{
			{Device: "gateway-1/press-07", Repository: "harbor.acme.example/plant/state", Generation: 7, Digest: digest.FromString("7"), Former: digest.FromString("6"), Deployments: 2},
			{Device: "press-08", Wave: 1, Repository: "harbor.acme.example/plant/state", Generation: 1, Digest: digest.FromString("1")},
		},
	}
}

func packRollout(t testing.TB, o artifacts.RolloutOptions) *artifacts.Artifact {
	t.Helper()
	a, err := artifacts.PackRollout(o)
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func rolloutOptions() artifacts.RolloutOptions {
	return artifacts.RolloutOptions{Rollout: rollout(), Revision: 12, Previous: digest.FromString("11"), Created: time.Unix(1700000000, 0)}
}

func TestPackRollout(t *testing.T) {
	a := packRollout(t, rolloutOptions())
	golden(t, "rollout", show(t, a))
	if again := packRollout(t, rolloutOptions()); again.Descriptor.Digest != a.Descriptor.Digest {
		t.Error("the same options have another digest")
	}
	x, err := artifacts.OpenRollout(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	r, err := x.Read(from(a, nil))
	if diff := cmp.Diff(rollout(), r); err != nil || diff != "" || x.Revision != 12 || x.Previous != digest.FromString("11") {
		t.Errorf("OpenRollout = %+v; Read: %v (-want +got):\n%s", x, err, diff)
	}
	// What a step changes is one small layer: the targets stay, byte by byte.
	next := rolloutOptions()
	next.Revision, next.Rollout.Phase = 13, artifacts.RolloutDone
	b := packRollout(t, next)
	if a.Blobs[2].Descriptor.Digest != b.Blobs[2].Descriptor.Digest || a.Blobs[1].Descriptor.Digest == b.Blobs[1].Descriptor.Digest {
		t.Errorf("layers %v and %v", a.Blobs, b.Blobs)
	}
	if _, err := artifacts.OpenState(a.Manifest); err == nil {
		t.Error("a device would take a rollout for its state")
	}
	if o, err := artifacts.ReadOutline(a.Manifest); err != nil || o.Kind != artifacts.KindRollout {
		t.Errorf("ReadOutline = %+v, %v", o, err)
	}
	empty := &artifacts.Rollout{Fleet: "a", Phase: artifacts.RolloutDone, Content: digest.FromString(""), Claim: "a", Began: time.Unix(1, 0).UTC(), Changed: time.Unix(1, 0).UTC()}
	x, err = artifacts.OpenRollout(packRollout(t, artifacts.RolloutOptions{Rollout: empty, Revision: 1}).Manifest)
	if err != nil || x.Previous != "" {
		t.Errorf("the smallest: %+v, %v", x, err)
	}
}

func TestPackRolloutRefuses(t *testing.T) {
	for name, edit := range map[string]func(*artifacts.RolloutOptions){
		"no revision":     func(o *artifacts.RolloutOptions) { o.Revision = 0 },
		"previous":        func(o *artifacts.RolloutOptions) { o.Previous = "sha256:1" },
		"fleet":           func(o *artifacts.RolloutOptions) { o.Rollout.Fleet = "Not a name" },
		"phase":           func(o *artifacts.RolloutOptions) { o.Rollout.Phase = "moving" },
		"wave state":      func(o *artifacts.RolloutOptions) { o.Rollout.Waves[0].State = "" },
		"success":         func(o *artifacts.RolloutOptions) { o.Rollout.Waves[0].Success = 101 },
		"order":           func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Device = "press-09" },
		"twice":           func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Device = "press-08" },
		"device":          func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Device = "a b" },
		"no such wave":    func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Wave = 2 },
		"generation":      func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Generation = 0 },
		"digest":          func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Digest = "x" },
		"former":          func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Former = "x" },
		"repository":      func(o *artifacts.RolloutOptions) { o.Rollout.Targets[0].Repository = "" },
		"devices of wave": func(o *artifacts.RolloutOptions) { o.Rollout.Waves[0].Devices = 2 },
		"left":            func(o *artifacts.RolloutOptions) { o.Rollout.Waves[0].Left[0] = "a b" },
	} {
		o := rolloutOptions()
		edit(&o)
		if a, err := artifacts.PackRollout(o); err == nil {
			t.Errorf("%s: PackRollout = %v", name, a.Descriptor.Digest)
		}
	}
}

func TestOpenRolloutRefuses(t *testing.T) {
	a := packRollout(t, rolloutOptions())
	m := string(a.Manifest)
	for name, tt := range map[string]struct {
		old, new string
		want     error
	}{
		"another artifact": {`"artifactType":"` + artifacts.TypeRollout, `"artifactType":"` + artifacts.TypeState, fault.ErrUnsupported},
		"revision 0":       {`generation":"12"`, `generation":"0"`, fault.ErrInvalid},
		"no fleet":         {`rollout.fleet":"acme-plant"`, `rollout.flee":"acme-plant"`, fault.ErrInvalid},
		"previous":         {`"dev.longshore.previous":"sha256:`, `"dev.longshore.previous":"sha256:0`, fault.ErrInvalid},
		"targets first":    {`"mediaType":"` + artifacts.TypeRollout + `"`, `"mediaType":"` + artifacts.TypeRolloutTargets + `"`, fault.ErrUnsupported},
		"targets as state": {`"mediaType":"` + artifacts.TypeRolloutTargets, `"mediaType":"` + artifacts.TypeRollout, fault.ErrUnsupported},
	} {
		forged := strings.Replace(m, tt.old, tt.new, 1)
		if forged == m {
			t.Fatalf("%s: %q is not in %s", name, tt.old, m)
		}
		if x, err := artifacts.OpenRollout([]byte(forged)); !errors.Is(err, tt.want) {
			t.Errorf("%s: OpenRollout = %+v, %v, want %v", name, x, err, tt.want)
		}
	}
	for n := range a.Manifest { // a transfer that was cut
		if x, err := artifacts.OpenRollout(a.Manifest[:n]); err == nil {
			t.Fatalf("OpenRollout of %d bytes = %+v", n, x)
		}
	}
	x, err := artifacts.OpenRollout(a.Manifest)
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{artifacts.TypeRollout, artifacts.TypeRolloutTargets} {
		if _, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) {
			data, err := from(a, nil)(d)
			if d.MediaType == kind {
				data = append(bytes.Clone(data), ' ')
			}
			return data, err
		}); !errors.Is(err, fault.ErrDigestMismatch) {
			t.Errorf("Read with another %s = %v", kind, err)
		}
	}
	x.Fleet = "other"
	if _, err := x.Read(from(a, nil)); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Read of another fleet's = %v", err)
	}
}

// Whatever parses is written again to the same.
func FuzzParseRollout(f *testing.F) {
	state, targets, err := rollout().Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(state, targets)
	f.Add([]byte(`{}`), []byte(`{"version":1,"targets":[]}`))
	f.Add(bytes.Replace(state, []byte(`"30m0s"`), []byte(`"1.5h"`), 1), targets)
	f.Fuzz(func(t *testing.T, state, targets []byte) {
		r, err := artifacts.ParseRollout("rollout", state, targets)
		if err != nil {
			return
		}
		again, more, err := r.Encode()
		if err != nil {
			t.Fatalf("Encode: %v", err)
		}
		back, err := artifacts.ParseRollout("rollout", again, more)
		if diff := cmp.Diff(r, back); err != nil || diff != "" {
			t.Fatalf("parsed again: %v (-want +got):\n%s", err, diff)
		}
	})
}
