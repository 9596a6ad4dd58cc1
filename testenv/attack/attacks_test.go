package attack

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/testenv"
)

// attack is what an attacker does to a device that runs well, and how that must end: refused with one of the codes, or
// without any effect.
type attack struct {
	name  string
	codes []codes.Code // one of them is reported; none: the device takes what was released all the same
	// play begins it. What it returns takes back what it did to the registry; rules of the proxy go anyway.
	play func(t *testing.T, d *device) (undo func())
}

// onEach are the attacks that meet other code on each kind of registry: what they do is about signatures, or lists of them.
var onEach = map[string]bool{
	"unsigned state": true, "state signed by a stranger": true, "signature of another state": true, "statement that is no signature": true,
	"deployment added to a signed state": true, "generation raised in a signed state": true,
	"new state with signatures of an old one": true, "signature withheld": true,
	"endless list of signatures": true, "pages of signatures without end": true, "ten thousand signatures": true,
	"signatures in another order": true, "entries added to the list of signatures": true, "header that claims that a signature is listed": true,
	"header that denies that a signature is listed": true, "referrers denied, to force an older format": true,
}

// onKind are the attacks for the first or the second kind of registry, 0 or 1: all in onEach, and every second other; nightly all.
func onKind(kind int) []attack {
	n := 0
	return slices.DeleteFunc(attacks(), func(a attack) bool {
		if onEach[a.name] || testenv.Nightly() {
			return false
		}
		n++
		return n%2 != kind
	})
}

// attacks is all that is played to devices on a registry with the referrers API, or on one without; see onKind.
func attacks() []attack {
	var all []attack
	for _, family := range [][]attack{forgeries(), replays(), mixtures(), silences(), floods(), lies()} {
		all = append(all, family...)
	}
	return all
}

// publishers are the clients of people who publish, whom an attacker may lie to as well.
const publishers = `^longshore/`

func one(codes ...codes.Code) []codes.Code { return codes }

// forgeries are states without a signature that the device trusts.
func forgeries() []attack {
	return []attack{
		{"unsigned state", one(codes.SignatureMissing), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.forge(t, 1<<40)
			return undo
		}},
		{"state signed by a stranger", one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.sign(t, "stranger", d.forge(t, 1<<40))
			return undo
		}},
		{"signature of another state", one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			honest := d.current(t)
			d.borrow(t, honest, d.forge(t, 1<<40))
			return undo
		}},
		{"statement that is no signature", one(codes.SignatureMissing), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			state := d.forge(t, 1<<40)
			d.attest(t, "release", "https://example.com/scan-result/v1", d.host+"/plant/state@"+state.Digest.String())
			return undo
		}},
		{"deployment added to a signed state", one(codes.SignatureInvalid, codes.SignatureMissing), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			honest := d.current(t)
			d.borrow(t, honest, d.edit(t, honest, func(m *ocispec.Manifest) {
				more := m.Layers[len(m.Layers)-1]
				data := []byte("of the attacker")
				more.Digest, more.Size = digest.FromBytes(data), int64(len(data))
				if err := d.open(t, "plant/state").PushBlob(t.Context(), more, data); err != nil {
					t.Fatal(err)
				}
				m.Layers = append(m.Layers, more)
			}))
			return undo
		}},
		{"generation raised in a signed state", one(codes.SignatureInvalid, codes.SignatureMissing), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			honest := d.current(t)
			d.borrow(t, honest, d.edit(t, honest, func(m *ocispec.Manifest) {
				m.Annotations[artifacts.AnnotationGeneration] = strconv.FormatUint(1<<63, 10)
			}))
			return undo
		}},
		{"state rewritten on its way", one(codes.StateDigest), func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.release(t, "line", false)
				d.proxy.Play(testenv.Rule{Method: "GET", Path: d.manifest(d.current(t).Digest), Effect: testenv.Corrupt()})
			})
			return d.nothing
		}},
		{"image rewritten on its way", one(codes.ImageDigest), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Method: "GET", Path: `^/v2/plant/line/blobs/`, Effect: testenv.Corrupt()})
			d.release(t, "line", true)
			return d.nothing
		}},
	}
}

