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

// offerPredicates completes a type of predicates.
func offerPredicates(context.Context, *cmdline.Completion, string) []string {
	return sign.PredicateNames()
}

// offerDevices completes the id of a device.
func offerDevices(_ context.Context, x *cmdline.Completion, _ string) (out []string) {
	for _, d := range devicesBeside(x) {
		out = append(out, string(d.ID))
	}
	return out
}

// devicesBeside are those of the fleet that the command line names, or of the one in the current directory.
func devicesBeside(x *cmdline.Completion) []*fleet.Device {
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

// offerSelectors completes the last condition of a selector: devices, groups and labels.
func offerSelectors(_ context.Context, x *cmdline.Completion, begin string) []string {
	before := begin[:strings.LastIndex(begin, ",")+1]
	found := map[string]bool{}
	for _, d := range devicesBeside(x) {
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

// offerTags completes a tag, with the credentials of the flags and of the environment.
func (p *program) offerTags(ctx context.Context, x *cmdline.Completion, begin string) (out []string) {
	ref, ok := tagBegun(begin)
	if !ok || slices.Contains(x.Words, "--password-stdin") {
		return nil // stdin belongs to the shell
	}
	f := x.Context(ctx, p.getenv)
	if f == nil {
		return nil
	}
	c := &call{program: p, flags: f}
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
