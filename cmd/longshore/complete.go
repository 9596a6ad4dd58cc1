package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

// publicKeyFiles is a --key that takes files with public keys. It has an environment variable of its own: one environment
// serves commands that sign and commands that verify.
type publicKeyFiles struct{ *cli.StringSliceFlag }

// publicKeyFlag is the flag --key for public keys.
func publicKeyFlag(usage string) cli.Flag {
	return publicKeyFiles{&cli.StringSliceFlag{Name: "key", Usage: usage}}
}

// variable is the environment variable of a flag.
func variable(f cli.Flag) string {
	if _, ok := f.(publicKeyFiles); ok {
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

// completeLimit is how long a registry may take to tell its tags while somebody holds the tab key.
const completeLimit = 2 * time.Second

// completion finds out what the last word of a command line may become.
type completion struct {
	p       *program
	app     *cli.App
	words   []string // before the last
	last    string
	command *cli.Command // the last that is in words; nil: none yet
	path    []string     // its name
	at      int          // of the words, where its own begin
}

// complete writes what the last word may become, one a line. Where files belong it writes nothing, and the shell offers
// them; nor does it where something cannot be found out.
func (p *program) complete(ctx context.Context, app *cli.App, words []string, w io.Writer) {
	x := &completion{p: p, app: app}
	if len(words) > 0 {
		x.last, x.words = words[len(words)-1], words[:len(words)-1]
	}
	commands := app.Commands
	for i, word := range x.words {
		if next := cmdline.Find(commands, word); next != nil {
			x.command, commands, x.at = next, next.Subcommands, i+1
			x.path = append(x.path, next.Name)
		}
	}
	for _, one := range x.offers(ctx, commands) {
		fmt.Fprintln(w, one)
	}
}

func (x *completion) offers(ctx context.Context, commands []*cli.Command) (out []string) {
	flag, begin := x.flag()
	if known, done := x.values(flag, begin); done {
		return x.beginning(begin, known)
	}
	if ref, ok := tagBegun(begin); ok {
		return x.beginning(begin, x.tags(ctx, begin, ref))
	}
	switch {
	case flag != "": // files, or what nobody knows
	case slices.Equal(x.path, []string{"completion"}) && !strings.HasPrefix(x.last, "-"):
		out = slices.Sorted(maps.Keys(scripts))
	case strings.HasPrefix(x.last, "-") && x.command != nil:
		for _, f := range x.command.Flags {
			out = append(out, "--"+f.Names()[0])
		}
	case !strings.HasPrefix(x.last, "-"):
		for _, c := range commands {
			if !c.Hidden {
				out = append(out, c.Name)
			}
		}
	}
	return x.beginning(x.last, out)
}

// flag is the flag of which the last word is, or has, the value, and what there is of it.
func (x *completion) flag() (name, begin string) {
	if name, value, ok := strings.Cut(x.last, "="); ok && strings.HasPrefix(name, "-") {
		return name, value
	}
	if len(x.words) > 0 && x.takesValue(x.words[len(x.words)-1]) {
		return x.words[len(x.words)-1], x.last
	}
	return "", x.last
}

// takesValue tells whether a word is a flag and the next one its value.
func (x *completion) takesValue(word string) bool {
	if x.command == nil || !strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
		return false
	}
	f, ok := cmdline.FlagNamed(x.command, word).(cli.DocGenerationFlag)
	return ok && f.TakesValue()
}

// beginning keeps those that begin as the word does, which may have a flag and "=" before it.
func (x *completion) beginning(begin string, all []string) (out []string) {
	for _, v := range all {
		if strings.HasPrefix(v, begin) {
			out = append(out, strings.TrimSuffix(x.last, begin)+v)
		}
	}
	return out
}

// values offers what the value of a flag may be; done tells that it is known what belongs there.
func (x *completion) values(flag, begin string) (out []string, done bool) {
	switch flag {
	case "--output", "-o":
		return x.outputs(), true
	case "--signature-format":
		return []string{string(signing.FormatBundle), string(signing.FormatLegacy), string(signing.FormatBoth)}, true
	case "--attestation", "--type":
		return sign.PredicateNames(), true
	case "--kind":
		if slices.Contains(x.words, "verify") || slices.Contains(x.words, "policy") {
			return verifiedKinds(), true
		}
		return checkKinds(), true
	case "--device", "-d":
		for _, d := range x.devices() {
			out = append(out, string(d.ID))
		}
		return out, true
	case "--select":
		return x.selectors(begin), true
	}
	return nil, false
}

// outputs are the formats that the command offers: its own flag lists them.
func (x *completion) outputs() []string {
	if x.command != nil {
		for _, f := range x.command.Flags {
			if s, ok := f.(*cli.StringFlag); ok && s.Name == "output" {
				_, list, _ := strings.Cut(s.Usage, ": ")
				list, _, _ = strings.Cut(list, " [")
				return strings.FieldsFunc(strings.ReplaceAll(list, " or ", ","), func(r rune) bool { return r == ',' || r == ' ' })
			}
		}
	}
	return outputFormats()
}

// devices are those of the fleet that the command line names, or that is here.
func (x *completion) devices() []*fleet.Device {
	dir := "."
	if slices.Contains(x.path, "fleet") {
		if args := x.arguments(); len(args) > 0 {
			dir = args[0]
		}
	}
	f, err := readFleet(dir)
	if err != nil {
		return nil
	}
	return f.Devices
}

// arguments are the words of the command that are neither flags nor their values.
func (x *completion) arguments() (out []string) {
	for i := x.at; i < len(x.words); i++ {
		switch {
		case x.takesValue(x.words[i]):
			i++
		case !strings.HasPrefix(x.words[i], "-"):
			out = append(out, x.words[i])
		}
	}
	return out
}

// selectors are what the last condition of a selector may be: a device, a group, a label.
func (x *completion) selectors(begin string) []string {
	before := begin[:strings.LastIndex(begin, ",")+1]
	found := map[string]bool{}
	for _, d := range x.devices() {
		found["device="+string(d.ID)] = true
		for _, g := range d.Groups {
			found["group="+g.Name] = true
		}
		for key, value := range d.Labels {
			found[key+"="+value] = true
		}
	}
	var out []string
	for _, one := range slices.Sorted(maps.Keys(found)) {
		out = append(out, before+one)
	}
	return out
}

// tagBegun tells whether a word is a reference up to somewhere in its tag: HOST/PATH:TA.
func tagBegun(word string) (ref registry.Reference, ok bool) {
	colon := strings.LastIndex(word, ":")
	if colon <= strings.LastIndex(word, "/") || strings.Contains(word, "@") {
		return ref, false
	}
	ref, err := registry.ParseReference(word[:colon])
	return ref, err == nil && ref.Scheme == registry.SchemeOCI && ref.Tag == ""
}

// tags asks the registry for those of a repository, as the flags and the environment say how.
func (x *completion) tags(ctx context.Context, begin string, ref registry.Reference) (out []string) {
	if x.command == nil || slices.Contains(x.words, "--password-stdin") {
		return nil // what is on stdin is the shell's
	}
	repository := begin[:strings.LastIndex(begin, ":")]
	x.command.Action = func(c *cli.Context) error {
		ctx, cancel := context.WithTimeout(c.Context, completeLimit)
		defer cancel()
		client, err := x.p.client(c)
		if err != nil {
			return err
		}
		defer client.Close()
		repo, err := client.Open(ctx, ref)
		if err != nil {
			return err
		}
		tags, err := repo.Tags(ctx)
		for _, t := range newestFirst(tags, nil) {
			out = append(out, repository+":"+t)
		}
		return err
	}
	words := slices.Clone(x.words)
	if len(words) > 0 && x.takesValue(words[len(words)-1]) {
		words = append(words, x.last)
	}
	line, err := cmdline.Arrange(x.app, words, x.p.environment)
	if err == nil {
		_ = x.app.RunContext(ctx, append([]string{x.app.Name}, line...)) // nobody is there to be told
	}
	return out
}
