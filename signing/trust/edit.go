package trust

import (
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/signing"
)

// Edit is a policy that is changed into its next version. The text that people wrote stays, comments too. No method asks a
// registry; the guards of [Propose] come on top.
type Edit struct {
	Before *Policy

	file string
	data []byte
	read func(path string) ([]byte, error)
}

// Where says which signers a change is about: those of a rule, or those of the next version of the policy.
type Where struct {
	Scope    string // of a rule; "": the only rule with signers
	Artifact string // what the rule is about, KindState for example; "": the only rule of the scope
	Policy   bool   // the signers of the trust section
}

// Open begins to change a policy. file and read are as in [Parse].
func Open(file string, data []byte, read func(path string) ([]byte, error)) (*Edit, error) {
	p, err := Parse(file, data, read)
	if err != nil {
		return nil, err
	}
	return &Edit{Before: p, file: file, data: data, read: read}, nil
}

// Next returns the changed policy, with a version one higher if it has one. A policy whose rules can never be met is refused.
func (e *Edit) Next() ([]byte, *Policy, error) {
	if e.Before.Version > 0 {
		err := e.change(func(_ *strict.Node, t *strict.Tree) error { return t.Set(e.Before.Version+1, "version") })
		if err != nil {
			return nil, nil, err
		}
	}
	after, err := Parse(e.file, e.data, e.read)
	return e.data, after, err
}

// change edits the text.
func (e *Edit) change(do func(root *strict.Node, t *strict.Tree) error) error {
	root, err := strict.YAML(e.file, e.data)
	if err != nil {
		return err
	}
	t, err := strict.EditYAML(e.file, e.data)
	if err == nil {
		err = do(root, t)
	}
	if err == nil {
		e.data, err = t.Bytes()
	}
	return err
}

// Add lets one more sign: a new key, or, if k has no PEM, a signer that the policy names already.
func (e *Edit) Add(k NamedPEM, w Where) error {
	return e.change(func(root *strict.Node, t *strict.Tree) error {
		if err := e.declare(root, t, k); err != nil {
			return err
		}
		l, err := choose(root, w)
		if err != nil {
			return err
		}
		if slices.Contains(l.names(), k.Name) {
			return fmt.Errorf("%s is already among the signers of %s: %w", k.Name, l.what, fault.ErrConflict)
		}
		return t.Append(k.Name, append(l.path, "signers")...)
	})
}

// Remove takes a signer away: from w, or, if that is zero, from everywhere. successor, if not nil, takes its place. Too few signers
// for a threshold are fault.ErrRejected.
func (e *Edit) Remove(name string, w Where, successor *NamedPEM) error {
	return e.remove(name, w, successor, true)
}

// Revoke makes a key's signatures count for nothing, also those that exist, and takes it away from all signers. who is a name of
// the policy or a fingerprint. successor is that of Remove.
func (e *Edit) Revoke(who, reason string, successor *NamedPEM) error {
	key, name := digest.Digest(who), ""
	for _, s := range e.Before.Signers {
		if s.Name != who && (s.Kind != SignerKey || s.Key.Fingerprint != key) {
			continue
		}
		if s.Kind != SignerKey {
			return fault.WithHint(fmt.Errorf("%s is an %s and not a key: %w", who, s.Kind, fault.ErrUnsupported), "take it away with longshore trust remove")
		}
		key, name = s.Key.Fingerprint, s.Name
	}
	switch {
	case name == "" && (key.Validate() != nil || key.Algorithm() != digest.SHA256):
		return e.unknown(who)
	case e.Before.KeyRevoked(key) != nil:
		return fmt.Errorf("key %s: %w: %s", who, fault.ErrConflict, e.Before.KeyRevoked(key))
	}
	err := e.change(func(_ *strict.Node, t *strict.Tree) error {
		fields := []strict.Field{{Key: "key", Value: key.String()}}
		if reason != "" {
			fields = append(fields, strict.Field{Key: "reason", Value: reason})
		}
		return t.AppendFields(fields, "revoked")
	})
	if err != nil || name == "" {
		return err
	}
	return e.remove(name, Where{}, successor, false)
}

// SetThreshold says how many must sign.
func (e *Edit) SetThreshold(n int, w Where) error {
	return e.change(func(root *strict.Node, t *strict.Tree) error {
		l, err := choose(root, w)
		if err != nil {
			return err
		}
		if have := len(l.names()); n < 1 || n > have {
			return fault.WithHint(fmt.Errorf("a threshold of %d for %s, which has %s: %w", n, l.what, people(have), fault.ErrRejected),
				"add signers first: longshore trust add")
		}
		return t.Set(uint64(n), append(l.path, "threshold")...)
	})
}

