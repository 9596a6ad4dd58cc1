package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/Masterminds/semver/v3"
	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/artifacts/printable"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/registry"
)

var appChannelCommands = group("channel", "list and move the channels of an application", appChannelListCommand, appChannelSetCommand)

var appChannelListCommand = command{
	name: "list", args: "HOST/PATH", min: 1, max: 1,
	usage:    "list the channels of an application or a component with their versions",
	about:    "Lists the tags of a repository that are not versions, and the version that each of them names.",
	examples: []string{"harbor.acme.example/plant/apps/line", "-o json harbor.acme.example/plant/apps/line"},
	flags:    registryFlags,
	run:      (*call).appChannelList,
}

type channelList struct {
	Repository string        `json:"repository"`
	Channels   []channelInfo `json:"channels"`
}

type channelInfo struct {
	Channel string        `json:"channel"`
	Version string        `json:"version,omitempty"` // "": neither a package nor a component
	Digest  digest.Digest `json:"digest"`
}

func (r channelList) text(w io.Writer) {
	for _, c := range r.Channels {
		row(w, c.Channel, "%s  %s", cmp.Or(c.Version, "no version"), printable.Digest(c.Digest))
	}
	if len(r.Channels) == 0 {
		row(w, "none", "%s has no channels", r.Repository)
	}
}

func (c *call) appChannelList(args []string) error {
	repo, err := c.repository(args[0])
	if err != nil {
		return err
	}
	tags, err := repo.Tags(c.Context)
	if err != nil {
		return err
	}
	r := channelList{Repository: repo.Reference().Place(), Channels: []channelInfo{}}
	for _, t := range tags {
		if versionLike(t) {
			continue
		}
		d, version, err := released(c.Context, repo, t)
		if err != nil && !errors.Is(err, fault.ErrUnsupported) {
			return err
		}
		r.Channels = append(r.Channels, channelInfo{t, version, d})
	}
	return c.show(r)
}

var appChannelSetCommand = command{
	name: "set", args: "HOST/PATH CHANNEL VERSION", min: 3, max: 3,
	usage: "move a channel to a version",
	about: "Moves the channel, which is a tag, to VERSION, which is a tag or a digest. Only the tag is pushed. The exit code is 6 if " +
		"the channel does not name the version of --was, or if another publisher moves it at the same time. Fleets that use " +
		"the channel get the version when they are published next; fleet plan shows it.",
	examples: []string{
		"harbor.acme.example/plant/apps/line stable 1.4.1",
		"--was 1.4.0 harbor.acme.example/plant/apps/line stable 1.4.1",
	},
	flags: slices.Concat([]cmdline.Flag{
		{Name: "was", Usage: "`VERSION` or digest that the channel must name now, or \"none\"; default: not checked"},
	}, registryFlags),
	run: (*call).appChannelSet,
}

type channelResult struct {
	Repository string `json:"repository"`
	Channel    string `json:"channel"`
	Version    string `json:"version"`
	digested
	Was digest.Digest `json:"was,omitempty"` // "": the channel is new
}

func (r channelResult) text(w io.Writer) {
	was := "new"
	switch r.Was {
	case "":
	case r.Digest:
		was = "as before"
	default:
		was = "was " + printable.Digest(r.Was)
	}
	row(w, "channel", "%s:%s  %s  %s (%s)", r.Repository, r.Channel, r.Version, printable.Digest(r.Digest), was)
}

func (c *call) appChannelSet(args []string) error {
	if err := c.notVersion(args[1]); err != nil {
		return err
	}
	repo, err := c.repository(args[0])
	if err != nil {
		return err
	}
	r := channelResult{Repository: repo.Reference().Place(), Channel: args[1]}
	if r.Digest, r.Version, err = released(c.Context, repo, args[2]); err != nil {
		return err
	}
	if r.Was, err = repo.ResolveUpstream(c.Context, r.Channel); err != nil {
		return err
	}
	if s := c.String("was"); s != "" {
		want := digest.Digest("")
		if s != "none" {
			if want, _, err = released(c.Context, repo, s); err != nil {
				return err
			}
		}
		if want != r.Was {
			err := fmt.Errorf("%s:%s: %w: the channel does not name %s, but %s", r.Repository, r.Channel, fault.ErrConflict, s, cmp.Or(printable.Digest(r.Was), "unknown"))
			return fault.WithHint(err, "another publisher moved it: check it with longshore app channel list")
		}
	}
	if err := repo.CompareAndMoveTag(c.Context, r.Channel, r.Was, r.Digest); err != nil {
		return err
	}
	return c.show(r)
}

// repository opens the repository that an argument names, without its mirrors, which may show old tags.
func (c *call) repository(arg string) (*registry.Repository, error) {
	ref, err := c.repositoryOnly(arg)
	if err != nil {
		return nil, err
	}
	return c.upstream(ref)
}

// mover reads what channels name now, and returns a function that moves them to a digest, unless they were moved in between.
func mover(ctx context.Context, repo *registry.Repository, channels []string) (func(digest.Digest) error, error) {
	repo = repo.Upstream()
	was := make([]digest.Digest, len(channels))
	for i, channel := range channels {
		var err error
		if was[i], err = repo.ResolveUpstream(ctx, channel); err != nil {
			return nil, err
		}
	}
	return func(d digest.Digest) error {
		for i, channel := range channels {
			if err := repo.CompareAndMoveTag(ctx, channel, was[i], d); err != nil {
				return err
			}
		}
		return nil
	}, nil
}

// notVersion rejects channels with the name of a version.
func (c *call) notVersion(channels ...string) error {
	for _, channel := range channels {
		if versionLike(channel) {
			return c.misused("%q looks like a version: the content of a version never changes, a channel moves", channel)
		}
	}
	return nil
}

// versionLike reports whether a tag is a version, or one of the tags that store signatures.
func versionLike(tag string) bool {
	_, err := semver.NewVersion(strings.ReplaceAll(tag, "_", "+"))
	return err == nil || strings.HasPrefix(tag, "sha256-")
}

// released returns the digest and the version of a package or a component.
func released(ctx context.Context, repo *registry.Repository, target string) (digest.Digest, string, error) {
	desc, err := repo.Resolve(ctx, target)
	if err != nil {
		return "", "", err
	}
	_, manifest, err := repo.ManifestLimit(ctx, desc.Digest, registry.MaxForeignManifest)
	if err != nil {
		return "", "", err
	}
	if x, err := artifacts.OpenComponent(manifest); err == nil {
		return desc.Digest, x.Version, nil
	}
	x, err := artifacts.OpenPackage(manifest)
	if err != nil {
		return desc.Digest, "", fmt.Errorf("%s:%s: %w: it is neither a package nor a component", repo.Name(), target, fault.ErrUnsupported)
	}
	d, err := x.Read(func(l ocispec.Descriptor) ([]byte, error) { return repo.Blob(ctx, l, artifacts.MaxDocument) })
	if err != nil {
		return "", "", fmt.Errorf("%s:%s: %w", repo.Name(), target, err)
	}
	return desc.Digest, d.Metadata.Version, nil
}
