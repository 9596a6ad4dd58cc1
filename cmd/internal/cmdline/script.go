package cmdline

import (
	"context"
	"fmt"
	"strings"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// OfferShells completes the argument of the command "completion".
func OfferShells(context.Context, *Completion, string) []string {
	return []string{"bash", "fish", "zsh"}
}

// The scripts ask the program itself, so that they need not be installed again when it learns something. PROGRAM and FUNCTION
// stand for its name.
const (
	// bash parts words at ":" and "="; they are put together again, and what is before the part that it replaces goes.
	bashScript = `_FUNCTION() {
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
  COMPREPLY=($(PROGRAM __complete "${words[@]}" 2>/dev/null))
  for i in "${!COMPREPLY[@]}"; do COMPREPLY[i]=${COMPREPLY[i]#"$before"}; done
}
complete -o bashdefault -o default -F _FUNCTION PROGRAM
`
	// zsh runs a file of fpath as the function _PROGRAM, which completes at once; a file that is sourced only registers.
	zshScript = `#compdef PROGRAM
_FUNCTION() {
  local -a found
  found=("${(@f)$(PROGRAM __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  if [[ -n "$found" ]]; then compadd -a found; else _files; fi
}
if [[ $funcstack[1] == _PROGRAM ]]; then _FUNCTION "$@"; else compdef _FUNCTION PROGRAM; fi
`
	fishScript = `function __FUNCTION
  set -l words (commandline -opc) (commandline -ct)
  PROGRAM __complete $words[2..-1] 2>/dev/null
end
complete -c PROGRAM -a '(__FUNCTION)'
`
)

// ScriptCommand is the command "completion" of a program, which prints the script. about ends its description.
func ScriptCommand(about string) Command {
	return Command{
		Name:  "completion",
		Usage: "print a shell completion script",
		Args:  "bash|zsh|fish",
		About: "bash: source it, or install it in /etc/bash_completion.d. zsh: source it after compinit, or install it as _\n" +
			"and the program's name in a directory of fpath. fish: install it in ~/.config/fish/completions." + about,
		Offer: OfferShells,
		Run:   WriteScript,
	}
}

// WriteScript writes the completion script of a program for the one shell that the arguments name; anything else is a [outcome.Usage].
func WriteScript(c *Context) error {
	shell := strings.Join(c.Args, " ")
	script, ok := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[shell]
	if !ok {
		return outcome.Usagef("completion", "completion: %q is not bash, zsh or fish", shell)
	}
	script = strings.NewReplacer("PROGRAM", c.Name, "FUNCTION", strings.ReplaceAll(c.Name, "-", "_")).Replace(script)
	_, err := fmt.Fprint(c.Out, script)
	return err
}
