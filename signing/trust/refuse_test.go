package trust

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// badPolicy is a document that the parser refuses.
type badPolicy struct {
	name, text string
	want       []string // each in the error
	meaning    bool     // a schema cannot see it
}

func oneRule(lines ...string) string { return "rules:\n  - " + strings.Join(lines, "\n    ") + "\n" }

const threeKeys = `
keys:
  - {name: a, file: k0.pub}
  - {name: b, file: k1.pub}
  - {name: a2, file: k0.pub}
`

func badPolicies(t testing.TB) []badPolicy {
	t.Helper()
	rule := oneRule
	var all []badPolicy
	form := func(name, text string, want ...string) { all = append(all, badPolicy{name, text, want, false}) }
	meaning := func(name, text string, want ...string) { all = append(all, badPolicy{name, text, want, true}) }
	meaning("empty", "")
	meaning("not UTF-8", "rules: \xff")
	form("no rules", "{}", "rules")
	form("empty rules", "rules: []", "trust.yaml:1:8: rules")
	form("wrong type", "rules: all", "trust.yaml:1:8: rules")
	form("unknown key", "rule: []\n", "rule", `did you mean "rules"`)
	meaning("duplicate key", rule(`scope: "**"`, "reject: true", "reject: false"))
	form("no scope", rule("reject: true"), "scope")
	meaning("manager with signers", rule("scope: margo+https://h", "keys: [{name: a, file: release.pub}]"), "are not signed")
	meaning("components of a manager", rule("scope: margo+https://h", "artifacts: [component]", "allowUnsigned: true"), "are not signed")
	form("manager without TLS", rule("scope: margo+http://h", "allowUnsigned: true"), "is not the name of a manager")
	form("several managers", rule("scope: margo+https://h/**", "allowUnsigned: true"), "is not the name of a manager")
	meaning("manager in another form", rule("scope: margo+https://H:443/", "allowUnsigned: true"), "another form")
	form("says nothing", rule(`scope: "**"`), "neither keys nor reject nor allowUnsigned")
	form("says reject: false", rule(`scope: "**"`, "reject: false"), "neither keys nor reject nor allowUnsigned")
	form("reject and allow", rule(`scope: "**"`, "reject: true", "allowUnsigned: true"), "reject stands alone")
	form("reject and keys", rule(`scope: "**"`, "reject: true", "keys: [{name: a, file: release.pub}]"), "reject stands alone")
	form("empty keys", rule(`scope: "**"`, "keys: []"), "rules[0].keys")
	form("unknown kind", rule(`scope: "**"`, "artifacts: [stat]", "reject: true"), "rules[0].artifacts[0]")
	form("no kind", rule(`scope: "**"`, "artifacts: []", "reject: true"), "rules[0].artifacts")
	form("kind twice", rule(`scope: "**"`, "artifacts: [state, state]", "reject: true"), "twice")
	form("key without name", rule(`scope: "**"`, "keys: [{file: release.pub}]"), "name")
	form("key without file", rule(`scope: "**"`, "keys: [{name: a}]"), "needs one of file and pem")
	form("key with both", rule(`scope: "**"`, "keys: [{name: a, file: release.pub, pem: x}]"), "needs one of file and pem")
	meaning("key twice", rule(`scope: "**"`, "keys: [{name: a, file: release.pub}, {name: a, file: sub/release.pub}]"), "twice")
	meaning("one name, two keys", rule(`scope: "**"`, "keys: [{name: a, file: release.pub}, {name: a, file: /keys/vendor.pub}]"), "another key")
	meaning("file missing", rule(`scope: "**"`, "keys: [{name: a, file: gone.pub}]"), "/etc/longshore/gone.pub")
	meaning("file empty", rule(`scope: "**"`, "keys: [{name: a, file: empty.pub}]"), "empty")
	meaning("file with text", rule(`scope: "**"`, "keys: [{name: a, file: text.pub}]"), "no PEM block")
	meaning("private key", rule(`scope: "**"`, "keys: [{name: a, file: private.key}]"), "private key")
	meaning("scope twice", rule(`scope: "**"`, "reject: true")+`  - {scope: "**", artifacts: [image, state], reject: true}`, "rules[0] already")
	form("all at once", rule("scope: oci://a/b", "artifacts: [x]", "kyes: []"), "scope", "artifacts[0]", "kyes", "neither")
	for _, s := range []string{"oci://a/b", "harbor", "harbor/*", "harbor/*/x", "**/x", "harbor//x", "/x", "harbor/x:1", "harbor/x@sha256:00", "a b/c", "harbor/", ""} {
		form("scope "+s, rule(fmt.Sprintf("scope: %q", s), "reject: true"), "scope")
	}
	pass := `rules: [{scope: "**", allowUnsigned: true}]` + "\n"
	form("version 0", "version: 0\n"+pass, "1:10: version: begins at 1")
	form("version in words", "version: one\n"+pass, "version: must be a number")
	form("expires never", "expires: never\n"+pass, "1:10: expires: is no time")
	form("a day is no time", "expires: 2026-01-01\n"+pass, "expires: is no time")
	meaning("name twice", threeKeys+"identities: []\nrules: []\n", "rules: is empty")
	meaning("name taken", "keys:\n  - {name: a, file: k0.pub}\n  - {name: a, file: k1.pub}\n"+pass, "3:12: keys[1].name: a is told twice")
	meaning("window", "keys: [{name: a, file: k0.pub, notBefore: 2027-01-01T00:00:00Z, notAfter: 2026-01-01T00:00:00Z}]\n"+pass, "keys[0].notAfter: ends before it begins")
	meaning("window of nothing", "keys: [{name: a, file: k0.pub, notBefore: 2027-01-01T00:00:00Z, notAfter: 2027-01-01T00:00:00Z}]\n"+pass, "ends before it begins")
	meaning("unknown signer", threeKeys+rule("scope: a/b", "signers: [a, d]"), `rules[0].signers[1]: no signer has the name "d"`)
	form("no signers", threeKeys+rule("scope: a/b", "signers: []"), "rules[0].signers: is empty")
	form("signer twice", threeKeys+rule("scope: a/b", "signers: [a, a]"), "a is told twice")
	form("threshold 0", threeKeys+rule("scope: a/b", "signers: [a]", "threshold: 0"), "threshold: must be 1 or more")
	form("threshold below", threeKeys+rule("scope: a/b", "signers: [a]", "threshold: -1"), "threshold")
	meaning("threshold above", threeKeys+rule("scope: a/b", "signers: [a, b]", "threshold: 3"), "9:16: rules[0].threshold: asks for 3 different signers of 2")
	meaning("threshold far above", threeKeys+rule("scope: a/b", "signers: [a, b]", "threshold: 18446744073709551615"), "asks for")
	meaning("threshold of one key", threeKeys+rule("scope: a/b", "signers: [a, a2]", "threshold: 2"), "the 2 names are 1 signer: a key counts once")
	form("threshold of nobody", rule("scope: a/b", "allowUnsigned: true", "reject: true", "threshold: 2"), "reject stands alone")
	meaning("threshold alone", rule("scope: a/b", "allowUnsigned: true", "threshold: 2"), "threshold: of whom? list signers")
	meaning("inline key of another time", threeKeys+rule("scope: a/b", "keys: [{name: a, file: k0.pub, notAfter: 2027-01-01T00:00:00Z}]"), "a is trusted at other times above")
	meaning("inline key, another", threeKeys+rule("scope: a/b", "keys: [{name: a, file: k1.pub}]"), "stands for another key above")
	meaning("signer and inline key of one name", threeKeys+rule("scope: a/b", "signers: [a]", "keys: [{name: a, file: k0.pub}]"), "a is told twice")
	revoked := func(n int) string { return "revoked: [{key: " + keyNo(t, n, "").Fingerprint.String() + "}]\n" }
	meaning("revoked and needed", revoked(1)+threeKeys+rule("scope: a/b", "signers: [a, b]", "threshold: 2"), "10:16: rules[0].threshold: asks for 2 different signers, and b is revoked: only 1 can sign")
	meaning("revoked and alone", revoked(1)+threeKeys+rule("scope: a/b", "signers: [b]"), "b is revoked: only 0 can sign")
	meaning("revoked and alone, inline", revoked(0)+rule("scope: a/b", "keys: [{name: a, file: k0.pub}]"), "a is revoked")
	meaning("revoked and needed to attest", revoked(1)+threeKeys+rule("scope: a/b", "signers: [a]", "attestations: [{type: x, signers: [b]}]"), "rules[0].attestations[0].signers: asks for 1 signer, and b is revoked")
	form("revoked nothing", "revoked: [{reason: x}]\n"+pass, "revoked[0]: needs one of key and digest")
	form("revoked both", "revoked: [{key: sha256:"+strings.Repeat("0", 64)+", digest: sha256:"+strings.Repeat("0", 64)+"}]\n"+pass, "needs one of key and digest")
	form("revoked no digest", "revoked: [{digest: sha256:00}]\n"+pass, "revoked[0].digest: is no digest")
	meaning("revoked twice", "revoked: [{digest: sha256:"+strings.Repeat("0", 64)+"}, {digest: sha256:"+strings.Repeat("0", 64)+"}]\n"+pass, "revoked[1]: is told twice")
	form("revoked long ago", "revoked: [{digest: sha256:"+strings.Repeat("0", 64)+", since: long ago}]\n"+pass, "since: is no time")
	form("attestation without type", threeKeys+rule("scope: a/b", "signers: [a]", "attestations: [{signers: [a]}]"), "type is missing")
	form("attestation by nobody", threeKeys+rule("scope: a/b", "signers: [a]", "attestations: [{type: x}]"), "signers is missing")
	meaning("attestation twice", threeKeys+rule("scope: a/b", "signers: [a]", "attestations: [{type: x, signers: [a]}, {type: x, signers: [b]}]"), "x is told twice")
	form("attestation that is a signature", threeKeys+rule("scope: a/b", "signers: [a]", "attestations: [{type: https://sigstore.dev/cosign/sign/v1, signers: [a]}]"), "is a signature and no attestation")
	form("attestation and reject", threeKeys+rule("scope: a/b", "reject: true", "attestations: [{type: x, signers: [a]}]"), "reject stands alone")
	form("freshness by nobody", threeKeys+rule("scope: a/b", "signers: [a]", "freshness: {threshold: 1}"), "signers is missing")
	meaning("freshness of images", threeKeys+rule("scope: a/b", "artifacts: [image]", "signers: [a]", "freshness: {signers: [b]}"), "is about states, and the rule is not")
	form("signatures nowhere", threeKeys+rule("scope: a/b", "signers: [a]", "signatures: a"), "signatures: is a host and no repository")
	form("signatures everywhere", threeKeys+rule("scope: a/b", "signers: [a]", "signatures: a/**"), "signatures: is no repository")
	form("trust without version", threeKeys+"trust: {repository: a/trust, signers: [a]}\n"+pass, "a policy that another may follow needs a version")
	form("trust by nobody", threeKeys+"version: 1\ntrust: {repository: a/trust}\n"+pass, "trust: signers is missing")
	form("trust nowhere", threeKeys+"version: 1\ntrust: {signers: [a]}\n"+pass, "trust: repository is missing")
	meaning("trust threshold above", threeKeys+"version: 1\ntrust: {repository: a/trust, signers: [a, a2], threshold: 2}\n"+pass, "trust.threshold: asks for 2 different signers")
	meaning("trust signed elsewhere", threeKeys+"version: 1\ntrust: {repository: a/trust, signers: [a]}\n"+rule(`scope: "**"`, "artifacts: [state, trust]", "signers: [a]", "signatures: b/signatures"), "trust.repository: has its signatures in b/signatures, says rules[0]")
	meaning("trust rejected", threeKeys+"version: 1\ntrust: {repository: a/trust, signers: [a]}\n"+rule(`scope: "**"`, "artifacts: [trust]", "reject: true"), "trust.repository: is rejected by rules[0]")
	form("identity without root", "identities: [{name: ci, issuer: https://i.example, subject: s}]\n"+pass, "an identity needs a trusted root")
	form("identity without issuer", "trustedRoot: {file: root.json}\nidentities: [{name: ci, subject: s}]\n"+pass, "needs one of issuer and issuerPattern")
	form("identity with two subjects", "trustedRoot: {file: root.json}\nidentities: [{name: ci, issuer: i, subject: s, subjectPattern: s}]\n"+pass, "needs one of subject and subjectPattern")
	meaning("identity of everyone", "trustedRoot: {file: root.json}\nidentities: [{name: ci, issuer: i, subjectPattern: .*}]\n"+pass, "matches the empty name too")
	meaning("identity of no expression", "trustedRoot: {file: root.json}\nidentities: [{name: ci, issuer: i, subjectPattern: '('}]\n"+pass, "subjectPattern")
	meaning("root that is none", "trustedRoot: {json: '{}'}\n"+pass, "trustedRoot.json")
	form("root in two places", "trustedRoot: {json: '{}', file: root.json}\n"+pass, "needs one of file and json")
	form("authority without certificates", "authorities: [{name: ca, subject: s}]\n"+pass, "needs one of file and pem")
	form("authority of everyone", "authorities: [{name: ca, file: k0.pub}]\n"+pass, "needs one of subject and subjectPattern")
	meaning("authority that is a key", "authorities: [{name: ca, file: k0.pub, subject: s}]\n"+pass, "authorities[0].file")
	form("reset without version", "generations: {resetTo: 5, version: 1}\n"+pass, "1:14: generations: acts once, with a version of the policy")
	form("reset without its version", "version: 2\ngenerations: {resetTo: 5}\n"+pass, "generations: version is missing")
	form("reset to nothing in particular", "version: 2\ngenerations: {version: 2}\n"+pass, "generations: resetTo is missing")
	form("reset to 0", "version: 2\ngenerations: {resetTo: 0, version: 2}\n"+pass, "2:24: generations.resetTo: must be 1 or more")
	form("reset by version 0", "version: 2\ngenerations: {resetTo: 5, version: 0}\n"+pass, "generations.version: begins at 1")
	meaning("reset by a later version", "version: 2\ngenerations: {resetTo: 5, version: 3}\n"+pass, "generations.version: is a version that comes after this one, 2")
	meaning("reset to the end", "version: 2\ngenerations: {resetTo: 18446744073709551615, version: 2}\n"+pass, "leaves no generation that could come next")
	form("reset of something else", "version: 2\ngenerations: {resetTo: 5, version: 2, over: 7}\n"+pass, "over")
	meaning("too many signers", manyKeys(t, maxSigners+1)+pass, "more than 256 signers")
	return all
}