// replays are true and signed, and not of now, or not for this device.
func replays() []attack {
	return []attack{
		{"old state", one(codes.Rollback), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.retag(t, artifacts.HistoryTag(string(d.id), 1))
			return undo
		}},
		{"old state by a proxy that remembers", one(codes.Rollback), func(t *testing.T, d *device) func() {
			var m Memory
			d.proxy.Play(testenv.Rule{Effect: m.Keep()})
			_, _ = d.sync(t.Context())
			d.proxy.Rest()
			d.release(t, "line", false)
			d.settled(t, uint64(d.pushed))
			d.begin(t)
			d.proxy.Play(testenv.Rule{Effect: m.Replay()})
			return d.nothing
		}},
		{"state that expires while news is withheld", one(codes.Stale), func(t *testing.T, d *device) func() {
			d.release(t, "line", false, "--expires", "30s")
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
		{"old state after a restart of the agent", one(codes.Rollback), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.retag(t, artifacts.HistoryTag(string(d.id), 2))
			d.agent.Kill()
			if err := d.agent.Start(); err != nil {
				t.Fatal(err)
			}
			return undo
		}},
		{"state of another device", one(codes.WrongDevice), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.must(t, "longshore", "state", "push", "--device", "press-99", "--key", d.signer("release"), "--generation", strconv.Itoa(1000+d.pushed),
				"--component", "oci://"+d.host+"/plant/components/line:"+d.versions["line"], d.host+"/plant/state")
			d.retag(t, "press-99")
			return undo
		}},
		{"two states of one generation", one(codes.GenerationConflict), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.sign(t, "release", d.forge(t, uint64(d.pushed)))
			return undo
		}},
	}
}

// mixtures put pieces together that were each signed, or named by something signed, but not together.
func mixtures() []attack {
	return []attack{
		{"new state with an old deployment", one(codes.ContentDigest), func(t *testing.T, d *device) func() {
			old := d.layers(t, "plant/state", d.current(t).Digest)
			d.unseen(t, func() {
				d.release(t, "line", false)
				for _, l := range d.layers(t, "plant/state", d.current(t).Digest) {
					if l.MediaType == artifacts.TypeDeployment {
						d.proxy.Play(testenv.Rule{Path: d.blob("plant/state", l.Digest), Effect: Instead("/v2/plant/state/blobs/" + old[len(old)-1].Digest.String())})
					}
				}
			})
			return d.nothing
		}},
		{"signed state of mixed pieces", one(codes.StateMixed), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			honest := d.current(t)
			old := d.layers(t, "plant/state", d.resolve(t, "plant/state", artifacts.HistoryTag(string(d.id), uint64(d.pushed-1))).Digest)
			d.sign(t, "release", d.edit(t, honest, func(m *ocispec.Manifest) {
				m.Layers[0] = old[0]
				m.Annotations[artifacts.AnnotationGeneration] = strconv.Itoa(d.pushed + 1)
			}))
			return undo
		}},
		{"new state with an old bundle", one(codes.ContentDigest), func(t *testing.T, d *device) func() {
			old := d.layers(t, "plant/state", d.current(t).Digest)[1].Digest
			d.unseen(t, func() {
				d.release(t, "line", false)
				d.release(t, "audit", false)
				fresh := d.layers(t, "plant/state", d.current(t).Digest)[1].Digest
				d.proxy.Play(testenv.Rule{Path: d.blob("plant/state", fresh), Effect: Instead("/v2/plant/state/blobs/" + old.String())})
			})
			return d.nothing
		}},
		{"new state with an old component", one(codes.ComponentDigest), func(t *testing.T, d *device) func() {
			old := d.resolve(t, "plant/components/line", d.versions["line"]).Digest
			d.component(t, "line")
			fresh := d.resolve(t, "plant/components/line", d.versions["line"]).Digest
			d.proxy.Play(testenv.Rule{Path: d.manifestOf("plant/components/line", fresh), Effect: Instead("/v2/plant/components/line/manifests/" + old.String())})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"new component with another image", one(codes.ImageDigest, codes.ImageMissing, codes.ImagePull), func(t *testing.T, d *device) func() {
			old := d.resolve(t, "plant/audit", "0").Digest
			d.proxy.Play(testenv.Rule{Path: `^/v2/plant/line/manifests/`, Effect: Instead("/v2/plant/audit/manifests/" + old.String())})
			d.release(t, "line", true)
			return d.nothing
		}},
		{"new state with signatures of an old one", one(codes.SignatureInvalid, codes.SignatureMissing), func(t *testing.T, d *device) func() {
			old := d.current(t).Digest
			d.unseen(t, func() {
				d.release(t, "line", false)
				fresh := d.current(t).Digest
				d.proxy.Play(
					testenv.Rule{Path: `/referrers/` + fresh.String(), Effect: Instead("/v2/plant/state/referrers/" + old.String())},
					testenv.Rule{Path: `/manifests/sha256-` + fresh.Encoded(), Effect: Instead("/v2/plant/state/manifests/sha256-" + old.Encoded())},
				)
			})
			return d.nothing
		}},
	}
}

