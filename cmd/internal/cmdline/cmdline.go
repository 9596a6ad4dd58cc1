// Package cmdline reads the command lines of our programs: flags may stand anywhere, help and version are asked for in
// every usual way, and what is wrong is told in one line with exit code 2.
package cmdline

import (
	"slices"
	"strconv"
	"strings"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts/strict"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// Environment gives the variable of a flag and its value; "" is a variable that is not set.
type Environment func(f cli.Flag) (variable, value string)

// Verbatim is the key of an app's metadata under which the names of those commands are, as []string, that take everything
// behind their first argument as it is: it is another program's command line.
const Verbatim = "verbatim"

// Single is the key of an app's metadata under which the names of those flags are, as []string, that must not be given two values. Of any other
// flag that takes one value the last counts, so that a script may end its line with "$@".
const Single = "single"

// Arrange brings a command line, without the program's name, into the order that the flag package wants: the command, its
// flags, its arguments. It lets flags stand anywhere, and fills in from the environment what is not there: a flag beats
// its variable. env is nil when there are no variables.
func Arrange(app *cli.App, args []string, env Environment) ([]string, error) {
	var path, rest []string
	var command *cli.Command
	commands := app.Commands
	help, asked := false, false
	for i := 0; i < len(args); i++ {
		a := args[i]
		if strings.HasPrefix(a, "-") && a != "-" {
			rest, asked = append(rest, a), asked || isHelp(a)
			if anyTakesValue(app.Commands, a) && i+1 < len(args) {
				i++
				rest = append(rest, args[i])
			}
			continue
		}
		next := Find(commands, a)
		if next == nil && !help && (a == "help" || a == "h") {
			help = true
			continue
		}
		if next == nil {
			return nil, unknownCommand(app, path, commands, a)
		}
		path, command, commands = append(path, next.Name), next, next.Subcommands
		if len(commands) == 0 {
			rest = append(rest, args[i+1:]...)
			break
		}
	}
	switch {
	case help || len(commands) > 0 && asked:
		return append(path, "--help"), nil
	case command == nil && len(rest) > 0 && (rest[0] == "--version" || rest[0] == "-v") && Find(commands, "version") != nil:
		path, command, commands, rest = []string{"version"}, Find(commands, "version"), nil, rest[1:]
	}
	if command == nil || len(commands) > 0 {
		if len(rest) == 0 {
			return path, nil
		}
		return nil, outcome.Usagef(strings.Join(path, " "), "%s: a command is missing, or this is no flag", rest[0])
	}
	verbatim, _ := app.Metadata[Verbatim].([]string)
	flags, arguments := split(command, rest, slices.Contains(verbatim, command.Name))
	help, err := checkFlags(app, strings.Join(path, " "), command, flags)
	if err != nil {
		return nil, err
	}
	if help {
		return append(path, "--help"), nil // to the library arguments would be topics
	}
	if command.ArgsUsage == "" && len(arguments) > 0 {
		name := strings.Join(path, " ")
		return nil, outcome.Usagef(name, "%s takes no argument, got %q", name, arguments[0])
	}
	if env != nil {
		more, err := fromEnvironment(strings.Join(path, " "), command, flags, env)
		if err != nil {
			return nil, err
		}
		flags = append(flags, more...)
	}
	return append(append(append(path, flags...), "--"), arguments...), nil
}

func isHelp(a string) bool { return a == "--help" || a == "-help" || a == "-h" }

func unknownCommand(app *cli.App, path []string, commands []*cli.Command, name string) error {
	var names []string
	for _, c := range commands {
		if !c.Hidden {
			names = append(names, c.Name)
		}
	}
	if near := strict.Nearest(name, names); near != "" {
		return outcome.Usagef(strings.Join(path, " "), "%q is no command, did you mean %q?", strings.Join(append(path, name), " "), near)
	}
	if others := ending(app.Commands, "", name); len(others) > 0 {
		return outcome.Usagef(strings.Join(path, " "), "%q is no command, these are: %s", strings.Join(append(path, name), " "), strings.Join(others, ", "))
	}
	return outcome.Usagef(strings.Join(path, " "), "%q is no command: it is one of %s", strings.Join(append(path, name), " "), strings.Join(names, ", "))
}

// ending are the commands, with their groups, that end with a name.
func ending(commands []*cli.Command, group, name string) (out []string) {
	for _, c := range commands {
		if c.Name == name && !c.Hidden && len(c.Subcommands) == 0 {
			out = append(out, group+c.Name)
		}
		out = append(out, ending(c.Subcommands, group+c.Name+" ", name)...)
	}
	return out
}

// Find finds a command by one of its names.
func Find(commands []*cli.Command, name string) *cli.Command {
	for _, c := range commands {
		if c.HasName(name) {
			return c
		}
	}
	return nil
}

// split parts flags, each with its value, from arguments. What is no known flag stays a flag, to be refused by name.
func split(c *cli.Command, args []string, verbatim bool) (flags, arguments []string) {
	for i := 0; i < len(args); i++ {
		a := args[i]
		switch {
		case a == "--":
			return flags, append(arguments, args[i+1:]...)
		case verbatim && (!strings.HasPrefix(a, "-") || a == "-"):
			return flags, append(arguments, args[i:]...)
		case !strings.HasPrefix(a, "-") || a == "-":
			arguments = append(arguments, a)
			continue
		}
		flags = append(flags, apart(c, a)...)
		last := flags[len(flags)-1]
		f := FlagNamed(c, last)
		if f != nil && takesValue(f) && !strings.Contains(last, "=") && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	return flags, arguments
}

// apart parts short flags that are written together, the last also with its value: "-it", "-n20", "-ojson". Every other word stays as it
// is, also one that is near a long flag with one dash.
func apart(c *cli.Command, written string) (out []string) {
	letters, short := strings.CutPrefix(written, "-")
	if !short || strings.HasPrefix(letters, "-") || len(letters) < 2 || FlagNamed(c, written) != nil || nearFlag(c, written) != "" {
		return []string{written}
	}
	for i := range letters {
		one := "-" + letters[i:i+1]
		switch f := FlagNamed(c, one); {
		case f == nil:
			return []string{written}
		case takesValue(f) && i+1 < len(letters):
			return append(out, one+"="+strings.TrimPrefix(letters[i+1:], "="))
		}
		out = append(out, one)
	}
	return out
}

// nearFlag is the long flag that a word, which is none, may have meant.
func nearFlag(c *cli.Command, written string) string {
	var names []string
	for _, f := range c.Flags {
		names = append(names, f.Names()[0])
	}
	name, _, _ := strings.Cut(strings.TrimLeft(written, "-"), "=")
	return strict.Nearest(name, names)
}

// checkFlags finds what the flag package would refuse in its own words, and gives each flag its first name: the package refuses two forms of one.
// help reports whether one of them asks for help; a value may look the same.
func checkFlags(app *cli.App, path string, c *cli.Command, given []string) (help bool, err error) {
	values := map[cli.Flag]string{}
	single, _ := app.Metadata[Single].([]string)
	for i := 0; i < len(given); i++ {
		written, value, has := strings.Cut(given[i], "=")
		f := FlagNamed(c, written)
		if f != nil {
			given[i] = "--" + f.Names()[0] + given[i][len(written):]
		}
		switch {
		case isHelp(written):
			help = true
			continue
		case f == nil:
			if near := nearFlag(c, written); near != "" {
				return false, outcome.Usagef(path, "%s: there is no flag %s, did you mean --%s?", path, written, near)
			}
			return false, outcome.Usagef(path, "%s: there is no flag %s", path, written)
		case !has && takesValue(f):
			if i++; i == len(given) {
				return false, outcome.Usagef(path, "%s: %s needs a value", path, written)
			}
			value = given[i]
		case !has:
			continue
		}
		plain, err := checkValue(f, value)
		if err != nil {
			return false, outcome.Usagef(path, "%s: %s %q: %v", path, written, value, err)
		}
		given[i] = strings.TrimSuffix(given[i], value) + plain
		if first, twice := values[f]; twice && first != value && !repeatable(f) && slices.Contains(single, f.Names()[0]) {
			return false, outcome.Usagef(path, "%s: %s takes one value, got %q and %q", path, written, first, value)
		}
		values[f] = value
	}
	return help, nil
}

// FlagNamed finds the flag that a word of the command line means: "--key=k", "-o".
func FlagNamed(c *cli.Command, written string) cli.Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(written, "-"), "=")
	for _, f := range c.Flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

// anyTakesValue reports whether a flag before its command is known to some command with a value that is the next word.
func anyTakesValue(commands []*cli.Command, written string) bool {
	if strings.Contains(written, "=") {
		return false
	}
	return slices.ContainsFunc(commands, func(c *cli.Command) bool {
		f := FlagNamed(c, written)
		return f != nil && takesValue(f) || anyTakesValue(c.Subcommands, written)
	})
}

func takesValue(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationFlag)
	return ok && d.TakesValue()
}

