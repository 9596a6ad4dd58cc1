package main

import (
	"errors"

	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/packaging"
)

func releaseCommand() cmdline.Command {
	return cmdline.Command{
		Name:  "release",
		Usage: "build archives, SBOMs, provenance, a changelog and signed checksums of our programs",
		Args:  "VERSION",
		About: "The same commit, version and Go toolchain give the same bytes, except for signatures. The key's password comes from\n" +
			"LONGSHORE_KEY_PASSWORD or a prompt. Everybody verifies the result with longshore or cosign:\n\n" +
			"   longshore verify --key longshore.pub checksums.txt && sha256sum --check checksums.txt",
		Flags: []cmdline.Flag{
			{Name: "dir", Value: "dist", Usage: "empty `DIRECTORY` for the files"},
			{Name: "platform", Value: []string(nil), Usage: "only this `PLATFORM`, such as linux/arm/v7; may be repeated"},
			{Name: "key", Usage: "private `KEY` to sign with: a file, pkcs11:…, or a key service: awskms://…"},
			{Name: "unsigned", Value: false, Usage: "sign nothing"},
		},
		Run: func(c *cmdline.Context) error {
			if len(c.Args) != 1 {
				return errors.New("release: which version? testenv release 1.4.0")
			}
			if (c.String("key") == "") != c.Bool("unsigned") {
				return errors.New("release: sign with --key, or say --unsigned")
			}
			root, err := testenv.Root()
			if err != nil {
				return err
			}
			return packaging.Build(c.Context, packaging.Options{
				Out: c.Out, Source: root, Dir: c.String("dir"), Version: c.Arg(),
				Platforms: append([]string(nil), c.StringSlice("platform")...), Key: c.String("key"),
			})
		},
	}
}
