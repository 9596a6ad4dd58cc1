package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/build"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/fleet"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/cache"
)

// app is the tree of commands.
func (p *program) app() *cli.App {
	return &cli.App{
		Name:                      "longshore",
		Usage:                     "publish signed releases for devices to a container registry",
		Description:               "A release goes from a Compose project to a device in three steps:\n\n   longshore key generate release\n   longshore component push DIRECTORY HOST/PATH:VERSION\n   longshore state push --device ID --key release.key --component HOST/PATH:VERSION HOST/STATES\n\n" + outcome.Help,
		Writer:                    p.stdout,
		ErrWriter:                 p.stderr,
		HideVersion:               true,
		ExitErrHandler:            func(*cli.Context, error) {},
		DisableSliceFlagSeparator: true,
		Commands: []*cli.Command{
			p.loginCommand(),
			p.logoutCommand(),
			group("key", "create signing keys", p.keyGenerateCommand(), p.keyShowCommand(), p.keyPublicCommand()),
			group("component", "publish Compose projects and Helm charts", p.componentPushCommand()),
			group("bundle", "publish sets of deployments", p.bundlePushCommand()),
			group("state", "publish and show the states of devices", p.statePushCommand(), p.stateSignCommand(), p.stateProposalsCommand(), p.stateRemoveCommand(), p.stateShowCommand(), p.stateHistoryCommand(), p.stateDiffCommand(), p.stateRollbackCommand(), p.statePruneCommand()),
			group("app", "publish and show application packages", p.appPushCommand(), p.appListCommand(), p.appShowCommand(), p.appChannelCommands()),
			p.fleetCommands(),
			group("trust", "define who may sign, and change it on all devices", p.trustInitCommand(), p.trustCheckCommand(), p.trustPushCommand(), p.trustSignCommand(), p.trustAddCommand(), p.trustRemoveCommand(), p.trustRevokeCommand(), p.trustThresholdCommand(), p.trustShowCommand(), p.trustHistoryCommand()),
			group("site", "show what a site with its own registry needs and has", p.sitePlanCommand(), p.siteInventoryCommand(), p.sitePruneCommand()),
			p.mirrorCommand(),
			p.exportCommand(),
			p.importCommand(),
			p.serveCommand(),
			p.signCommand(),
			p.freshenCommand(),
			p.attestCommand(),
			p.verifyCommand(),
			group("policy", "test a trust policy", p.policyTestCommand(), p.policySchemaCommand()),
			p.inspectCommand(),
			group("trusted-root", "show trusted roots of identities", p.trustedRootShowCommand()),
			p.checkCommand(),
			p.doctorCommand(),
			p.versionCommand(),
			p.completionCommand(),
		},
	}
}

func group(name, usage string, commands ...*cli.Command) *cli.Command {
	return &cli.Command{Name: name, Usage: usage, Subcommands: commands, HideHelpCommand: true}
}

// command makes a command that does one thing. examples are whole lines without the program's name.
type command struct {
	name, args, usage, about string
	examples                 []string
	flags                    []cli.Flag
	min, max                 int      // arguments; max < 0: any number
	formats                  []string // of the output; nil: text, json, yaml
	run                      func(c *cli.Context, args []string) error
}

// misused is a command line that a command refuses in its own name.
func misused(c *cli.Context, format string, args ...any) error {
	name := strings.TrimPrefix(c.Command.HelpName, c.App.Name+" ")
	return outcome.Usagef(name, "%s: %s", name, fmt.Sprintf(format, args...))
}

// toldBy says which command a mistake in a command line is of, where it was found by what several share.
func toldBy(command string, err error) error {
	var usage *outcome.Usage
	if errors.As(err, &usage) && usage.Command == "" {
		usage.Command = command
	}
	return err
}

func (p *program) command(parent string, d command) *cli.Command {
	full := strings.TrimPrefix(parent+" "+d.name, " ")
	about := d.about
	for i, e := range d.examples {
		if i == 0 {
			about += "\n\nExamples:"
		}
		about += "\n   longshore " + full + " " + e
	}
	c := &cli.Command{
		Name: d.name, Usage: d.usage, ArgsUsage: d.args, Description: about + "\n\n" + outcome.Help,
		Flags:           append(d.flags, outputFlags(d.outputs())...),
		HideHelpCommand: true,
		OnUsageError: func(_ *cli.Context, err error, _ bool) error {
			return outcome.Usagef(full, "%s: %v", full, err)
		},
		Action: func(c *cli.Context) error {
			args := c.Args().Slice()
			if len(args) < d.min || d.max >= 0 && len(args) > d.max {
				return misused(c, "%s, expected: %s", fleet.Counted(len(args), "argument"), strings.TrimSpace("longshore "+full+" "+d.args))
			}
			if o := c.String("output"); !slices.Contains(d.outputs(), o) {
				from := "--output"
				if p.getenv("LONGSHORE_OUTPUT") == o {
					from = "LONGSHORE_OUTPUT"
				}
				return misused(c, "%s %q is not %s", from, o, alternatives(d.outputs()))
			}
			if t := c.Duration("timeout"); t > 0 {
				ctx, cancel := context.WithTimeout(c.Context, t)
				defer cancel()
				c.Context = ctx
			}
			return toldBy(full, d.run(c, args))
		},
	}
	for _, f := range c.Flags {
		describe(f)
	}
	return c
}

