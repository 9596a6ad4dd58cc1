package cmdline

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Flag describes a flag. Value is its default, and its type that of the flag: string (or nil), bool, int, int64, uint64, float64,
// time.Duration, which takes days too, or []string for a flag that may be repeated.
type Flag struct {
	Name, Alias string // Alias: a letter, or another name
	Usage       string // with the name of the value in back quotes
	Value       any
	Default     string // shown instead of Value
	Env         string // its variable; a flag that may be repeated takes one value from each line of it
	Category    string // of the help
	Once        bool   // two different values are an error; otherwise the last counts, so that a script may end its line with "$@"
	OneOf       []string
}

// TakesValue reports whether a value follows the flag.
func (f *Flag) TakesValue() bool {
	_, is := f.Value.(bool)
	return !is
}

type flagSet = *pflag.FlagSet

// define adds flags to a set.
func define(to *pflag.FlagSet, flags []Flag) {
	to.SortFlags = false
	names := map[string]string{}
	for _, f := range flags {
		letter := f.Alias
		if len(letter) > 1 {
			names[f.Alias], letter = f.Name, ""
			f.Usage += ", also --" + f.Alias
		}
		f.define(to, letter)
		defined := to.Lookup(f.Name)
		if f.Default != "" {
			defined.DefValue = f.Default
		}
		if f.Env != "" {
			defined.Usage += " [$" + f.Env + "]"
		}
	}
	if len(names) > 0 {
		to.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
			if other, is := names[name]; is {
				name = other
			}
			return pflag.NormalizedName(name)
		})
	}
}

func (f *Flag) define(to *pflag.FlagSet, letter string) {
	switch value := f.Value.(type) {
	case nil:
		to.VarP(&text{once: f.Once}, f.Name, letter, f.Usage)
	case string:
		to.VarP(&text{value: value, once: f.Once}, f.Name, letter, f.Usage)
	case bool:
		to.BoolP(f.Name, letter, value, f.Usage)
	case int:
		to.IntP(f.Name, letter, value, f.Usage)
	case int64:
		to.Int64P(f.Name, letter, value, f.Usage)
	case uint64:
		to.Uint64P(f.Name, letter, value, f.Usage)
	case float64:
		to.Float64P(f.Name, letter, value, f.Usage)
	case time.Duration:
		to.VarP((*duration)(&value), f.Name, letter, f.Usage)
	case []string:
		to.StringArrayP(f.Name, letter, value, f.Usage)
	default:
		panic(fmt.Sprintf("flag --%s: a default of type %T", f.Name, value))
	}
}

// text is the value of a flag that takes one.
type text struct {
	value       string
	once, given bool
}

func (t *text) String() string { return t.value }
func (t *text) Type() string   { return "string" }

func (t *text) Set(s string) error {
	if t.once && t.given && s != t.value {
		return fmt.Errorf("it takes one value, and %q was given before", t.value)
	}
	t.value, t.given = s, true
	return nil
}

// duration is the value of a flag that takes days too.
type duration time.Duration

func (d *duration) Type() string { return "time" }

func (d *duration) String() string {
	if *d == 0 {
		return "0" // no default is shown
	}
	return time.Duration(*d).String()
}

func (d *duration) Set(s string) error {
	v, err := strict.ParseDuration(s)
	if err == nil {
		*d = duration(v)
	}
	return err
}