// silences keep something from the device.
func silences() []attack {
	withheld := func(path string, codes ...codes.Code) attack {
		return attack{codes: codes, play: func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: path, Effect: Withhold()})
			d.release(t, "line", true)
			return d.nothing
		}}
	}
	named := func(name string, a attack) attack { a.name = name; return a }
	return []attack{
		named("tag withheld", withheld(`/manifests/press-\d+$`, codes.StateNotFound)),
		named("signature withheld", withheld(`/referrers/|/manifests/sha256-`, codes.SignatureMissing)),
		named("deployments withheld", withheld(`^/v2/plant/state/blobs/`, codes.ContentMissing, codes.SourceUnreachable)),
		named("component withheld", withheld(`^/v2/plant/components/`, codes.ComponentMissing)),
		named("image withheld", withheld(`^/v2/plant/line/`, codes.ImageMissing)),
		{"one of two images withheld", one(codes.ImageMissing), func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.proxy.Play(testenv.Rule{Path: `^/v2/plant/audit/`, Effect: Withhold()})
				d.release(t, "line", true)
				d.release(t, "audit", true)
			})
			return d.nothing
		}},
		{"every request dropped", one(codes.SourceUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Effect: testenv.Reset()})
			return d.nothing
		}},
		{"every request left hanging", one(codes.SourceUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Effect: d.proxy.Faults.Stall(-1)})
			return d.nothing
		}},
		{"everything a byte at a time", one(codes.SourceUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Method: "GET", Effect: Drip(1, 100*time.Millisecond)})
			d.release(t, "line", false)
			return d.nothing
		}},
	}
}

// floods are more than anybody needs.
func floods() []attack {
	return []attack{
		{"endless state", one(codes.StateTooLarge), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Method: "GET", Path: `^/v2/plant/state/manifests/sha256:`, Effect: Endless(ocispec.MediaTypeImageManifest, 0)})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"endless list of signatures", one(codes.SignatureInvalid, codes.SourceUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `/referrers/|/manifests/sha256-`, Effect: Endless(ocispec.MediaTypeImageIndex, 0)})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"pages of signatures without end", one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `/referrers/|/manifests/sha256-[0-9a-f]{64}$`, Effect: Pages()})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"ten thousand signatures", one(codes.SignatureInvalid, codes.SourceUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `/referrers/|/manifests/sha256-[0-9a-f]{64}$`, Effect: Inflate(10_000)})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"signature of 100 MiB", one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			honest := d.current(t)
			d.attach(t, honest, d.forge(t, 1<<40), make([]byte, 100<<20))
			return undo
		}},
		{"endless signature", one(codes.SignatureInvalid), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			honest, data := d.current(t), []byte("a signature")
			d.proxy.Play(testenv.Rule{Path: d.blob("plant/state", digest.FromBytes(data)), Effect: Endless("application/octet-stream", 0)})
			d.attach(t, honest, d.forge(t, 1<<40), data) // not in the descriptor of its layer
			return undo
		}},
		{"endless deployment", one(codes.ContentDigest), func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.release(t, "line", false)
				for _, l := range d.layers(t, "plant/state", d.current(t).Digest) {
					d.proxy.Play(testenv.Rule{Path: d.blob("plant/state", l.Digest), Effect: Endless("application/octet-stream", 0)})
				}
			})
			return d.nothing
		}},
		{"endless image", one(codes.ImageDigest), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `^/v2/plant/line/blobs/`, Effect: Endless("application/octet-stream", 0)})
			d.release(t, "line", true)
			return d.nothing
		}},
	}
}

