package trust

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/keyless/keylesstest"
)

func by(t testing.TB, names ...string) []Signatory {
	var out []Signatory
	for _, n := range names {
		out = append(out, signer(t, n))
	}
	return out
}

func (r *repository) propose(t testing.TB, d doc, names ...string) (*Proposal, error) {
	t.Helper()
	return Propose(t.Context(), now, r, nil, Draft{Document: []byte(d.text(t))}, by(t, names...)...)
}

// After a rotation of signers whose time ends, the version stays one that can be changed, and carried to a site.
func TestSignersOfBeforeHaveExpired(t *testing.T) {
	r := newRepository()
	first, second := plain(1), plain(2)
	first.keys = map[string]string{"root-1": ", notAfter: 2026-12-01T00:00:00Z", "root-2": ", notAfter: 2026-12-01T00:00:00Z", "root-3": ", notAfter: 2026-12-01T00:00:00Z"}
	second.signers = []string{"root-4", "root-5", "root-6"}
	r.push(t, first, "", "root-1", "root-2")
	r.push(t, second, "", "root-1", "root-2", "root-4", "root-5")
	later := now.AddDate(1, 0, 0)
	if _, err := Newest(t.Context(), later, r); err != nil {
		t.Errorf("Newest = %v", err)
	}
	third := plain(3)
	third.signers = second.signers
	p, err := Propose(t.Context(), later, r, nil, Draft{Document: []byte(third.text(t))}, by(t, "root-4", "root-5")...)
	if err != nil || !p.Published {
		t.Errorf("Propose = %+v, %v", p, err)
	}
}

// A version that was put over the newest one, or above it, by others is named: nothing can follow it, and no one is asked to sign what does.
func TestProposeAfterAForeignVersion(t *testing.T) {
	for name, version := range map[string]uint64{"replaced": 2, "above": 3} {
		r := newRepository()
		r.push(t, plain(1), "", "root-1", "root-2")
		r.push(t, plain(2), "", "root-1", "root-2")
		foreign := plain(version)
		foreign.signers = []string{"evil-1", "evil-2", "evil-3"}
		r.push(t, foreign, "", "evil-1", "evil-2")
		p, err := r.propose(t, plain(version+1), "root-1", "root-2")
		if !fault.Distrusted(err) || !strings.Contains(err.Error(), fmt.Sprintf(":v%d: ", version)) || !strings.Contains(fault.Hint(err), fmt.Sprintf("v%d", version)) {
			t.Errorf("%s: %+v, %v (%s)", name, p, err, fault.Hint(err))
		}
		if _, err := r.Resolve(t.Context(), fmt.Sprintf("v%d.proposal", version+1)); !errors.Is(err, fault.ErrNotFound) {
			t.Errorf("%s: something is proposed: %v", name, err)
		}
	}
}

