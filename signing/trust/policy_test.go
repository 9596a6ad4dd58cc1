package trust

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/signing/signingtest"
)

// policyFiles stands for the folder of a trust.yaml.
func policyFiles(path string) ([]byte, error) {
	_, release := pair()
	_, vendor := otherPair()
	private, _ := pair()
	files := map[string][]byte{
		"/etc/longshore/release.pub":     release,
		"/etc/longshore/sub/release.pub": release,
		"/keys/vendor.pub":               vendor,
		"/etc/longshore/private.key":     private,
		"/etc/longshore/empty.pub":       {},
		"/etc/longshore/text.pub":        []byte("not a key"),
	}
	for n := range 5 {
		files[fmt.Sprintf("/etc/longshore/k%d.pub", n)] = pairNo(n).public
	}
	files["/etc/longshore/root.json"], files["/etc/longshore/ca.pem"] = trustedRoot(), instance().Authority()
	data, ok := files[path]
	if !ok {
		return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
	}
	return data, nil
}

func parsePolicy(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := Parse("/etc/longshore/trust.yaml", []byte(text), policyFiles)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestParsePolicy(t *testing.T) {
	_, public := otherPair()
	p := parsePolicy(t, `# who may say what runs here
rules:
  - scope: harbor.acme.example/plant/**
    artifacts: [state, component]
    keys:
      - {name: release, file: release.pub}
      - {name: vendor, file: /keys/vendor.pub}
  - scope: harbor.acme.example/plant/lab
    artifacts: [state]
    keys:
      - name: inline
        pem: |
`+indent(string(public), "          ")+`
  - scope: lab.acme.example:5000/**
    allowUnsigned: true
  - scope: "**"
    reject: true
`)
	if len(p.Rules) != 4 {
		t.Fatalf("%d rules, want 4", len(p.Rules))
	}
	cases := []struct {
		kind, repository string
		want             string // the scope of the rule that decides
	}{
		{KindState, "harbor.acme.example/plant/state", "harbor.acme.example/plant/**"},
		{KindComponent, "harbor.acme.example/plant/components/x", "harbor.acme.example/plant/**"},
		{KindState, "harbor.acme.example/plant/lab", "harbor.acme.example/plant/lab"},
		{KindComponent, "harbor.acme.example/plant/lab", "harbor.acme.example/plant/**"},
		{KindState, "harbor.acme.example/plant/lab/more", "harbor.acme.example/plant/**"},
		{KindState, "harbor.acme.example/plant", "**"},
		{KindState, "harbor.acme.example/plants/state", "**"},
		{KindState, "lab.acme.example:5000/x", "lab.acme.example:5000/**"},
		{KindState, "lab.acme.example/x", "**"},
		{KindImage, "harbor.acme.example/plant/state", ""},
	}
	for _, c := range cases {
		r, found := p.Match(c.kind, c.repository)
		if r.Scope != c.want || found != (c.want != "") {
			t.Errorf("Match(%s, %s) = %q, %v, want %q", c.kind, c.repository, r.Scope, found, c.want)
		}
	}
	all := parsePolicy(t, "rules:\n  - {scope: \"**\", allowUnsigned: true}\n  - {scope: margo+https://fleet.example, allowUnsigned: true}\n")
	for repository, want := range map[string]bool{"fleet.example/x": true, "margo+https://fleet.example": true, "margo+https://fleet.example:8443": false, "margo+https://other.example": false} {
		if _, found := all.Match(KindState, repository); found != want {
			t.Errorf("Match(state, %s) = %v, want %v: a manager is accepted by its name only", repository, found, want)
		}
	}
	if got := p.Rules[0].Signers[1]; got.Name != "vendor" || got.Key.Fingerprint != otherKey(t).Fingerprint {
		t.Errorf("second key = %+v", got)
	}
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

func TestDecide(t *testing.T) {
	policies := map[string]*Policy{
		"keys": parsePolicy(t, `
rules:
  - scope: registry.example/plant/**
    artifacts: [state, component]
    keys: [{name: vendor, file: /keys/vendor.pub}, {name: release, file: release.pub}]`),
		"allow":      {Rules: []Rule{{Scope: everywhere, AllowUnsigned: true}}},
		"allow keys": {Rules: []Rule{{Scope: everywhere, AllowUnsigned: true, Quorum: Quorum{Signers: []*Signer{KeySigner(releaseKey(t))}}}}},
		"reject":     {Rules: []Rule{{Scope: everywhere, Artifacts: []string{KindState, KindImage}, Reject: true}}},
		"none":       {},
		"by hand":    {Rules: []Rule{{Scope: everywhere}}},
	}
	unsigned, release, both, strange := "unsigned", "release", "both", "strange"
	cases := []struct {
		policy, kind, signed string
		by                   []string
		insecure             bool
		want                 error
	}{
		{"keys", KindState, release, []string{"release"}, false, nil},
		{"keys", KindState, both, []string{"vendor", "release"}, false, nil},
		{"keys", KindState, unsigned, nil, false, fault.ErrUnsigned},
		{"keys", KindComponent, unsigned, nil, false, fault.ErrUnsigned},
		{"keys", KindImage, unsigned, nil, false, nil},
		{"allow", KindState, unsigned, nil, true, nil},
		{"allow", KindComponent, unsigned, nil, false, nil},
		{"allow keys", KindState, unsigned, nil, true, nil},
		{"allow keys", KindState, release, []string{"release"}, false, nil},
		{"allow keys", KindState, strange, nil, false, fault.ErrBadSignature},
		{"reject", KindState, release, nil, false, fault.ErrRejected},
		{"reject", KindImage, release, nil, false, fault.ErrRejected},
		{"reject", KindComponent, release, nil, false, nil},
		{"none", KindState, release, nil, false, fault.ErrRejected},
		{"none", KindComponent, unsigned, nil, false, nil},
		{"none", "stat", unsigned, nil, false, fault.ErrInvalid},
		{"by hand", KindState, release, nil, false, fault.ErrRejected},
	}
	for _, c := range cases {
		t.Run(fmt.Sprintf("%s %s %s", c.policy, c.signed, c.kind), func(t *testing.T) {
			st := signingtest.NewMemory()
			subject := st.Artifact(t, "hello")
			if c.signed == release || c.signed == both {
				signWith(t, pair, st, subject)
			}
			if c.signed == both || c.signed == strange {
				signWith(t, otherPair, st, subject)
			}
			d := policies[c.policy].Decide(t.Context(), VerifyRequest{Source: st, Kind: c.kind, Subject: subject, Now: now})
			if !errors.Is(d.Err, c.want) || d.Insecure != c.insecure || !slices.Equal(d.SignedBy, c.by) {
				t.Errorf("Decide = %v, %v, %v, want %v, %v, %v", d.SignedBy, d.Insecure, d.Err, c.by, c.insecure, c.want)
			}
		})
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add("rules:\n  - scope: a/b/**\n    artifacts: [state]\n    keys: [{name: a, file: /keys/vendor.pub}]\n")
	f.Add("rules:\n  - {scope: \"**\", reject: true}\n  - {scope: a/b, allowUnsigned: true}\n")
	f.Add("rules: [{scope: oci://a/b}]")
	f.Add("rules: [[]]")
	for _, p := range goodPolicies(f) {
		f.Add(p)
	}
	for _, p := range badPolicies(f) {
		f.Add(p.text)
	}
	if _, err := policyFiles("/keys/vendor.pub"); err != nil { // keys are slow to make: not in the first run
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, text string) {
		p, err := Parse("/etc/longshore/trust.yaml", []byte(text), policyFiles)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrTooLarge) {
				t.Errorf("ParsePolicy = %v: of no kind", err)
			}
			return
		}
		quorums := []Quorum{}
		if p.Trust != nil {
			quorums = append(quorums, p.Trust.Quorum)
		}
		for _, r := range p.Rules {
			if len(r.Signers) > 0 {
				quorums = append(quorums, r.Quorum)
			}
			for _, a := range r.Attestations {
				quorums = append(quorums, a.Quorum)
			}
			if r.Freshness != nil {
				quorums = append(quorums, *r.Freshness)
			}
		}
		for _, q := range quorums {
			different := map[string]bool{}
			for _, s := range q.Signers {
				if p.KeyRevoked(s.Key.Fingerprint) == nil {
					different[s.String()] = true
				}
			}
			if q.Need() > len(different) {
				t.Errorf("%s can never be reached: %q", q, text)
			}
		}
		for _, r := range p.Rules {
			if !r.Reject && !r.AllowUnsigned && len(r.Signers) == 0 {
				t.Errorf("a rule that decides nothing: %+v", r)
			}
			if name, below := strings.CutSuffix(r.Scope, "/**"); below {
				name = filepath.ToSlash(name) + "/x"
				if m, found := p.Match(r.Kinds()[0], name); !found || m.reach(name) < r.reach(name) || r.reach(name) == 0 {
					t.Errorf("scope %q does not reach %q", r.Scope, name)
				}
			}
		}
	})
}
