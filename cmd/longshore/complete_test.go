package main

import (
	"bytes"
	"context"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/testenv"
)

func TestComplete(t *testing.T) {
	var out, errs bytes.Buffer
	var commands, state strings.Builder
	app := testProgram(&out, &errs).app()
	for _, c := range app.Commands {
		commands.WriteString(c.Name + "\n")
	}
	for _, c := range cmdline.Find(app.Commands, "state").Commands {
		state.WriteString(c.Name + "\n")
	}
	for _, c := range []struct{ line, want string }{
		{"__complete stat", "state\n"},
		{"__complete state ", state.String()},
		{"__complete state push --dep", "--deployment\n"},
		{"__complete state push x", ""},
		{"__complete state push --deployment ", ""}, // a file
		{"__complete state show -o ", "text\njson\nyaml\n"},
		{"__complete fleet plan -o m", "markdown\n"},
		{"__complete state show --output=j", "--output=json\n"},
		{"__complete verify --kind comp", "component\n"},
		{"__complete check --kind tr", "trust\n"},
		{"__complete sign --signature-format b", "bundle\nboth\n"},
		{"__complete state show --device ", ""}, // no fleet is here
		{"__complete completion ", "bash\nfish\nzsh\n"},
		{"__complete", commands.String()},
	} {
		out.Reset()
		if code := run(t.Context(), strings.Split(c.line, " "), nil, &out, &errs, nothingSet); code != 0 || out.String() != c.want {
			t.Errorf("%s: %d, %q, want %q", c.line, code, out.String(), c.want)
		}
	}
}

// Devices come from the fleet's files, tags from the registry; nothing comes from one that does not answer.
func TestCompleteDevicesAndTags(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	for _, version := range []string{"1.4.0", "1.10.0"} {
		s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":"+version)
	}
	complete := func(line string) string {
		t.Helper()
		code, stdout, stderr := s.try(append([]string{"__complete"}, strings.Split(line, "|")...)...)
		if code != outcome.OK || stderr != "" {
			t.Errorf("%s: exit %d, %s", line, code, stderr)
		}
		return strings.ReplaceAll(strings.TrimSpace(stdout), "\n", " ")
	}
	for _, c := range []struct{ line, want string }{
		{"fleet|plan|--select|device=press-0", ""}, // no fleet is here
		{"fleet|plan|plant|--select|device=press-0", "device=press-07 device=press-08 device=press-09"},
		{"fleet|plan|plant|--select|line=a,group", "line=a,group=line-a line=a,group=line-b"},
		{"fleet|plan|-o|json|plant|--select=l", "--select=line=a --select=line=b"},
		{"state|show|" + monitor + ":1.", monitor + ":1.10.0 " + monitor + ":1.4.0"},
		{"state|push|--component=oci://" + monitor + ":1.4", "--component=oci://" + monitor + ":1.4.0"},
		{"state|push|--component|" + monitor + ":1.4", monitor + ":1.4.0"},
		{"state|show|" + monitor + "@sha256:", ""},
		{"state|show|" + host + "/plant/nothing:", ""},
		{"state|show|" + host, ""},
		{"state|show|--password-stdin|" + monitor + ":1.", ""},
		{"state|show|--no-such-flag|" + monitor + ":1.", ""},
	} {
		if got := complete(c.line); got != c.want {
			t.Errorf("%s: %q, want %q", c.line, got, c.want)
		}
	}
	t.Chdir("plant")
	if got := complete("state|show|--device|press-07"); got != "press-07" {
		t.Errorf("in the fleet's directory: %q", got)
	}
	s.server.Faults.Add(testenv.Rule{Path: "/tags/list", Effect: s.server.Faults.Stall(-1)})
	s.completeWait = 100 * time.Millisecond
	begin := time.Now()
	if got, took := complete("state|show|"+monitor+":1."), time.Since(begin); got != "" || took > 30*time.Second { // other commands wait for minutes
		t.Errorf("from a registry that does not answer: %q after %s", got, took)
	}
	s.completeWait = time.Minute
	s.server.Faults.Clear()
	s.server.Faults.Add(testenv.Rule{Effect: testenv.Status(http.StatusForbidden, 0)})
	if got := complete("state|show|" + monitor + ":1."); got != "" {
		t.Errorf("from a registry that refuses: %q", got)
	}
}

