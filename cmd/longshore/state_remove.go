package main

import (
	"context"
	"slices"

	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
	"github.com/longshore-dev/longshore/fleet"
)

var stateRemoveCommand = command{
	name: "remove", args: "HOST/PATH NAME", min: 2, max: 2,
	usage: "remove one deployment from a device",
	about: "Publishes the next generation of the device's state without the deployment NAME; NAME may also be a deployment's id. The " +
		"other deployments stay, byte for byte. The command shows what changes on the device and then publishes; with " +
		"--dry-run it only shows the change. It continues from a state that the same key signed; after a change of keys, name " +
		"the old one with --verify-key. To remove everything, use longshore state push --empty.",
	examples: []string{
		"--device press-07 --key release.key harbor.acme.example/plant/state vision",
		"--device press-07 --dry-run harbor.acme.example/plant/state vision",
	},
	flags: slices.Concat([]cmdline.Flag{deviceFlag}, nextFlags, signedByFlags("the current state", "; also checks components and images"),
		contentFlags, endpointFlags, proposalFlags, signFlags, registryFlags),
	run: (*call).stateRemove,
}

func (c *call) stateRemove(args []string) error {
	ref, device, err := c.stateOf(args[0])
	if err != nil {
		return err
	}
	if err := c.openPublisher(false); err != nil {
		return err
	}
	return c.publishOne(ref, fleet.One{Device: device, Edit: func(_ context.Context, had []artifacts.Deployment) (fleet.Edit, error) {
		d, err := theDeployment(had, args[1], device)
		if err != nil {
			return fleet.Edit{}, err
		}
		return fleet.Edit{Remove: []string{d.Document.ID}}, nil
	}}, nil)
}