// describe adds its variable to the description of a flag.
func describe(f cli.Flag) {
	suffix := " [$" + variable(f) + "]"
	switch f := f.(type) {
	case *cli.StringFlag:
		f.Usage += suffix
	case *cli.StringSliceFlag:
		f.Usage += suffix
	case publicKeyFiles:
		f.Usage += suffix
	case *cli.BoolFlag:
		f.Usage += suffix
		f.DisableDefaultText = true
	case *cli.Uint64Flag:
		f.Usage += suffix
	case *cli.IntFlag:
		f.Usage += suffix
	case *cli.DurationFlag:
		if f.Usage += suffix; f.Value == 0 {
			f.DefaultText = "never"
		}
	}
}

func outputFormats() []string { return []string{"text", "json", "yaml"} }

// outputs are the formats of the command's result.
func (d command) outputs() []string {
	if d.formats != nil {
		return d.formats
	}
	return outputFormats()
}

// alternatives writes words with "or" before the last.
func alternatives(all []string) string {
	return strings.Join(all[:len(all)-1], ", ") + " or " + all[len(all)-1]
}

func outputFlags(formats []string) []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "output", Aliases: []string{"o"}, Value: "text", Usage: "`FORMAT` of the result: " + alternatives(formats)},
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only the digest"},
		&cli.BoolFlag{Name: "debug", Usage: "print requests and their results on stderr"},
	}
}

// registryFlags are how registries are reached, spelled as the ecosystem does.
func registryFlags() []cli.Flag {
	return []cli.Flag{
		&cli.BoolFlag{Name: "plain-http", Category: registryCategory, Usage: "use HTTP without TLS; the default for registries on this machine, unless set to =false"},
		&cli.BoolFlag{Name: "insecure-skip-tls-verify", Aliases: []string{"insecure"}, Category: registryCategory, Usage: "accept any server certificate"},
		&cli.StringFlag{Name: "ca-file", Category: registryCategory, Usage: "`FILE` with CA certificates to trust in addition to the system's"},
		&cli.StringFlag{Name: "cert-file", Category: registryCategory, Usage: "`FILE` with a client certificate"},
		&cli.StringFlag{Name: "key-file", Category: registryCategory, Usage: "`FILE` with the client certificate's key"},
		&cli.StringFlag{Name: "username", Aliases: []string{"u"}, Category: registryCategory, Usage: "registry `USER`"},
		&cli.StringFlag{Name: "password", Aliases: []string{"p"}, Category: registryCategory, Usage: "registry `PASSWORD`; other users can see it in the process list"},
		&cli.BoolFlag{Name: "password-stdin", Category: registryCategory, Usage: "read the registry password from stdin"},
		&cli.StringFlag{Name: "token", Category: registryCategory, Usage: "registry bearer `TOKEN` instead of user and password"},
		&cli.StringFlag{Name: "registry-host", Category: registryCategory, Usage: "`HOST` that user and password or token are for; default: the registries that the command line names"},
		&cli.StringFlag{Name: "registry-config", Category: registryCategory, Usage: "credentials `FILE` in Docker's or podman's format; default: their files"},
		&cli.StringFlag{Name: "certs-dir", Category: registryCategory, Usage: "`DIRECTORY` with containerd's HOST/hosts.toml: mirrors and certificates"},
		&cli.IntFlag{Name: "concurrency", Category: registryCategory, Value: 3, Usage: "`NUMBER` of concurrent blob transfers"},
		&cli.DurationFlag{Name: "timeout", Category: registryCategory, Usage: "abort after this `TIME`; 0 means never"},
	}
}

const registryCategory = "Registry"

