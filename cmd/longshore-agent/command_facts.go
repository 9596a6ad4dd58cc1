package main

import (
	"context"
	_ "embed"
	"fmt"

	"github.com/longshore-dev/longshore/agent/containerd"
	"github.com/longshore-dev/longshore/agent/containerd/daemon"
	"github.com/longshore-dev/longshore/agent/containerd/features"
	"github.com/longshore-dev/longshore/cmd/internal/cmdline"
)

var capabilitiesCommand = cmdline.Command{
	Name:  "capabilities",
	Usage: "print the device's capabilities as Margo's DeviceCapabilities",
	About: "The agent detects them; agent.yaml adds to them and overrides them. Constraints of deployments are checked against\n" +
		"these. The agent does not have to run. Only root can read a serial number.\n\n" +
		"Examples:\n  longshore-agent capabilities\n  longshore-agent capabilities --config ./agent.yaml",
	Flags: []cmdline.Flag{configFlag},
	Run: func(c *cmdline.Context) error {
		cfg, err := readConfig(c.String("config"))
		if err != nil {
			return err
		}
		ask := offered(c.Context, func(ctx context.Context) (features.Features, error) {
			return containerd.Offered(ctx, containerd.Options{
				Address: cfg.Containerd.Address, Namespace: cfg.Containerd.Namespace, Snapshotter: cfg.Containerd.Snapshotter, Runtimes: cfg.Runtime.Allowed,
			})
		})
		device := machineLook(cfg, ask, nil, func(what string) { fmt.Fprintf(c.Err, "longshore-agent: not found out: %s\n", what) })()
		data, err := device.Encode()
		if err == nil {
			_, err = fmt.Fprintf(c.Out, "%s\n", data)
		}
		return err
	},
}

//go:embed longshore-agent.service
var unit string

var unitCommand = cmdline.UnitCommand(unit, "The unit expects the program at /usr/local/bin/longshore-agent.\n\n"+
	"Examples:\n  longshore-agent unit >/etc/systemd/system/longshore-agent.service")

var containerdConfigCommand = cmdline.FileCommand("containerd-config", "print a configuration for containerd", daemon.Config,
	"It turns off what Longshore does not use, such as everything for Kubernetes, and saves memory. containerd 1.6 and later read it; the\n"+
		"file is complete: containerd has its default for everything else. Containers run on while containerd restarts.\n\n"+
		"Examples:\n  longshore-agent containerd-config >/etc/containerd/config.toml\n  systemctl restart containerd")