func repeatable(f cli.Flag) bool {
	d, ok := f.(cli.DocGenerationSliceFlag)
	return ok && d.IsSliceFlag()
}

// fromEnvironment makes flags of the variables of those that were not given. A flag that may be repeated takes one value
// from each line of its variable.
func fromEnvironment(path string, c *cli.Command, given []string, env Environment) ([]string, error) {
	var out []string
	for _, f := range c.Flags {
		variable, value := env(f)
		if value == "" || slices.ContainsFunc(given, func(a string) bool {
			return strings.HasPrefix(a, "-") && FlagNamed(c, a) == f
		}) {
			continue
		}
		plain, err := checkValue(f, value)
		if err != nil {
			return nil, outcome.Usagef(path, "%s: %s=%q: %v", path, variable, value, err)
		}
		values := []string{plain}
		if repeatable(f) {
			values = strings.Split(strings.Trim(value, "\r\n"), "\n")
			for i, v := range values {
				values[i] = strings.TrimLeft(strings.TrimSuffix(v, "\r"), " \t")
			}
		}
		for _, v := range values {
			out = append(out, "--"+f.Names()[0]+"="+v)
		}
	}
	return out, nil
}

// checkValue finds out what the flag package would refuse without the variable's name, and returns the value as that package reads it.
func checkValue(f cli.Flag, value string) (plain string, err error) {
	switch f.(type) {
	case *cli.BoolFlag:
		if _, err = strconv.ParseBool(value); err != nil {
			return "", outcome.Usagef("", "it is neither true nor false")
		}
	case *cli.IntFlag:
		if _, err = strconv.ParseInt(value, 0, 64); err != nil {
			return "", outcome.Usagef("", "it is no number")
		}
	case *cli.Uint64Flag:
		if _, err = strconv.ParseUint(value, 0, 64); err != nil {
			return "", outcome.Usagef("", "it is no number")
		}
	case *cli.DurationFlag:
		d, err := strict.ParseDuration(value)
		if err != nil {
			return "", outcome.Usagef("", "it is no time like 30s, 2h or 3d")
		}
		return d.String(), nil
	}
	return value, nil
}
