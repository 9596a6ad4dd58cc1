package trust

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing"
)

// step is what is found under the tag of version 2, where version 1 is in use.
type step struct {
	name string
	old  func(d *doc) // changes version 1; nil: nothing
	next func(d *doc) // changes version 2; nil: nothing
	by   []string
	do   func(t *testing.T, r *repository) // after the push; nil: nothing
	kind error                             // nil: it follows
	say  string
}

func steps() []step {
	both := []string{"root-1", "root-2"}
	later := func(r *repository, what string, err error) {
		r.Fail = func(op, _ string) error {
			if op == what {
				return err
			}
			return nil
		}
	}
	return []step{
		{name: "signed by two of three", by: both},
		{name: "signed by all", by: []string{"root-1", "root-2", "root-3"}},
		{name: "new signers, signed by both sides", by: []string{"root-1", "root-3", "root-4", "root-5"}, next: func(d *doc) { d.signers = []string{"root-4", "root-5"} }},
		{name: "a lost key rotated away by the others", by: []string{"root-1", "root-2", "root-4"}, next: func(d *doc) { d.signers = []string{"root-1", "root-2", "root-4"} }},
		{name: "unsigned", kind: ErrNotNext, say: "not signed"},
		{name: "signed by one", by: both[:1], kind: ErrNotNext, say: "1 of 2; signed by root-1"},
		{name: "signed twice by one", by: []string{"root-1", "root-1"}, kind: ErrNotNext, say: "1 of 2; signed by root-1"},
		{name: "signed by strangers", by: []string{"a", "b"}, kind: ErrNotNext, say: "not signed by root-1, root-2, root-3"},
		{name: "signed by the old only", by: both, next: func(d *doc) { d.signers = []string{"root-4", "root-5"} }, kind: ErrNotNext, say: "its own signers"},
		{name: "signed by the new only", by: []string{"root-4", "root-5"}, next: func(d *doc) { d.signers = []string{"root-4", "root-5"} }, kind: ErrNotNext, say: "signers of version 1"},
		{name: "a higher threshold that is not reached", by: both, next: func(d *doc) { d.threshold = 3 }, kind: ErrNotNext, say: "its own signers: not the next trust policy: too few signers: 2 of 3"},
		{
			name: "one key under two names", by: []string{"root-1"}, kind: ErrNotNext, say: "1 of 2",
			next: func(d *doc) { d.threshold, d.signers = 1, []string{"root-1"} },
		},
		{
			name: "a signer that version 1 has revoked", by: both, kind: ErrNotNext, say: "key revoked: root-2",
			old: func(d *doc) { d.revoked = []string{"root-2"} },
		},
		{
			name: "a signer that version 2 revokes", by: both, kind: ErrNotNext, say: "its own signers",
			next: func(d *doc) { d.revoked = []string{"root-2"} },
		},
		{
			name: "a signer out of time by version 1", by: both, kind: ErrNotNext, say: "key expired or not yet valid: root-2",
			old: func(d *doc) { d.keys = map[string]string{"root-2": ", notAfter: 2026-01-01T00:00:00Z"} },
		},
		{
			name: "a signer whose time has not come", by: both, kind: ErrNotNext, say: "its own signers",
			next: func(d *doc) { d.keys = map[string]string{"root-2": ", notBefore: 2027-01-01T00:00:00Z"} },
		},
		{name: "a version skipped", by: both, next: func(d *doc) { d.version = 3 }, kind: ErrNotNext, say: "it is version 3"},
		{name: "the same version", by: both, next: func(d *doc) { d.version = 1 }, kind: ErrOlder, say: "it is version 1, and version 1 is in use"},
		{name: "an older version", by: both, old: func(d *doc) { d.version = 5 }, next: func(d *doc) { d.version = 4 }, kind: ErrOlder, say: "it is version 4"},
		{name: "takes generations back", by: both, next: func(d *doc) { d.extra = "generations: {resetTo: 5, version: 2}\n" }},
		{
			name: "repeats what version 1 took back", by: both,
			old:  func(d *doc) { d.extra = "generations: {resetTo: 5, version: 1}\n" },
			next: func(d *doc) { d.extra = "generations: {resetTo: 5, version: 1}\n" },
		},
		{
			name: "takes back in the name of version 1", by: both, kind: ErrNotNext, say: "version 1 had no such reset",
			next: func(d *doc) { d.extra = "generations: {resetTo: 5, version: 1}\n" },
		},
		{
			name: "takes back more than version 1 did", by: both, kind: ErrNotNext, say: "version 1 had no such reset",
			old:  func(d *doc) { d.extra = "generations: {resetTo: 5, version: 1}\n" },
			next: func(d *doc) { d.extra = "generations: {resetTo: 4, version: 1}\n" },
		},
		{name: "an expired one follows", by: both, next: func(d *doc) { d.expires = "2026-01-01T00:00:00Z" }},
		{
			name: "a rule of keys that expired follows", by: both,
			next: func(d *doc) {
				d.rule = []string{"release"}
				d.keys = map[string]string{"release": ", notAfter: 2026-01-01T00:00:00Z"}
			},
		},
		{name: "names nobody for the next", by: both, next: func(d *doc) { d.at = "" }, kind: ErrUnusable, say: "no trust section"},
		{name: "a threshold that cannot be reached", by: both, next: func(d *doc) { d.threshold, d.revoked = 3, []string{"root-3"} }, kind: ErrNotNext, say: "trust.threshold: asks for 3 different signers, and root-3 is revoked"},
		{
			name: "signers that expired", by: both, kind: ErrUnusable, say: "only 1 of its signers",
			next: func(d *doc) {
				d.keys = map[string]string{"root-2": ", notAfter: 2026-01-01T00:00:00Z", "root-3": ", notAfter: 2026-01-01T00:00:00Z"}
			},
		},
		{name: "a rule of revoked keys", by: both, next: func(d *doc) { d.revoked = []string{"release"} }, kind: ErrNotNext, say: "release is revoked"},
		{
			name: "rejects its own kind", by: both, kind: ErrNotNext, say: "the next policy could never be taken",
			next: func(d *doc) {
				d.more = "  - {scope: registry.example/plant/**, artifacts: [trust], reject: true}\n"
			},
		},
		{
			name: "rejects what comes from where it is", by: both, kind: ErrUnusable, say: "rejects the trust policies of registry.example/plant/trust",
			next: func(d *doc) {
				d.at = "elsewhere.example/plant/trust"
				d.more = "  - {scope: registry.example/plant/**, artifacts: [trust], reject: true}\n"
			},
		},
		{
			name: "wants signatures of its own kind elsewhere", by: both, kind: ErrNotNext, say: "has its signatures in other.example/signatures",
			next: func(d *doc) {
				d.more = "  - {scope: registry.example/plant/**, artifacts: [trust], signers: [root-1], signatures: other.example/signatures}\n"
			},
		},
		{
			name: "wants signatures of its own kind elsewhere where the next one is", by: both, kind: ErrNotNext, say: "the next policy could never be taken",
			next: func(d *doc) {
				d.at = "elsewhere.example/plant/trust"
				d.more = "  - {scope: elsewhere.example/plant/**, artifacts: [trust], signers: [root-1], signatures: other.example/signatures}\n"
			},
		},
		{
			name: "wants signatures elsewhere of what comes from where it is", by: both, kind: ErrUnusable, say: "in other.example/signatures, and they are beside them",
			next: func(d *doc) {
				d.at = "elsewhere.example/plant/trust"
				d.more = "  - {scope: registry.example/plant/**, artifacts: [trust], signers: [root-1], signatures: other.example/signatures}\n"
			},
		},
		{
			name: "a rule for its own kind with signatures beside it", by: both,
			next: func(d *doc) {
				d.more = "  - {scope: registry.example/plant/**, artifacts: [trust], signers: [root-1], signatures: " + trustRepository + "}\n"
			},
		},
		{
			name: "a rule for its own kind that it does not satisfy", by: both, kind: ErrUnusable, say: "its own rules",
			next: func(d *doc) {
				d.more = "  - {scope: registry.example/plant/**, artifacts: [trust], keys: [{name: x, pem: " + quoted(string(pemOf("auditor"))) + "}]}\n"
			},
		},
		{name: "not YAML", by: both, do: func(t *testing.T, r *repository) { r.pushText(t, 2, "{", "", both...) }, kind: ErrNotNext, say: "trust.yaml:1"},
		{name: "an unknown key", by: both, next: func(d *doc) { d.extra = "trusted: []\n" }, kind: ErrNotNext, say: "trusted"},
		{
			name: "a key by file", by: both, kind: ErrNotNext, say: "everything inside",
			next: func(d *doc) { d.more = "  - {scope: a/b, keys: [{name: f, file: /etc/passwd}]}\n" },
		},
		{
			name: "manifest and document differ", by: both, kind: ErrNotNext, say: "the document says version 7, the manifest 2",
			do: func(t *testing.T, r *repository) {
				d := plain(7)
				r.pushText(t, 2, d.text(t), "", both...)
			},
		},
		{name: "another artifact under the tag", do: func(t *testing.T, r *repository) { r.Memory.Tags["v2"] = r.Artifact(t, "hello") }, kind: ErrNotNext, say: "artifact type"},
		{
			name: "truncated", by: both, kind: ErrNotNext, say: "digest",
			do: func(_ *testing.T, r *repository) {
				r.Corrupt = func(_ digest.Digest, data []byte) []byte { return data[:len(data)/2] }
			},
		},
		{
			name: "10 MB", kind: ErrNotNext, say: "10485760 bytes",
			do: func(t *testing.T, r *repository) {
				d := r.pushText(t, 2, "x", "big")
				m := strings.Replace(string(r.Content[d]), `"size":1,`, `"size":10485760,`, 1)
				big := ocispec.Descriptor{MediaType: ocispec.MediaTypeImageManifest, Digest: digest.FromString(m), Size: int64(len(m))}
				if err := r.PushManifest(t.Context(), big, []byte(m), "v2"); err != nil {
					t.Fatal(err)
				}
				for _, n := range both {
					if _, err := signer(t, n).Sign(t.Context(), r, big); err != nil {
						t.Fatal(err)
					}
				}
			},
		},
		{name: "manifest gone", by: both, do: func(_ *testing.T, r *repository) { later(r, "manifest", fault.ErrNotFound) }, kind: ErrUnreachable},
		{name: "blob not reached", by: both, do: func(_ *testing.T, r *repository) { later(r, "blob", fault.ErrTemporary) }, kind: ErrUnreachable},
		{name: "signatures not reached", by: both, do: func(_ *testing.T, r *repository) { later(r, "referrers", fault.ErrTemporary) }, kind: ErrUnreachable},
		{name: "no right to read", by: both, do: func(_ *testing.T, r *repository) { later(r, "resolve", fault.ErrDenied) }, kind: ErrUnreachable},
	}
}

