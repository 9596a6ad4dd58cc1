package signing

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
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
	data, ok := files[path]
	if !ok {
		return nil, &os.PathError{Op: "open", Path: path, Err: os.ErrNotExist}
	}
	return data, nil
}

func parsePolicy(t *testing.T, text string) *Policy {
	t.Helper()
	p, err := ParsePolicy("/etc/longshore/trust.yaml", []byte(text), policyFiles)
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
	if got := p.Rules[0].Keys[1]; got.Name != "vendor" || got.Fingerprint != unlockedOther().key.Fingerprint {
		t.Errorf("second key = %+v", got)
	}
}

func indent(text, by string) string {
	return by + strings.ReplaceAll(strings.TrimSpace(text), "\n", "\n"+by)
}

func TestParsePolicyRefuses(t *testing.T) {
	rule := func(lines ...string) string { return "rules:\n  - " + strings.Join(lines, "\n    ") + "\n" }
	cases := []struct {
		name, text string
		want       []string // each in the error
	}{
		{"empty", "", nil},
		{"not UTF-8", "rules: \xff", nil},
		{"no rules", "{}", []string{"rules"}},
		{"empty rules", "rules: []", []string{"trust.yaml:1:8: rules"}},
		{"wrong type", "rules: all", []string{"trust.yaml:1:8: rules"}},
		{"unknown key", "rule: []\n", []string{"rule", `did you mean "rules"`}},
		{"duplicate key", rule(`scope: "**"`, "reject: true", "reject: false"), nil},
		{"no scope", rule("reject: true"), []string{"scope"}},
		{"says nothing", rule(`scope: "**"`), []string{"neither keys nor reject nor allowUnsigned"}},
		{"says reject: false", rule(`scope: "**"`, "reject: false"), []string{"neither keys nor reject nor allowUnsigned"}},
		{"reject and allow", rule(`scope: "**"`, "reject: true", "allowUnsigned: true"), []string{"reject stands alone"}},
		{"reject and keys", rule(`scope: "**"`, "reject: true", "keys: [{name: a, file: release.pub}]"), []string{"reject stands alone"}},
		{"empty keys", rule(`scope: "**"`, "keys: []"), []string{"rules[0].keys"}},
		{"unknown kind", rule(`scope: "**"`, "artifacts: [stat]", "reject: true"), []string{"rules[0].artifacts[0]"}},
		{"no kind", rule(`scope: "**"`, "artifacts: []", "reject: true"), []string{"rules[0].artifacts"}},
		{"kind twice", rule(`scope: "**"`, "artifacts: [state, state]", "reject: true"), []string{"twice"}},
		{"key without name", rule(`scope: "**"`, "keys: [{file: release.pub}]"), []string{"name"}},
		{"key without file", rule(`scope: "**"`, "keys: [{name: a}]"), []string{"needs one of file and pem"}},
		{"key with both", rule(`scope: "**"`, "keys: [{name: a, file: release.pub, pem: x}]"), []string{"needs one of file and pem"}},
		{"key twice", rule(`scope: "**"`, "keys: [{name: a, file: release.pub}, {name: a, file: sub/release.pub}]"), []string{"twice"}},
		{"one name, two keys", rule(`scope: "**"`, "keys: [{name: a, file: release.pub}, {name: a, file: /keys/vendor.pub}]"), []string{"another key"}},
		{"file missing", rule(`scope: "**"`, "keys: [{name: a, file: gone.pub}]"), []string{"/etc/longshore/gone.pub"}},
		{"file empty", rule(`scope: "**"`, "keys: [{name: a, file: empty.pub}]"), []string{"empty"}},
		{"file with text", rule(`scope: "**"`, "keys: [{name: a, file: text.pub}]"), []string{"no PEM block"}},
		{"private key", rule(`scope: "**"`, "keys: [{name: a, file: private.key}]"), []string{"private key"}},
		{"scope twice", rule(`scope: "**"`, "reject: true") + `  - {scope: "**", artifacts: [image, state], reject: true}`, []string{"rules[0] already"}},
		{"all at once", rule("scope: oci://a/b", "artifacts: [x]", "kyes: []"), []string{"scope", "artifacts[0]", "kyes", "neither"}},
	}
	for _, s := range []string{"oci://a/b", "harbor", "harbor/*", "harbor/*/x", "**/x", "harbor//x", "/x", "harbor/x:1", "harbor/x@sha256:00", "a b/c", "harbor/", ""} {
		cases = append(cases, struct {
			name, text string
			want       []string
		}{"scope " + s, rule(fmt.Sprintf("scope: %q", s), "reject: true"), []string{"scope"}})
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			_, err := ParsePolicy("/etc/longshore/trust.yaml", []byte(c.text), policyFiles)
			if !errors.Is(err, fault.ErrInvalid) {
				t.Fatalf("ParsePolicy = %v, want %v", err, fault.ErrInvalid)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("ParsePolicy = %v, want %q in it", err, w)
				}
			}
		})
	}
}

func TestPolicyVerify(t *testing.T) {
	policies := map[string]*Policy{
		"keys": parsePolicy(t, `
rules:
  - scope: registry.example/plant/**
    artifacts: [state, component]
    keys: [{name: vendor, file: /keys/vendor.pub}, {name: release, file: release.pub}]`),
		"allow":      {Rules: []Rule{{Scope: everywhere, AllowUnsigned: true}}},
		"allow keys": {Rules: []Rule{{Scope: everywhere, AllowUnsigned: true, Keys: []Key{releaseKey(t)}}}},
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
			st := newMemory()
			subject := st.artifact(t, "hello")
			if c.signed == release || c.signed == both {
				sign(t, newSigner(t, SignOptions{}), st, subject)
			}
			if c.signed == both || c.signed == strange {
				sign(t, otherSigner(t, SignOptions{}), st, subject)
			}
			by, insecure, err := policies[c.policy].Verify(t.Context(), st, c.kind, subject)
			if !errors.Is(err, c.want) || insecure != c.insecure || !slices.Equal(by, c.by) {
				t.Errorf("Verify = %v, %v, %v, want %v, %v, %v", by, insecure, err, c.by, c.insecure, c.want)
			}
		})
	}
}

func FuzzPolicy(f *testing.F) {
	f.Add("rules:\n  - scope: a/b/**\n    artifacts: [state]\n    keys: [{name: a, file: /keys/vendor.pub}]\n")
	f.Add("rules:\n  - {scope: \"**\", reject: true}\n  - {scope: a/b, allowUnsigned: true}\n")
	f.Add("rules: [{scope: oci://a/b}]")
	f.Add("rules: [[]]")
	f.Fuzz(func(t *testing.T, text string) {
		p, err := ParsePolicy("trust.yaml", []byte(text), policyFiles)
		if err != nil {
			if !errors.Is(err, fault.ErrInvalid) && !errors.Is(err, fault.ErrTooLarge) {
				t.Errorf("ParsePolicy = %v: of no kind", err)
			}
			return
		}
		for _, r := range p.Rules {
			if !r.Reject && !r.AllowUnsigned && len(r.Keys) == 0 {
				t.Errorf("a rule that decides nothing: %+v", r)
			}
			if name, below := strings.CutSuffix(r.Scope, "/**"); below {
				name = filepath.ToSlash(name) + "/x"
				if m, found := p.Match(r.kinds()[0], name); !found || m.reach(name) < r.reach(name) || r.reach(name) == 0 {
					t.Errorf("scope %q does not reach %q", r.Scope, name)
				}
			}
		}
	})
}
