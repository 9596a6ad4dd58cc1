package main

import (
	"context"
	"maps"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing/sign"
)

// publicKeyFlag is a flag --key for public keys. It has another environment variable than --key for private keys, so that
// one environment can serve both.
func publicKeyFlag(usage string) cmdline.Flag {
	return cmdline.Flag{Name: "key", Value: []string(nil), Env: "LONGSHORE_PUBLIC_KEY", Usage: usage}
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
	case "--attestation", "--type":
		return sign.PredicateNames(), true
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
	f := x.Context(ctx, x.p.getenv)
	if f == nil {
		return nil
	}
	c := &call{program: x.p, flags: f}
	defer c.end()
	ctx, cancel := context.WithTimeout(ctx, c.completeWait)
	defer cancel()
	if err := c.connect(); err != nil {
		return nil // completion shows no errors
	}
	repo, err := c.registry.Open(ctx, ref)
	if err != nil {
		return nil
	}
	tags, _ := repo.Tags(ctx)
	for _, t := range newestFirst(tags, nil) {
		out = append(out, begin[:strings.LastIndex(begin, ":")+1]+t)
	}
	return out
}