func pemOf(name string) []byte {
	signersMu.Lock()
	s := signersBy[name]
	signersMu.Unlock()
	if s == nil {
		s = signer(nopT{}, name)
	}
	return s.PublicPEM()
}

// nopT stands in where a table is made outside a test.
type nopT struct{ testing.TB }

func (nopT) Helper() {}

// TestNextVersion holds what may be found under the tag of the next version against a device. A refused one changes nothing,
// and a good one that comes after it is taken.
func TestNextVersion(t *testing.T) {
	for _, s := range steps() {
		t.Run(s.name, func(t *testing.T) {
			r := newRepository()
			old, next := plain(1), plain(2)
			if s.old != nil {
				s.old(&old)
				next.version = old.version + 1
			}
			if s.next != nil {
				s.next(&next)
			}
			tag := artifacts.TrustTag(old.version + 1)
			r.push(t, next, tag, s.by...)
			if s.do != nil {
				s.do(t, r)
			}
			d := newDevice(t, r, old.text(t))
			before := d.Fingerprint()
			taken, err := d.Refresh(t.Context())
			if s.kind == nil {
				if err != nil || len(taken) != 1 || d.version() != old.version+1 || d.keep.saves != 1 || d.Fingerprint() == before {
					t.Fatalf("Refresh = %v, %v, version %d, want version %d", taken, err, d.version(), old.version+1)
				}
				return
			}
			if !errors.Is(err, s.kind) || !strings.Contains(err.Error(), s.say) {
				t.Fatalf("Refresh = %v, want %v with %q", err, s.kind, s.say)
			}
			for _, other := range []error{ErrUnreachable, ErrNotNext, ErrOlder, ErrUnusable} {
				if other != s.kind && errors.Is(err, other) {
					t.Errorf("Refresh = %v: also %v", err, other)
				}
			}
			if len(taken) != 0 || d.version() != old.version || d.keep.saves != 0 || d.Fingerprint() != before {
				t.Errorf("a refused version changed something: %v, version %d", taken, d.version())
			}
			r.Fail, r.Corrupt = nil, nil
			good := plain(old.version + 1)
			good.extra = "# good\n"
			by := []string{"root-1", "root-2", "root-3"}
			r.push(t, good, tag, by...)
			if _, err := d.Refresh(t.Context()); s.old == nil && (err != nil || d.version() != old.version+1) {
				t.Errorf("a good version after it: %v, version %d", err, d.version())
			}
		})
	}
}

