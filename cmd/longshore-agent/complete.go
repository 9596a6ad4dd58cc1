package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// completeCommand is what the completion scripts ask: longshore-agent __complete WORD... LAST.
const completeCommand = "__complete"

// completeLimit is how long the agent may take to tell its containers while somebody holds the tab key.
const completeLimit = time.Second

const (
	bashScript = `_longshore_agent() {
  local IFS=$'\n'
  COMPREPLY=($(longshore-agent __complete "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null))
}
complete -o default -F _longshore_agent longshore-agent
`
	zshScript = `#compdef longshore-agent
_longshore_agent() {
  local -a found
  found=("${(@f)$(longshore-agent __complete "${(@)words[2,CURRENT]}" 2>/dev/null)}")
  compadd -a found || _files
}
compdef _longshore_agent longshore-agent
`
	fishScript = `function __longshore_agent
  set -l words (commandline -opc) (commandline -ct)
  longshore-agent __complete $words[2..-1] 2>/dev/null
end
complete -c longshore-agent -a '(__longshore_agent)'
`
)

func (p *program) completionCommand() *cli.Command {
	return &cli.Command{
		Name:      "completion",
		Usage:     "print a shell completion script",
		ArgsUsage: "bash|zsh|fish",
		Description: "bash: source it, or install it in /etc/bash_completion.d. zsh: source it after compinit. fish: install it in\n" +
			"~/.config/fish/completions. If an agent runs, services and containers are completed too.\n\n" +
			"Examples:\n  longshore-agent completion bash >/etc/bash_completion.d/longshore-agent",
		Action: func(c *cli.Context) error {
			script, ok := map[string]string{"bash": bashScript, "zsh": zshScript, "fish": fishScript}[c.Args().First()]
			if !ok || c.NArg() != 1 {
				return outcome.Usagef(c.Command.Name, "completion: name one of bash, zsh, fish")
			}
			_, err := io.WriteString(p.stdout, script)
			return err
		},
	}
}

// complete writes what the last word may become, one a line. Where files belong it writes nothing, and the shell offers them.
func complete(ctx context.Context, app *cli.App, words []string, w io.Writer) {
	last := ""
	if len(words) > 0 {
		last, words = words[len(words)-1], words[:len(words)-1]
	}
	var command *cli.Command
	var arguments, offers []string
	for i, word := range words {
		switch {
		case strings.HasPrefix(word, "-"), i > 0 && (words[i-1] == "-c" || words[i-1] == "--config"):
		case command == nil:
			command = cmdline.Find(app.Commands, word)
		default:
			arguments = append(arguments, word)
		}
	}
	switch {
	case len(words) > 0 && (words[len(words)-1] == "-o" || words[len(words)-1] == "--output"):
		offers = []string{"text", "json", "yaml"}
	case command != nil && strings.HasPrefix(last, "-"):
		for _, f := range command.Flags {
			offers = append(offers, "--"+f.Names()[0])
		}
	case command == nil:
		for _, c := range app.Commands {
			if !c.Hidden {
				offers = append(offers, c.Name)
			}
		}
	case strings.HasPrefix(command.ArgsUsage, "[TARGET"), strings.HasPrefix(command.ArgsUsage, "TARGET") && len(arguments) == 0:
		offers = targetNames(containersOf(ctx, words), command.Name)
	case command.Name == "completion":
		offers = []string{"bash", "zsh", "fish"}
	}
	for _, o := range offers {
		if strings.HasPrefix(o, last) && !slices.Contains(arguments, o) {
			fmt.Fprintln(w, o)
		}
	}
}

// containersOf asks the agent that a command line means; none when it does not answer.
func containersOf(ctx context.Context, words []string) []status.Container {
	file := config.DefaultPath
	for _, name := range env("CONFIG") {
		if v := os.Getenv(name); v != "" {
			file = v
		}
	}
	for i, word := range words {
		if (word == "-c" || word == "--config") && i+1 < len(words) {
			file = words[i+1]
		}
	}
	cfg, err := readConfig(file)
	if err != nil {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, completeLimit)
	defer cancel()
	all, err := control.NewClient(socketPath(cfg)).Containers(ctx)
	if err != nil {
		return nil
	}
	return all
}

// targetNames are the shortest names of containers, and longer ones where those are ambiguous.
func targetNames(all []status.Container, command string) []string {
	var out []string
	for _, c := range all {
		if command != "logs" && c.State != workload.Running {
			continue
		}
		for _, name := range []string{c.Service, c.Name(), c.Deployment + "/" + c.Service, c.Path(), c.Deployment + "/" + c.Component + "/" + c.Name()} {
			_, err := status.Select(all, name)
			if command == "exec" {
				_, err = status.One(all, name)
			}
			if err == nil {
				out = append(out, name)
				break
			}
		}
		out = append(out, c.Path())
	}
	slices.Sort(out)
	return slices.Compact(out)
}
