package trust

import (
	"cmp"
	"fmt"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
)

// MaxFileBytes bounds the files that a policy names: keys, certificates, a trusted root.
const MaxFileBytes = keyless.MaxRootBytes

const (
	maxSigners = 256  // of one policy
	maxRules   = 1024 // of one policy
	maxRevoked = 4096 // of one policy
)

// Parse reads a trust.yaml:
//
//	keys:
//	  - {name: release-a, file: a.pub}                     # or pem: with the key itself
//	  - {name: release-b, file: b.pub, notAfter: 2027-06-01T00:00:00Z}
//	rules:
//	  - scope: harbor.acme.example/plant/**
//	    artifacts: [state, component]                      # without it: [state]
//	    signers: [release-a, release-b]
//	    threshold: 2
//	  - scope: lab.acme.example/**
//	    allowUnsigned: true
//	  - scope: "**"
//	    reject: true
//
// file is the path of the document; read opens the files that it names, at most [MaxFileBytes], whose paths are taken as
// relative to it. A nil read is for documents that must not name any.
func Parse(file string, data []byte, read func(path string) ([]byte, error)) (*Policy, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	r := reader{
		file: file, dir: filepath.Dir(file), read: read, policy: &Policy{},
		byName: map[string]*Signer{}, used: map[string]bool{}, taken: map[string]string{},
	}
	r.document(root)
	root.Close()
	return strict.Result(root, r.policy)
}

type reader struct {
	file, dir string
	read      func(path string) ([]byte, error)
	policy    *Policy
	byName    map[string]*Signer
	declared  []*strict.Node  // the names of signers, to warn of unused ones
	used      map[string]bool // names
	taken     map[string]string
}

// document reads from what others need to what needs others.
func (r *reader) document(root *strict.Node) {
	p := r.policy
	version := root.Get("version")
	if p.Version = version.Uint64(); version != nil && p.Version == 0 {
		version.Faultf("begins at 1")
	}
	p.Expires, p.expiresAt = r.time(root.Get("expires")), r.at(root.Get("expires"))
	p.Generations = r.reset(root.Get("generations"), version)
	p.Root = r.trustedRoot(root.Get("trustedRoot"))
	r.signers(root)
	r.revoked(root.Get("revoked"))
	rules := root.Need("rules")
	for i, n := range rules.Items() {
		if i == maxRules {
			rules.Faultf("more than %d rules", maxRules)
			break
		}
		p.Rules = append(p.Rules, r.rule(n))
	}
	if rules != nil && len(p.Rules) == 0 {
		rules.Faultf("is empty: everything would be rejected")
	}
	if n := root.Get("trust"); n != nil {
		p.Trust = r.successor(n)
		if version == nil {
			n.HintFaultf("write version: 1", "a policy that another may follow needs a version")
		}
	}
	for _, n := range r.declared {
		name := n.Text()
		if s := r.byName[name]; s != nil && p.KeyRevoked(s.Key.Fingerprint) != nil {
			continue // named, so that people know whose key is revoked
		}
		if !r.used[name] && name != "" {
			p.Warnings = append(p.Warnings, fmt.Sprintf("%s:%d:%d: %s: %s is defined but not used", r.file, n.Line, n.Column, n.Path(), name))
		}
	}
}

// reset reads what happens to generations. Without its version it would be unknown whether it has been applied.
func (r *reader) reset(n, version *strict.Node) *Reset {
	if n == nil {
		return nil
	}
	to, with := n.Need("resetTo"), n.Need("version")
	g := &Reset{To: to.Uint64(), Version: with.Uint64()}
	n.Close()
	switch {
	case to.Kind() == strict.Number && g.To == 0:
		to.Faultf("must be 1 or more")
	case g.To == math.MaxUint64:
		to.Faultf("leaves no generation that could come next")
	}
	switch {
	case version == nil:
		n.HintFaultf("write version: 1 at the top", "acts once, with a version of the policy, and this one has none")
	case with.Kind() == strict.Number && g.Version == 0:
		with.Faultf("begins at 1")
	case g.Version > r.policy.Version && r.policy.Version > 0:
		with.HintFaultf(fmt.Sprintf("write %d", r.policy.Version), "is a version that comes after this one, %d", r.policy.Version)
	}
	return g
}

// at is where a node is, to stand before what is said about it.
func (r *reader) at(n *strict.Node) string {
	if n == nil {
		return ""
	}
	return fmt.Sprintf("%s:%d:%d: ", r.file, n.Line, n.Column)
}

func (r *reader) time(n *strict.Node) time.Time {
	text := n.Text()
	if text == "" {
		if n.Kind() == strict.String {
			n.Faultf("must not be empty")
		}
		return time.Time{}
	}
	t, err := time.Parse(time.RFC3339, text)
	if err != nil || t.IsZero() {
		n.HintFaultf("write it like 2027-06-01T00:00:00Z", "is no time")
		return time.Time{}
	}
	return t.UTC()
}