// manyKeys lists one key under many names.
func manyKeys(t testing.TB, n int) string {
	t.Helper()
	var b strings.Builder
	b.WriteString("keys:\n")
	for i := range n {
		fmt.Fprintf(&b, "  - {name: k%d, file: k0.pub}\n", i)
	}
	return b.String()
}

func goodPolicies(t testing.TB) []string {
	t.Helper()
	return []string{
		oneRule(`scope: "**"`, "reject: true"),
		oneRule(`scope: "**"`, "allowUnsigned: true"),
		"version: 3\ngenerations: {resetTo: 18446744073709551614, version: 2}\n" + oneRule(`scope: "**"`, "reject: true"),
		oneRule("scope: h/**", "keys: [{name: a, file: k0.pub}, {name: b, file: k1.pub}]"),
		oneRule("scope: h:5000/a/b/**", "keys: [{name: a, file: k0.pub}, {name: b, file: k1.pub}]", "threshold: 2", "reject: false"),
		strings.NewReplacer("KEY4", keyNo(t, 4, "").Fingerprint.String(), "DIGEST", keyNo(t, 4, "").Fingerprint.String()).Replace(full),
		oneRule("scope: margo+https://fleet.acme.example", "allowUnsigned: true") + `  - {scope: "margo+https://fleet.acme.example:8443/wfm", reject: true}`,
		threeKeys + oneRule("scope: h/a", "signers: [a, a2]", "allowUnsigned: true", "signatures: h/signatures"),
		"revoked: [{key: " + keyNo(t, 1, "").Fingerprint.String() + "}]\n" + threeKeys + oneRule("scope: h/a", "signers: [a, b]"),
		"trustedRoot: {file: root.json}\nidentities:\n  - {name: ci, issuer: https://issuer.example, subjectPattern: 'https://ci\\.example/.+'}\n  - {name: private, issuerPattern: 'https://.+', subject: s, unlogged: true, notAfter: 2027-01-01T00:00:00Z}\n" +
			"authorities:\n  - {name: ca, file: ca.pem, subjectPattern: '.+@acme\\.example'}\n" +
			oneRule("scope: h/a", "artifacts: [state, bundle, component, image, trust]", "signers: [ci, private, ca]", "threshold: 3"),
	}
}