// declare names a key in the policy, unless it is there under this name.
func (e *Edit) declare(root *strict.Node, t *strict.Tree, k NamedPEM) error {
	at := slices.IndexFunc(e.Before.Signers, func(s *Signer) bool { return s.Name == k.Name })
	if k.PEM == nil {
		if at < 0 {
			return e.unknown(k.Name)
		}
		if named(root.Get("keys"), k.Name) < 0 && e.Before.Signers[at].Kind == SignerKey {
			return fmt.Errorf("%s is a key of one rule only: give its file: %w", k.Name, fault.ErrInvalid)
		}
		return nil
	}
	key, err := signing.ParsePublicKey(k.Name, k.PEM)
	if err != nil {
		return err
	}
	if v := e.Before.KeyRevoked(key.Fingerprint); v != nil {
		return fmt.Errorf("key %s (%s): %w: %s", k.Name, key.Fingerprint, fault.ErrKeyRevoked, v)
	}
	for _, s := range e.Before.Signers {
		same := s.Kind == SignerKey && s.Key.Fingerprint == key.Fingerprint
		switch {
		case s.Name == k.Name && !same:
			return fault.WithHint(fmt.Errorf("%s stands for another %s in the policy: %w", k.Name, s.Kind, fault.ErrConflict), "give the new key another name with --name")
		case s.Name != k.Name && same:
			return fault.WithHint(fmt.Errorf("key %s is called %s in the policy, and counts once: %w", k.Name, s.Name, fault.ErrConflict), "name it so: --name "+s.Name)
		}
	}
	if named(root.Get("keys"), k.Name) >= 0 {
		return nil
	}
	return t.AppendFields([]strict.Field{{Key: "name", Value: k.Name}, {Key: "pem", Value: strings.ReplaceAll(string(k.PEM), "\r\n", "\n")}}, "keys")
}

// unknown says which names there are.
func (e *Edit) unknown(name string) error {
	known := names(e.Before.Signers)
	hint := "the policy names " + strings.Join(known, ", ")
	if near := strict.Nearest(name, known); near != "" {
		hint = "did you mean " + near + "? T" + hint[1:]
	}
	return fault.WithHint(fmt.Errorf("no signer in the policy is called %q: %w", name, fault.ErrNotFound), hint)
}

// remove is Remove; entirely takes away the declaration of who signs nothing any more.
func (e *Edit) remove(name string, w Where, successor *NamedPEM, entirely bool) error {
	if !slices.ContainsFunc(e.Before.Signers, func(s *Signer) bool { return s.Name == name }) {
		return e.unknown(name)
	}
	found := false
	err := e.change(func(root *strict.Node, t *strict.Tree) error {
		if successor != nil {
			if err := e.declare(root, t, *successor); err != nil {
				return err
			}
		}
		for _, l := range lists(root) {
			have := l.names()
			if !l.is(w) || !slices.Contains(have, name) {
				continue
			}
			found = true
			left := len(have) - 1
			if successor != nil && !slices.Contains(have, successor.Name) {
				if err := t.Append(successor.Name, append(l.path, "signers")...); err != nil {
					return err
				}
				left++
			}
			if err := l.enough(name, left); err != nil {
				return err
			}
			for _, list := range []string{"signers", "keys"} {
				if i := named(l.node.Get(list), name); i >= 0 {
					t.Remove(append(slices.Clone(l.path), list, i)...)
				}
				if n := l.node.Get(list); len(n.Items()) == 1 && named(n, name) == 0 && (list == "keys" || successor == nil) {
					t.Remove(append(slices.Clone(l.path), list)...)
				}
			}
		}
		return nil
	})
	if err == nil && !found && entirely {
		err = fmt.Errorf("%s signs nothing there: %w", name, fault.ErrNotFound)
	}
	if err != nil || !entirely {
		return err
	}
	return e.change(func(root *strict.Node, t *strict.Tree) error {
		for _, l := range lists(root) {
			if slices.Contains(l.names(), name) {
				return nil
			}
		}
		for _, list := range []string{"keys", "identities", "authorities"} {
			if i := named(root.Get(list), name); i >= 0 {
				t.Remove(list, i)
			}
			if n := root.Get(list); len(n.Items()) == 1 && named(n, name) == 0 {
				t.Remove(list)
			}
		}
		return nil
	})
}

