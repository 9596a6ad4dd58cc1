package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
)

// publicKeyFiles is a flag --key for public keys. It has another environment variable than --key for private keys, so that
// one environment can serve both.
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
	return variableOf(f.Names()[0])
}

// variableOf is the environment variable of a flag that has this name.
func variableOf(flag string) string {
	return "LONGSHORE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

// environment returns the variable of a flag, and its value; --help has none.
func (p *program) environment(f cli.Flag) (name, value string) {
	if f.Names()[0] == "help" {
		return "", ""
	}
	name = variable(f)
	return name, p.getenv(name)
}

// offer completes values of flags, and tags.
func (p *program) offer(ctx context.Context, c *cmdline.Completion, flag, begin string) ([]string, bool) {
	x := &completion{c, p}
	if known, done := x.values(flag, begin); done {
		return known, true
	}
	if ref, ok := tagBegun(begin); ok {
		return x.tags(ctx, begin, ref), true
	}
	return nil, false
}

// completion completes the values of flags.
type completion struct {
	*cmdline.Completion
	p *program
}

// values returns the completions of a flag's value; done is false if the flag is not known here.
func (x *completion) values(flag, begin string) (out []string, done bool) {
	switch flag {
	case "--signature-format":
		return []string{string(signing.FormatBundle), string(signing.FormatLegacy), string(signing.FormatBoth)}, true
	case "--attestation", "--type":
		return sign.PredicateNames(), true
	case "--kind":
		if slices.Contains(x.Words, "verify") || slices.Contains(x.Words, "policy") {
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

// devices are those of the fleet that the command line names, or of the one in the current directory.
func (x *completion) devices() []*fleet.Device {
	dir := "."
	if slices.Contains(x.Path, "fleet") {
		if args := x.Arguments(); len(args) > 0 {
			dir = args[0]
		}
	}
	f, err := readFleet(dir)
	if err != nil {
		return nil
	}
	return f.Devices
}

// selectors are the completions of the last condition of a selector: devices, groups and labels.
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

// tagBegun reports whether a word is a reference with an unfinished tag, such as HOST/PATH:TA, and returns its repository.
func tagBegun(word string) (ref registry.Reference, ok bool) {
	colon := strings.LastIndex(word, ":")
	if colon <= strings.LastIndex(word, "/") || strings.Contains(word, "@") {
		return ref, false
	}
	ref, err := registry.ParseReference(word[:colon])
	return ref, err == nil && ref.Scheme == registry.SchemeOCI && ref.Tag == ""
}

// tags lists the tags of a repository, with the credentials of the flags and of the environment.
func (x *completion) tags(ctx context.Context, begin string, ref registry.Reference) (out []string) {
	if x.Command == nil || slices.Contains(x.Words, "--password-stdin") {
		return nil // stdin belongs to the shell
	}
	repository := begin[:strings.LastIndex(begin, ":")]
	x.Command.Action = func(f *cli.Context) error {
		c := &call{program: x.p, flags: f}
		defer c.end()
		ctx, cancel := context.WithTimeout(c.Context, c.completeWait)
		defer cancel()
		if err := c.connect(); err != nil {
			return err
		}
		repo, err := c.registry.Open(ctx, ref)
		if err != nil {
			return err
		}
		tags, err := repo.Tags(ctx)
		for _, t := range newestFirst(tags, nil) {
			out = append(out, repository+":"+t)
		}
		return err
	}
	words := slices.Clone(x.Words)
	if len(words) > 0 && x.TakesValue(words[len(words)-1]) {
		words = append(words, x.Last)
	}
	line, err := cmdline.Arrange(x.App, words, x.p.environment)
	if err == nil {
		_ = x.App.RunContext(ctx, append([]string{x.App.Name}, line...)) // completion shows no errors
	}
	return out
}