func TestSentinelsOfArtifactsAreBeside(t *testing.T) {
	r := newRepository()
	d := newDevice(t, r, plain(1).text(t))
	for _, tc := range []struct {
		do   func()
		want error
	}{
		{func() { r.push(t, plain(2), "") }, fault.ErrUnsigned},
		{func() { r.push(t, plain(2), "", "a") }, fault.ErrBadSignature},
		{func() { r.push(t, plain(1), "v2") }, fault.ErrRollback},
		{func() { r.push(t, plain(3), "v2") }, fault.ErrInvalid},
		{func() { r.Fail = func(string, string) error { return fault.ErrTemporary } }, fault.ErrTemporary},
		{func() { r.Fail = func(string, string) error { return fault.ErrDenied } }, fault.ErrDenied},
	} {
		tc.do()
		if _, err := d.Refresh(t.Context()); !errors.Is(err, tc.want) {
			t.Errorf("Refresh = %v, want %v beside", err, tc.want)
		}
	}
}

// TestTrustedRootTravels: what identities are held against comes with the policy, and is kept with it.
func TestTrustedRootTravels(t *testing.T) {
	written := plain(2)
	written.extra = "trustedRoot: {file: root.json}   # sigstore's\nidentities: [{name: ci, issuer: 'https://issuer.example', subject: builder}]\n"
	document, root, err := Inline("/etc/longshore/trust.yaml", []byte(written.text(t)), func(path string) ([]byte, error) {
		if path != "/etc/longshore/root.json" {
			return nil, fault.ErrNotFound
		}
		return trustedRoot(), nil
	})
	if err != nil || !bytes.Equal(root, trustedRoot()) || !strings.Contains(string(document), `trustedRoot: {file: "trusted_root.json"}   # sigstore's`) {
		t.Fatalf("Inline = %v\n%s", err, document)
	}
	for name, tc := range map[string]struct {
		document, root []byte
		want           error
	}{
		"both":             {document, root, nil},
		"without the root": {document, nil, ErrNotNext},
		"another root":     {document, []byte("{}"), ErrNotNext},
		"named by nothing": {[]byte(plain(2).text(t)), root, ErrNotNext},
		"another name":     {bytes.Replace(document, []byte("trusted_root.json"), []byte("../trusted_root.json"), 1), root, ErrNotNext},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRepository()
			a, err := artifacts.PackTrust(artifacts.TrustOptions{Version: 2, Policy: tc.document, TrustedRoot: tc.root})
			if err != nil {
				t.Fatal(err)
			}
			r.pushArtifact(t, a, "v2", "root-1", "root-2")
			d := newDevice(t, r, plain(1).text(t))
			if _, err := d.Refresh(t.Context()); !errors.Is(err, tc.want) {
				t.Fatalf("Refresh = %v, want %v", err, tc.want)
			}
			if tc.want != nil {
				return
			}
			for range 2 {
				p, err := d.Policy()
				if err != nil || p.Version != 2 || p.Root == nil || !bytes.Equal(d.keep.kept.Root, root) {
					t.Errorf("Policy = %+v, %v", p, err)
				}
				d.restart()
			}
		})
	}
}