// list is where signers are listed in a document: a rule, what it asks for besides, the trust section.
type list struct {
	path      []any
	node      *strict.Node
	what      string
	scope     string
	artifacts []string
	of        string // "rule", "trust", "" for attestations and freshness
}

// lists are all of a document.
func lists(root *strict.Node) []list {
	var out []list
	for i, r := range root.Get("rules").Items() {
		l := list{path: []any{"rules", i}, node: r, scope: r.Get("scope").Text(), of: "rule"}
		for _, k := range r.Get("artifacts").Items() {
			l.artifacts = append(l.artifacts, k.Text())
		}
		if len(l.artifacts) == 0 {
			l.artifacts = []string{KindState}
		}
		l.what = fmt.Sprintf("%s (%s)", l.scope, strings.Join(l.artifacts, ", "))
		out = append(out, l)
		for j, a := range r.Get("attestations").Items() {
			out = append(out, list{path: []any{"rules", i, "attestations", j}, node: a, what: "attestation " + a.Get("type").Text() + " of " + l.what})
		}
		if f := r.Get("freshness"); f != nil {
			out = append(out, list{path: []any{"rules", i, "freshness"}, node: f, what: "freshness of " + l.what})
		}
	}
	if n := root.Get("trust"); n != nil {
		out = append(out, list{path: []any{"trust"}, node: n, what: "the trust policy", of: "trust"})
	}
	return out
}

// names are those of the signers.
func (l list) names() []string {
	var out []string
	for _, n := range l.node.Get("signers").Items() {
		out = append(out, n.Text())
	}
	if l.of != "rule" {
		return out
	}
	for _, n := range l.node.Get("keys").Items() {
		out = append(out, n.Get("name").Text())
	}
	return out
}

// named is the index of who is called so in a list of names, or of mappings with a name; -1: none is.
func named(n *strict.Node, name string) int {
	return slices.IndexFunc(n.Items(), func(i *strict.Node) bool {
		if i.Kind() == strict.Object {
			i = i.Get("name")
		}
		return i.Text() == name
	})
}

// is reports whether a change at w is about these signers.
func (l list) is(w Where) bool {
	if w == (Where{}) {
		return true
	}
	return w.Policy && l.of == "trust" || !w.Policy && l.of == "rule" && (w.Scope == "" || w.Scope == l.scope) &&
		(w.Artifact == "" || slices.Contains(l.artifacts, w.Artifact))
}

// enough refuses to leave fewer signers than must sign.
func (l list) enough(name string, left int) error {
	need := max(1, int(l.node.Get("threshold").Uint64()))
	switch {
	case left >= need:
		return nil
	case left == 0:
		return fault.WithHint(fmt.Errorf("%s is the only signer of %s: %w", name, l.what, fault.ErrRejected),
			"name who takes its place with --successor FILE, or add another signer first: longshore trust add")
	}
	return fault.WithHint(fmt.Errorf("without %s, %s has %s, and %d must sign: %w", name, l.what, people(left), need, fault.ErrRejected),
		"name who takes its place with --successor FILE, add another signer first, or lower the threshold first: longshore trust set-threshold")
}

// choose finds the signers that a change is about.
func choose(root *strict.Node, w Where) (list, error) {
	var found []list
	var all []string
	for _, l := range lists(root) {
		if l.of == "rule" && len(l.names()) > 0 {
			all = append(all, l.what)
		}
		if l.of != "" && (l.of == "trust") == w.Policy && l.is(w) && len(l.names()) > 0 {
			found = append(found, l)
		}
	}
	rules := "the rules are for " + strings.Join(all, "; ")
	switch {
	case len(found) == 1:
		return found[0], nil
	case len(found) > 1:
		return list{}, fault.WithHint(fmt.Errorf("several rules have signers: %w", fault.ErrInvalid), "say which one with --scope, or --scope and --artifact: "+rules)
	case w.Policy:
		return list{}, fault.WithHint(fmt.Errorf("the policy has no trust section: %w", fault.ErrNotFound), "no other version can follow it: write one by hand")
	}
	return list{}, fault.WithHint(fmt.Errorf("no rule with signers is for %s: %w", strings.TrimSpace(w.Scope+" "+w.Artifact), fault.ErrNotFound), rules)
}

// Edit begins to change the version into the next one.
func (p *Published) Edit() (*Edit, error) {
	return Open(artifacts.TrustFile, p.Document, func(path string) ([]byte, error) {
		if path != artifacts.TrustedRootFile {
			return nil, fmt.Errorf("%s: a policy that travels has everything inside: %w", path, fault.ErrInvalid)
		}
		return p.Root, nil
	})
}
