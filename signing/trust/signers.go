package trust

import (
	"path/filepath"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/keyless"
)

// signers reads the three lists of named signers.
func (r *reader) signers(root *strict.Node) {
	for _, n := range root.Get("keys").Items() {
		r.key(n, true)
	}
	for _, n := range root.Get("identities").Items() {
		r.identity(n)
	}
	for _, n := range root.Get("authorities").Items() {
		r.authority(n)
	}
}

// known finds the signer that n names.
func (r *reader) known(n *strict.Node) *Signer {
	name := n.Filled()
	s := r.byName[name]
	if s == nil && name != "" {
		n.HintFaultf("name it under keys, identities or authorities", "no signer has the name %q", name)
	}
	return s
}

// name takes a name for a signer; false when it is none, or taken.
func (r *reader) name(n *strict.Node) (string, bool) {
	at := n.Need("name")
	name := at.Filled()
	if name == "" {
		return "", false
	}
	r.declared = append(r.declared, at)
	if r.byName[name] != nil {
		at.Faultf("%s is told twice", name)
		return "", false
	}
	return name, true
}

func (r *reader) add(n *strict.Node, s *Signer) *Signer {
	if len(r.policy.Signers) >= maxSigners {
		n.Faultf("more than %d signers", maxSigners)
		return nil
	}
	r.byName[s.Name] = s
	r.policy.Signers = append(r.policy.Signers, s)
	return s
}

// window reads when a signer is trusted.
func (r *reader) window(n *strict.Node) (from, until time.Time) {
	end := n.Get("notAfter")
	from, until = r.time(n.Get("notBefore")), r.time(end)
	if !until.IsZero() && !until.After(from) {
		end.Faultf("ends before it begins")
	}
	return from, until
}

// text reads the document in member inline, or in the file that member file names, of n. at is where it is.
func (r *reader) text(n *strict.Node, inline string) (data []byte, at *strict.Node) {
	file, in := n.Get("file"), n.Get(inline)
	switch {
	case (file == nil) == (in == nil):
		n.Faultf("needs one of file and %s", inline)
		return nil, nil
	case in != nil:
		return []byte(in.Filled()), in
	}
	path := file.Filled()
	switch {
	case path == "":
		return nil, file
	case r.read == nil:
		file.HintFaultf("write "+inline+": with what is in the file", "names a file, and the policy travels without")
		return nil, file
	case !filepath.IsAbs(path):
		path = filepath.Join(r.dir, path)
	}
	data, err := r.read(path)
	switch {
	case err != nil:
		file.Faultf("%v", err)
		return nil, file
	case len(data) == 0:
		file.Faultf("the file is empty")
	}
	return data, file
}

// key reads a key: one of the document's, or one that a rule lists itself, which may be there before.
func (r *reader) key(n *strict.Node, declared bool) *Signer {
	data, at := r.text(n, "pem")
	from, until := r.window(n)
	var name string
	ok := true
	if declared {
		name, ok = r.name(n)
	} else {
		name = n.Need("name").Filled()
	}
	n.Close()
	if !ok || name == "" || len(data) == 0 {
		return nil
	}
	key, err := signing.ParsePublicKey(name, data)
	if err != nil {
		at.HintFaultf(fault.Hint(err), "%v", err)
		return nil
	}
	s := KeySigner(key)
	s.NotBefore, s.NotAfter = from, until
	if other := r.byName[name]; other != nil {
		switch {
		case other.about != s.about:
			at.Faultf("the name %s stands for another key above", name)
			return nil
		case !other.NotBefore.Equal(from) || !other.NotAfter.Equal(until):
			at.Faultf("%s is trusted at other times above", name)
			return nil
		}
		return other
	}
	return r.add(n, s)
}

func (r *reader) trustedRoot(n *strict.Node) *keyless.Root {
	if n == nil {
		return nil
	}
	data, at := r.text(n, "json")
	n.Close()
	if len(data) == 0 {
		return nil
	}
	root, err := keyless.ParseRoot(data)
	if err != nil {
		at.HintFaultf(fault.Hint(err), "%v", err)
		return nil
	}
	return root
}

// pattern reads a name that must be equal, or the expression that describes it.
func (r *reader) pattern(n *strict.Node, member string) keyless.Pattern {
	exact, expr := n.Get(member), n.Get(member+"Pattern")
	at, make := exact, keyless.Exact
	switch {
	case (exact == nil) == (expr == nil):
		n.Faultf("needs one of %s and %sPattern", member, member)
		return keyless.Pattern{}
	case expr != nil:
		at, make = expr, keyless.Matching
	}
	text := at.Filled()
	if text == "" {
		return keyless.Pattern{}
	}
	p, err := make(text)
	if err != nil {
		at.HintFaultf(fault.Hint(err), "%v", err)
	}
	return p
}

func (r *reader) identity(n *strict.Node) {
	name, ok := r.name(n)
	o := keyless.IdentityOptions{Name: name, Issuer: r.pattern(n, "issuer"), Subject: r.pattern(n, "subject"), Unlogged: n.Get("unlogged").Bool()}
	from, until := r.window(n)
	n.Close()
	if !ok || o.Issuer.IsZero() || o.Subject.IsZero() {
		return
	}
	if r.policy.Root == nil {
		n.HintFaultf("write trustedRoot: {file: trusted_root.json}", "an identity needs a trusted root")
		return
	}
	identity, err := keyless.NewIdentity(o, r.policy.Root)
	if err != nil {
		n.HintFaultf(fault.Hint(err), "%v", err)
		return
	}
	r.add(n, &Signer{
		Name: name, Kind: SignerIdentity, NotBefore: from, NotAfter: until, unlogged: o.Unlogged,
		at: func(time.Time) signing.Verifier { return identity }, about: o.Subject.String() + " by " + o.Issuer.String(),
	})
}

func (r *reader) authority(n *strict.Node) {
	name, ok := r.name(n)
	data, at := r.text(n, "pem")
	subject := r.pattern(n, "subject")
	from, until := r.window(n)
	n.Close()
	if !ok || len(data) == 0 || subject.IsZero() {
		return
	}
	authority, err := keyless.NewAuthority(keyless.AuthorityOptions{Name: name, Certificates: data, Subject: subject, Root: r.policy.Root})
	if err != nil {
		at.HintFaultf(fault.Hint(err), "%v", err)
		return
	}
	r.add(n, &Signer{
		Name: name, Kind: SignerAuthority, NotBefore: from, NotAfter: until,
		at: authority.At, about: subject.String() + " by certificates of " + authority.Digest().String(),
	})
}
