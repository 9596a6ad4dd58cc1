package cmdline

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/pflag"
)

// CompleteCommand is what the completion scripts ask: PROGRAM __complete WORD... LAST.
const CompleteCommand = "__complete"

// Completion finds out what the last word of a command line may become.
type Completion struct {
	Words   []string // before the last
	Last    string   // "": a new word begins
	Command *Command // the last that is in Words; nil: none yet
	Path    []string // its name

	at int // of Words, where its own begin
}

// Offer tells what the value of a flag or an argument may become; begin is what there is of it. The shell offers files where that is nothing.
type Offer func(ctx context.Context, x *Completion, begin string) []string

// offer writes what the last word may become, one a line: commands, flags, and what flags and commands offer. Where files belong it writes
// nothing, and the shell offers them; nor does it where something cannot be found out.
func (p *Program) offer(ctx context.Context, words []string) {
	x := &Completion{}
	if len(words) > 0 {
		x.Last, x.Words = words[len(words)-1], words[:len(words)-1]
	}
	commands := p.Commands
	for i, word := range x.Words {
		if next := Find(commands, word); next != nil {
			x.Command, commands, x.at = next, next.Commands, i+1
			x.Path = append(x.Path, next.Name)
		}
	}
	for _, one := range x.offers(ctx, commands) {
		fmt.Fprintln(p.Out, one)
	}
}

// offers are what the last word may become.
func (x *Completion) offers(ctx context.Context, commands []Command) (out []string) {
	flag, begin := x.flag()
	switch {
	case x.Command == nil && strings.HasPrefix(x.Last, "-"):
		return nil
	case flag != "":
		f := x.Command.Flag(flag)
		if f != nil && f.Offer != nil {
			out = f.Offer(ctx, x, begin)
		} else if f != nil {
			out = f.OneOf
		}
	case strings.HasPrefix(x.Last, "-"):
		for _, f := range x.Command.Flags {
			out = append(out, "--"+f.Name)
		}
	case x.Command != nil && x.Command.Offer != nil:
		out = x.Command.Offer(ctx, x, begin)
	default:
		for _, c := range commands {
			out = append(out, c.Name)
		}
	}
	return x.beginning(begin, out)
}

// flag is the flag of which the last word is, or has, the value, and what there is of it.
func (x *Completion) flag() (name, begin string) {
	if name, value, ok := strings.Cut(x.Last, "="); ok && strings.HasPrefix(name, "-") {
		return name, value
	}
	if len(x.Words) > 0 && x.TakesValue(x.Words[len(x.Words)-1]) {
		return x.Words[len(x.Words)-1], x.Last
	}
	return "", x.Last
}

// TakesValue reports whether a word is a flag and the next one its value.
func (x *Completion) TakesValue(word string) bool {
	if x.Command == nil || !strings.HasPrefix(word, "-") || strings.Contains(word, "=") {
		return false
	}
	f := x.Command.Flag(word)
	return f != nil && f.TakesValue()
}

// beginning keeps those that begin as the word does, which may have a flag and "=" before it.
func (x *Completion) beginning(begin string, all []string) (out []string) {
	for _, v := range all {
		if strings.HasPrefix(v, begin) {
			out = append(out, strings.TrimSuffix(x.Last, begin)+v)
		}
	}
	return out
}

// Arguments are the words of the command that are neither flags nor their values.
func (x *Completion) Arguments() (out []string) {
	for i := x.at; i < len(x.Words); i++ {
		switch {
		case x.TakesValue(x.Words[i]):
			i++
		case !strings.HasPrefix(x.Words[i], "-"):
			out = append(out, x.Words[i])
		}
	}
	return out
}

// Context is that of the command if it ran with what is typed so far; nil: it would not.
func (x *Completion) Context(ctx context.Context, getenv func(string) string) *Context {
	c := &Context{Program: &Program{Getenv: getenv}, Context: ctx, Command: strings.Join(x.Path, " "), flags: pflag.NewFlagSet("", pflag.ContinueOnError)}
	define(c.flags, x.Command.Flags)
	words := slices.Clone(x.Words)
	if len(words) > 0 && x.TakesValue(words[len(words)-1]) {
		words = append(words, x.Last)
	}
	if c.flags.Parse(words) != nil || c.complete(x.Command.Flags) != nil {
		return nil
	}
	return c
}
