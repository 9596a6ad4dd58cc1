package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"sync"
	"syscall"

	"golang.org/x/term"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
)

// execFailed is the exit code of exec where the command could not be run, as docker and podman have it. [control.NoProgram] and all others are
// of the command.
const execFailed = 125

// impatience is how many interrupts end a command that does not care about them.
const impatience = 3

var execCommand = cmdline.Command{
	Name:  "exec",
	Usage: "run a command in a container",
	Args:  "TARGET [--] COMMAND [ARGUMENT ...]",
	About: "Flags come before TARGET; everything after it is the command. Signals are forwarded to the command; it is killed when this\n" +
		"program is killed, and at the third interrupt.\n" + targetHelp + "\n" +
		"Exit code: that of the command, 128 plus the signal number if a signal ended it; 125 if it could not be run, 127 if the container has\n" +
		"no such program or user, 2 for a wrong command line.\n\n" +
		"Examples:\n  longshore-agent exec line-monitor/web -- ls -l /\n  longshore-agent exec -it web -- sh\n  echo 1 | longshore-agent exec -i broker -- tee /data/flag",
	Flags: []cmdline.Flag{
		configFlag,
		{Name: "interactive", Value: false, Alias: "i", Usage: "forward standard input", Env: env("INTERACTIVE")},
		{Name: "tty", Value: false, Alias: "t", Usage: "give the command a terminal", Env: env("TTY")},
		{Name: "user", Alias: "u", Usage: "`USER[:GROUP]`, names or numbers; default: the container's", Env: env("USER")},
		{Name: "workdir", Alias: "w", Usage: "working `DIRECTORY` of the command", Env: env("WORKDIR")},
		{Name: "env", Value: []string(nil), Alias: "e", Usage: "`KEY=VALUE` for the command, repeatable", Env: env("ENV")},
	},
	Offer:    offerTargets,
	Verbatim: true,
	Run:      execute,
}

func execute(c *cmdline.Context) error {
	args := c.Args
	if len(args) > 1 && args[1] == "--" {
		args = append(args[:1:1], args[2:]...)
	}
	if len(args) < 2 {
		return outcome.Usagef(c.Command, "exec takes a container and a command")
	}
	for _, e := range c.StringSlice("env") {
		if k, _, ok := strings.Cut(e, "="); !ok || k == "" {
			return outcome.Usagef(c.Command, "--env: %q is not KEY=VALUE", e)
		}
	}
	r := control.ExecRequest{
		Target: args[0], Argv: args[1:], User: c.String("user"), WorkingDir: c.String("workdir"), Environment: c.StringSlice("env"), TTY: c.Bool("tty"),
	}
	in := cmdline.Terminal(c.In)
	if r.TTY && c.Bool("interactive") && in == nil {
		return outcome.Usagef(c.Command, "--tty: standard input is no terminal; leave -t out")
	}
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	s := control.Streams{Stdout: printable.Raw(c.Out), Stderr: printable.Raw(c.Err)}
	if c.Bool("interactive") {
		s.Stdin = c.In
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(c.Context)) // an interrupt is the command's
	defer cancel()
	code, err := attached(ctx, cancel, client, r, s, in)
	switch {
	case err == nil && code == 0:
		return nil
	case err == nil:
		return outcome.Told(code) // the command's own
	case errors.Is(err, context.Canceled):
		return err
	}
	return outcome.WithCode(err, cmp.Or(code, execFailed))
}

// attached runs the command with this program's terminal and signals.
func attached(ctx context.Context, cancel context.CancelFunc, client *control.Client, r control.ExecRequest, s control.Streams, in *os.File) (code int, err error) {
	ended := make(chan struct{})
	var helpers sync.WaitGroup
	defer helpers.Wait()
	defer close(ended)
	if r.TTY && s.Stdin != nil {
		fd := int(in.Fd())
		if w, h, err := term.GetSize(fd); err == nil {
			r.Width, r.Height = uint16(w), uint16(h)
		}
		state, err := term.MakeRaw(fd)
		if err != nil {
			return 0, fmt.Errorf("set up the terminal: %w", err)
		}
		defer func() { err = errors.Join(err, term.Restore(fd, state)) }()
		resize, changed := make(chan agent.Size), make(chan os.Signal, 1)
		signal.Notify(changed, syscall.SIGWINCH)
		defer signal.Stop(changed)
		s.Resize = resize
		helpers.Go(func() { follow(fd, changed, resize, ended) })
	}
	caught, passed := make(chan os.Signal, 16), make(chan syscall.Signal, 16)
	signal.Notify(caught, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGQUIT, syscall.SIGUSR1, syscall.SIGUSR2)
	defer signal.Stop(caught)
	s.Signals = passed
	helpers.Go(func() { pass(caught, passed, cancel, ended) })
	return client.Exec(ctx, r, s)
}

// follow sends the terminal's sizes.
func follow(fd int, changed <-chan os.Signal, to chan<- agent.Size, ended <-chan struct{}) {
	for {
		select {
		case <-ended:
			return
		case <-changed:
		}
		w, h, err := term.GetSize(fd)
		if err != nil {
			continue
		}
		select {
		case to <- agent.Size{Width: uint16(w), Height: uint16(h)}:
		case <-ended:
			return
		}
	}
}

// pass passes signals on, until there were too many.
func pass(caught <-chan os.Signal, to chan<- syscall.Signal, cancel context.CancelFunc, ended <-chan struct{}) {
	for interrupts := 0; ; {
		select {
		case <-ended:
			return
		case s := <-caught:
			if s == syscall.SIGINT || s == syscall.SIGTERM {
				if interrupts++; interrupts >= impatience {
					cancel()
					return
				}
			}
			n, ok := s.(syscall.Signal)
			if !ok {
				continue
			}
			select {
			case to <- n:
			default: // sixteen wait already
			}
		}
	}
}