// lies are in headers and lists; what they are about is true.
func lies() []attack {
	zeros := digest.NewDigestFromEncoded(digest.SHA256, string(bytes.Repeat([]byte("0"), 64)))
	return []attack{
		{"signatures in another order", nil, func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `/referrers/|/manifests/sha256-`, Effect: Shuffle()})
			d.release(t, "line", false)
			d.sign(t, "stranger", d.current(t))
			d.sign(t, "stranger", d.current(t))
			return d.nothing
		}},
		{"entries added to the list of signatures", nil, func(t *testing.T, d *device) func() {
			more, err := d.open(t, "plant/state").Referrers(t.Context(), d.current(t))
			if err != nil {
				t.Fatal(err)
			}
			for i := range 5 {
				more = append(more, ocispec.Descriptor{
					MediaType: ocispec.MediaTypeImageManifest, Size: 700, Digest: digest.FromString(strconv.Itoa(i)),
					ArtifactType: "application/vnd.dev.sigstore.bundle.v0.3+json",
				})
			}
			d.proxy.Play(testenv.Rule{Path: `/referrers/|/manifests/sha256-[0-9a-f]{64}$`, Effect: Also(more...)})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"header that claims that a signature is listed", nil, func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Method: "PUT", Path: `/manifests/sha256:`, Agent: publishers, Effect: Claim()})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"header that denies that a signature is listed", nil, func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Method: "PUT", Path: `/manifests/sha256:`, Agent: publishers, Effect: testenv.Header("OCI-Subject", "")})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"false digest in the header", one(codes.ContentMissing, codes.StateDigest, codes.SourceUnreachable), func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Path: `/manifests/press-\d+$`, Effect: testenv.Header("Docker-Content-Digest", zeros.String())})
			return d.nothing
		}},
		{"false digest in the header of true bytes", nil, func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Method: "GET", Path: `/sha256:`, Effect: testenv.Header("Docker-Content-Digest", zeros.String())})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"false length in the header", nil, func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Method: "HEAD", Effect: testenv.Header("Content-Length", "7")})
			d.release(t, "line", false)
			return d.nothing
		}},
		{"truncated as if it were all", one(codes.StateDigest), func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.release(t, "line", false)
				d.proxy.Play(testenv.Rule{Method: "GET", Path: d.manifest(d.current(t).Digest), Effect: testenv.Truncate(100)})
			})
			return d.nothing
		}},
		{"referrers denied, to force an older format", one(codes.SignatureMissing), func(t *testing.T, d *device) func() {
			undo := d.hijack(t)
			d.sign(t, "stranger", d.forge(t, 1<<40), "--signature-format", "legacy")
			d.proxy.Play(testenv.Rule{Path: `/referrers/|/manifests/sha256-[0-9a-f]{64}`, Effect: Withhold()})
			return undo
		}},
	}
}

// unseen does something that the device sees only when it is done, together with the rules that it adds: until then the tag
// names what it named.
func (d *device) unseen(t *testing.T, do func()) {
	t.Helper()
	now := Instead("/v2/plant/state/manifests/" + d.current(t).Digest.String())
	var over atomic.Bool
	d.proxy.Play(testenv.Rule{Path: `/manifests/press-\d+$`, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if over.Load() {
			next.ServeHTTP(w, r)
			return
		}
		now(w, r, next)
	}})
	do()
	over.Store(true)
}

// hijack remembers where the device's tag points, and returns what points it there again.
func (d *device) hijack(t *testing.T) (undo func()) {
	t.Helper()
	honest := d.current(t)
	return func() { d.point(t, honest) }
}

// nothing is to be taken back but the proxy's rules.
func (d *device) nothing() {}

func (d *device) point(t *testing.T, to ocispec.Descriptor) {
	t.Helper()
	if err := d.open(t, "plant/state").Tag(t.Context(), to, string(d.id)); err != nil {
		t.Fatal(err)
	}
}

// retag points the device's tag at what another tag names.
func (d *device) retag(t *testing.T, tag string) {
	t.Helper()
	d.point(t, d.resolve(t, "plant/state", tag))
}

func (d *device) resolve(t *testing.T, repository, tag string) ocispec.Descriptor {
	t.Helper()
	desc, err := d.open(t, repository).Resolve(t.Context(), tag)
	if err != nil {
		t.Fatal(err)
	}
	return desc
}

// current is the device's state in the registry.
func (d *device) current(t *testing.T) ocispec.Descriptor {
	t.Helper()
	return d.resolve(t, "plant/state", string(d.id))
}

