package main

import (
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/build"
)

func (p *program) versionCommand() *cli.Command {
	return p.command("", command{
		name: "version", usage: "print the version",
		about:    "Prints the version, the commit that it was built from and its time, and the Go version.",
		examples: []string{"", "-o json"},
		run:      p.version,
	})
}

type versionResult struct{ build.Info }

func (v versionResult) essence() string  { return v.Version }
func (v versionResult) text(w io.Writer) { fmt.Fprintln(w, "longshore", v.Text()) }

func (p *program) version(c *cli.Context, _ []string) error {
	return p.show(c, versionResult{build.Read()})
}

// The scripts ask the program itself, so that they need not be installed again when it learns something.
const (
	// bash parts words at ":" and "="; they are put together again, and what is before the part that it replaces goes.
	bashScript = `_longshore() {
  local IFS=$'\n' i word glue= before
  local -a words=()
  for ((i = 1; i <= COMP_CWORD; i++)); do
    word=${COMP_WORDS[i]}
    [[ $i == "$COMP_CWORD" && -z $word && ${COMP_LINE:COMP_POINT-1:1} == ' ' ]] && glue=
    if [[ ${#words[@]} -gt 0 && ( -n $glue || $word == [:=]* ) ]]; then
      words[${#words[@]}-1]+=$word
    else
      words+=("$word")
    fi
    glue=
    [[ $word == *[:=] ]] && glue=1
  done
  word=${words[${#words[@]}-1]}
  before=${word%"${word##*[:=]}"}
  COMPREPLY=($(longshore __complete "${words[@]}" 2>/dev/null))
  for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$before"}; done
}
complete -o bashdefault -o default -F _longshore longshore
`
	zshScript = `#compdef longshore
_longshore() {
  local -a found
  found=("${(@f)$(longshore __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "$found" ]]; then compadd -a found; else _files; fi
}
compdef _longshore longshore
`
	fishScript = `function __longshore
  set -l words (commandline -opc) (commandline -ct)
  longshore __complete $words[2..-1] 2>/dev/null
end
complete -c longshore -a '(__longshore)'
`
)

// scripts are the completion scripts, by shell.
var scripts = map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}

func (p *program) completionCommand() *cli.Command {
	return p.command("", command{
		name: "completion", args: "bash|zsh|fish", min: 1, max: 1,
		usage: "print a shell completion script",
		about: "bash: source it, or install it in /etc/bash_completion.d. zsh: source it after compinit. fish: install it in " +
			"~/.config/fish/completions. Devices, groups and labels are completed from the fleet in the current directory or the " +
			"one that the command names, tags from the registry; values that take too long to look up are omitted.",
		examples: []string{"bash > /etc/bash_completion.d/longshore", "zsh > ~/.longshore-completion.zsh"},
		run: func(c *cli.Context, args []string) error {
			script, ok := scripts[args[0]]
			if !ok {
				return misused(c, "%q is not bash, zsh or fish", args[0])
			}
			_, err := io.WriteString(p.stdout, script)
			return err
		},
	})
}
