package main

import (
	"cmp"
	"fmt"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/cache"
)

// app is the tree of commands.
func (p *program) app() *cmdline.Program {
	return &cmdline.Program{
		Name:   "longshore",
		Usage:  "publish signed releases for devices to a container registry",
		About:  "A release goes from a Compose project to a device in three steps:\n\n   longshore key generate release\n   longshore component push DIRECTORY HOST/PATH:VERSION\n   longshore state push --device ID --key release.key --component HOST/PATH:VERSION HOST/STATES\n\n" + outcome.Help,
		Out:    p.stdout,
		Err:    p.stderr,
		Getenv: p.getenv,
		Debug:  &p.debug,
		Commands: p.described("",
			loginCommand,
			logoutCommand,
			group("key", "create signing keys", keyGenerateCommand, keyShowCommand, keyPublicCommand),
			group("component", "publish Compose projects and Helm charts", componentPushCommand),
			group("bundle", "publish sets of deployments", bundlePushCommand),
			group("state", "publish and show the states of devices", statePushCommand, stateSignCommand, stateProposalsCommand, stateRemoveCommand, stateListCommand, stateShowCommand, stateHistoryCommand, stateDiffCommand, stateRollbackCommand, statePruneCommand),
			group("app", "publish and show application packages", appPushCommand, appListCommand, appShowCommand, appChannelCommands),
			fleetCommands,
			group("trust", "define who may sign, and change it on all devices", trustInitCommand, trustCheckCommand, trustPushCommand, trustSignCommand, trustAddCommand, trustRemoveCommand, trustRevokeCommand, trustThresholdCommand, trustShowCommand, trustHistoryCommand),
			group("site", "show what a site with its own registry needs and has", sitePlanCommand, siteInventoryCommand, sitePruneCommand),
			mirrorCommand,
			exportCommand,
			importCommand,
			serveCommand,
			signCommand,
			freshenCommand,
			attestCommand,
			verifyCommand,
			group("policy", "test a trust policy", policyTestCommand, policySchemaCommand),
			inspectCommand,
			group("trusted-root", "show trusted roots of identities", trustedRootShowCommand),
			checkCommand,
			doctorCommand,
			versionCommand,
			completionCommand,
		),
	}
}

// command is a command that does one thing, or a group of commands. examples are lines without the program's name and its own.
type command struct {
	name, args, usage, about string
	examples                 []string
	flags                    []cmdline.Flag
	min, max                 int           // arguments; max < 0: any number
	formats                  []string      // of the output; nil: text, json, yaml
	offer                    cmdline.Offer // nil: tags
	run                      func(c *call, args []string) error
	commands                 []command // of a group
}

func group(name, usage string, commands ...command) command {
	return command{name: name, usage: usage, commands: commands}
}

// described makes the descriptions of commands that cmdline runs from ours; parent is the name of the group that they are in.
func (p *program) described(parent string, all ...command) (out []cmdline.Command) {
	for _, d := range all {
		full := strings.TrimPrefix(parent+" "+d.name, " ")
		if d.commands != nil {
			out = append(out, cmdline.Command{Name: d.name, Usage: d.usage, Commands: p.described(full, d.commands...)})
			continue
		}
		out = append(out, p.leaf(full, d))
	}
	return out
}

func (p *program) leaf(full string, d command) cmdline.Command {
	about := d.about
	for i, e := range d.examples {
		if i == 0 {
			about += "\n\nExamples:"
		}
		about += "\n  longshore " + full + " " + e
	}
	c := cmdline.Command{
		Name: d.name, Usage: d.usage, Args: d.args, About: about + "\n\n" + outcome.Help, Offer: d.offer,
		Flags: slices.Concat(d.flags, outputFlags(d.formats)),
		Run: func(f *cmdline.Context) error {
			c := &call{program: p, flags: f}
			defer c.end()
			return ofCommand(full, c.run(full, d))
		},
	}
	if c.Offer == nil {
		c.Offer = p.offerTags
	}
	for i := range c.Flags {
		f := &c.Flags[i]
		if f.Offer == nil && f.OneOf == nil {
			f.Offer = p.offerTags
		}
		f.Env = cmp.Or(f.Env, variable(f.Name))
		f.Once = f.Name == "component" || f.Name == "device"
		if f.Value == time.Duration(0) {
			f.Default = "never"
		}
	}
	return c
}

// variable is the environment variable of a flag.
func variable(flag string) string {
	return "LONGSHORE_" + strings.ToUpper(strings.ReplaceAll(flag, "-", "_"))
}

var outputFormats = []string{"text", "json", "yaml"}

// uses reports whether the command has a flag.
func (d command) uses(flag string) bool {
	return slices.ContainsFunc(d.flags, func(f cmdline.Flag) bool { return f.Name == flag })
}

func outputFlags(formats []string) []cmdline.Flag {
	if formats == nil {
		formats = outputFormats
	}
	return []cmdline.Flag{
		{Name: "output", Alias: "o", Value: "text", OneOf: formats, Usage: "`FORMAT` of the result: " + cmdline.Either(formats)},
		{Name: "quiet", Value: false, Alias: "q", Usage: "print only the main value of the result, such as its digest, or nothing"},
		{Name: "debug", Value: false, Usage: "print requests and their results on stderr"},
	}
}

// registryFlags configure the access to registries; spelled as in oras and docker.
var registryFlags = []cmdline.Flag{
	{Name: "plain-http", Value: false, Category: registryCategory, Usage: "use HTTP without TLS; the default for registries on this machine, unless set to =false"},
	{Name: "insecure-skip-tls-verify", Value: false, Alias: "insecure", Category: registryCategory, Usage: "accept any server certificate"},
	{Name: "ca-file", Category: registryCategory, Usage: "`FILE` with CA certificates to trust in addition to the system's"},
	{Name: "cert-file", Category: registryCategory, Usage: "`FILE` with a client certificate"},
	{Name: "key-file", Category: registryCategory, Usage: "`FILE` with the client certificate's key"},
	{Name: "username", Alias: "u", Category: registryCategory, Usage: "registry `USER`"},
	{Name: "password", Alias: "p", Category: registryCategory, Usage: "registry `PASSWORD`; other users can see it in the process list"},
	{Name: "password-stdin", Value: false, Category: registryCategory, Usage: "read the registry password from stdin"},
	{Name: "token", Category: registryCategory, Usage: "registry bearer `TOKEN` instead of user and password"},
	{Name: "registry-host", Category: registryCategory, Usage: "`HOST` that user and password or token are for; default: the registries that the command line names"},
	{Name: "registry-config", Category: registryCategory, Usage: "credentials `FILE` in Docker's or podman's format; default: their files"},
	{Name: "certs-dir", Category: registryCategory, Usage: "`DIRECTORY` with containerd's HOST/hosts.toml: mirrors and certificates"},
	{Name: "concurrency", Category: registryCategory, Value: 3, Usage: "`NUMBER` of concurrent blob transfers"},
	{Name: "timeout", Value: time.Duration(0), Category: registryCategory, Usage: "abort after this `TIME`; 0 means never"},
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

var annotationFlag = cmdline.Flag{Name: "annotation", Value: []string(nil), Alias: "a", Usage: "`KEY=VALUE` annotation of the artifact; may be repeated"}

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
