package main

import (
	"context"
	"slices"

	"github.com/urfave/cli/v2"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/fleet"
)

func (p *program) stateRemoveCommand() *cli.Command {
	return p.command("state", command{
		name: "remove", args: "HOST/PATH NAME", min: 2, max: 2,
		usage: "remove one deployment from a device",
		about: "Creates the next generation of the device's state without the deployment NAME; a deployment's id is accepted too. The " +
			"other deployments stay, byte for byte. The command shows what changes on the device and then publishes; with " +
			"--dry-run it only shows it. What the device has is read from a state that the same key signed; after a change of keys, " +
			"name the old one with --verify-key. To remove everything, use longshore state push --empty.",
		examples: []string{
			"--device press-07 --key release.key harbor.acme.example/plant/state vision",
			"--device press-07 --dry-run harbor.acme.example/plant/state vision",
		},
		flags: slices.Concat([]cli.Flag{deviceFlag()}, nextFlags(), vouchFlags("the current state", "; also checks components and images"),
			contentFlags(), endpointFlags(), proposalFlags(), signFlags(), registryFlags()),
		run: p.stateRemove,
	})
}

func (p *program) stateRemove(c *cli.Context, args []string) error {
	ref, device, err := p.stateOf(c, args[0])
	if err != nil {
		return err
	}
	if err := whoSigns(c); err != nil {
		return err
	}
	s, err := p.session(c, nil, false)
	if err != nil {
		return err
	}
	defer s.Close()
	return p.publishOne(c, s, ref, fleet.One{Device: device, Edit: func(_ context.Context, had []artifacts.Deployment) (fleet.Edit, error) {
		d, err := theDeployment(had, args[1], device)
		if err != nil {
			return fleet.Edit{}, err
		}
		return fleet.Edit{Remove: []string{d.Document.ID}}, nil
	}}, nil)
}
