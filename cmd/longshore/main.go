// Command longshore is the release engineer's tool: it packs and pushes components, publishes signed states for devices,
// signs, verifies and checks. `longshore help` lists what it does.
//
// It holds no logic: flags become one call into a room, and the result is shown. run is the whole program, without the
// process around it, so that tests call it as a shell would.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/sirupsen/logrus"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/signing/sign"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.LookupEnv)
	stop()
	os.Exit(code)
}

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, lookup func(string) (string, bool)) int {
	logrus.SetOutput(io.Discard) // compose-go warns there of variables without a value; ours names the file and the line
	return newProgram(stdin, stdout, stderr, lookup).run(ctx, args)
}

func (p *program) run(ctx context.Context, args []string) int {
	app := p.app()
	if len(args) > 0 && args[0] == cmdline.CompleteCommand {
		p.complete(ctx, app, args[1:], p.stdout)
		return outcome.OK
	}
	line, err := cmdline.Arrange(app, args, p.environment)
	if err == nil {
		err = app.RunContext(ctx, append([]string{app.Name}, line...))
	}
	if last := printable.Flush(p.stdout); err == nil {
		err = last
	}
	if err != nil {
		outcome.Tell(p.stderr, "longshore", err)
	}
	_ = printable.Flush(p.stderr) // there is no other place to say so
	return outcome.Code(err)
}

// program is what commands share: the process around them, and how results are shown.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	lookup         func(string) (string, bool) // the environment
	now            func() time.Time
	unlock         func(private, password []byte) (sign.PrivateKey, error)
	tagWait        time.Duration // see registry.Options
	stdinSecret    string        // what --password-stdin read
}

func newProgram(stdin io.Reader, stdout, stderr io.Writer, lookup func(string) (string, bool)) *program {
	return &program{stdin: stdin, stdout: printable.NewWriter(stdout), stderr: printable.NewWriter(stderr), lookup: lookup, now: time.Now, unlock: sign.Unlock}
}

// getenv is a variable's value; "" when it is not set.
func (p *program) getenv(name string) string {
	value, _ := p.lookup(name)
	return value
}