// client reaches registries as the flags say. The caller closes it.
func (p *program) client(c *cli.Context) (*registry.Client, error) {
	password, err := p.registryPassword(c)
	if err != nil {
		return nil, err
	}
	level := slog.LevelError + 1
	if c.Bool("debug") {
		level = slog.LevelDebug
	}
	o := registry.Options{
		PlainHTTP: c.Bool("plain-http"), LoopbackTLS: c.IsSet("plain-http") && !c.Bool("plain-http"),
		SkipVerify: c.Bool("insecure-skip-tls-verify"),
		CAFile:     c.String("ca-file"), CertFile: c.String("cert-file"), KeyFile: c.String("key-file"),
		Host: c.String("registry-host"), Username: c.String("username"), Password: password, Token: c.String("token"),
		AuthFile: c.String("registry-config"), CertsDir: c.String("certs-dir"),
		UserAgent: "longshore/" + build.Version(), Concurrency: c.Int("concurrency"), Requests: requestsAtOnce(c), Budget: budgetOf(c), Uploads: p.cacheDir("uploads"),
		Logger:  slog.New(slog.NewTextHandler(p.stderr, &slog.HandlerOptions{Level: level})),
		TagWait: p.tagWait,
		Getenv:  p.getenv,
	}
	if err := p.readFiles(c, o); err != nil {
		return nil, err
	}
	return registry.New(o)
}

// cacheDir is a directory for what may be lost; "": the environment names none.
func (p *program) cacheDir(name string) cache.Folder {
	base := p.getenv("XDG_CACHE_HOME")
	if home := p.getenv("HOME"); base == "" && home != "" {
		base = filepath.Join(home, ".cache")
	}
	if !filepath.IsAbs(base) {
		return ""
	}
	return cache.Folder(filepath.Join(base, "longshore", name))
}

// readFiles finds what is wrong with files that flags name, before anything that is asked for is blamed. The file that login
// writes need not be there.
func (p *program) readFiles(c *cli.Context, o registry.Options) error {
	option, err := o.ReadFiles()
	if err == nil || option == "AuthFile" && errors.Is(err, fs.ErrNotExist) && slices.Contains([]string{"login", "logout"}, c.Command.Name) {
		return nil
	}
	flag := map[string]string{"CAFile": "ca-file", "CertFile": "cert-file", "AuthFile": "registry-config"}[option]
	name := "--" + flag
	if v := variable(&cli.StringFlag{Name: flag}); p.getenv(v) == c.String(flag) {
		name = v
	}
	return fmt.Errorf("%s: %w", name, err)
}

// open opens the repository of a reference for a command that needs no other. done ends it.
func (p *program) open(c *cli.Context, ref registry.Reference) (repo *registry.Repository, done func(), err error) {
	client, err := p.client(c)
	if err != nil {
		return nil, nil, err
	}
	if repo, err = client.Open(c.Context, ref); err != nil {
		client.Close()
		return nil, nil, err
	}
	return repo, client.Close, nil
}

// created is the time that goes into what is pushed: SOURCE_DATE_EPOCH, or none, so that the same input has one digest.
func (p *program) created() (time.Time, error) {
	s := p.getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		return time.Time{}, nil
	}
	var seconds int64
	if n, err := fmt.Sscanf(s, "%d", &seconds); err != nil || n != 1 || fmt.Sprint(seconds) != s || seconds < 0 {
		return time.Time{}, outcome.Usagef("", "SOURCE_DATE_EPOCH=%q is no number of seconds", s)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

// pairs reads KEY=VALUE, parted at the first "=".
func pairs(flag string, values []string) (map[string]string, error) {
	var out map[string]string
	for _, v := range values {
		key, value, ok := strings.Cut(v, "=")
		if !ok || key == "" {
			return nil, outcome.Usagef("", "--%s %q is not KEY=VALUE", flag, v)
		}
		if _, twice := out[key]; twice {
			return nil, outcome.Usagef("", "--%s tells %s twice", flag, key)
		}
		if out == nil {
			out = make(map[string]string)
		}
		out[key] = value
	}
	return out, nil
}

func annotationFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "annotation", Aliases: []string{"a"}, Usage: "`KEY=VALUE` annotation of the artifact; may be repeated"}
}

// lastElement is the name that a repository suggests.
func lastElement(ref registry.Reference) string { return path.Base(ref.Repository) }

// reference parses a reference that must name a tag.
func tagged(s, what string) (registry.Reference, error) {
	ref, err := registry.ParseReference(s)
	if err != nil {
		return ref, err
	}
	if ref.Tag == "" || ref.Digest != "" {
		return ref, outcome.Usagef("", "%s: a %s is pushed to a tag: HOST/PATH:VERSION", s, what)
	}
	return ref, nil
}
