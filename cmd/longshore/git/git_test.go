package git

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// repository is a checkout to work in.
type repository struct {
	t   *testing.T
	dir string
}

func newRepository(t *testing.T) *repository {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		testenv.Unavailable(t, "git: %v", err)
	}
	r := &repository{t, t.TempDir()}
	r.git("init", "-q", "-b", "main")
	return r
}

func (r *repository) git(args ...string) string {
	r.t.Helper()
	cmd := exec.CommandContext(r.t.Context(), "git", args...)
	cmd.Dir = r.dir
	cmd.Env = append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull, "GIT_AUTHOR_NAME=Anna", "GIT_AUTHOR_EMAIL=anna@acme.example", "GIT_COMMITTER_NAME=Anna", "GIT_COMMITTER_EMAIL=anna@acme.example")
	out, err := cmd.CombinedOutput()
	if err != nil {
		r.t.Fatalf("git %v: %v\n%s", args, err, out)
	}
	return strings.TrimSpace(string(out))
}

func (r *repository) write(name, text string) {
	r.t.Helper()
	file := filepath.Join(r.dir, name)
	if err := errors.Join(os.MkdirAll(filepath.Dir(file), 0o755), os.WriteFile(file, []byte(text), 0o600)); err != nil {
		r.t.Fatal(err)
	}
}

func (r *repository) commit(message string) string {
	r.t.Helper()
	r.git("add", "-A")
	r.git("commit", "-q", "-m", message)
	return r.git("rev-parse", "HEAD")
}

func program() Program {
	return Program{Environ: append(os.Environ(), "GIT_CONFIG_GLOBAL="+os.DevNull)}
}

func TestCheckout(t *testing.T) {
	r := newRepository(t)
	r.write("plant/fleet.yaml", "fleet: a\n")
	r.write("plant/devices/all.yaml", "devices: []\n")
	r.write("other/readme", "x\n")
	r.write(".gitignore", "*.env\nbuilt/\n")
	at := func() *Checkout {
		t.Helper()
		c, err := program().Checkout(t.Context(), filepath.Join(r.dir, "plant"))
		if err != nil || c == nil {
			t.Fatalf("Checkout = %v, %v", c, err)
		}
		return c
	}
	if c := at(); c.Revision != "" || !slices.Equal(c.Changed, []string{"devices/all.yaml", "fleet.yaml"}) {
		t.Errorf("before the first commit: %+v", c)
	}
	first := r.commit("first")
	r.git("remote", "add", "origin", "https://anna:secret@git.acme.example/plants/graz.git")
	if c := at(); c.Revision != first || c.Source != "https://git.acme.example/plants/graz" || len(c.Changed)+len(c.Ignored) > 0 {
		t.Errorf("committed: %+v", c)
	}
	r.write("other/readme", "changed, elsewhere\n")
	r.write("plant/local.env", "A=1\n")
	r.write("plant/built/x.yaml", "x\n")
	r.write("plant/devices/ü b.yaml", "new\n")
	r.write("plant/fleet.yaml", "fleet: b\n")
	if err := os.Remove(filepath.Join(r.dir, "plant/devices/all.yaml")); err != nil {
		t.Fatal(err)
	}
	c := at()
	for _, x := range []struct {
		what      string
		got, want []string
	}{
		{"changed", c.Changed, []string{"devices/all.yaml", "fleet.yaml", "devices/ü b.yaml"}},
		{"gone", c.Gone, []string{"devices/all.yaml"}},
		{"ignored", c.Ignored, []string{"built/", "local.env"}},
		{"uncommitted", c.Uncommitted([]string{"fleet.yaml"}), []string{"devices/all.yaml", "devices/ü b.yaml", "fleet.yaml"}},
		{"with what is ignored", c.Uncommitted([]string{"./local.env", "built/x.yaml"}), []string{"built/x.yaml", "devices/all.yaml", "devices/ü b.yaml", "fleet.yaml", "local.env"}},
		{"of some", c.UncommittedOf([]string{"fleet.yaml", "local.env"}), []string{"devices/all.yaml", "fleet.yaml", "local.env"}},
	} {
		if !slices.Equal(x.got, x.want) {
			t.Errorf("%s: %q, want %q", x.what, x.got, x.want)
		}
	}
	if c, err := program().Checkout(t.Context(), filepath.Join(r.dir, "plant/built")); err != nil || !slices.Equal(c.Uncommitted([]string{"x.yaml"}), []string{"x.yaml"}) {
		t.Errorf("a directory that is ignored: %+v, %v", c, err)
	}
	if c, err := program().Checkout(t.Context(), t.TempDir()); c != nil || err != nil {
		t.Errorf("no checkout: %+v, %v", c, err)
	}
	elsewhere := newRepository(t) // as in a hook, where these are set
	pointed := Program{Environ: append(program().Environ, "GIT_DIR="+filepath.Join(elsewhere.dir, ".git"), "GIT_INDEX_FILE=nowhere")}
	if c, err := pointed.Checkout(t.Context(), r.dir); err != nil || c.Revision != first {
		t.Errorf("with GIT_DIR: %+v, %v", c, err)
	}
	worktree := filepath.Join(t.TempDir(), "tree")
	r.git("worktree", "add", "-q", worktree, "HEAD")
	if c, err := program().Checkout(t.Context(), filepath.Join(worktree, "plant")); err != nil || c.Revision != first || len(c.Changed) > 0 {
		t.Errorf("a worktree: %+v, %v", c, err)
	}
	if _, err := (Program{}).Checkout(t.Context(), filepath.Join(r.dir, "nothing")); err == nil {
		t.Error("a directory that is not there is no error")
	}
}

