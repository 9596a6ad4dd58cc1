package attack

import (
	"encoding/base64"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

// maxPeak bounds the agent's memory under every attack. Idle it has about 45 MiB, most of them its code.
const maxPeak = 128 << 20

// TestAttacks plays attacks to devices side by side: on a registry with the referrers API and on one without, to both those that have
// to do with signatures and their lists (nightly all); a mirror's; those of people who hold some of the keys. Those that wait longest are first.
func TestAttacks(t *testing.T) {
	t.Parallel()
	p := newPlant(t)
	t.Run("on", func(t *testing.T) { // ends before the plant does
		for n, stage := range []struct {
			name string
			play func(t *testing.T, p *plant, n int)
		}{
			{"mirror", onMirror},
			{"first of two mirrors", onFirstMirror},
			{"distribution", onDistribution(0)},
			{"distribution, the rest", onDistribution(1)},
			{"referrers", onReferrers(0)},
			{"referrers, the rest", onReferrers(1)},
			{"keys", onKeys},
			{"trust", onTrust},
			{"freshness", onFresh},
			{"identity", onIdentity},
			{"rotation", onRotation},
			{"power", onPower},
		} {
			t.Run(stage.name, func(t *testing.T) {
				t.Parallel()
				stage.play(t, p, n+1)
			})
		}
	})
}

// half of the attacks on a kind of registry: they are most of all, and so go to two devices that do not wait for each other.
func half(of []attack, which int) []attack {
	middle := len(of) / 2
	return [][]attack{of[:middle], of[middle:]}[which]
}

func onDistribution(which int) func(t *testing.T, p *plant, n int) {
	return func(t *testing.T, p *plant, n int) {
		// On disk: what distribution keeps in memory it copies anew with each piece of a blob.
		server := testenv.Registry(t, testenv.Distribution, testenv.WithStorage(t.TempDir()))
		newDevice(t, p, n, server, setup{}).withstandAll(t, half(onKind(0), which))
	}
}

func onReferrers(which int) func(t *testing.T, p *plant, n int) {
	return func(t *testing.T, p *plant, n int) {
		newDevice(t, p, n, testenv.Registry(t, testenv.Referrers), setup{}).withstandAll(t, half(onKind(1), which))
	}
}

// onMirror plays attacks of a mirror that a device asks first. The registry behind it is honest, and has TLS and passwords.
// What the mirror cannot do is make the device take what it would not take from the registry; what it withholds comes from
// there.
func onMirror(t *testing.T, p *plant, n int) {
	server := testenv.Registry(t, testenv.DistributionHtpasswd, testenv.WithTLS())
	d := newDevice(t, p, n, server, setup{mirror: true})
	t.Run("eavesdropping", func(t *testing.T) { d.overheard(t) })
	d.withstandAll(t, mirrorAttacks())
	t.Run("sent on to somebody without TLS", func(t *testing.T) { d.downgraded(t) })
	t.Run("sent to a token server without TLS", func(t *testing.T) { d.challenged(t) })
	t.Run("registry that asks for no pause, or for years", func(t *testing.T) { d.hurried(t) })
	t.Run("credential helper that hangs", func(t *testing.T) { d.helperHangs(t) })
	t.Run("somebody else at the registry's address", func(t *testing.T) { d.impersonated(t) })
}

func (d *device) withstandAll(t *testing.T, all []attack) {
	for _, a := range all {
		t.Run(a.name, func(t *testing.T) { d.withstand(t, a) })
	}
}

func mirrorAttacks() []attack {
	always := func(name string, rule testenv.Rule) attack {
		return attack{name, nil, func(t *testing.T, d *device) func() {
			d.proxy.Play(rule)
			d.release(t, "line", true)
			return d.nothing
		}}
	}
	const lists = `/referrers/|/manifests/sha256-[0-9a-f]{64}$`
	return []attack{
		always("mirror knows nothing", testenv.Rule{Effect: Withhold()}),
		always("mirror spoils what it sends", testenv.Rule{Method: "GET", Effect: testenv.Corrupt()}),
		always("mirror drops every request", testenv.Rule{Effect: testenv.Reset()}),
		always("mirror sends too much", testenv.Rule{Method: "GET", Effect: Endless("application/octet-stream", 0)}),
		{"mirror shows an old state", nil, func(t *testing.T, d *device) func() {
			old := d.resolve(t, "plant/state", artifacts.HistoryTag(string(d.id), 1))
			d.proxy.Play(testenv.Rule{Path: `/manifests/press-\d+$`, Effect: Instead("/v2/plant/state/manifests/" + old.Digest.String())})
			d.release(t, "line", true)
			return d.nothing
		}},
		always("mirror lists a signature that is nowhere", testenv.Rule{Path: lists, Effect: Lists(ocispec.Descriptor{
			MediaType: ocispec.MediaTypeImageManifest, Size: 700, Digest: digest.FromString("nowhere"), ArtifactType: signing.MediaTypeBundle,
		})}),
		{"mirror hides all signatures but a stranger's", nil, func(t *testing.T, d *device) func() {
			d.unseen(t, func() {
				d.release(t, "line", false)
				state := d.current(t)
				honest, err := d.open(t, "plant/state").Referrers(t.Context(), state)
				if err != nil || len(honest) == 0 {
					t.Fatalf("Referrers = %v, %v", honest, err)
				}
				d.sign(t, "stranger", state)
				d.proxy.Play(testenv.Rule{Path: lists, Effect: Only(func(x ocispec.Descriptor) bool {
					return !slices.ContainsFunc(honest, func(h ocispec.Descriptor) bool { return h.Digest == x.Digest })
				})})
			})
			return d.nothing
		}},
		// The last: the mirror is not asked for a while after it.
		{"mirror keeps requests hanging", nil, func(t *testing.T, d *device) func() {
			d.proxy.Play(testenv.Rule{Effect: d.proxy.Faults.Stall(-1)})
			d.release(t, "line", true)
			return d.nothing
		}},
	}
}

// overheard checks that neither a mirror nor its network sees a secret.
func (d *device) overheard(t *testing.T) {
	d.proxy.Faults.Forget()
	d.release(t, "line", true)
	d.settled(t, uint64(d.pushed))
	all := d.proxy.Faults.Requests("", "")
	if len(all) == 0 {
		t.Fatal("the mirror was not asked")
	}
	secret := base64.StdEncoding.EncodeToString([]byte(d.registry.Username + ":" + d.registry.Password))
	for _, r := range all {
		for name, values := range r.Header {
			for _, v := range values {
				if name == "Authorization" || name == "Cookie" || strings.Contains(v, d.registry.Password) || strings.Contains(v, secret) {
					t.Errorf("%s %s tells %s: %s", r.Method, r.Path, name, v)
				}
			}
		}
		if strings.Contains(r.Path+r.Query, d.registry.Password) {
			t.Errorf("%s %s?%s tells the password", r.Method, r.Path, r.Query)
		}
	}
}

// downgraded has the registry redirect the device to a server without TLS: for everything, and for what is in
// images alone, as registries do that keep it elsewhere. The device does not go there.
func (d *device) downgraded(t *testing.T) {
	var asked atomic.Int64
	listener := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		http.NotFound(w, r)
	}))
	defer listener.Close()
	for _, path := range []string{"", `^/v2/plant/line/blobs/`} {
		d.settled(t, uint64(d.pushed))
		d.begin(t)
		d.proxy.Play(testenv.Rule{Effect: testenv.Reset()}) // what it knows would do
		d.registry.Faults.Add(testenv.Rule{Agent: Victims, Path: path, Effect: Redirect(listener.URL)})
		d.release(t, "line", true)
		p := d.tells(t, codes.SourceDenied)
		t.Logf("%s: %s", p.Code, p.Message)
		d.untouched(t)
		d.registry.Faults.Clear()
		d.proxy.Rest()
	}
	if n := asked.Load(); n > 0 {
		t.Errorf("%d requests went to where nobody is known", n)
	}
	d.settled(t, uint64(d.pushed))
}