func TestBegin(t *testing.T) {
	r := newRepository()
	src := signing.Source(r)
	if _, err := Begin(t.Context(), now, src, r.push(t, plain(1), "", "root-1")); !errors.Is(err, ErrNotNext) {
		t.Errorf("Begin with one signature = %v", err)
	}
	s, err := Begin(t.Context(), now, src, r.push(t, plain(1), "", "root-1", "root-2"))
	if err != nil || strings.Join(s.New.Names(), " ") != "root-1 root-2" {
		t.Errorf("Begin = %+v, %v", s, err)
	}
	locked := plain(1)
	locked.keys = map[string]string{"root-1": ", notAfter: 2026-01-01T00:00:00Z", "root-2": ", notAfter: 2026-01-01T00:00:00Z"}
	if _, err := Begin(t.Context(), now, src, r.push(t, locked, "", "root-1", "root-2", "root-3")); !errors.Is(err, ErrUnusable) {
		t.Errorf("Begin of one that locks itself out = %v", err)
	}
}

func TestDoubts(t *testing.T) {
	d := plain(1)
	d.expires = "2026-06-01T00:00:00Z"
	p := d.policy(t)
	for at, want := range map[time.Time]int{now: 1, now.AddDate(-1, 0, 0): 0} {
		if got := p.Doubts(at); len(got) != want {
			t.Errorf("Doubts(%v) = %v, want %d", at, got, want)
		}
	}
}

func FuzzTravelling(f *testing.F) {
	f.Add([]byte(plain(1).text(f)), []byte(nil))
	f.Add([]byte("version: 1\nrules: [{scope: a/b, keys: [{name: a, file: a.pub}]}]\n"), []byte("{}"))
	f.Add([]byte("version: 1\ntrustedRoot: {file: trusted_root.json}\nrules: [{scope: a/b, reject: true}]\n"), []byte("{}"))
	f.Fuzz(func(t *testing.T, document, root []byte) {
		p, err := ParseTravelling(document, root)
		if err != nil {
			return
		}
		if err := p.Sound(now, trustRepository); err == nil && (p.Trust == nil || p.Version == 0) {
			t.Errorf("of use: %+v", p)
		}
		_ = p.Doubts(now)
		_, _ = p.Anchor(), fmt.Sprint(p.passed(now))
		if p.Trust == nil {
			return
		}
		if q := p.Endorsements(t.Context(), now, newRepository(), ocispec.Descriptor{Digest: digest.FromString("x")}); q.Holds() || q.Counted > 0 {
			t.Errorf("nobody has signed: %+v", q)
		}
	})
}
