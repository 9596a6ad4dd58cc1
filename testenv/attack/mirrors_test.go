package attack

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

// onFirstMirror plays every behaviour of the kit at the first of two mirrors, while the registry itself does not answer the device: it
// takes what was released from the second mirror, images too, and nothing else.
func onFirstMirror(t *testing.T, p *plant, n int) {
	server := testenv.Registry(t, testenv.Distribution, testenv.WithTLS(), testenv.WithStorage(t.TempDir()))
	d := newDevice(t, p, n, server, setup{mirror: true, second: true})
	reset := testenv.Reset()
	away := testenv.Rule{Agent: Victims, Effect: func(w http.ResponseWriter, r *http.Request, next http.Handler) {
		if r.Host == d.host { // the mirrors ask under their own names
			reset(w, r, next)
			return
		}
		next.ServeHTTP(w, r)
	}}
	lied := uint64(0)
	for _, b := range d.behaviours() {
		t.Run(b.name, func(t *testing.T) {
			d.second.Faults.Forget()
			if !b.answered {
				server.Faults.Add(away)
				defer server.Faults.Clear()
			}
			asked := 0
			d.withstand(t, attack{b.name, nil, func(t *testing.T, d *device) func() {
				d.proxy.Play(b.rule(t, d))
				d.release(t, "line", true)
				return func() { asked = d.proxy.Faults.Hits() } // before the rules are removed
			}})
			if asked == 0 {
				t.Error("the first mirror was not asked for this")
			}
			second := len(d.second.Faults.Requests("", ""))
			if second == 0 && !b.harmless {
				t.Error("the second mirror was not asked")
			}
			if b.rests {
				d.rested(t, asked, second)
			}
		})
	}
	s := d.status(t)
	for _, e := range s.Security {
		if e.Code == codes.MirrorDigest {
			lied = e.Count
		}
	}
	if lied == 0 || lied > 2 || slices.ContainsFunc(s.Security, func(e status.SecurityEvent) bool { return e.Code != codes.MirrorDigest }) {
		t.Errorf("security events are %+v, want one of %s, told once or twice", s.Security, codes.MirrorDigest)
	}
}

// rested checks that a mirror which did not answer was left out for most requests, which the log says, and is asked again in the end.
func (d *device) rested(t *testing.T, first, second int) {
	t.Helper()
	if first*3 > second {
		t.Errorf("the first mirror was asked %d times and the second %d times: nobody should wait for each request", first, second)
	}
	if log := d.agent.Log(1000); !strings.Contains(log, "a mirror does not answer") || !strings.Contains(log, d.proxy.Host) {
		t.Error("the agent's log does not name the mirror that does not answer")
	}
	d.proxy.Faults.Forget()
	testenv.Eventually(t, tellLimit, "the first mirror is asked again", func() error {
		if len(d.proxy.Faults.Requests("", "")) == 0 {
			_, err := d.sync(t.Context())
			return errors.Join(errors.New("it is not"), err)
		}
		return nil
	})
}

// behaviour is something that a mirror does.
type behaviour struct {
	name     string
	harmless bool // what it sends is of use
	answered bool // the registry itself answers
	rests    bool // the mirror is not asked for a while afterwards
	rule     func(t *testing.T, d *device) testenv.Rule
}

func (d *device) behaviours() []behaviour {
	const lists = `/referrers/|/manifests/sha256-[0-9a-f]{64}$`
	zeros := digest.NewDigestFromEncoded(digest.SHA256, "0000000000000000000000000000000000000000000000000000000000000000")
	plain := func(name string, rule testenv.Rule) behaviour {
		return behaviour{name: name, rule: func(*testing.T, *device) testenv.Rule { return rule }}
	}
	answered := func(b behaviour) behaviour { b.answered = true; return b }
	harmless := func(b behaviour) behaviour { b.harmless = true; return b }
	rests := func(b behaviour) behaviour { b.rests = true; return b }
	get := func(name string, e testenv.Effect) behaviour {
		return plain(name, testenv.Rule{Method: http.MethodGet, Effect: e})
	}
	nowhere := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Size: 700, Digest: digest.FromString("nowhere"), ArtifactType: signing.MediaTypeBundle}
	return []behaviour{
		plain("withholds", testenv.Rule{Effect: Withhold()}),
		get("withholds content", Withhold()),
		{name: "serves an old state", rule: func(t *testing.T, d *device) testenv.Rule {
			old := d.resolve(t, "plant/state", artifacts.HistoryTag(string(d.id), 1))
			return testenv.Rule{Path: `/manifests/press-\d+$`, Effect: Instead("/v2/plant/state/manifests/" + old.Digest.String())}
		}},
		{name: "serves another image", rule: func(t *testing.T, d *device) testenv.Rule {
			other := d.resolve(t, "plant/audit", "0").Digest
			return testenv.Rule{Path: `^/v2/plant/line/manifests/`, Effect: Instead("/v2/plant/audit/manifests/" + other.String())}
		}},
		{name: "serves another blob", rule: func(t *testing.T, d *device) testenv.Rule {
			other := d.layers(t, "plant/state", d.current(t).Digest)[0]
			return testenv.Rule{Path: `/blobs/`, Effect: Instead("/v2/plant/state/blobs/" + other.Digest.String())}
		}},
		get("serves its own bytes", Serve(ocispec.MediaTypeImageManifest, []byte(`{"schemaVersion":2}`))),
		get("spoils", testenv.Corrupt()),
		get("swaps", testenv.Swap([]byte("{}"))),
		get("truncates", testenv.Truncate(30)),
		get("cuts", testenv.Cut(10)),
		get("false digest in the header", testenv.WrongDigest()),
		// Everybody is asked for that manifest, and a registry that resets is asked for a minute: it answers here.
		answered(plain("false digest of the tag", testenv.Rule{Path: `/manifests/press-\d+$`, Effect: testenv.Header("Docker-Content-Digest", zeros.String())})),
		harmless(plain("false length", testenv.Rule{Method: http.MethodHead, Effect: testenv.Header("Content-Length", "7")})),
		get("endless", Endless("application/octet-stream", 0)),
		get("endless, and says how much", Endless("application/octet-stream", 1<<40)),
		plain("endless pages of signatures", testenv.Rule{Path: lists, Effect: Pages()}),
		plain("ten thousand signatures", testenv.Rule{Path: lists, Effect: Inflate(10_000)}),
		harmless(plain("signatures in another order", testenv.Rule{Path: lists, Effect: Shuffle()})),
		plain("no signatures", testenv.Rule{Path: lists, Effect: Only(func(ocispec.Descriptor) bool { return false })}),
		plain("a signature that is nowhere", testenv.Rule{Path: lists, Effect: Lists(nowhere)}),
		harmless(plain("one more signature that is nowhere", testenv.Rule{Path: lists, Effect: Also(nowhere)})),
		get("sends the device away", Redirect("http://127.0.0.1:1")),
		get("asks for a password", testenv.Status(http.StatusUnauthorized, 0)),
		plain("drops", testenv.Rule{Effect: testenv.Reset()}),
		plain("asks to wait", testenv.Rule{Effect: testenv.Status(http.StatusTooManyRequests, time.Hour)}),
		rests(get("a byte at a time", Drip(1, 100*time.Millisecond))),
		rests(get("keeps content hanging", Drip(1, time.Hour))),
		rests(behaviour{name: "keeps requests hanging", rule: func(_ *testing.T, d *device) testenv.Rule {
			return testenv.Rule{Effect: d.proxy.Faults.Stall(-1)}
		}}),
	}
}
