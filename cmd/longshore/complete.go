package main

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/signing"
)

// variable is the environment variable of a flag. Private and public keys have one each.
func variable(f cli.Flag) string {
	if _, ok := f.(*cli.StringSliceFlag); ok && f.Names()[0] == "key" {
		return "LONGSHORE_PUBLIC_KEY"
	}
	return "LONGSHORE_" + strings.ToUpper(strings.ReplaceAll(f.Names()[0], "-", "_"))
}

// environment gives each flag its variable.
func (p *program) environment(f cli.Flag) (name, value string) {
	name = variable(f)
	return name, p.getenv(name)
}

// completeCommand is what the completion scripts ask: longshore __complete WORD... LAST.
const completeCommand = "__complete"

// complete writes what LAST may become, one a line. Where files belong it writes nothing, and the shell offers them.
func complete(app *cli.App, words []string, w io.Writer) {
	last := ""
	if len(words) > 0 {
		last, words = words[len(words)-1], words[:len(words)-1]
	}
	commands := app.Commands
	var command *cli.Command
	if v, done := values(words, last); done {
		for _, one := range v {
			fmt.Fprintln(w, one)
		}
		return
	}
	for _, word := range words {
		if next := cmdline.Find(commands, word); next != nil {
			command, commands = next, next.Subcommands
		}
	}
	if strings.HasPrefix(last, "-") {
		if command == nil {
			return
		}
		for _, f := range command.Flags {
			if name := "--" + f.Names()[0]; strings.HasPrefix(name, last) {
				fmt.Fprintln(w, name)
			}
		}
		return
	}
	for _, c := range commands {
		if !c.Hidden && strings.HasPrefix(c.Name, last) {
			fmt.Fprintln(w, c.Name)
		}
	}
}

// values offers what the value of a flag may be, as --flag VALUE and --flag=VALUE; done tells that last is one.
func values(words []string, last string) (out []string, done bool) {
	flag, begin := "", ""
	if len(words) > 0 {
		flag, begin = words[len(words)-1], last
	}
	if name, value, ok := strings.Cut(last, "="); ok {
		flag, begin = name, value
	}
	all := map[string][]string{
		"--output": outputFormats(), "-o": outputFormats(),
		"--signature-format": {string(signing.FormatBundle), string(signing.FormatLegacy), string(signing.FormatBoth)},
	}
	all["--attestation"], all["--type"] = signing.PredicateNames(), signing.PredicateNames()
	all["--kind"] = checkKinds()
	if slices.Contains(words, "verify") || slices.Contains(words, "policy") {
		all["--kind"] = verifiedKinds()
	}
	known, done := all[flag]
	for _, v := range known {
		if strings.HasPrefix(v, begin) {
			out = append(out, strings.TrimSuffix(last, begin)+v)
		}
	}
	return out, done
}