// A checkout, and no git to ask.
func TestNoProgram(t *testing.T) {
	r := newRepository(t)
	t.Setenv("PATH", t.TempDir())
	if _, err := program().Checkout(t.Context(), r.dir); !errors.Is(err, fault.ErrUnsupported) || fault.Hint(err) != "install git" {
		t.Errorf("Checkout = %v (%s)", err, fault.Hint(err))
	}
	if c, err := program().Checkout(t.Context(), t.TempDir()); c != nil || err != nil {
		t.Errorf("no checkout and no git: %v, %v", c, err)
	}
}

func TestSource(t *testing.T) {
	for in, want := range map[string]string{
		"https://github.com/acme/plant.git":                    "https://github.com/acme/plant",
		"https://user:token@github.com/acme/plant.git":         "https://github.com/acme/plant",
		"https://token@github.com/acme/plant/":                 "https://github.com/acme/plant",
		"https://gitlab-ci-token:glcbt-1@git.acme.example/a/b": "https://git.acme.example/a/b",
		"https://git.acme.example/a?private_token=x#y":         "https://git.acme.example/a",
		"http://git.acme.example:8080/a.git":                   "http://git.acme.example:8080/a",
		"git@github.com:acme/plant.git":                        "https://github.com/acme/plant",
		"github.com:acme/plant":                                "https://github.com/acme/plant",
		"ssh://git@github.com/acme/plant.git":                  "https://github.com/acme/plant",
		"ssh://git@git.acme.example:2222/acme/plant.git":       "ssh://git.acme.example:2222/acme/plant",
		"git://git.acme.example/a.git":                         "https://git.acme.example/a",
		"file:///srv/plant.git":                                "",
		"/srv/plant.git":                                       "",
		"../plant":                                             "",
		`C:\plants\graz`:                                       "",
		"ext::sh -c evil":                                      "",
		"https://git.acme.example":                             "",
		"":                                                     "",
	} {
		if got := Source(in); got != want {
			t.Errorf("Source(%q) = %q, want %q", in, got, want)
		}
	}
}

// A password in an address is in no message.
func TestSaid(t *testing.T) {
	for in, want := range map[string]string{
		"fatal: unable to access 'https://anna:secret@h/x/': The requested URL returned error: 500\n": "unable to access 'https://h/x/': The requested URL returned error: 500",
		"warning: x\nfatal: a\nfatal: b\n": "a",
		"only this\n":                      "only this",
		"":                                 "it said nothing",
	} {
		if got := said(in); got != want {
			t.Errorf("said(%q) = %q, want %q", in, got, want)
		}
	}
}