// TestOneAfterTheOther: each signer adds a signature on another day; the last one that is needed publishes.
func TestOneAfterTheOther(t *testing.T) {
	r := newRepository()
	p, err := r.propose(t, plain(1), "root-1", "root-2")
	if err != nil || !p.Published || p.Tag != "v1" || p.Old != nil || p.Missing() != "" {
		t.Fatalf("first version: %+v, %v", p, err)
	}
	if p, err := r.propose(t, plain(1), "root-1", "root-2"); err != nil || !p.Published {
		t.Errorf("the same again: %+v, %v", p, err)
	}
	next := plain(2)
	next.signers = []string{"root-1", "root-4", "root-5"}
	p, err = r.propose(t, next, "root-1")
	if err != nil || p.Published || p.Tag != "v2.proposal" {
		t.Fatalf("proposal: %+v, %v", p, err)
	}
	if want := "1 more of version 1: root-2, root-3; 1 more of version 2: root-4, root-5"; p.Missing() != want {
		t.Errorf("Missing = %q, want %q", p.Missing(), want)
	}
	if _, err := r.Resolve(t.Context(), "v2"); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("v2 is there already: %v", err)
	}
	d := newDevice(t, r, plain(1).text(t))
	if _, err := d.Refresh(t.Context()); err != nil || d.version() != 1 {
		t.Errorf("a device takes a proposal: %v, version %d", err, d.version())
	}
	if _, err := Endorse(t.Context(), now, r, nil, "", by(t, "stranger")...); !errors.Is(err, fault.ErrRejected) {
		t.Errorf("Endorse by a stranger = %v", err)
	}
	if _, err := Endorse(t.Context(), now, r, nil, "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855", by(t, "root-4")...); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("Endorse of another digest = %v", err)
	}
	if p, err = Endorse(t.Context(), now, r, nil, p.Descriptor.Digest, by(t, "root-4")...); err != nil || p.Published || p.Missing() != "1 more of version 1: root-2, root-3" {
		t.Errorf("second signer: %+v, %v", p, err)
	}
	if p, err = Endorse(t.Context(), now, r, nil, "", by(t, "root-3")...); err != nil || !p.Published || p.Tag != "v2" {
		t.Errorf("third signer: %+v, %v", p, err)
	}
	if _, err := d.Refresh(t.Context()); err != nil || d.version() != 2 {
		t.Errorf("Refresh = %v, version %d, want 2", err, d.version())
	}
	if _, err := Endorse(t.Context(), now, r, nil, "", by(t, "root-4")...); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Endorse without a proposal = %v", err)
	}
	past, err := History(t.Context(), now, r, nil)
	if err != nil || len(past) != 2 || past[0].Err != nil || past[1].Err != nil || fmt.Sprint(past[1].Old.Names(), past[1].New.Names()) != "[root-1 root-3] [root-1 root-4]" {
		t.Errorf("History = %+v, %v", past, err)
	}
}

func TestProposeRefuses(t *testing.T) {
	for _, tc := range []struct {
		name string
		do   func(d *doc)
		by   string
		want error
		say  string
	}{
		{"a version skipped", func(d *doc) { d.version = 4 }, "root-1", fault.ErrInvalid, "version 2 is published, the next one is 3"},
		{"another policy of a published version", func(d *doc) { d.version = 2; d.threshold = 1 }, "root-1", fault.ErrConflict, "version 2 is published"},
		{"an older version", func(d *doc) { d.version = 1 }, "root-1", fault.ErrConflict, "version 2 is published"},
		{"locks itself out", func(d *doc) { d.revoked = []string{"root-1", "root-2"} }, "root-3", fault.ErrInvalid, "asks for 2 different signers, and root-1, root-2 is revoked"},
		{"signers that expired", func(d *doc) {
			d.keys = map[string]string{"root-1": ", notAfter: 2026-01-01T00:00:00Z", "root-2": ", notAfter: 2026-01-01T00:00:00Z"}
		}, "root-3", ErrUnusable, "only 1 of its signers"},
		{"a rule that nobody can satisfy", func(d *doc) { d.keys = map[string]string{"release": ", notAfter: 2026-01-01T00:00:00Z"} }, "root-1", ErrUnusable, "only 0 of release"},
		{"expired", func(d *doc) { d.expires = "2026-01-01T00:00:00Z" }, "root-1", ErrUnusable, "it expired"},
		{"a key of nobody", nil, "stranger", fault.ErrRejected, "neither among the signers"},
		{"takes generations back in the name of version 2", func(d *doc) { d.extra = "generations: {resetTo: 5, version: 2}\n" }, "root-1", fault.ErrInvalid, "version 2 had no such reset"},
		{"no trust section", func(d *doc) { d.at = "" }, "root-1", ErrUnusable, "no trust section"},
		{"a file", func(d *doc) { d.more = "  - {scope: a/b, keys: [{name: f, file: f.pub}]}\n" }, "root-1", fault.ErrInvalid, "everything inside"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			r := newRepository()
			r.push(t, plain(2), "", "root-1", "root-2")
			tags := fmt.Sprint(r.Memory.Tags)
			d := plain(3)
			if tc.do != nil {
				tc.do(&d)
			}
			if p, err := r.propose(t, d, tc.by); !errors.Is(err, tc.want) || !strings.Contains(err.Error(), tc.say) {
				t.Errorf("Propose = %+v, %v, want %v with %q", p, err, tc.want, tc.say)
			}
			if now := fmt.Sprint(r.Memory.Tags); now != tags {
				t.Errorf("tags changed: %s, were %s", now, tags)
			}
		})
	}
	r := newRepository()
	elsewhere := plain(1)
	elsewhere.at = "other.example/trust"
	if _, err := r.propose(t, elsewhere, "root-1"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("a first version that names another repository: %v", err)
	}
}