// The shells themselves, with the script as they load it.
func TestCompletionInShells(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	s.write("bin/longshore", "#!/bin/sh\n"+processVariable+"=1 exec "+self+" \"$@\"\n")
	if err := os.Chmod("bin/longshore", 0o755); err != nil {
		t.Fatal(err)
	}
	bin, err := filepath.Abs("bin")
	if err != nil {
		t.Fatal(err)
	}
	lines := []struct{ typed, want string }{
		{"longshore fleet pub", "longshore fleet publish"},
		{"longshore state show --device press-1", "longshore state show --device press-10"},
		{"longshore fleet plan --select device=press-1", "longshore fleet plan --select device=press-10"},
		{"longshore fleet plan --output=j", "longshore fleet plan --output=json"},
		{"longshore verify --key release.pub " + monitor + ":1", "longshore verify --key release.pub " + monitor + ":1.4.0"},
		{"longshore verify --key rel", "longshore verify --key release."},
		{"longshore fleet check dev", "longshore fleet check devices"},
	}
	t.Chdir("plant")
	s.write("release.pub", "")
	s.write("release.key", "")
	env := append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"), "TERM=dumb", "PS1=> ", "HISTFILE=")
	for k, v := range s.env {
		env = append(env, k+"="+v)
	}
	// Ctrl-A and Ctrl-E go to the ends of the line: what it has become is printed and not run.
	person := func(first string) string {
		script := first + "\n"
		for _, l := range lines {
			script += l.typed + "\t\x01echo '<\x05>'\n"
		}
		return script + "exit\n"
	}
	check := func(t *testing.T, out string) {
		t.Helper()
		rest := out
		for _, l := range lines {
			var found bool
			if _, rest, found = strings.Cut(rest, "\n<"+l.want); !found {
				t.Fatalf("%q did not become %q:\n%s", l.typed, l.want, out)
			}
		}
	}
	t.Run("bash", func(t *testing.T) {
		check(t, typed(t, env, person("source <(longshore completion bash)"), "bash", "--noprofile", "--norc", "-i"))
	})
	t.Run("zsh", func(t *testing.T) {
		if err := testenv.InstallDebian(t.Context(), os.Stderr, "zsh"); err != nil {
			testenv.Unavailable(t, "zsh: %v", err)
		}
		check(t, typed(t, env, person("bindkey -e; autoload -U compinit && compinit -u -D; source <(longshore completion zsh)"), "zsh", "-f", "-i"))
	})
	t.Run("zsh with the script in fpath", func(t *testing.T) {
		functions := "mkdir -p functions; longshore completion zsh >functions/_longshore; fpath=($PWD/functions $fpath)"
		check(t, typed(t, env, person("bindkey -e; "+functions+"; autoload -U compinit && compinit -u -D"), "zsh", "-f", "-i"))
	})
	t.Run("fish", func(t *testing.T) {
		if err := testenv.InstallDebian(t.Context(), os.Stderr, "fish"); err != nil {
			testenv.Unavailable(t, "fish: %v", err)
		}
		script := "longshore completion fish | source\n"
		for _, l := range lines {
			script += "echo '" + l.typed + "'; complete -C '" + l.typed + "'\n"
		}
		cmd := exec.CommandContext(t.Context(), "fish", "--no-config", "-c", script)
		cmd.Env = env
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		for _, l := range lines {
			_, offered, _ := strings.Cut(string(out), l.typed+"\n")
			words := strings.Fields(l.want)
			if !strings.HasPrefix(offered, words[len(words)-1]) {
				t.Errorf("%q is offered:\n%s", l.typed, out)
			}
		}
	})
}

// typed is what a shell writes on a terminal when a person types a text into it.
func typed(t *testing.T, env []string, text string, argv ...string) string {
	t.Helper()
	terminal, person := testTerminal(t)
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr, cmd.Env = terminal, terminal, terminal, env
	cmd.SysProcAttr = ownTerminal()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = terminal.Close()
	if _, err := person.WriteString(text); err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	_, _ = out.ReadFrom(person) // ends with the shell
	_ = cmd.Wait()
	return strings.ReplaceAll(out.String(), "\r", "")
}
