package signing

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Kinds of artifacts that a rule can speak about.
const (
	KindState     = "state"
	KindComponent = "component"
	KindImage     = "image"
)

const everywhere = "**"

// Policy says which keys an artifact of which repository needs (trust.yaml). The zero value rejects every state.
type Policy struct {
	Rules []Rule
}

// Rule speaks about artifacts of some kinds in some repositories. Among the rules for a kind the one with the longest
// matching scope decides alone.
type Rule struct {
	// Scope is "host/path" for one repository, "host/path/**" for all below it, "**" for all there are.
	Scope     string
	Artifacts []string // kinds; empty is KindState alone
	Keys      []Key    // any one of them suffices
	Reject    bool
	// AllowUnsigned lets pass what nobody signed. Beside Keys, what somebody did sign must be signed by one of them.
	AllowUnsigned bool
}

// ParsePolicy reads a trust.yaml:
//
//	rules:
//	  - scope: harbor.acme.example/plant/**
//	    artifacts: [state, component]    # without it: [state]
//	    keys:
//	      - name: release
//	        file: release.pub            # or pem: with the key itself
//	  - scope: lab.acme.example/**
//	    allowUnsigned: true
//	  - scope: "**"
//	    reject: true
//
// file is the path of the document; read opens the key files, whose paths are taken as relative to it.
func ParsePolicy(file string, data []byte, read func(path string) ([]byte, error)) (*Policy, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	r := policyReader{dir: filepath.Dir(file), read: read, keys: map[string]digest.Digest{}, taken: map[string]string{}}
	p := &Policy{}
	rules := root.Need("rules")
	for _, n := range rules.Items() {
		p.Rules = append(p.Rules, r.rule(n))
	}
	if rules != nil && len(p.Rules) == 0 {
		rules.Faultf("is empty: everything would be rejected")
	}
	root.Close()
	if err := root.Err(); err != nil {
		return nil, err
	}
	return p, nil
}

type policyReader struct {
	dir   string
	read  func(path string) ([]byte, error)
	keys  map[string]digest.Digest // fingerprints by name
	taken map[string]string        // paths of rules by kind and scope
}