// A version that is published with another trusted root is another one: whoever forgets to count it up is told.
func TestAnotherRootIsAnotherVersion(t *testing.T) {
	r := newRepository()
	document := strings.Replace(plain(1).text(t), "version: 1", "version: 1\ntrustedRoot: {file: trusted_root.json}", 1)
	push := func(root []byte) (*Proposal, error) {
		t.Helper()
		text, root, err := Inline("trust.yaml", []byte(document), func(string) ([]byte, error) { return root, nil })
		if err != nil {
			t.Fatal(err)
		}
		return Propose(t.Context(), now, r, nil, Draft{Document: text, Root: root}, by(t, "root-1", "root-2")...)
	}
	first, second := keylesstest.New(t).Root(t), keylesstest.New(t).Root(t)
	for range 2 {
		if p, err := push(first); err != nil || !p.Published {
			t.Fatalf("Propose = %+v, %v", p, err)
		}
	}
	if p, err := push(second); !errors.Is(err, fault.ErrConflict) || !strings.Contains(fault.Hint(err), "make yours version 2") {
		t.Errorf("Propose with another root = %+v, %v", p, err)
	}
}

// TestTwoAtOnce: of two people who propose different policies one is told, however their steps interleave.
func TestTwoAtOnce(t *testing.T) { synctest.Test(t, twoAtOnce) }

func twoAtOnce(t *testing.T) {
	for round := range 5 {
		r := newRepository()
		r.push(t, plain(1), "", "root-1", "root-2")
		docs := []doc{plain(2), plain(2)}
		docs[1].extra = "# the other\n"
		errs := make([]error, 2)
		var wg sync.WaitGroup
		for i := range docs {
			text := []byte(docs[i].text(t))
			s := by(t, fmt.Sprint("root-", i+1))
			wg.Go(func() { _, errs[i] = Propose(t.Context(), now, r, nil, Draft{Document: text}, s...) })
		}
		wg.Wait()
		if (errs[0] == nil) == (errs[1] == nil) || !errors.Is(errors.Join(errs...), fault.ErrConflict) {
			t.Errorf("round %d: %v, want one conflict", round, errs)
		}
	}
	r := newRepository()
	r.push(t, plain(1), "", "root-1", "root-2")
	if _, err := r.propose(t, plain(2), "root-1"); err != nil {
		t.Fatal(err)
	}
	other := plain(2)
	other.extra = "# the other\n"
	if _, err := r.propose(t, other, "root-2"); !errors.Is(err, fault.ErrConflict) || !strings.Contains(fault.Hint(err), "--replace") {
		t.Errorf("the second proposal = %v", err)
	}
	p, err := Propose(t.Context(), now, r, nil, Draft{Document: []byte(other.text(t)), Replace: true}, by(t, "root-2", "root-3")...)
	if err != nil || !p.Published {
		t.Errorf("in its place: %+v, %v", p, err)
	}
}

// watched is a place whose user is held up before a tag is set.
type watched struct {
	*repository
	before func(tag string)
}

