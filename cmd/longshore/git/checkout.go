package git

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Checkout is what git knows of a directory.
type Checkout struct {
	Source   string   // where the repository is, for people: without user and password; "": at no address that others have
	Revision string   // the commit that is checked out; "": there is none yet
	Changed  []string // files in the directory that are not as committed, from the directory
	Gone     []string // those of them that the commit has and the directory has not
	Ignored  []string // what git ignores in it, from the directory; a folder ends in "/", and "./" is the directory itself
}

// Checkout asks about a directory; nil when no checkout holds it, and then git need not be installed.
func (g Program) Checkout(ctx context.Context, dir string) (*Checkout, error) {
	there, err := inCheckout(dir)
	if err != nil || !there {
		return nil, err
	}
	c := &Checkout{}
	prefix, err := g.local(ctx, dir, "rev-parse", "--show-prefix")
	if err != nil {
		return nil, err
	}
	head, err := g.run(ctx, maxLocal, dir, nil, "rev-parse", "--verify", "--quiet", "HEAD^{commit}")
	if err != nil && !exited(err, 1) {
		return nil, err
	}
	c.Revision = strings.TrimSpace(string(head))
	listed, err := g.local(ctx, dir, "status", "--porcelain", "-z", "--no-renames", "--untracked-files=all", "--ignored=matching", "--", ".")
	if err != nil {
		return nil, err
	}
	c.list(listed, strings.TrimSuffix(prefix, "\n"))
	if c.Source, err = g.source(ctx, dir); err != nil {
		return nil, err
	}
	return c, nil
}

// local asks about files; an error says what can be done about it.
func (g Program) local(ctx context.Context, dir string, args ...string) (string, error) {
	out, err := g.run(ctx, maxLocal, dir, nil, args...)
	return string(out), remote(err, "ask git about %s", dir)
}

// inCheckout looks for .git in a directory and above it.
func inCheckout(dir string) (bool, error) {
	dir, err := filepath.Abs(dir)
	if err == nil {
		dir, err = filepath.EvalSymlinks(dir)
	}
	for err == nil {
		if _, gone := os.Lstat(filepath.Join(dir, ".git")); gone == nil {
			return true, nil
		}
		if dir == filepath.Dir(dir) {
			return false, nil
		}
		dir = filepath.Dir(dir)
	}
	return false, err
}

// list reads git status --porcelain -z. Its names are from the top of the checkout; prefix is the directory's.
func (c *Checkout) list(text, prefix string) {
	for entry := range strings.SplitSeq(text, "\x00") {
		if len(entry) < 4 {
			continue
		}
		name := entry[3:]
		rest, inside := strings.CutPrefix(name, prefix)
		switch {
		case !inside && strings.HasPrefix(prefix, name), inside && rest == "":
			rest = "./" // a folder that has the directory in it, or the directory itself
		case !inside:
			continue // cannot be: the pathspec leaves it out
		}
		if strings.HasPrefix(entry, "!!") {
			c.Ignored = append(c.Ignored, rest)
			continue
		}
		if c.Changed = append(c.Changed, rest); strings.Contains(entry[:2], "D") {
			c.Gone = append(c.Gone, rest)
		}
	}
}

// Uncommitted tells what keeps a directory from being what the commit has: everything that git calls changed, and what it
// ignores if it is among the files that are used of it.
func (c *Checkout) Uncommitted(used []string) []string {
	out := slices.Clone(c.Changed)
	for _, f := range used {
		if f = path.Clean(f); slices.ContainsFunc(c.Ignored, func(i string) bool { return covers(i, f) }) {
			out = append(out, f)
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// UncommittedOf is Uncommitted where nothing else in the directory counts but the files that are used of it, and what is
// gone: it would have been used.
func (c *Checkout) UncommittedOf(used []string) []string {
	return slices.DeleteFunc(c.Uncommitted(used), func(name string) bool {
		return !slices.Contains(c.Gone, name) && !slices.ContainsFunc(used, func(f string) bool { return covers(name, path.Clean(f)) })
	})
}

// covers reports whether git means a file by a name: its own, or that of a folder that it is in.
func covers(name, file string) bool {
	return name == file || name == "./" || strings.HasSuffix(name, "/") && strings.HasPrefix(file, name)
}

// source finds the address of the repository: of the remote origin, or of the only remote.
func (g Program) source(ctx context.Context, dir string) (string, error) {
	out, err := g.run(ctx, maxLocal, dir, nil, "config", "--null", "--get-regexp", `^remote\..*\.url$`)
	if exited(err, 1) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	found := map[string]string{}
	for entry := range strings.SplitSeq(string(out), "\x00") {
		key, value, ok := strings.Cut(entry, "\n")
		if ok && found[key] == "" {
			found[key] = value
		}
	}
	if u, ok := found["remote.origin.url"]; ok {
		return Source(u), nil
	}
	if len(found) == 1 {
		for _, u := range found {
			return Source(u), nil
		}
	}
	return "", nil
}

var scpLike = strict.Expression(`^(?:[^@/:\s]+@)?([A-Za-z0-9][A-Za-z0-9.-]+):([^:\s].*)$`)

// Source is the address of a repository for people, the same whichever way it was cloned: https://HOST/PATH without user,
// password, query and ".git". An SSH server on a port of its own stays ssh://. "" is a path of this machine, or no address.
func Source(remote string) string {
	if m := scpLike.Regexp().FindStringSubmatch(remote); m != nil && !strings.Contains(remote, "://") {
		remote = "https://" + m[1] + "/" + strings.TrimPrefix(m[2], "/")
	}
	u, err := url.Parse(remote)
	if err != nil || u.Host == "" || strings.Contains(u.Path, "\\") {
		return ""
	}
	switch u.Scheme {
	case "ssh", "git+ssh", "ssh+git":
		u.Scheme = "ssh"
		if u.Port() == "" || u.Port() == "22" {
			u.Scheme, u.Host = "https", u.Hostname()
		}
	case "git":
		u.Scheme, u.Host = "https", u.Hostname()
	case "http", "https":
	default:
		return ""
	}
	name := strings.TrimRight(strings.TrimSuffix(strings.TrimRight(u.Path, "/"), ".git"), "/")
	if name == "" {
		return ""
	}
	return (&url.URL{Scheme: u.Scheme, Host: u.Host, Path: name}).String()
}

// Dirty is an error of files that are not committed, with a hint how to go on.
func Dirty(where string, files []string) error {
	const most = 5
	more := ""
	if len(files) > most {
		more = fmt.Sprintf(" and %d more", len(files)-most)
	}
	return fault.WithHint(fmt.Errorf("%s has uncommitted changes: %s%s", where, strings.Join(files[:min(len(files), most)], ", "), more),
		"commit them first, or publish them with --allow-dirty")
}