func (r *policyReader) rule(n *strict.Node) Rule {
	scope := n.Need("scope")
	rule := Rule{
		Scope:         r.scope(scope),
		Reject:        n.Get("reject").Bool(),
		AllowUnsigned: n.Get("allowUnsigned").Bool(),
	}
	kinds := n.Get("artifacts")
	for _, k := range kinds.Items() {
		kind := k.OneOf(KindState, KindComponent, KindImage)
		if slices.Contains(rule.Artifacts, kind) {
			k.Faultf("%s is told twice", kind)
		}
		rule.Artifacts = append(rule.Artifacts, kind)
	}
	if kinds != nil && len(rule.Artifacts) == 0 {
		kinds.Faultf("is empty: the rule would speak about nothing")
	}
	keys := n.Get("keys")
	for _, k := range keys.Items() {
		if key, ok := r.key(k); ok {
			if slices.ContainsFunc(rule.Keys, func(o Key) bool { return o.Name == key.Name }) {
				k.Faultf("key %s is told twice", key.Name)
			}
			rule.Keys = append(rule.Keys, key)
		}
	}
	listed := len(keys.Items()) > 0
	switch {
	case rule.Reject && (listed || rule.AllowUnsigned):
		n.Faultf("reject stands alone, without keys and allowUnsigned")
	case keys != nil && !listed:
		keys.Faultf("is empty: nothing could ever be signed well enough")
	case !rule.Reject && !rule.AllowUnsigned && keys == nil:
		n.HintFaultf("list keys, or write reject: true or allowUnsigned: true", "says neither keys nor reject nor allowUnsigned")
	}
	for _, kind := range rule.kinds() {
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

// scope checks a pattern; what it returns after a fault is "".
func (r *policyReader) scope(n *strict.Node) string {
	s := n.Filled()
	if s == "" || s == everywhere {
		return s
	}
	host, path, below := strings.Cut(strings.TrimSuffix(s, "/"+everywhere), "/")
	last := path[strings.LastIndex(path, "/")+1:]
	switch {
	case strings.Contains(s, "://"):
		n.HintFaultf("write "+s[strings.Index(s, "://")+3:], "has no scheme")
	case strings.ContainsAny(s, " \t\n?[]{}\\"), strings.Contains(host+path, "*"):
		n.HintFaultf("end it with /** to mean everything below", "is no repository and no host/path/**")
	case strings.Contains(path, "@"), strings.Contains(last, ":"):
		n.Faultf("names a repository, without tag and digest")
	case host == "", strings.Contains("/"+path+"/", "//") && below:
		n.Faultf("has an empty part")
	case !below && !strings.HasSuffix(s, "/"+everywhere):
		n.HintFaultf("write "+s+"/** to mean everything there", "is a host and no repository")
	default:
		return s
	}
	return ""
}

func (r *policyReader) key(n *strict.Node) (Key, bool) {
	name := n.Need("name").Filled()
	file, inline := n.Get("file"), n.Get("pem")
	n.Close()
	var data []byte
	at := inline
	switch {
	case (file == nil) == (inline == nil):
		n.Faultf("needs one of file and pem")
		return Key{}, false
	case inline != nil:
		data = []byte(inline.Filled())
	default:
		at = file
		path := file.Filled()
		if path == "" {
			return Key{}, false
		}
		if !filepath.IsAbs(path) {
			path = filepath.Join(r.dir, path)
		}
		var err error
		if data, err = r.read(path); err != nil {
			at.Faultf("%v", err)
			return Key{}, false
		}
	}
	if name == "" || len(data) == 0 {
		if name != "" && file != nil {
			at.Faultf("key file is empty")
		}
		return Key{}, false
	}
	key, err := ParsePublicKey(name, data)
	if err != nil {
		at.HintFaultf(fault.Hint(err), "%v", err)
		return Key{}, false
	}
	if other, known := r.keys[name]; known && other != key.Fingerprint {
		at.Faultf("the name %s stands for another key above", name)
		return Key{}, false
	}
	r.keys[name] = key.Fingerprint
	return key, true
}

func (r Rule) kinds() []string {
	if len(r.Artifacts) == 0 {
		return []string{KindState}
	}
	return r.Artifacts
}

// reach tells how closely the rule's scope describes a repository: 0 is not at all.
func (r Rule) reach(repository string) int {
	if r.Scope == everywhere {
		return 1
	}
	if below, ok := strings.CutSuffix(r.Scope, everywhere); ok {
		if strings.HasPrefix(repository, below) && len(repository) > len(below) {
			return 1 + len(below)
		}
		return 0
	}
	if r.Scope == repository {
		return 2 + len(repository)
	}
	return 0
}

// Match finds the rule that decides about artifacts of a kind in a repository ("host/path").
func (p *Policy) Match(kind, repository string) (Rule, bool) {
	best, reach := Rule{}, 0
	for _, r := range p.Rules {
		if n := r.reach(repository); n > reach && slices.Contains(r.kinds(), kind) {
			best, reach = r, n
		}
	}
	return best, reach > 0
}

// Verify holds an artifact of a kind in st's repository against the policy. A nil error means: may be used. signedBy
// has the names of the keys that signed, in the rule's order, and insecure tells that nobody had to sign.
//
// A state that no rule speaks about is rejected. A component or an image that no rule speaks about passes: it is reached
// from a signed state by its digest.
func (p *Policy) Verify(ctx context.Context, st Source, kind string, subject ocispec.Descriptor) (signedBy []string, insecure bool, err error) {
	rule, found := p.Match(kind, st.Name())
	switch {
	case kind != KindState && kind != KindComponent && kind != KindImage:
		return nil, false, fmt.Errorf("verify %s@%s: %w: kind %q", st.Name(), subject.Digest, fault.ErrInvalid, kind)
	case !found && kind != KindState:
		return nil, false, nil
	case !found:
		err := fmt.Errorf("verify %s@%s: %w: no rule speaks about a %s there", st.Name(), subject.Digest, fault.ErrRejected, kind)
		return nil, false, fault.WithHint(err, "add a rule with scope: "+st.Name()+" and its keys to the trust policy")
	case rule.Reject:
		return nil, false, fmt.Errorf("verify %s@%s: %w: the rule for %s", st.Name(), subject.Digest, fault.ErrRejected, rule.Scope)
	case len(rule.Keys) == 0:
		if !rule.AllowUnsigned { // only a Policy that was put together by hand
			return nil, false, fmt.Errorf("verify %s@%s: %w: the rule for %s has no key", st.Name(), subject.Digest, fault.ErrRejected, rule.Scope)
		}
		return nil, true, nil
	}
	signatures, err := Verify(ctx, st, subject, rule.Keys)
	if rule.AllowUnsigned && errors.Is(err, fault.ErrUnsigned) {
		return nil, true, nil
	}
	if err != nil {
		return nil, false, err
	}
	for _, k := range rule.Keys {
		if slices.ContainsFunc(signatures, func(s Signature) bool { return s.Key == k.Name }) {
			signedBy = append(signedBy, k.Name)
		}
	}
	return signedBy, false, nil
}
