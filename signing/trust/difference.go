package trust

import (
	"cmp"
	"fmt"
	"slices"
	"time"
)

// Difference says in words what a policy changes for those who sign and for devices, one sentence each. before may be nil: then it
// is the first one.
func Difference(before, after *Policy) []string {
	before = cmp.Or(before, &Policy{})
	var out []string
	say := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	for _, s := range after.Signers {
		old := slices.IndexFunc(before.Signers, func(o *Signer) bool { return o.Name == s.Name })
		switch {
		case old < 0:
			say("new %s %s: %s%s", s.Kind, s.Name, s.about, s.window())
		case before.Signers[old].about != s.about:
			say("%s is another %s: %s (before: %s)", s.Name, s.Kind, s.about, before.Signers[old].about)
		case before.Signers[old].window() != s.window():
			say("%s is trusted%s (before:%s)", s.Name, orAlways(s.window()), orAlways(before.Signers[old].window()))
		}
	}
	was, is := before.says(), after.says()
	for _, r := range is.order {
		switch old, there := was.rules[r]; {
		case !there:
			say("%s: %s (new rule)", r, is.rules[r])
		case old != is.rules[r]:
			say("%s: %s (before: %s)", r, is.rules[r], old)
		}
	}
	for _, r := range was.order {
		if _, there := is.rules[r]; !there {
			say("%s: no rule (before: %s)", r, was.rules[r])
		}
	}
	for _, v := range after.Revoked {
		if !slices.Contains(before.Revoked, v) {
			say("%s is %s. No signature by it counts, earlier ones neither; what runs continues", after.revokes(v), v.String())
		}
	}
	for _, v := range before.Revoked {
		if !slices.ContainsFunc(after.Revoked, func(o Revocation) bool { return o.Key == v.Key && o.Digest == v.Digest }) {
			say("no longer revoked: %s", before.revokes(v))
		}
	}
	if old, now := before.root(), after.root(); old != now {
		say("trusted root: %s (before: %s)", now, old)
	}
	if !after.Expires.Equal(before.Expires) {
		say("expires %s (before: %s)", date(after.Expires), date(before.Expires))
	}
	if g := after.Generations; g != nil && (before.Generations == nil || *before.Generations != *g) {
		say("generations %s", *g)
	}
	return out
}

// root names the trusted root.
func (p *Policy) root() string {
	if p.Root == nil {
		return "none"
	}
	return p.Root.Digest().String()
}

func date(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return t.UTC().Format(time.RFC3339)
}

func orAlways(window string) string {
	if window == "" {
		return " always"
	}
	return window
}

// window says when the signer is trusted, and without what; "": always.
func (s *Signer) window() string {
	text := ""
	if s.unlogged {
		text = " without a log entry"
	}
	if !s.NotBefore.IsZero() {
		text += " from " + s.NotBefore.Format(time.RFC3339)
	}
	if !s.NotAfter.IsZero() {
		text += " until " + s.NotAfter.Format(time.RFC3339)
	}
	return text
}

// revokes names what a revocation is of.
func (p *Policy) revokes(v Revocation) string {
	if v.Digest != "" {
		return v.Digest.String()
	}
	for _, s := range p.Signers {
		if s.Kind == SignerKey && s.Key.Fingerprint == v.Key {
			return s.Name + " (" + v.Key.String() + ")"
		}
	}
	return "key " + v.Key.String()
}

// sayings are what the rules of a policy require, by what they are about.
type sayings struct {
	rules map[string]string
	order []string
}

// says puts each rule into words; the trust section is one.
func (p *Policy) says() sayings {
	s := sayings{rules: map[string]string{}}
	add := func(about, needs string) {
		if _, there := s.rules[about]; !there {
			s.order = append(s.order, about)
		}
		s.rules[about] = needs
	}
	for _, r := range p.Rules {
		needs := r.Says()
		if r.Signatures != "" {
			needs += ", with signatures in " + r.Signatures
		}
		for _, k := range r.Kinds() {
			if r.Reject {
				add("every "+k+" in "+r.Scope, "rejected")
			} else {
				add("every "+k+" in "+r.Scope, "signed by "+needs)
			}
		}
	}
	if t := p.Trust; t != nil {
		add("the next version of this policy", "signed by "+t.Quorum.String())
		add("the next version comes from", t.Repository)
	}
	return s
}