func (r *reader) rule(n *strict.Node) Rule {
	scope := n.Need("scope")
	rule := Rule{
		Scope:         r.scope(scope, true),
		Reject:        n.Get("reject").Bool(),
		AllowUnsigned: n.Get("allowUnsigned").Bool(),
		path:          n.Path(),
		at:            r.at(scope),
	}
	kinds := n.Get("artifacts")
	for _, k := range kinds.Items() {
		kind := k.OneOf(Kinds()...)
		if slices.Contains(rule.Artifacts, kind) {
			k.Faultf("%s is told twice", kind)
		}
		rule.Artifacts = append(rule.Artifacts, kind)
	}
	if kinds != nil && len(rule.Artifacts) == 0 {
		kinds.Faultf("is empty: the rule would speak about nothing")
	}
	signers, keys := n.Get("signers"), n.Get("keys")
	rule.Quorum = r.quorum(n, true)
	if at := n.Get("signatures"); at != nil {
		rule.Signatures = r.scope(at, false)
	}
	asks := signers != nil || keys != nil
	for _, a := range n.Get("attestations").Items() {
		rule.Attestations = append(rule.Attestations, r.attestation(a, rule.Attestations))
	}
	if f := n.Get("freshness"); f != nil {
		q := r.quorum(f, false)
		rule.Freshness = &q
		f.Close()
		if !slices.Contains(rule.Kinds(), KindState) {
			f.Faultf("is about states, and the rule is not")
		}
	}
	switch {
	case margo.IsManager(rule.Scope) && (asks || rule.Threshold > 0 || len(rule.Attestations) > 0 || rule.Freshness != nil || rule.Signatures != "" || !slices.Equal(rule.Kinds(), []string{KindState})):
		n.HintFaultf("write allowUnsigned: true or reject: true and nothing else", "the State Manifests of a manager are not signed")
	case rule.Reject && (asks || rule.AllowUnsigned || rule.Threshold > 0 || len(rule.Attestations) > 0 || rule.Freshness != nil || rule.Signatures != ""):
		n.Faultf("reject stands alone, without signers, allowUnsigned and what else may be asked for")
	case !rule.Reject && !rule.AllowUnsigned && !asks:
		n.HintFaultf("list keys, or write reject: true or allowUnsigned: true", "says neither keys nor reject nor allowUnsigned")
	case rule.Threshold > 0 && !asks:
		n.Get("threshold").Faultf("of whom? list signers")
	}
	for _, kind := range rule.Kinds() {
		if kind == "" || rule.Scope == "" {
			continue
		}
		id := kind + " " + rule.Scope
		if first, taken := r.taken[id]; taken {
			scope.Faultf("%s already speaks about every %s in %s", first, kind, rule.Scope)
			continue
		}
		r.taken[id] = n.Path()
	}
	n.Close()
	return rule
}

func (r *reader) attestation(n *strict.Node, before []Attestation) Attestation {
	kind := n.Need("type")
	a := Attestation{Type: kind.Filled(), Quorum: r.quorum(n, false)}
	switch {
	case a.Type == signing.PredicateSign:
		kind.HintFaultf("list signers at the rule itself", "is a signature and no attestation")
	case a.Type != "" && slices.ContainsFunc(before, func(o Attestation) bool { return o.Type == a.Type }):
		kind.Faultf("%s is told twice", a.Type)
	}
	n.Close()
	return a
}

// quorum reads signers, threshold and, of a rule, keys of n.
func (r *reader) quorum(n *strict.Node, ofRule bool) Quorum {
	var q Quorum
	add := func(at *strict.Node, s *Signer) {
		if s == nil {
			return
		}
		if slices.ContainsFunc(q.Signers, func(o *Signer) bool { return o.Name == s.Name }) {
			at.Faultf("%s is told twice", s.Name)
			return
		}
		r.used[s.Name] = true
		q.Signers = append(q.Signers, s)
	}
	names := n.Get("signers")
	for _, i := range names.Items() {
		add(i, r.known(i))
	}
	if names.Kind() == strict.List && len(names.Items()) == 0 {
		names.Faultf("is empty: nothing could ever be signed well enough")
	}
	var keys *strict.Node
	if ofRule {
		keys = n.Get("keys")
		for _, i := range keys.Items() {
			add(i, r.key(i, false))
		}
		if keys.Kind() == strict.List && len(keys.Items()) == 0 {
			keys.Faultf("is empty: nothing could ever be signed well enough")
		}
	} else if names == nil {
		n.Faultf("signers is missing")
	}
	threshold := n.Get("threshold")
	if threshold != nil {
		t := threshold.Uint64()
		if t == 0 && threshold.Kind() == strict.Number {
			threshold.Faultf("must be 1 or more")
		}
		q.Threshold = int(min(t, maxSigners+1))
	}
	at := cmp.Or(threshold, names, keys)
	r.reachable(at, q)
	return q
}

