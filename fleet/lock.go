package fleet

import (
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/emit"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// LockFile is the file beside fleet.yaml with the exact versions of its applications.
const LockFile = "fleet.lock"

// lockVersion is the version of the file's form.
const lockVersion = 1

// Lock is which exact versions applications have, whatever tags name now. An application that it does not name is looked up
// as fleet.yaml says.
type Lock map[string]*Locked // by application

// Locked is the exact version of one application.
type Locked struct {
	Version    string                      // its tag, which must name Digest
	Digest     digest.Digest               // of the package or the component
	Components map[string]*LockedComponent // of a package: by "host/path:revision", as the package names them

	at place
}

// LockedComponent is the locked version of a package's component.
type LockedComponent struct {
	Digest     digest.Digest
	Repository string // "host/path" from which devices get it; "": the package's
}

// ParseLock reads a fleet.lock. file is its name in errors; the error is a *[strict.Error] with every fault.
func ParseLock(file string, data []byte) (Lock, error) {
	root, err := strict.YAML(file, data)
	if err != nil {
		return nil, err
	}
	if v := root.Need("version"); v != nil && v.Kind() == strict.Number && v.Int64() != lockVersion {
		v.Faultf("must be %d", lockVersion)
	} else if v != nil {
		v.Int64() // records the wrong kind
	}
	l := Lock{}
	for _, n := range root.Need("applications").Members() {
		if !nameFormat.MatchString(n.Key()) {
			n.Faultf("%q is not %s", n.Key(), nameWords)
		}
		x := &Locked{at: keyPlace(file, n), Components: map[string]*LockedComponent{}}
		x.Version = n.Need("version").Matching(tagFormat, "a tag")
		x.Digest = lockedDigest(n.Need("digest"))
		for _, c := range n.Get("components").Members() {
			repository, revision, ok := cutRevision(c.Key())
			if !ok || !validRepository(repository, false) || !margo.ValidRevision(revision) {
				c.Faultf("%q is no component: HOST/PATH:VERSION", c.Key())
			}
			one := &LockedComponent{Digest: lockedDigest(c.Need("digest"))}
			if at := c.Get("repository"); at != nil {
				if one.Repository = at.Filled(); at.Kind() == strict.String && one.Repository != "" && !validRepository(one.Repository, false) {
					at.Faultf("%q is no repository: HOST/PATH", one.Repository)
				}
			}
			c.Close()
			x.Components[c.Key()] = one
		}
		n.Close()
		l[n.Key()] = x
	}
	root.Close()
	return strict.Result(root, l)
}

func lockedDigest(n *strict.Node) digest.Digest {
	text := n.Text()
	d := digest.Digest(text)
	if n != nil && n.Kind() == strict.String && (d.Validate() != nil || d.Algorithm() != digest.SHA256) {
		n.Faultf("%q is no digest: sha256: and 64 hexadecimal digits", text)
	}
	return d
}

// cutRevision parts "host/path:revision"; a host may have a port.
func cutRevision(s string) (repository, revision string, ok bool) {
	i := strings.LastIndexByte(s, ':')
	if i <= strings.LastIndexByte(s, '/') {
		return s, "", false
	}
	return s[:i], s[i+1:], true
}

// Encode writes the file: the same lock, the same bytes.
func (l Lock) Encode() []byte {
	var b strings.Builder
	fmt.Fprintf(&b, "# Exact versions of applications, written by longshore fleet promote. fleet plan and fleet publish hold to them;\n"+
		"# an application that is not named here is looked up as fleet.yaml says.\nversion: %d\napplications:", lockVersion)
	if len(l) == 0 {
		b.WriteString(" {}\n")
		return []byte(b.String())
	}
	b.WriteByte('\n')
	for _, name := range slices.Sorted(maps.Keys(l)) {
		x := l[name]
		fmt.Fprintf(&b, "  %s:\n    version: %q\n    digest: %s\n", emit.Word(name), x.Version, x.Digest)
		if len(x.Components) > 0 {
			b.WriteString("    components:\n")
		}
		for _, key := range slices.Sorted(maps.Keys(x.Components)) {
			fmt.Fprintf(&b, "      %q:\n        digest: %s\n", key, x.Components[key].Digest)
			if at := x.Components[key].Repository; at != "" {
				fmt.Fprintf(&b, "        repository: %q\n", at)
			}
		}
	}
	return []byte(b.String())
}

// readLock reads the fleet's lock, if it has one, and gives it to the applications.
func (f *Fleet) readLock(fsys fs.FS, sink *faults) {
	data, err := bounded.FileIn(fsys, LockFile, strict.MaxYAML)
	if errors.Is(err, fs.ErrNotExist) {
		return
	}
	if err != nil {
		sink.add(place{file: LockFile}, "", "%v", err)
		return
	}
	f.files[LockFile] = digest.FromBytes(data).String()
	f.Lock, err = ParseLock(LockFile, data)
	if document, ok := errors.AsType[*strict.Error](err); ok {
		for _, x := range document.Faults {
			x.File = LockFile
			sink.list = append(sink.list, x)
		}
		return
	}
	for _, name := range slices.Sorted(maps.Keys(f.Lock)) {
		l := f.Lock[name]
		i := slices.IndexFunc(f.Applications, func(a *Application) bool { return a.Name == name })
		if i < 0 {
			hint := cmp.Or(near(name, f.Applications, func(a *Application) string { return a.Name }), "remove it, or promote again")
			sink.add(l.at, hint, "there is no application %q", name)
			continue
		}
		a := f.Applications[i]
		if why := a.allows(l.Version); why != "" {
			sink.add(l.at, "change the version in "+a.version.file+", or promote one that it allows", "%s", why)
		}
		if a.Component != "" && len(l.Components) > 0 {
			sink.add(l.at, "", "%s is a component itself, it has none", name)
		}
		a.Locked = l
	}
}

// allows says why an application may not have a version, as the files ask for it; "" when it may.
func (a *Application) allows(version string) string {
	if a.Channel != "" || a.Version == "" {
		return ""
	}
	want, err := parseVersion(a.Version)
	if err != nil {
		return "" // reported already
	}
	v, err := semver.StrictNewVersion(strings.ReplaceAll(version, "_", "+"))
	switch {
	case want.exact != "" && want.exact != version, want.exact == "" && (err != nil || !want.constraint.Check(v)):
		return fmt.Sprintf("%s is to be %s in %s, and %s in the lock", a.Name, a.Version, a.version.file, version)
	}
	return ""
}