// forge pushes an unsigned state that would take everything away from the device, and points the device's tag at it.
func (d *device) forge(t *testing.T, generation uint64) ocispec.Descriptor {
	t.Helper()
	d.forged++
	a, err := artifacts.PackState(artifacts.StateOptions{
		Device: d.id, Generation: generation, Annotations: map[string]string{"example.attacker": strconv.Itoa(d.forged)},
	})
	if err != nil {
		t.Fatal(err)
	}
	desc, err := release.Publish(t.Context(), d.open(t, "plant/state"), a, release.PublishOptions{Tags: []string{string(d.id)}})
	if err != nil {
		t.Fatal(err)
	}
	return desc
}

// edit changes a state's manifest, which its signature does not cover then, and points the device's tag at it.
func (d *device) edit(t *testing.T, from ocispec.Descriptor, change func(*ocispec.Manifest)) ocispec.Descriptor {
	t.Helper()
	repo := d.open(t, "plant/state")
	_, data, err := repo.Manifest(t.Context(), from.Digest)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	m.Annotations = maps.Clone(m.Annotations)
	change(&m)
	return d.push(t, repo, &m, string(d.id))
}

func (d *device) push(t *testing.T, repo *registry.Repository, m *ocispec.Manifest, tag string) ocispec.Descriptor {
	t.Helper()
	data, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	desc := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromBytes(data), Size: int64(len(data)), ArtifactType: m.ArtifactType}
	if m.Subject != nil {
		err = repo.PushReferrer(t.Context(), desc, data)
	} else {
		err = repo.PushManifest(t.Context(), desc, data, tag)
	}
	if err != nil {
		t.Fatal(err)
	}
	return desc
}

// sign signs a state with one of the keys at hand.
func (d *device) sign(t *testing.T, key string, state ocispec.Descriptor, flags ...string) {
	t.Helper()
	args := append([]string{"sign", "--key", d.signer(key)}, flags...)
	d.must(t, "longshore", append(args, d.host+"/plant/state@"+state.Digest.String())...)
}

// referrer is the manifest of the first signature of a state.
func (d *device) referrer(t *testing.T, of ocispec.Descriptor) *ocispec.Manifest {
	t.Helper()
	repo := d.open(t, "plant/state")
	listed, err := repo.Referrers(t.Context(), of)
	if err != nil || len(listed) == 0 {
		t.Fatalf("referrers: %v, %v", listed, err)
	}
	_, data, err := repo.Manifest(t.Context(), listed[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	m := &ocispec.Manifest{}
	if err := json.Unmarshal(data, m); err != nil {
		t.Fatal(err)
	}
	return m
}

// borrow puts the signature of one state beside another.
func (d *device) borrow(t *testing.T, from, to ocispec.Descriptor) {
	t.Helper()
	m := d.referrer(t, from)
	m.Subject = &ocispec.Descriptor{MediaType: to.MediaType, Digest: to.Digest, Size: to.Size}
	d.push(t, d.open(t, "plant/state"), m, "")
}

// attach puts a signature of any bytes beside a state. It looks like the one of another.
func (d *device) attach(t *testing.T, like, to ocispec.Descriptor, data []byte) {
	t.Helper()
	repo := d.open(t, "plant/state")
	m := d.referrer(t, like)
	m.Layers[0].Digest, m.Layers[0].Size = digest.FromBytes(data), int64(len(data))
	if err := repo.PushBlob(t.Context(), m.Layers[0], data); err != nil {
		t.Fatal(err)
	}
	m.Subject = &ocispec.Descriptor{MediaType: to.MediaType, Digest: to.Digest, Size: to.Size}
	d.push(t, repo, m, "")
}

func (d *device) layers(t *testing.T, repository string, of digest.Digest) []ocispec.Descriptor {
	t.Helper()
	_, data, err := d.open(t, repository).Manifest(t.Context(), of)
	if err != nil {
		t.Fatal(err)
	}
	var m ocispec.Manifest
	if err := json.Unmarshal(data, &m); err != nil {
		t.Fatal(err)
	}
	return m.Layers
}

// Patterns of paths.
func (d *device) manifest(of digest.Digest) string { return d.manifestOf("plant/state", of) }

func (d *device) manifestOf(repository string, of digest.Digest) string {
	return "^/v2/" + regexp.QuoteMeta(fmt.Sprintf("%s/manifests/%s", repository, of)) + "$"
}

func (d *device) blob(repository string, of digest.Digest) string {
	return "^/v2/" + regexp.QuoteMeta(fmt.Sprintf("%s/blobs/%s", repository, of)) + "$"
}