func TestParsePolicyRefuses(t *testing.T) {
	for _, c := range badPolicies(t) {
		t.Run(c.name, func(t *testing.T) {
			_, err := Parse("/etc/longshore/trust.yaml", []byte(c.text), policyFiles)
			if !errors.Is(err, fault.ErrInvalid) {
				t.Fatalf("Parse = %v, want %v", err, fault.ErrInvalid)
			}
			for _, w := range c.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("Parse = %v, want %q in it", err, w)
				}
			}
		})
	}
}

// What nobody uses is told with its place, and refuses nothing.
func TestWarnings(t *testing.T) {
	p := parsePolicy(t, threeKeys+oneRule("scope: h/a", "signers: [b]"))
	want := []string{"/etc/longshore/trust.yaml:3:12: keys[0].name: a is defined but not used", "/etc/longshore/trust.yaml:5:12: keys[2].name: a2 is defined but not used"}
	if fmt.Sprint(p.Warnings) != fmt.Sprint(want) {
		t.Errorf("Warnings = %q, want %q", p.Warnings, want)
	}
}

// A policy that travels has no files.
func TestParseWithoutFiles(t *testing.T) {
	_, err := Parse("trust.yaml", []byte(threeKeys+oneRule("scope: h/a", "signers: [b]")), nil)
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), "trust.yaml:3:21: keys[0].file: names a file") {
		t.Errorf("Parse = %v", err)
	}
	_, public := pair()
	text := "keys:\n  - name: a\n    pem: |\n" + indent(string(public), "      ") + "\n" + oneRule("scope: h/a", "signers: [a]")
	if _, err := Parse("trust.yaml", []byte(text), nil); err != nil {
		t.Errorf("Parse = %v", err)
	}
}