func (w watched) PushManifest(ctx context.Context, d ocispec.Descriptor, data []byte, tag string) error {
	w.before(tag)
	return w.repository.PushManifest(ctx, d, data, tag)
}

func (w watched) CompareAndSetTag(ctx context.Context, d ocispec.Descriptor, data []byte, tag string, was digest.Digest) error {
	return swapTag(ctx, w, d, data, tag, was)
}

// TestSlowPublishers: B is held up before it sets the version's tag that it found free, and A before it sets the proposal's. Of
// two who could publish one is told that it did, and its policy is what devices get; a proposal in the way that lacks
// signatures takes nothing from B.
func TestSlowPublishers(t *testing.T) {
	for name, signersOfA := range map[string][]string{"both could": {"root-1", "root-2"}, "A lacks a signature": {"root-1"}} {
		t.Run(name, func(t *testing.T) {
			r := newRepository()
			r.push(t, plain(1), "", "root-1", "root-2")
			a, b := plain(2), plain(2)
			b.extra = "# the other\n"
			textA, textB := []byte(a.text(t)), []byte(b.text(t))
			byA, byB := by(t, signersOfA...), by(t, "root-2", "root-3")
			ready, reached, done := make(chan struct{}), make(chan struct{}), make(chan struct{})
			var gotA, gotB *Proposal
			var errA, errB error
			var wg sync.WaitGroup
			wg.Go(func() {
				defer close(done)
				gotA, errA = Propose(t.Context(), now, watched{r, func(tag string) {
					if tag == "v2.proposal" {
						close(ready)
						<-reached
					}
				}}, nil, Draft{Document: textA}, byA...)
			})
			<-ready
			wg.Go(func() {
				gotB, errB = Propose(t.Context(), now, watched{r, func(tag string) {
					select {
					case <-reached:
						return
					default:
					}
					if tag == "v2" {
						close(reached)
						<-done
					}
				}}, nil, Draft{Document: textB}, byB...)
			})
			wg.Wait()
			won, lost, err := gotA, gotB, errB
			if len(signersOfA) == 1 {
				won, lost, err = gotB, nil, fault.ErrConflict
				if errA != nil || errB != nil || gotA.Published {
					t.Fatalf("A = %+v, %v; B = %v", gotA, errA, errB)
				}
			}
			if lost != nil || !errors.Is(err, fault.ErrConflict) || !won.Published || r.Memory.Tags["v2"].Digest != won.Descriptor.Digest {
				t.Errorf("A = %+v, %v; B = %+v, %v; v2 is %s", gotA, errA, gotB, errB, r.Memory.Tags["v2"].Digest)
			}
		})
	}
}

func TestHistoryTellsWhatDevicesRefuse(t *testing.T) {
	r := newRepository()
	r.push(t, plain(1), "", "root-1", "root-2")
	r.push(t, plain(2), "", "root-1", "root-2")
	r.push(t, plain(3), "", "root-1")                     // somebody pushed it by hand
	r.push(t, plain(2), "v4", "root-1", "root-2")         // a tag was moved
	r.push(t, plain(5), "", "root-1", "root-2", "root-3") // does not follow 2
	past, err := History(t.Context(), now, r, plain(1).policy(t))
	if err != nil || len(past) != 4 {
		t.Fatalf("History = %+v, %v", past, err)
	}
	for i, want := range []error{nil, ErrNotNext, ErrOlder, ErrNotNext} {
		if !errors.Is(past[i].Err, want) || past[i].Version != uint64(i+2) {
			t.Errorf("version %d: %v, want %v", past[i].Version, past[i].Err, want)
		}
	}
	if _, err := Look(t.Context(), r, "v4"); err != nil {
		t.Errorf("Look = %v", err)
	}
	if p, err := Look(t.Context(), r, ""); err != nil || p.Policy.Version != 5 {
		t.Errorf("Look at the newest = %+v, %v", p, err)
	}
	if _, err := Look(t.Context(), newRepository(), ""); !errors.Is(err, fault.ErrNotFound) {
		t.Errorf("Look at nothing = %v", err)
	}
}

