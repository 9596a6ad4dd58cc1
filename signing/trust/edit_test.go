package trust

import (
	"errors"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// pemKey is the public key of a signer under its name.
func pemKey(t testing.TB, name string) NamedPEM {
	t.Helper()
	return NamedPEM{Name: name, PEM: signer(t, name).PublicPEM()}
}

func (d doc) edit(t testing.TB) *Edit {
	t.Helper()
	e, err := Open("trust.yaml", []byte(d.text(t)), nil)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// Each change is told in words that name who may sign what from then on, and the text that people wrote stays.
func TestEdit(t *testing.T) {
	three := plain(7)
	three.rule = []string{"release", "release-b"}
	three.more = "    attestations:\n      - {type: https://acme.example/scan, signers: [release]}\n" +
		"  - {scope: registry.example/lab/**, artifacts: [component], keys: [{name: lab, pem: " + quoted(string(signer(t, "lab").PublicPEM())) + "}]}\n"
	succ := pemKey(t, "new")
	for name, x := range map[string]struct {
		of   doc
		do   func(e *Edit) error
		want []string // parts of what is told
		not  string   // in the document
	}{
		"a release key": {plain(1), func(e *Edit) error { return e.Add(succ, Where{}) }, []string{
			"new key new: sha256:", "every state in registry.example/plant/**: signed by 1 of release, new (before: signed by release)",
		}, "version: 1 "},
		"a policy signer": {plain(1), func(e *Edit) error { return e.Add(succ, Where{Policy: true}) }, []string{
			"the next version of this policy: signed by 2 of root-1, root-2, root-3, new (before: signed by 2 of root-1, root-2, root-3)",
		}, ""},
		"a signer that is named already": {plain(1), func(e *Edit) error { return e.Add(NamedPEM{Name: "root-1"}, Where{}) }, []string{"signed by 1 of release, root-1 (before"}, ""},
		"a rule by its scope": {three, func(e *Edit) error {
			return e.Add(succ, Where{Scope: "registry.example/lab/**", Artifact: KindComponent})
		}, []string{
			"every component in registry.example/lab/**: signed by 1 of new, lab (before: signed by lab)",
		}, ""},
		"a threshold": {three, func(e *Edit) error { return e.SetThreshold(2, Where{Scope: "registry.example/plant/**"}) }, []string{
			"signed by 2 of release, release-b, attestation https://acme.example/scan by release (before: signed by 1 of",
		}, ""},
		"the policy's threshold": {plain(1), func(e *Edit) error { return e.SetThreshold(3, Where{Policy: true}) }, []string{"signed by 3 of root-1"}, "threshold: 2"},
		"removed":                {three, func(e *Edit) error { return e.Remove("release-b", Where{}, nil) }, []string{"signed by release, attestation"}, "release-b"},
		"removed in one place":   {three, func(e *Edit) error { return e.Remove("lab", Where{Scope: "registry.example/lab/**"}, &succ) }, []string{"signed by new (before: signed by lab)"}, "name: lab"},
		"replaced":               {plain(1), func(e *Edit) error { return e.Remove("root-3", Where{}, &succ) }, []string{"signed by 2 of root-1, root-2, new"}, "root-3"},
		"revoked by name": {three, func(e *Edit) error { return e.Revoke("release", "stolen", &succ) }, []string{
			"release (sha256:", " is revoked: stolen.", "signed by 1 of release-b, new, attestation https://acme.example/scan by new (before",
		}, ""},
		"revoked by fingerprint": {three, func(e *Edit) error { return e.Revoke(signer(t, "release-b").Key().Fingerprint.String(), "", nil) }, []string{"release-b (sha256:", " is revoked. No signature", "signed by release, "}, ""},
		"revoked and unknown":    {plain(1), func(e *Edit) error { return e.Revoke(signer(t, "gone").Key().Fingerprint.String(), "", nil) }, []string{"key sha256:"}, ""},
	} {
		e := x.of.edit(t)
		if err := x.do(e); err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		document, after, err := e.Next()
		if err != nil {
			t.Errorf("%s: %v\n%s", name, err, document)
			continue
		}
		told := strings.Join(Difference(e.Before, after), "\n")
		for _, w := range x.want {
			if !strings.Contains(told, w) {
				t.Errorf("%s: not told: %q in\n%s", name, w, told)
			}
		}
		if after.Version != x.of.version+1 || !strings.Contains(string(document), "# counted up by hand") {
			t.Errorf("%s: version %d\n%s", name, after.Version, document)
		}
		if x.not != "" && strings.Contains(string(document), x.not) {
			t.Errorf("%s: still there: %q\n%s", name, x.not, document)
		}
		if _, err := ParseTravelling(document, nil); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Whoever signs the next version, or approves it on a device, sees that an identity needs no log any more.
func TestDifferenceOfIdentities(t *testing.T) {
	identity := func(more string) *Policy {
		p, err := Parse("trust.yaml", []byte("trustedRoot: {file: root.json}\nidentities: [{name: ci, issuer: https://i.example, subject: s"+more+"}]\nrules: [{scope: a/b, signers: [ci]}]\n"),
			func(string) ([]byte, error) { return trustedRoot(), nil })
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	told := strings.Join(Difference(identity(""), identity(", unlogged: true")), "\n")
	if told != "ci is trusted without a log entry (before: always)" {
		t.Errorf("Difference = %s", told)
	}
}

// What would leave too few signers, or means nothing, is refused with what to do.
func TestEditRefuses(t *testing.T) {
	two := plain(1)
	two.signers = []string{"root-1", "root-2"}
	revoked := plain(1)
	revoked.revoked = []string{"old"}
	several := plain(1)
	several.more = "  - {scope: registry.example/plant/**, artifacts: [component], signers: [release]}\n"
	for name, x := range map[string]struct {
		of   doc
		do   func(e *Edit) error
		kind error
		want []string // parts of the error and of its hint
	}{
		"the last signer":           {plain(1), func(e *Edit) error { return e.Remove("release", Where{}, nil) }, fault.ErrRejected, []string{"the only signer of registry.example/plant/** (state)", "--successor"}},
		"the last signer, revoked":  {plain(1), func(e *Edit) error { return e.Revoke("release", "", nil) }, fault.ErrRejected, []string{"the only signer", "--successor"}},
		"fewer than the threshold":  {two, func(e *Edit) error { return e.Remove("root-1", Where{}, nil) }, fault.ErrRejected, []string{"the trust policy has 1 signer, and 2 must sign", "set-threshold"}},
		"a threshold too high":      {two, func(e *Edit) error { return e.SetThreshold(3, Where{Policy: true}) }, fault.ErrRejected, []string{"has 2 different signers", "trust add"}},
		"a threshold of nothing":    {two, func(e *Edit) error { return e.SetThreshold(0, Where{}) }, fault.ErrRejected, nil},
		"a typing error":            {plain(1), func(e *Edit) error { return e.Remove("realease", Where{}, nil) }, fault.ErrNotFound, []string{"did you mean release?"}},
		"elsewhere":                 {plain(1), func(e *Edit) error { return e.Remove("release", Where{Policy: true}, nil) }, fault.ErrNotFound, nil},
		"twice":                     {plain(1), func(e *Edit) error { return e.Add(pemKey(t, "release"), Where{}) }, fault.ErrConflict, []string{"already among the signers"}},
		"another key of this name":  {plain(1), func(e *Edit) error { return e.Add(NamedPEM{"release", signer(t, "new").PublicPEM()}, Where{}) }, fault.ErrConflict, []string{"--name"}},
		"another name for this key": {plain(1), func(e *Edit) error { return e.Add(NamedPEM{"other", signer(t, "release").PublicPEM()}, Where{}) }, fault.ErrConflict, []string{"--name release"}},
		"a revoked key":             {revoked, func(e *Edit) error { return e.Add(NamedPEM{"again", signer(t, "old").PublicPEM()}, Where{}) }, fault.ErrKeyRevoked, nil},
		"revoked twice":             {revoked, func(e *Edit) error { return e.Revoke("old", "", nil) }, fault.ErrConflict, nil},
		"no such rule":              {plain(1), func(e *Edit) error { return e.Add(pemKey(t, "new"), Where{Scope: "a/b"}) }, fault.ErrNotFound, []string{"registry.example/plant/** (state)"}},
		"several rules":             {several, func(e *Edit) error { return e.Add(pemKey(t, "new"), Where{Scope: "registry.example/plant/**"}) }, fault.ErrInvalid, []string{"--artifact"}},
		"no key":                    {plain(1), func(e *Edit) error { return e.Add(NamedPEM{"new", []byte("x")}, Where{}) }, nil, nil},
	} {
		err := x.do(x.of.edit(t))
		if err == nil || x.kind != nil && !errors.Is(err, x.kind) {
			t.Errorf("%s: %v, want %v", name, err, x.kind)
			continue
		}
		for _, w := range x.want {
			if text := err.Error() + "\n" + fault.Hint(err); !strings.Contains(text, w) {
				t.Errorf("%s: not told: %q in\n%s", name, w, text)
			}
		}
	}
}

// A version that its signers have not signed is not changed: whoever may write to the registry can put it there, and its content
// would be in the next version, which is signed.
func TestOnlyWhatIsSignedIsChanged(t *testing.T) {
	stranger := plain(1)
	stranger.rule = []string{"release", "stranger"}
	own := plain(2)
	own.rule, own.signers, own.threshold = []string{"release", "stranger"}, []string{"root-1", "stranger"}, 1
	alone := plain(2)
	alone.at, alone.signers = "", nil
	for name, put := range map[string]func(r *repository){
		"the version itself is replaced":         func(r *repository) { r.push(t, stranger, "") },
		"it is signed by too few":                func(r *repository) { r.push(t, stranger, "", "root-1") },
		"another is put above it, by its own":    func(r *repository) { r.push(t, own, "", "stranger") },
		"one that nobody may follow is above it": func(r *repository) { r.push(t, alone, "", "root-1", "root-2") },
	} {
		r := newRepository()
		r.push(t, plain(1), "", "root-1", "root-2")
		if _, err := Newest(t.Context(), now, r); err != nil {
			t.Fatal(err)
		}
		put(r)
		if _, err := Newest(t.Context(), now, r); !errors.Is(err, fault.ErrRejected) && !fault.Distrusted(err) || fault.Hint(err) == "" {
			t.Errorf("%s: %v, want that it is refused, with what to do", name, err)
		}
	}
	r := newRepository()
	r.push(t, plain(1), "", "root-1", "root-2")
	r.push(t, plain(2), "", "root-2", "root-3")
	if x, err := Newest(t.Context(), now, r); err != nil || x.Policy.Version != 2 {
		t.Errorf("a version that both have signed: %v", err)
	}
}