func TestBranch(t *testing.T) {
	r := newRepository(t)
	r.write("plants/graz/fleet.yaml", "fleet: a\n")
	r.write("readme", "x\n")
	first := r.commit("first")
	for name, url := range map[string]string{"served": testenv.ServeGit(t, r.dir, "anna", "secret").URL, "directory": filepath.Join(r.dir, "plants")} {
		t.Run(name, func(t *testing.T) {
			subdir := map[string]string{"served": "plants/graz", "directory": "graz"}[name]
			b, err := program().Follow(t.Context(), url, "main", subdir, t.TempDir())
			if err != nil {
				t.Fatal(err)
			}
			if strings.Contains(b.Source, "secret") || name == "directory" && b.Source != "" {
				t.Errorf("source = %q", b.Source)
			}
			was := r.git("rev-parse", "HEAD")
			if got, err := b.Newest(t.Context()); err != nil || got != was {
				t.Fatalf("Newest = %s, %v, want %s", got, err, was)
			}
			open := func(commit, want string) {
				t.Helper()
				tree, err := b.Open(t.Context(), commit)
				if err != nil {
					t.Fatal(err)
				}
				if data, err := os.ReadFile(filepath.Join(b.Directory(tree), "fleet.yaml")); err != nil || string(data) != want {
					t.Errorf("fleet.yaml = %q, %v, want %q", data, err, want)
				}
				if _, err := os.Stat(filepath.Join(tree, "files/readme")); err == nil {
					t.Error("another directory was checked out, too")
				}
				if err := os.RemoveAll(tree); err != nil {
					t.Fatal(err)
				}
			}
			open(first, "fleet: a\n")
			r.write("plants/graz/fleet.yaml", "fleet: "+name+"\n")
			second := r.commit("second")
			open(second, "fleet: "+name+"\n")
			for _, x := range []struct {
				history, commit string
				want            bool
			}{{second, first, true}, {second, second, true}, {first, second, false}, {second, strings.Repeat("0", 40), false}, {second, "v1", false}} {
				if got, err := b.Contains(t.Context(), x.history, x.commit); got != x.want || err != nil {
					t.Errorf("Contains(%s, %s) = %v, %v, want %v", x.history, x.commit, got, err, x.want)
				}
			}
			// The branch is set back: what was published is not in its history.
			r.git("reset", "-q", "--hard", first)
			r.write("plants/graz/fleet.yaml", "fleet: again\n")
			third := r.commit("instead")
			open(third, "fleet: again\n")
			if got, err := b.Contains(t.Context(), third, second); got || err != nil {
				t.Errorf("a rewritten history contains what it had: %v, %v", got, err)
			}
			if b.Shallow(t.Context()) {
				t.Error("the history is said to be cut off")
			}
			if _, err := b.Open(t.Context(), strings.Repeat("1", 40)); !errors.Is(err, fault.ErrTemporary) {
				t.Errorf("a commit that is not there: %v", err)
			}
		})
	}
	for _, c := range []struct {
		name, url, branch, path string
		kind                    error
	}{
		{"wrong password", strings.Replace(testenv.ServeGit(t, r.dir, "anna", "secret").URL, "secret", "wrong", 1), "main", ".", fault.ErrUnauthenticated},
		{"no such repository", filepath.Join(r.dir, "nothing"), "main", ".", fault.ErrNotFound},
		{"no such branch", r.dir, "release", ".", fault.ErrNotFound},
		{"no such directory", r.dir, "main", "plants/wien", fault.ErrNotFound},
		{"outside", r.dir, "main", "../x", fault.ErrInvalid},
		{"an option", "--upload-pack=evil", "main", ".", fault.ErrInvalid},
		{"a branch that is an option", r.dir, "--all", ".", fault.ErrInvalid},
		{"a command", "ext::sh -c id", "main", ".", fault.ErrTemporary},
		{"nobody there", "http://127.0.0.1:1/x.git", "main", ".", fault.ErrTemporary},
	} {
		b, err := program().Follow(t.Context(), c.url, c.branch, c.path, t.TempDir())
		if err == nil {
			var commit string
			if commit, err = b.Newest(t.Context()); err == nil {
				_, err = b.Open(t.Context(), commit)
			}
		}
		if !errors.Is(err, c.kind) || strings.Contains(err.Error(), "wrong@") || strings.Contains(err.Error(), "anna") {
			t.Errorf("%s: %v, want %v", c.name, err, c.kind)
		}
	}
}

// With a call that is given up ends all that git has started for it, here the program that it reaches a server with.
func TestHelpersEndWithTheirCaller(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("processes end in groups on Linux")
	}
	newRepository(t) // or there is no git
	dir := t.TempDir()
	pids, ssh := filepath.Join(dir, "pids"), filepath.Join(dir, "ssh")
	script := "#!/bin/sh\nsleep 600 &\necho $! >" + pids + ".new\necho $$ >>" + pids + ".new\nmv " + pids + ".new " + pids + "\nwait\n"
	if err := os.WriteFile(ssh, []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	g := program()
	g.Environ = append(g.Environ, "GIT_SSH="+ssh, "GIT_SSH_VARIANT=simple")
	b, err := g.Follow(t.Context(), "ssh://git.acme.example/plant.git", "main", ".", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	ended := make(chan error, 1)
	go func() { _, err := b.Newest(ctx); ended <- err }()
	testenv.Eventually(t, 30*time.Second, "the helper", func() error {
		_, err := os.Stat(pids)
		return err
	})
	cancel()
	if err := <-ended; !errors.Is(err, context.Canceled) {
		t.Errorf("Newest = %v, want %v", err, context.Canceled)
	}
	data, err := os.ReadFile(pids)
	if err != nil {
		t.Fatal(err)
	}
	for pid := range strings.FieldsSeq(string(data)) {
		testenv.Eventually(t, time.Minute, "end of process "+pid, func() error {
			state, err := os.ReadFile("/proc/" + pid + "/stat")
			if err == nil && !strings.Contains(string(state), ") Z ") {
				return errors.New("it runs")
			}
			return nil
		})
	}
}