func TestInline(t *testing.T) {
	files := func(path string) ([]byte, error) {
		switch path {
		case "/etc/longshore/a.pub", "/etc/longshore/it's.pub", "/keys/b.pub":
			return bytes.ReplaceAll(pemOf("root-1"), []byte("\n"), []byte("\r\n")), nil
		case "/etc/longshore/c.pub":
			return pemOf("root-2"), nil
		}
		return nil, fault.ErrNotFound
	}
	one, two := quoted(string(pemOf("root-1"))), quoted(string(pemOf("root-2")))
	document, root, err := Inline("/etc/longshore/trust.yaml", []byte(`# die Schlüssel: äöü
version: 1
keys:
  - {name: "ä", file: a.pub}   # ours
  - {file: 'it''s.pub', name: quoted}
  - name: c
    "file": "c.pub"
rules:
  - scope: a/b
    keys:
      - name: b
        file: /keys/b.pub   # theirs
      - {name: inline, pem: `+two+`}
`), files)
	if err != nil || root != nil {
		t.Fatalf("Inline = %v, root %q", err, root)
	}
	want := `# die Schlüssel: äöü
version: 1
keys:
  - {name: "ä", pem: ` + one + `}   # ours
  - {pem: ` + one + `, name: quoted}
  - name: c
    pem: ` + two + `
rules:
  - scope: a/b
    keys:
      - name: b
        pem: ` + one + `   # theirs
      - {name: inline, pem: ` + two + `}
`
	if string(document) != want {
		t.Errorf("Inline =\n%s\nwant\n%s", document, want)
	}
	if again, _, err := Inline("trust.yaml", document, files); err != nil || !bytes.Equal(again, document) {
		t.Errorf("Inline of what is inline = %v", err)
	}
	for _, text := range []string{"version: 1\nrules: [{scope: a/b, keys: [{name: x, file: gone.pub}]}]\n", "rules: [", "version: 1\nrules:\n  - scope: a/b\n    keys:\n      - name: x\n        file: |-\n          a.pub\n"} {
		if _, _, err := Inline("/etc/longshore/trust.yaml", []byte(text), files); !errors.Is(err, fault.ErrInvalid) {
			t.Errorf("Inline(%q) = %v", text, err)
		}
	}
}

func FuzzInline(f *testing.F) {
	f.Add([]byte("version: 1\nkeys: [{name: a, file: a.pub}, {file: 'b', name: \"x\"}]\nrules: [{scope: a/b, keys: [{name: c, file: c}]}]\n"))
	f.Add([]byte("version: 1\nrules:\n  - scope: a/b\n    keys:\n      - name: x\n        file: >-\n          a.pub\n"))
	public := pemOf("root-1")
	f.Fuzz(func(t *testing.T, data []byte) {
		read := func(string) ([]byte, error) { return public, nil }
		document, root, err := Inline("trust.yaml", data, read)
		if err != nil {
			return
		}
		before, err := Parse("trust.yaml", data, read)
		if err != nil {
			t.Fatalf("Inline took what Parse refuses: %v", err)
		}
		after, err := ParseTravelling(document, root)
		if err != nil || fmt.Sprint(before.Version, len(before.Rules), before.Anchor()) != fmt.Sprint(after.Version, len(after.Rules), after.Anchor()) {
			t.Errorf("Inline changed the policy: %v\n%s\n%s", err, data, document)
		}
	})
}

// moving opens repositories in memory.
type moving map[string]*repository

func (m moving) Open(_ context.Context, name string) (Place, error) {
	if r := m[name]; r != nil {
		return r, nil
	}
	return nil, fmt.Errorf("open %s: %w", name, fault.ErrTemporary)
}

