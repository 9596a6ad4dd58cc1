package main

import (
	"context"
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

// completeLimit is how long a registry may take to tell its tags while somebody holds the tab key.
const completeLimit = 2 * time.Second

// complete writes what the last word may become, one a line.
func (p *program) complete(ctx context.Context, app *cli.App, words []string, w io.Writer) {
	cmdline.Complete(w, app, words, func(c *cmdline.Completion, flag, begin string) ([]string, bool) {
		x := &completion{c, p}
		if known, done := x.values(flag, begin); done {
			return known, true
		}
		if ref, ok := tagBegun(begin); ok {
			return x.tags(ctx, begin, ref), true
		}
		return nil, false
	})
}

// completion knows what the values of this program's flags may be.
type completion struct {
	*cmdline.Completion
	p *program
}

// values offers what the value of a flag may be; done tells that it is known what belongs there.
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

// devices are those of the fleet that the command line names, or that is here.
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
	if x.Command == nil || slices.Contains(x.Words, "--password-stdin") {
		return nil // what is on stdin is the shell's
	}
	repository := begin[:strings.LastIndex(begin, ":")]
	x.Command.Action = func(c *cli.Context) error {
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
