package attack

import (
	"encoding/json"
	"fmt"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/testenv"
)

// onFresh plays attacks on time, to a device whose policy requires freshness statements.
func onFresh(t *testing.T, p *plant, n int) {
	d := newDevice(t, p, n, testenv.Registry(t, testenv.Referrers), setup{keys: []string{"pulse"}, pulse: "1h", policy: func(d *device) string {
		return fmt.Sprintf(`keys:
  - {name: release, file: %[1]s/release.pub}
  - {name: pulse, file: %[1]s/pulse.pub}
rules:
  - {scope: "%[2]s/plant/**", signers: [release], freshness: {signers: [pulse]}}
`, d.dir, d.host)
	}})
	d.withstandAll(t, freezes())
}

// freezes show a device something old as if it were of now.
func freezes() []attack {
	// Released without a statement, and then does something in its place; the statement comes once the attack is over.
	stale := func(name string, does func(t *testing.T, d *device, before ocispec.Descriptor)) attack {
		return attack{name, one(codes.StateStale), func(t *testing.T, d *device) func() {
			before, pulse := d.current(t), d.pulse
			d.pulse = ""
			d.release(t, "line", false)
			d.pulse = pulse
			if does != nil {
				does(t, d, before)
			}
			return func() { d.freshen(t, "pulse", d.pulse) }
		}}
	}
	return []attack{
		stale("state without a freshness statement", nil),
		stale("freshness statement of another state", func(t *testing.T, d *device, before ocispec.Descriptor) {
			d.lend(t, d.statement(t, before), d.current(t))
		}),
		stale("freshness statement by a stranger", func(t *testing.T, d *device, _ ocispec.Descriptor) { d.freshen(t, "stranger", "1h") }),
		stale("freshness statement by the key of releases", func(t *testing.T, d *device, _ ocispec.Descriptor) { d.freshen(t, "release", "1h") }),
		{"old state whose freshness statement has not ended", one(codes.Rollback), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.retag(t, artifacts.HistoryTag(string(d.id), 1))
			return undo
		}},
		{"news withheld until the freshness statement ends", one(codes.StateStale), func(t *testing.T, d *device) func() {
			pulse := d.pulse
			d.pulse = "1m" // the shortest
			d.release(t, "line", false)
			d.pulse = pulse
			d.settled(t, uint64(d.pushed))
			d.begin(t)
			var m Memory
			d.proxy.Play(testenv.Rule{Effect: m.Keep()})
			_, _ = d.sync(t.Context())
			d.proxy.Rest()
			d.proxy.Play(testenv.Rule{Effect: m.Replay()})
			d.release(t, "line", false)
			return d.nothing
		}},
	}
}

// freshen says that the device's tag names its current state, for some time.
func (d *device) freshen(t *testing.T, key, life string) {
	t.Helper()
	d.must(t, "longshore", "freshen", "--key", d.signer(key), "--for", life, d.host+"/plant/state:"+string(d.id))
}

// statement is the manifest of a state's freshness statement.
func (d *device) statement(t *testing.T, of ocispec.Descriptor) *ocispec.Manifest {
	t.Helper()
	repo := d.open(t, "plant/state")
	listed, err := repo.Referrers(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range listed {
		m := d.manifestAt(t, l.Digest)
		if m.Annotations["dev.sigstore.bundle.predicateType"] == "https://longshore.dev/freshness/v1" {
			return m
		}
	}
	t.Fatalf("%s has no freshness statement among %d referrers", of.Digest, len(listed))
	return nil
}

// manifestAt reads a manifest beside the states.
func (d *device) manifestAt(t *testing.T, of digest.Digest) *ocispec.Manifest {
	t.Helper()
	_, data, err := d.open(t, "plant/state").Manifest(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	m := &ocispec.Manifest{}
	if err := json.Unmarshal(data, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// lend puts a referrer of one state beside another.
func (d *device) lend(t *testing.T, m *ocispec.Manifest, to ocispec.Descriptor) {
	t.Helper()
	m.Subject = &ocispec.Descriptor{MediaType: to.MediaType, Digest: to.Digest, Size: to.Size}
	d.push(t, d.open(t, "plant/state"), m, "")
}