func (m moving) Copy(_ context.Context, from, to Place, d digest.Digest) error {
	a, b := from.(*repository), to.(*repository)
	maps.Copy(b.Content, a.Content)
	b.Listed[d] = a.Listed[d]
	return nil
}

// TestProposeElsewhere: a version that names another repository for the next one is published when that repository has it, and
// a typing error is put right where devices go on asking.
func TestProposeElsewhere(t *testing.T) {
	r, other, slip := newRepository(), newRepository(), newRepository()
	other.Repository, slip.Repository = "registry.example/plant/trust-2", "registry.example/plant/turst"
	m := moving{r.Repository: r, other.Repository: other, slip.Repository: slip}
	push := func(at *repository, d doc, move bool, names ...string) (*Proposal, error) {
		t.Helper()
		return Propose(t.Context(), now, at, m, Draft{Document: []byte(d.text(t)), Move: move}, by(t, names...)...)
	}
	if p, err := push(r, plain(1), false, "root-1", "root-2"); err != nil || !p.Published {
		t.Fatalf("Propose = %+v, %v", p, err)
	}
	second := plain(2)
	for _, at := range []string{slip.Repository, "registry.exmaple/plant/trust"} {
		second.at = at
		tags := fmt.Sprint(r.Memory.Tags)
		if p, err := push(r, second, false, "root-1", "root-2"); err == nil || fmt.Sprint(r.Memory.Tags) != tags {
			t.Errorf("Propose of a version whose next one is at %s = %+v, nil, and nothing is there", at, p)
		}
	}
	second.at = slip.Repository
	if _, err := push(r, second, false, "root-1", "root-2"); !errors.Is(err, ErrMissing) || !strings.Contains(fault.Hint(err), "--move") {
		t.Errorf("Propose = %v (%s), want ErrMissing with a hint at --move", err, fault.Hint(err))
	}
	if _, err := second.policy(t).Successor(t.Context(), m); !errors.Is(err, ErrMissing) {
		t.Errorf("Successor = %v, want ErrMissing", err)
	}

	r.push(t, second, "", "root-1", "root-2") // by another tool
	third := plain(3)
	if p, err := push(r, third, false, "root-1", "root-2"); err != nil || !p.Published {
		t.Fatalf("Propose of what puts it right = %+v, %v", p, err)
	}

	fourth := plain(4)
	fourth.at = other.Repository
	p, err := push(r, fourth, true, "root-1")
	if err != nil || p.Published {
		t.Fatalf("Propose = %+v, %v", p, err)
	}
	if p, err = Endorse(t.Context(), now, r, m, "", by(t, "root-3")...); err != nil || !p.Published {
		t.Fatalf("Endorse = %+v, %v", p, err)
	}
	d := newDevice(t, r, plain(1).text(t))
	d.at[other.Repository], d.at[slip.Repository] = other, slip
	if _, err := d.Refresh(t.Context()); err != nil || d.version() != 4 {
		t.Errorf("Refresh = %v, version %d, want 4", err, d.version())
	}
	fifth := plain(5)
	fifth.at = other.Repository
	if _, err := push(r, fifth, false, "root-1", "root-2"); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("Propose where the policy came from = %v, want fault.ErrInvalid: it has moved", err)
	}
	if p, err := push(other, fifth, false, "root-1", "root-2"); err != nil || !p.Published {
		t.Fatalf("Propose = %+v, %v", p, err)
	}
	if taken, err := d.Refresh(t.Context()); err != nil || d.version() != 5 || taken[0].Parted != "" {
		t.Errorf("Refresh = %v, version %d, want 5", err, d.version())
	}
	if past, err := History(t.Context(), now, other, nil); err != nil || len(past) != 2 || past[0].Err != nil || past[1].Err != nil {
		t.Errorf("History = %+v, %v", past, err)
	}
}
