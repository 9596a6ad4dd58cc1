// Package git asks the git program: of which commit a directory is, and what a branch holds now.
//
// It is the program and not a library, because the program knows what is set up for it: credential helpers, SSH agents,
// proxies, worktrees, filters. What it calls changed is what people see. It adds nothing to the size of ours. A machine
// without it can publish: nothing but a checkout asks for git, and that can be told what it is with an annotation.
package git

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/strict"
)

// Limits of one call.
const (
	maxOutput = 16 << 20
	maxLocal  = 2 * time.Minute  // of a question about files on this machine
	maxRemote = 15 * time.Minute // of a question to a server
)

// Program is the git program.
type Program struct {
	Environ []string // of the process; what points git to another repository is taken out
}

// located are the variables by which a hook's or a user's shell points git to one repository. We mean the one that holds a
// directory.
var located = []string{
	"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_COMMON_DIR",
	"GIT_PREFIX", "GIT_NAMESPACE", "GIT_SHALLOW_FILE",
}

func (g Program) environ(more ...string) []string {
	env := slices.DeleteFunc(slices.Clone(g.Environ), func(kv string) bool {
		name, _, _ := strings.Cut(kv, "=")
		return slices.Contains(located, name)
	})
	return append(append(env, "LC_ALL=C", "GIT_TERMINAL_PROMPT=0", "GIT_OPTIONAL_LOCKS=0"), more...)
}

// status is git's own exit status.
type status struct {
	code int
	said string
}

func (s *status) Error() string { return s.said }

// exited reports whether git ended with a status that answers a question.
func exited(err error, code int) bool {
	s, ok := errors.AsType[*status](err)
	return ok && s.code == code
}

// run runs git in a directory and returns what it prints. Errors have what it said, without credentials. With ctx, or after
// limit, git ends together with what it has started in its session; outside of Linux only git ends.
func (g Program) run(ctx context.Context, limit time.Duration, dir string, env []string, args ...string) ([]byte, error) {
	inner, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	// The kernel ends a child with the thread that started it, see attach.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	cmd := exec.CommandContext(inner, "git", args...)
	cmd.Dir, cmd.Env = dir, g.environ(env...)
	cmd.WaitDelay = 5 * time.Second // a helper of git may keep the pipes
	attach(cmd)
	out, errs := &bounded{max: maxOutput}, &bounded{max: 64 << 10}
	cmd.Stdout, cmd.Stderr = out, errs
	err := cmd.Run()
	exit, exited := errors.AsType[*exec.ExitError](err)
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case inner.Err() != nil:
		return nil, fmt.Errorf("git %s: no end after %s: %w", args[0], limit, fault.ErrTemporary)
	case errors.Is(err, exec.ErrNotFound):
		return nil, fault.WithHint(fmt.Errorf("the program git is not there: %w", fault.ErrUnsupported), "install git")
	case out.cut:
		return nil, fmt.Errorf("git %s: more than %d bytes: %w", args[0], maxOutput, fault.ErrTooLarge)
	case exited:
		return nil, &status{exit.ExitCode(), said(errs.String())}
	case err != nil:
		return nil, fmt.Errorf("git %s: %w", args[0], err)
	}
	return out.Bytes(), nil
}

// bounded keeps the beginning of what is written to it.
type bounded struct {
	bytes.Buffer
	max int
	cut bool
}

func (b *bounded) Write(p []byte) (int, error) {
	n := min(len(p), b.max-b.Len())
	b.cut = b.cut || n < len(p)
	b.Buffer.Write(p[:n])
	return len(p), nil
}

var secret = strict.Expression(`(://)[^/@\s'"]*@`)

// said is the sentence in which git told why it ended.
func said(text string) string {
	text = secret.Regexp().ReplaceAllString(text, "$1")
	last := ""
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		for _, before := range []string{"fatal: ", "error: "} {
			if rest, ok := strings.CutPrefix(line, before); ok {
				return rest
			}
		}
		if line != "" {
			last = line
		}
	}
	if last == "" {
		return "it said nothing"
	}
	return last
}

// causes of what goes wrong with a server, by words of git. What is not among them may be the way to it.
var causes = []struct {
	words []string
	kind  error
	hint  string
}{
	{
		[]string{"Authentication failed", "could not read Username", "could not read Password", "Permission denied", "error: 401", "error: 403", "HTTP 401", "HTTP 403"},
		fault.ErrUnauthenticated, "git takes credentials from its helpers, its configuration, or an SSH agent; try: git ls-remote URL",
	},
	{[]string{"not found", "does not appear to be a git repository", "does not exist", "not a git repository"}, fault.ErrNotFound, "give the URL that git clone takes"},
	{[]string{"dubious ownership"}, fault.ErrDenied, "the checkout belongs to somebody else: git config --global --add safe.directory DIRECTORY"},
}

// remote classifies what went wrong with a server.
func remote(err error, format string, args ...any) error {
	s, ok := errors.AsType[*status](err)
	if !ok {
		return err
	}
	what := secret.Regexp().ReplaceAllString(fmt.Sprintf(format, args...), "$1")
	for _, c := range causes {
		if slices.ContainsFunc(c.words, func(w string) bool { return strings.Contains(s.said, w) }) {
			return fault.WithHint(fmt.Errorf("%s: %s: %w", what, s.said, c.kind), c.hint)
		}
	}
	return fmt.Errorf("%s: %s: %w", what, s.said, fault.ErrTemporary)
}
