package git

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"path/filepath"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Branch is a branch of a repository, followed in a folder of our own.
type Branch struct {
	Source string // of the repository, for people; "": it is on this machine
	Path   string // of the directory that is followed, from the top of the repository, with slashes; ".": the top

	git  Program
	url  string // what git fetches from
	name string
	repo string // bare, of our own
	dir  string // our folder
}

var branchName = strict.Expression(`^[A-Za-z0-9_][A-Za-z0-9._/+@-]*$`)

// Follow begins to follow a branch of a repository: an address that git takes, or a directory in a checkout. subdir is the
// directory to look at in it. dir is an empty folder, which the caller removes.
func (g Program) Follow(ctx context.Context, repository, branch, subdir, dir string) (*Branch, error) {
	if !branchName.MatchString(branch) || strings.Contains(branch, "..") {
		return nil, fmt.Errorf("%q is no name of a branch: %w", branch, fault.ErrInvalid)
	}
	b := &Branch{Source: Source(repository), Path: path.Clean(filepath.ToSlash(subdir)), git: g, url: repository, name: branch, repo: filepath.Join(dir, "repository"), dir: dir}
	if info, err := os.Stat(repository); err == nil && info.IsDir() {
		if err := b.local(ctx, repository); err != nil {
			return nil, err
		}
	} else if strings.HasPrefix(repository, "-") || repository == "" {
		return nil, fmt.Errorf("%q is no repository: %w", repository, fault.ErrInvalid)
	}
	if b.Path == ".." || strings.HasPrefix(b.Path, "../") || path.IsAbs(b.Path) {
		return nil, fmt.Errorf("%s is not in the repository: %w", subdir, fault.ErrInvalid)
	}
	for _, args := range [][]string{
		{"init", "--quiet", "--bare", b.repo},
		{"--git-dir", b.repo, "remote", "add", "--", "origin", b.url},
		{"--git-dir", b.repo, "config", "gc.autoDetach", "false"}, // nothing of ours runs on when we have ended
		{"--git-dir", b.repo, "config", "maintenance.autoDetach", "false"},
		{"--git-dir", b.repo, "config", "core.hooksPath", os.DevNull},
	} {
		if _, err := g.run(ctx, maxLocal, dir, nil, args...); err != nil {
			return nil, err
		}
	}
	return b, nil
}

// local makes of a directory in a checkout its repository and the path in it.
func (b *Branch) local(ctx context.Context, dir string) error {
	full, err := filepath.Abs(dir)
	if err != nil {
		return err
	}
	b.url = full
	there, err := inCheckout(full)
	if err != nil || !there {
		return err // a bare repository, or git will tell that it is none
	}
	top, err := b.git.local(ctx, full, "rev-parse", "--show-toplevel")
	if err != nil {
		return err
	}
	prefix, err := b.git.local(ctx, full, "rev-parse", "--show-prefix")
	if err != nil {
		return err
	}
	b.url, b.Path = strings.TrimSuffix(top, "\n"), path.Join(strings.TrimSuffix(prefix, "\n"), b.Path)
	b.Source, err = b.git.source(ctx, full)
	return err
}

var commitFormat = strict.Expression(`^([0-9a-f]{40}|[0-9a-f]{64})$`)

// Newest asks the repository for the branch's newest commit.
func (b *Branch) Newest(ctx context.Context) (string, error) {
	out, err := b.git.run(ctx, maxRemote, b.dir, nil, "ls-remote", "--exit-code", "--", b.url, "refs/heads/"+b.name)
	if exited(err, 2) {
		return "", fmt.Errorf("%s: there is no branch %s: %w", b.address(), b.name, fault.ErrNotFound)
	}
	if err != nil {
		return "", remote(err, "ask %s for %s", b.address(), b.name)
	}
	commit, _, _ := strings.Cut(string(out), "\t")
	if !commitFormat.MatchString(commit) {
		return "", fmt.Errorf("ask %s for %s: %q is no commit: %w", b.address(), b.name, commit, fault.ErrTemporary)
	}
	return commit, nil
}

// address is what people call the repository.
func (b *Branch) address() string {
	if b.Source != "" {
		return b.Source
	}
	return secret.Regexp().ReplaceAllString(b.url, "$1")
}

// Open fetches the branch and writes the followed directory as it is in a commit into a new folder, which the caller
// removes; see [Branch.Directory].
func (b *Branch) Open(ctx context.Context, commit string) (tree string, err error) {
	if !commitFormat.MatchString(commit) {
		return "", fmt.Errorf("%q is no commit: %w", commit, fault.ErrInvalid)
	}
	if !b.has(ctx, commit) {
		_, err := b.git.run(ctx, maxRemote, b.dir, nil, "--git-dir", b.repo, "fetch", "--quiet", "--no-tags", "--no-recurse-submodules", "--update-shallow",
			"origin", "+refs/heads/"+b.name+":refs/heads/"+b.name)
		if err != nil {
			return "", remote(err, "fetch %s of %s", b.name, b.address())
		}
		if !b.has(ctx, commit) {
			return "", fmt.Errorf("fetch %s of %s: %s is not in it any more: %w", b.name, b.address(), commit, fault.ErrTemporary)
		}
	}
	if tree, err = os.MkdirTemp(b.dir, "tree-"); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, os.RemoveAll(tree))
		}
	}()
	files := filepath.Join(tree, "files")
	if err := os.Mkdir(files, 0o700); err != nil {
		return "", err
	}
	index := []string{"GIT_INDEX_FILE=" + filepath.Join(tree, "index")}
	_, err = b.git.run(ctx, maxRemote, files, index, "--git-dir", b.repo, "--work-tree", files, "--literal-pathspecs", "checkout", "--quiet", "--force", commit, "--", b.Path)
	if s, ok := errors.AsType[*status](err); ok && strings.Contains(s.said, "did not match any file") {
		return "", fmt.Errorf("%s of %s at %s: there is no directory %s: %w", b.name, b.address(), commit, b.Path, fault.ErrNotFound)
	}
	if err != nil {
		return "", remote(err, "check out %s of %s", commit, b.address())
	}
	return tree, nil
}

// Directory is the followed directory in a folder that Open has made.
func (b *Branch) Directory(tree string) string {
	return filepath.Join(tree, "files", filepath.FromSlash(b.Path))
}

func (b *Branch) has(ctx context.Context, commit string) bool {
	_, err := b.git.run(ctx, maxLocal, b.dir, nil, "--git-dir", b.repo, "rev-list", "--quiet", "--max-count=1", commit)
	return err == nil
}

// Contains reports whether a commit is another one or in its history. A commit that the repository does not have is in none.
func (b *Branch) Contains(ctx context.Context, history, commit string) (bool, error) {
	if !commitFormat.MatchString(commit) || !b.has(ctx, commit) {
		return false, ctx.Err()
	}
	_, err := b.git.run(ctx, maxLocal, b.dir, nil, "--git-dir", b.repo, "merge-base", "--is-ancestor", commit, history)
	if exited(err, 1) {
		return false, nil
	}
	return err == nil, err
}

// Shallow reports whether a part of the history is not there, because the repository itself has not got it.
func (b *Branch) Shallow(ctx context.Context) bool {
	out, err := b.git.run(ctx, maxLocal, b.dir, nil, "--git-dir", b.repo, "rev-parse", "--is-shallow-repository")
	return err == nil && strings.TrimSpace(string(out)) == "true"
}
