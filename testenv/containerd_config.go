package testenv

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/longshore-dev/longshore/agent/containerd/daemon"
)

// shimSocketDir is the longest folder that containerd 2.4 takes for the sockets of its shims.
const shimSocketDir = 42

// places keep everything of the daemon below its folder. The restart monitor, which a service may opt in to, does not keep tests waiting,
// and containerd's own pulls are as fast as they can be: benchmarks measure beside them.
const places = `
[grpc]
  address = %[1]q
[ttrpc]
  address = %[2]q
[plugins."io.containerd.internal.v1.opt"]
  path = %[3]q
[plugins."io.containerd.internal.v1.restart"]
  interval = "1s"
[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_unpacks = 4
`

// configure writes the configuration of a device's containerd, with what only this daemon has.
func (d *Daemon) configure() error {
	text := fmt.Sprintf("root = %q\nstate = %q\n", d.Root, d.State) + daemon.Config +
		fmt.Sprintf(places, d.Address, d.Address+".ttrpc", filepath.Join(d.Dir, "opt"))
	if dir := filepath.Join(d.Dir, "s"); d.release == Containerd24 && len(dir) <= shimSocketDir { // else they go where containerd puts them
		text += fmt.Sprintf("[plugins.\"io.containerd.shim.v1.manager\"]\n  socket_dir = %q\n", dir)
	}
	if d.verifiers != "" {
		text += fmt.Sprintf("[plugins.\"io.containerd.image-verifier.v1.bindir\"]\n  bin_dir = %q\n  max_verifiers = 10\n  per_verifier_timeout = \"60s\"\n", d.verifiers)
	}
	if d.isolated {
		text += "[plugins.\"io.containerd.metadata.v1.bolt\"]\n  content_sharing_policy = \"isolated\"\n"
	}
	return os.WriteFile(filepath.Join(d.Dir, "config.toml"), []byte(text), 0o644)
}