// complete sets flags that were not given from their variables, and checks the values of those that have a list of them. An empty variable is as
// none.
func (c *Context) complete(flags []Flag, getenv func(string) string) error {
	for _, f := range flags {
		if value := getenv(f.Env); f.Env != "" && value != "" && !c.IsSet(f.Name) {
			if err := c.fromVariable(&f, value); err != nil {
				return outcome.Usagef(c.Command, "%s: %s=%q: %s", c.Command, f.Env, value, wrongValue(c.flags.Lookup(f.Name), err))
			}
		}
		if v := c.String(f.Name); f.OneOf != nil && !slices.Contains(f.OneOf, v) {
			from := "--" + f.Name
			if f.Env != "" && getenv(f.Env) == v {
				from = f.Env
			}
			last := len(f.OneOf) - 1
			return outcome.Usagef(c.Command, "%s: %s: %q is not %s or %s", c.Command, from, v, strings.Join(f.OneOf[:last], ", "), f.OneOf[last])
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

// flagError tells in our words what pflag rejects. flags is nil for a group of commands.
func flagError(path string, flags []Flag, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		written := "--" + unknown.GetSpecifiedName()
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			written = "-" + letters
		}
		if flags == nil {
			return outcome.Usagef(path, "%s: a command is missing, or this is no flag", written)
		}
		var names []string
		for _, f := range flags {
			names = append(names, f.Name)
		}
		if near := strict.Nearest(strings.TrimLeft(written, "-"), names); near != "" {
			return outcome.Usagef(path, "%s: there is no flag %s, did you mean --%s?", path, written, near)
		}
		return outcome.Usagef(path, "%s: there is no flag %s", path, written)
	}
	if missing, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		return outcome.Usagef(path, "%s: --%s needs a value", path, missing.GetFlag().Name)
	}
	if wrong, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		return outcome.Usagef(path, "%s: --%s %q: %s", path, wrong.GetFlag().Name, wrong.GetValue(), wrongValue(wrong.GetFlag(), wrong.Unwrap()))
	}
	return outcome.Usagef(path, "%s: %v", path, err)
}

// wrongValue tells what a flag takes.
func wrongValue(f *pflag.Flag, err error) string {
	switch f.Value.Type() {
	case "bool":
		return "it is neither true nor false"
	case "int", "int64", "uint64", "float64":
		return "it is no number"
	case "time":
		return "it is no time like 30s, 2h or 3d"
	}
	return err.Error()
}

// IsSet reports whether a flag, or its variable, was given.
func (c *Context) IsSet(flag string) bool { return c.flags.Changed(flag) }

// Has reports whether the command has a flag.
func (c *Context) Has(flag string) bool { return c.flags.Lookup(flag) != nil }

// Set sets a flag as if it had been given.
func (c *Context) Set(flag, value string) error { return c.flags.Set(flag, value) }

// String returns a flag's value; "" if the command has no such flag, as the other types return their zero value.
func (c *Context) String(flag string) string {
	v, _ := c.flags.GetString(flag)
	return v
}

// Bool is as [Context.String].
func (c *Context) Bool(flag string) bool {
	v, _ := c.flags.GetBool(flag)
	return v
}

// Int is as [Context.String].
func (c *Context) Int(flag string) int {
	v, _ := c.flags.GetInt(flag)
	return v
}

// Int64 is as [Context.String].
func (c *Context) Int64(flag string) int64 {
	v, _ := c.flags.GetInt64(flag)
	return v
}

// Uint64 is as [Context.String].
func (c *Context) Uint64(flag string) uint64 {
	v, _ := c.flags.GetUint64(flag)
	return v
}

// Float64 is as [Context.String].
func (c *Context) Float64(flag string) float64 {
	v, _ := c.flags.GetFloat64(flag)
	return v
}

// Duration is as [Context.String].
func (c *Context) Duration(flag string) time.Duration {
	if f := c.flags.Lookup(flag); f != nil {
		if d, ok := f.Value.(*duration); ok {
			return time.Duration(*d)
		}
	}
	return 0
}

// StringSlice is as [Context.String]; nil: it was not given.
func (c *Context) StringSlice(flag string) []string {
	v, _ := c.flags.GetStringArray(flag)
	if len(v) == 0 {
		return nil
	}
	return v
}

// Arg is the first argument; "": there is none.
func (c *Context) Arg() string {
	if len(c.Args) == 0 {
		return ""
	}
	return c.Args[0]
}