// impersonated has a server without the registry's certificate answer at its address: with one of another authority, and
// without TLS. The device sends neither anything.
func (d *device) impersonated(t *testing.T) {
	d.settled(t, uint64(d.pushed))
	d.begin(t)
	d.proxy.Play(testenv.Rule{Effect: testenv.Reset()})
	d.registry.Down()
	for _, impostor := range []struct {
		with []testenv.RegistryOption
		code codes.Code
	}{
		{[]testenv.RegistryOption{testenv.WithTLS()}, codes.SourceUnauthenticated}, // of another authority
		{nil, codes.SourceUnreachable},                                             // without TLS
	} {
		server, err := testenv.StartRegistry(t.TempDir(), testenv.Referrers, append(impostor.with, testenv.WithAddress(d.host))...)
		if err != nil {
			t.Fatal(err)
		}
		d.tells(t, impostor.code)
		if told := server.Faults.Requests("", ""); len(told) > 0 {
			t.Errorf("it was told %+v", told)
		}
		if err := server.Close(); err != nil {
			t.Error(err)
		}
	}
	d.untouched(t)
	if err := d.registry.Up(); err != nil {
		t.Fatal(err)
	}
	d.proxy.Rest()
	d.settled(t, uint64(d.pushed))
}

// withstand plays one attack to a device that runs well, and leaves it running well.
func (d *device) withstand(t *testing.T, a attack) {
	d.settled(t, uint64(d.pushed))
	d.begin(t)
	defer func() { // also of an attack that was not refused, so that the next begins well
		d.proxy.Rest()
		d.settled(t, uint64(d.pushed))
	}()
	defer a.play(t, d)()
	if len(a.codes) > 0 {
		p := d.tells(t, a.codes...)
		d.untouched(t)
		if p.Message == "" || p.Hint == "" {
			t.Errorf("the problem says too little: %+v", p)
		}
		d.alarmed(t, p.Code)
		t.Logf("%s: %s", p.Code, p.Message)
	} else {
		d.settled(t, uint64(d.pushed))
		_ = d.customer.end() // what was released stops the old container first
	}
	if n := d.peak(t); n > maxPeak {
		t.Errorf("the agent took %d MiB at its peak, at most %d are allowed", n>>20, maxPeak>>20)
	}
}

// untouched holds that the device runs what it ran when the attack began, in the same processes, which answered all the time.
func (d *device) untouched(t *testing.T) {
	t.Helper()
	after := d.status(t)
	if was, is := processes(d.before), processes(after); !maps.Equal(was, is) || len(is) != len(applications) {
		t.Errorf("processes were %v and are %v: nothing should have been touched", was, is)
	}
	if was, is := d.before.Running, after.Running; is == nil || was.Digest != is.Digest {
		t.Errorf("the device ran %+v and runs %+v", was, is)
	}
	if err := d.customer.end(); err != nil {
		t.Error(err)
	}
}

// alarmed waits for the security event of a code that means an attack.
func (d *device) alarmed(t *testing.T, code codes.Code) {
	t.Helper()
	if !code.Attack() {
		return
	}
	testenv.Eventually(t, tellLimit, "security event "+string(code), func() error {
		s, err := d.control.Status(t.Context())
		if err != nil {
			return err
		}
		for _, e := range s.Security {
			if e.Code == code && e.Last.After(d.before.Now) {
				return nil
			}
		}
		return fmt.Errorf("security events are %+v", s.Security)
	})
}
