package main

import (
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/cache"
)

// app is the tree of commands.
func (p *program) app() *cli.App {
	return &cli.App{
		Name:        "longshore",
		Usage:       "publish signed releases for devices to a container registry",
		Description: "A release goes from a Compose project to a device in three steps:\n\n   longshore key generate release\n   longshore component push DIRECTORY HOST/PATH:VERSION\n   longshore state push --device ID --key release.key --component HOST/PATH:VERSION HOST/STATES\n\n" + outcome.Help,
		Writer:      p.stdout,
		ErrWriter:   p.stderr,
		Metadata:    map[string]any{cmdline.Single: []string{"component", "device"}},
		HideHelp:    true, Flags: []cli.Flag{helpFlag()},
		Commands: p.library("",
			loginCommand(),
			logoutCommand(),
			group("key", "create signing keys", keyGenerateCommand(), keyShowCommand(), keyPublicCommand()),
			group("component", "publish Compose projects and Helm charts", componentPushCommand()),
			group("bundle", "publish sets of deployments", bundlePushCommand()),
			group("state", "publish and show the states of devices", statePushCommand(), stateSignCommand(), stateProposalsCommand(), stateRemoveCommand(), stateListCommand(), stateShowCommand(), stateHistoryCommand(), stateDiffCommand(), stateRollbackCommand(), statePruneCommand()),
			group("app", "publish and show application packages", appPushCommand(), appListCommand(), appShowCommand(), appChannelCommands()),
			fleetCommands(),
			group("trust", "define who may sign, and change it on all devices", trustInitCommand(), trustCheckCommand(), trustPushCommand(), trustSignCommand(), trustAddCommand(), trustRemoveCommand(), trustRevokeCommand(), trustThresholdCommand(), trustShowCommand(), trustHistoryCommand()),
			group("site", "show what a site with its own registry needs and has", sitePlanCommand(), siteInventoryCommand(), sitePruneCommand()),
			mirrorCommand(),
			exportCommand(),
			importCommand(),
			serveCommand(),
			signCommand(),
			freshenCommand(),
			attestCommand(),
			verifyCommand(),
			group("policy", "test a trust policy", policyTestCommand(), policySchemaCommand()),
			inspectCommand(),
			group("trusted-root", "show trusted roots of identities", trustedRootShowCommand()),
			checkCommand(),
			doctorCommand(),
			versionCommand(),
			completionCommand(),
		),
	}
}

// command is a command that does one thing, or a group of commands. examples are lines without the program's name and its own.
type command struct {
	name, args, usage, about string
	examples                 []string
	flags                    []cli.Flag
	min, max                 int      // arguments; max < 0: any number
	formats                  []string // of the output; nil: text, json, yaml
	run                      func(c *call, args []string) error
	commands                 []command // of a group
}

func group(name, usage string, commands ...command) command {
	return command{name: name, usage: usage, commands: commands}
}

// library makes commands of the command line library from ours; parent is the name of the group that they are in.
func (p *program) library(parent string, all ...command) (out []*cli.Command) {
	for _, d := range all {
		full := strings.TrimPrefix(parent+" "+d.name, " ")
		if d.commands != nil {
			out = append(out, &cli.Command{Name: d.name, Usage: d.usage, Subcommands: p.library(full, d.commands...), HideHelp: true, Flags: []cli.Flag{helpFlag()}})
			continue
		}
		out = append(out, p.leaf(full, d))
	}
	return out
}

func (p *program) leaf(full string, d command) *cli.Command {
	about := d.about
	for i, e := range d.examples {
		if i == 0 {
			about += "\n\nExamples:"
		}
		about += "\n   longshore " + full + " " + e
	}
	c := &cli.Command{
		Name: d.name, Usage: d.usage, ArgsUsage: d.args, Description: about + "\n\n" + outcome.Help,
		Flags:    append(d.flags, outputFlags(d.outputs())...),
		HideHelp: true,
		Action: func(f *cli.Context) error {
			c := &call{program: p, flags: f}
			defer c.end()
			return ofCommand(full, c.run(full, d))
		},
	}
	for _, f := range c.Flags {
		describe(f)
	}
	c.Flags = append(c.Flags, helpFlag())
	return c
}

// helpFlag takes the place of the library's flag, which all programs of a process would share.
func helpFlag() cli.Flag {
	return &cli.BoolFlag{Name: "help", Aliases: []string{"h"}, Usage: "show help", DisableDefaultText: true}
}

// describe adds its variable to the description of a flag.
func describe(f cli.Flag) {
	// Each command line describes all flags of all commands: Names would match a regular expression for each of them.
	described := func(name string) string { return " [$" + variableOf(name) + "]" }
	switch f := f.(type) {
	case *cli.StringFlag:
		f.Usage += described(f.Name)
	case *cli.StringSliceFlag:
		f.Usage += described(f.Name)
	case publicKeyFiles:
		f.Usage += " [$" + variable(f) + "]"
	case *cli.BoolFlag:
		f.Usage += described(f.Name)
		f.DisableDefaultText = true
	case *cli.Uint64Flag:
		f.Usage += described(f.Name)
	case *cli.IntFlag:
		f.Usage += described(f.Name)
	case *cli.DurationFlag:
		if f.Usage += described(f.Name); f.Value == 0 {
			f.DefaultText = "never"
		}
	}
}

func outputFormats() []string { return []string{"text", "json", "yaml"} }

// uses reports whether the command has a flag.
func (d command) uses(flag string) bool {
	return slices.ContainsFunc(d.flags, func(f cli.Flag) bool { return slices.Contains(f.Names(), flag) })
}

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
		&cli.BoolFlag{Name: "quiet", Aliases: []string{"q"}, Usage: "print only the main value of the result, such as its digest, or nothing"},
		&cli.BoolFlag{Name: "debug", Usage: "print requests and their results on stderr"},
	}
}

// registryFlags configure the access to registries; spelled as in oras and docker.
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

// cacheDir is a directory of the user's cache; "" if the environment names none.
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

// created is the creation time of artifacts: SOURCE_DATE_EPOCH, or none, so that the same input has the same digest.
func (p *program) created() (time.Time, error) {
	s := p.getenv("SOURCE_DATE_EPOCH")
	if s == "" {
		return time.Time{}, nil
	}
	var seconds int64
	if n, err := fmt.Sscanf(s, "%d", &seconds); err != nil || n != 1 || fmt.Sprint(seconds) != s || seconds < 0 {
		return time.Time{}, outcome.Usagef("", "SOURCE_DATE_EPOCH=%q is not a number of seconds", s)
	}
	return time.Unix(seconds, 0).UTC(), nil
}

func annotationFlag() cli.Flag {
	return &cli.StringSliceFlag{Name: "annotation", Aliases: []string{"a"}, Usage: "`KEY=VALUE` annotation of the artifact; may be repeated"}
}

// lastElement is the last element of a repository's path: the default for names.
func lastElement(ref registry.Reference) string { return path.Base(ref.Repository) }

// tagged parses a reference that must name a tag.
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
