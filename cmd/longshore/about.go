package main

import (
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

var versionCommand = command{
	name: "version", usage: "print the version",
	about:    "Prints the version, the commit that it was built from and its time, and the Go version.",
	examples: []string{"", "-o json"},
	run:      (*call).version,
}

type versionResult struct{ build.Info }

func (v versionResult) quietText() string { return v.Version }
func (v versionResult) text(w io.Writer)  { fmt.Fprintln(w, "longshore", v.Text()) }

func (c *call) version(_ []string) error {
	return c.show(versionResult{build.Read()})
}

var completionCommand = command{
	name: "completion", args: "bash|zsh|fish", min: 1, max: 1,
	usage: "print a shell completion script",
	about: "bash: source it, or install it in /etc/bash_completion.d. zsh: source it after compinit, or install it as " +
		"_longshore in a directory of fpath. fish: install it in ~/.config/fish/completions. Devices, groups and labels are completed from the fleet in the current directory or the " +
		"one that the command names, tags from the registry; values that take too long to look up are left out.",
	examples: []string{"bash > /etc/bash_completion.d/longshore", "zsh > ~/.longshore-completion.zsh"},
	offer:    cmdline.OfferShells,
	run: func(c *call, _ []string) error {
		return cmdline.WriteScript(c.flags)
	},
}
