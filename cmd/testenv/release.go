package main

import (
	"errors"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/testenv"
	"github.com/longshore-dev/longshore/testenv/packaging"
)

func releaseCommand() *cli.Command {
	return &cli.Command{
		Name:      "release",
		Usage:     "build archives, SBOMs, provenance, a changelog and signed checksums of our programs",
		ArgsUsage: "VERSION",
		Description: "The same commit, version and Go toolchain give the same bytes, except for signatures. The key's password comes from\n" +
			"LONGSHORE_KEY_PASSWORD or a prompt. Everybody verifies the result with longshore or cosign:\n\n" +
			"   longshore verify --key longshore.pub checksums.txt && sha256sum --check checksums.txt",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dir", Value: "dist", Usage: "empty `DIRECTORY` for the files"},
			&cli.StringSliceFlag{Name: "platform", Usage: "only this `PLATFORM`, such as linux/arm/v7; may be repeated"},
			&cli.StringFlag{Name: "key", Usage: "private `KEY` to sign with: a file, pkcs11:…, or a key service: awskms://…"},
			&cli.BoolFlag{Name: "unsigned", Usage: "sign nothing"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
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
				Out: c.App.Writer, Source: root, Dir: c.String("dir"), Version: c.Args().First(),
				Platforms: append([]string(nil), c.StringSlice("platform")...), Key: c.String("key"),
			})
		},
	}
}
