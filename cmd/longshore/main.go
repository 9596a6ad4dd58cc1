// Command longshore is the release engineer's tool: it packs and pushes components, publishes signed states for devices,
// signs, verifies and checks. `longshore help` lists its commands.
//
// It has no logic of its own: a command parses its flags, calls a package, and prints the result. run is the whole program
// without the process, so that tests can call it.
package main

import (
	"context"
	"io"
	"os"
	"time"
	_ "time/tzdata" // windows of time are read as the agent reads them

	"github.com/sirupsen/logrus"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/signing/sign"
)

func main() {
	cmdline.Main(func(ctx context.Context) int {
		return run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr, os.LookupEnv)
	})
}

// run runs one command line and returns the exit code.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer, lookup func(string) (string, bool)) int {
	return newProgram(stdin, stdout, stderr, lookup).run(ctx, args)
}

func (p *program) run(ctx context.Context, args []string) int {
	logrus.SetOutput(io.Discard) // compose-go logs variables without a value there; our own message has file and line
	p.args, p.interrupted = args, ctx.Done()
	return p.app().Run(ctx, args)
}

// program is the process that commands run in.
type program struct {
	stdin          io.Reader
	stdout, stderr io.Writer
	args           []string                    // as typed
	interrupted    <-chan struct{}             // closed by Ctrl-C; nil: never
	lookup         func(string) (string, bool) // the environment
	now            func() time.Time
	unlock         func(private, password []byte) (sign.PrivateKey, error)
	tagWait        time.Duration // see registry.Options
	completeWait   time.Duration // of a completion for a registry
	stdinSecret    string        // what --password-stdin read
	debug          bool          // --debug
}

func newProgram(stdin io.Reader, stdout, stderr io.Writer, lookup func(string) (string, bool)) *program {
	return &program{stdin: stdin, stdout: printable.NewWriter(stdout), stderr: printable.NewWriter(stderr), lookup: lookup, now: time.Now, unlock: sign.Unlock, completeWait: 2 * time.Second}
}

// getenv returns the value of a variable, or "" if it is not set.
func (p *program) getenv(name string) string {
	value, _ := p.lookup(name)
	return value
}