// reachable refuses a threshold that can never be met.
func (r *reader) reachable(at *strict.Node, q Quorum) {
	if len(q.Signers) == 0 || at.Kind() == strict.Null {
		return
	}
	different, revoked := map[string]bool{}, []string(nil)
	for _, s := range q.Signers {
		if r.policy.KeyRevoked(s.Key.Fingerprint) != nil {
			revoked = append(revoked, s.Name)
			continue
		}
		different[s.about] = true
	}
	switch need := q.Need(); {
	case need <= len(different):
	case len(revoked) > 0:
		at.Faultf("asks for %s, and %s is revoked: only %d can sign", people(need), strings.Join(revoked, ", "), len(different))
	case len(different) < len(q.Signers):
		at.Faultf("asks for %s, and the %d names are %s: a key counts once", people(need), len(q.Signers), people(len(different)))
	default:
		at.Faultf("asks for %s of %d", people(need), len(different))
	}
}

func people(n int) string {
	if n == 1 {
		return "1 signer"
	}
	return fmt.Sprintf("%d different signers", n)
}

func (r *reader) successor(n *strict.Node) *Successor {
	s := &Successor{Repository: r.scope(n.Need("repository"), false), Quorum: r.quorum(n, false), at: r.at(n.Get("signers"))}
	if rule, found := r.policy.Match(KindTrust, s.Repository); found && rule.Reject && s.Repository != "" {
		n.Get("repository").Faultf("is rejected by %s: the next policy could never be taken", rule.path)
	} else if found && rule.keptElsewhere(s.Repository) && s.Repository != "" {
		n.Get("repository").HintFaultf("leave trust out of the rule's artifacts, or signatures out of the rule",
			"has its signatures in %s, says %s, and those of policies are beside them: the next policy could never be taken", rule.Signatures, rule.path)
	}
	n.Close()
	return s
}

func (r *reader) revoked(n *strict.Node) {
	for i, item := range n.Items() {
		if i == maxRevoked {
			n.Faultf("more than %d revocations", maxRevoked)
			return
		}
		key, content := item.Get("key"), item.Get("digest")
		v := Revocation{Key: r.digest(key), Digest: r.digest(content), Since: r.time(item.Get("since")), Reason: item.Get("reason").Text()}
		item.Close()
		if (key == nil) == (content == nil) {
			item.Faultf("needs one of key and digest")
			continue
		}
		if slices.ContainsFunc(r.policy.Revoked, func(o Revocation) bool { return o.Key == v.Key && o.Digest == v.Digest }) {
			item.Faultf("is told twice")
		}
		r.policy.Revoked = append(r.policy.Revoked, v)
	}
}

func (r *reader) digest(n *strict.Node) digest.Digest {
	d := digest.Digest(n.Filled())
	if n.Kind() == strict.String && d != "" && (d.Validate() != nil || d.Algorithm() != digest.SHA256) {
		n.HintFaultf("write it like sha256:… with 64 hexadecimal digits", "is no digest")
	}
	return d
}

// scope checks a pattern, or the name of one repository; what it returns after a fault is "".
func (r *reader) scope(n *strict.Node, pattern bool) string {
	s := n.Filled()
	if s == "" || s == everywhere && pattern {
		return s
	}
	if pattern && margo.IsManager(s) {
		name, err := margo.ManagerName(strings.TrimPrefix(s, margo.ManagerPrefix))
		switch { // one manager, never several
		case err != nil, strings.ContainsAny(s, "* \t\n"), !strings.HasPrefix(s, margo.ManagerPrefix+"https://"):
			n.HintFaultf("write it like margo+https://fleet.example", "is not the name of a manager")
		case name != s:
			n.HintFaultf("write "+name, "has another form than the agent uses")
		}
		return s
	}
	bare := s
	if pattern {
		bare = strings.TrimSuffix(s, "/"+everywhere)
	}
	host, path, below := strings.Cut(bare, "/")
	last := path[strings.LastIndex(path, "/")+1:]
	switch {
	case strings.Contains(s, "://"):
		n.HintFaultf("write "+s[strings.Index(s, "://")+3:], "has no scheme")
	case strings.ContainsAny(s, " \t\n?[]{}\\"), strings.Contains(host+path, "*"):
		if pattern {
			n.HintFaultf("end it with /** to mean everything below", "is no repository and no host/path/**")
		} else {
			n.Faultf("is no repository, host/path")
		}
	case strings.Contains(path, "@"), strings.Contains(last, ":"):
		n.Faultf("names a repository, without tag and digest")
	case host == "", strings.Contains("/"+path+"/", "//") && below:
		n.Faultf("has an empty part")
	case !below && bare == s && pattern:
		n.HintFaultf("write "+s+"/** to mean everything there", "is a host and no repository")
	case !below && bare == s:
		n.Faultf("is a host and no repository")
	default:
		return s
	}
	return ""
}
