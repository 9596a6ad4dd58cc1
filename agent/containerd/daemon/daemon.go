// Package daemon has the configuration of a device's containerd.
package daemon

import _ "embed"

// Config is containerd's config.toml for a device, for every release that the agent supports.
//
//go:embed config.toml
var Config string
