package cmdline

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Context is one run of a command: what was typed, and where its result goes.
type Context struct {
	*Program
	Context context.Context
	Command string // its whole name: "state push"
	Args    []string
	flags   *pflag.FlagSet
}

// complete sets flags that were not given from their variables, and checks the values of those that have a list of them. An empty variable is as
// none.
func (c *Context) complete(flags []Flag) error {
	for _, f := range flags {
		from := "--" + f.Name
		if value := c.Getenv(f.Env); f.Env != "" && value != "" && !c.IsSet(f.Name) {
			from = f.Env
			if err := c.fromVariable(&f, value); err != nil {
				return outcome.Usagef(c.Command, "%s: %s=%q: %s", c.Command, f.Env, value, wrongValue(c.flags.Lookup(f.Name), err))
			}
		}
		v := c.String(f.Name)
		if usual, _ := f.Value.(string); f.OneOf != nil && v != usual && !slices.Contains(f.OneOf, v) {
			return outcome.Usagef(c.Command, "%s: %s: %q is not %s", c.Command, from, v, Either(f.OneOf))
		}
	}
	return nil
}

func (c *Context) fromVariable(f *Flag, value string) error {
	if _, repeated := f.Value.([]string); !repeated {
		return c.flags.Set(f.Name, value)
	}
	for line := range strings.Lines(strings.Trim(value, "\r\n")) {
		if err := c.flags.Set(f.Name, strings.TrimLeft(strings.TrimRight(line, "\r\n"), " \t")); err != nil {
			return err
		}
	}
	return nil
}

// Arg is the first argument; "": there is none.
func (c *Context) Arg() string {
	if len(c.Args) == 0 {
		return ""
	}
	return c.Args[0]
}

// IsSet reports whether a flag, or its variable, was given.
func (c *Context) IsSet(flag string) bool { return c.flags.Changed(flag) }

// Has reports whether the command has a flag.
func (c *Context) Has(flag string) bool { return c.flags.Lookup(flag) != nil }

// Set sets a flag as if it had been given.
func (c *Context) Set(flag, value string) error { return c.flags.Set(flag, value) }

// String returns a flag's value; "" if the command has no such flag, as the other types return their zero value.
func (c *Context) String(flag string) string { return value(c.flags.GetString, flag) }

// Bool is as [Context.String].
func (c *Context) Bool(flag string) bool { return value(c.flags.GetBool, flag) }

// Int is as [Context.String].
func (c *Context) Int(flag string) int { return value(c.flags.GetInt, flag) }

// Int64 is as [Context.String].
func (c *Context) Int64(flag string) int64 { return value(c.flags.GetInt64, flag) }

// Uint64 is as [Context.String].
func (c *Context) Uint64(flag string) uint64 { return value(c.flags.GetUint64, flag) }

// Float64 is as [Context.String].
func (c *Context) Float64(flag string) float64 { return value(c.flags.GetFloat64, flag) }

// Duration is as [Context.String].
func (c *Context) Duration(flag string) time.Duration {
	if f := c.flags.Lookup(flag); f != nil {
		return time.Duration(*f.Value.(*duration))
	}
	return 0
}

// StringSlice is as [Context.String]; nil: it was not given.
func (c *Context) StringSlice(flag string) []string {
	if !c.IsSet(flag) {
		return nil
	}
	return c.flags.Lookup(flag).Value.(pflag.SliceValue).GetSlice() // GetStringArray reads CSV, which has no single empty value and no CR LF
}

func value[T any](get func(flag string) (T, error), flag string) T {
	v, _ := get(flag) // an error only where there is no such flag
	return v
}
