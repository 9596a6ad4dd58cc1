package cmdline

import (
	"errors"
	"fmt"
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
	Default     string   // shown instead of Value
	Env         string   // its variable; a flag that may be repeated takes one value from each line of it
	Category    string   // of the help
	Once        bool     // two different values are an error; otherwise the last counts, so that a script may end its line with "$@"
	OneOf       []string // its values, beside the default
	Offer       Offer    // completes its value; nil: with those of OneOf
}

// Either writes words with "or" before the last.
func Either(all []string) string {
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

// TakesValue reports whether a value follows the flag.
func (f *Flag) TakesValue() bool {
	_, is := f.Value.(bool)
	return !is
}

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

// flagError tells in our words what pflag rejects.
func flagError(path string, flags []Flag, err error) error {
	if unknown, ok := errors.AsType[*pflag.NotExistError](err); ok {
		written := "--" + unknown.GetSpecifiedName()
		if letters := unknown.GetSpecifiedShortnames(); letters != "" {
			written = "-" + letters
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
