package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

func (p *program) versionCommand() *cli.Command {
	return p.command("", command{
		name: "version", usage: "print the version",
		about:    "Prints the version, the commit that it was built from and its time, and the Go version.",
		examples: []string{"", "-o json"},
		run:      p.version,
	})
}

type versionResult struct{ build.Info }

func (v versionResult) essence() string  { return v.Version }
func (v versionResult) text(w io.Writer) { fmt.Fprintln(w, "longshore", v.Text()) }

func (p *program) version(c *cli.Context, _ []string) error {
	return p.show(c, versionResult{build.Read()})
}

func (p *program) completionCommand() *cli.Command {
	return p.command("", command{
		name: "completion", args: "bash|zsh|fish", min: 1, max: 1,
		usage: "print a shell completion script",
		about: "bash: source it, or install it in /etc/bash_completion.d. zsh: source it after compinit. fish: install it in " +
			"~/.config/fish/completions. Devices, groups and labels are completed from the fleet in the current directory or the " +
			"one that the command names, tags from the registry; values that take too long to look up are omitted.",
		examples: []string{"bash > /etc/bash_completion.d/longshore", "zsh > ~/.longshore-completion.zsh"},
		run: func(_ *cli.Context, args []string) error {
			return cmdline.WriteScript(p.stdout, "longshore", args)
		},
	})
}
