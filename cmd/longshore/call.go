package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"slices"
	"strings"

	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/budget"
	"github.com/longshore-dev/longshore/signing/current"
	"github.com/longshore-dev/longshore/signing/trust"
)

// flags is the library's name for what was typed; call has it under this one, so that c.Context is the context.
type flags = cmdline.Context

// call is one run of a command: the program, the flags, and what must be closed when the run ends.
type call struct {
	*program
	*flags
	annotations map[string]string         // of --annotation
	policy      *trust.Policy             // of --policy; nil: it is not given
	registry    *registry.Client          // nil: the command has no flags for one, or --offline
	claims      map[string]string         // what is signed with a digest
	signer      *signer                   // nil: nothing is signed
	budget      *budget.Budget            // nil: no limits
	seen        map[string]*current.Watch // reports of devices, by the name of the file that remembers them
	closes      []func()
}

// run checks what all commands have in common, and runs d. full is the command's whole name.
func (c *call) run(full string, d command) error {
	c.debug = c.Bool("debug")
	args := c.Args
	if len(args) < d.min || d.max >= 0 && len(args) > d.max {
		return c.misused("%s, expected: %s", printable.Counted(len(args), "argument"), strings.TrimSpace("longshore "+full+" "+d.args))
	}
	if t := c.Duration("timeout"); t > 0 {
		ctx, cancel := context.WithTimeout(c.Context, t)
		defer cancel()
		c.Context = ctx
	}
	if d.uses("max-rate") {
		return c.limited(func() error { return c.runWith(d, args) })
	}
	return c.runWith(d, args)
}

// runWith runs d with what its flags name: annotations, a policy, a client of registries.
func (c *call) runWith(d command, args []string) (err error) {
	if c.annotations, err = c.pairs("annotation"); err != nil {
		return err
	}
	if err := c.openPolicy(); err != nil {
		return err
	}
	if d.uses("registry-config") && !c.Bool("offline") {
		if err := c.connect(); err != nil {
			return err
		}
	}
	return d.run(c, args)
}

// atEnd makes the run call f when it ends; the last function is called first.
func (c *call) atEnd(f func()) { c.closes = append(c.closes, f) }

func (c *call) end() {
	for _, f := range slices.Backward(c.closes) {
		f()
	}
}

// misused returns an error in the command line, with the command's name.
func (c *call) misused(format string, args ...any) error {
	return outcome.Usagef(c.Command, "%s: %s", c.Command, fmt.Sprintf(format, args...))
}

// ofCommand adds the command's name to an error in the command line that shared code returned.
func ofCommand(command string, err error) error {
	if usage, ok := errors.AsType[*outcome.Usage](err); ok && usage.Command == "" {
		usage.Command = command
	}
	return err
}

// pairs reads the values KEY=VALUE of a flag, split at the first "=".
func (c *call) pairs(flag string) (map[string]string, error) {
	var out map[string]string
	for _, v := range c.StringSlice(flag) {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return nil, outcome.Usagef("", "--%s %q is not KEY=VALUE", flag, v)
		}
		if _, twice := out[key]; twice {
			return nil, outcome.Usagef("", "--%s sets %s twice", flag, key)
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[key] = value
	}
	return out, nil
}

// connect makes c.registry, the client of registries, as the flags say. It is closed when the run ends.
func (c *call) connect() error {
	password, err := c.registryPassword()
	if err != nil {
		return err
	}
	o := registry.Options{
		PlainHTTP: c.Bool("plain-http"), LoopbackTLS: c.IsSet("plain-http") && !c.Bool("plain-http"),
		SkipVerify: c.Bool("insecure-skip-tls-verify"),
		CAFile:     c.String("ca-file"), CertFile: c.String("cert-file"), KeyFile: c.String("key-file"),
		Host: c.String("registry-host"), Username: c.String("username"), Password: password, Token: c.String("token"),
		AuthFile: c.String("registry-config"), CertsDir: c.String("certs-dir"),
		UserAgent: "longshore/" + build.Version(), Concurrency: c.Int("concurrency"), Requests: c.requestsAtOnce(), Budget: c.budget,
		Uploads: c.cacheDir("uploads"), Logger: c.logger(slog.LevelError + 1), TagWait: c.tagWait, Getenv: c.getenv,
	}
	if err := c.readFiles(o); err != nil {
		return err
	}
	client, err := registry.New(o)
	if err != nil {
		return err
	}
	c.registry = client
	c.atEnd(client.Close)
	return nil
}

// openSigner makes c.signer of --key or --keyless; see newSigner.
func (c *call) openSigner(once bool) (err error) {
	c.signer, err = c.newSigner(once)
	return err
}

// mustSign is openSigner for commands that do nothing else.
func (c *call) mustSign(once bool) error {
	if err := c.openSigner(once); err != nil || c.signer != nil {
		return err
	}
	return c.misused("use --key, or --keyless")
}

// openPublisher is openSigner for commands that publish states: they have to say who signs.
func (c *call) openPublisher(once bool) error {
	if err := c.whoSigns(); err != nil {
		return err
	}
	return c.openSigner(once)
}

// logger writes to stderr from a level on; with --debug everything.
func (c *call) logger(from slog.Level) *slog.Logger {
	if c.debug {
		from = slog.LevelDebug
	}
	return slog.New(slog.NewTextHandler(c.stderr, &slog.HandlerOptions{Level: from}))
}

// readFiles finds errors in files that flags name before the first request. The file that login writes may be missing.
func (c *call) readFiles(o registry.Options) error {
	option, err := o.ReadFiles()
	if err == nil || option == "AuthFile" && errors.Is(err, fs.ErrNotExist) && slices.Contains([]string{"login", "logout"}, c.Command) {
		return nil
	}
	flag := map[string]string{"CAFile": "ca-file", "CertFile": "cert-file", "AuthFile": "registry-config"}[option]
	name := "--" + flag
	if v := variable(flag); c.getenv(v) == c.String(flag) {
		name = v
	}
	return fmt.Errorf("%s: %w", name, err)
}

// open opens the repository of a reference.
func (c *call) open(ref registry.Reference) (*registry.Repository, error) {
	return c.registry.Open(c.Context, ref)
}

// upstream opens a repository without its mirrors, which may show old content: what is published must follow the newest.
func (c *call) upstream(ref registry.Reference) (*registry.Repository, error) {
	repo, err := c.open(ref)
	if err != nil {
		return nil, err
	}
	return repo.Upstream(), nil
}

// openTarget opens the repository of a reference that must name a tag or a digest, and returns that.
func (c *call) openTarget(s string) (*registry.Repository, string, error) {
	ref, err := registry.ParseReference(s)
	if err != nil {
		return nil, "", err
	}
	if ref.Target() == "" {
		return nil, "", outcome.Usagef("", "%s: a tag or a digest is missing", s)
	}
	repo, err := c.open(ref)
	return repo, ref.Target(), err
}

// repositoryOnly reads a reference that must not name a tag or a digest.
func (c *call) repositoryOnly(s string) (registry.Reference, error) {
	ref, err := registry.ParseReference(s)
	if err == nil && ref.Target() != "" {
		err = c.misused("%s: name the repository only, without tag or digest", s)
	}
	return ref, err
}
