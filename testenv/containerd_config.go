package testenv

import (
	"fmt"
	"os"
	"path/filepath"
)

// shimSocketDir is the longest folder that containerd 2.4 takes for the sockets of its shims.
const shimSocketDir = 42

// config keeps everything of the daemon below its folder, and everything out that a device does not need: CRI, NRI,
// tracing, the snapshotters that want devices. The restart monitor stays: a service may opt in to it. Its own pulls are as fast as
// they can be: benchmarks measure beside them.
const config = `version = 4
root = %[1]q
state = %[2]q
disabled_plugins = [
  "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime", "io.containerd.grpc.v1.cri",
  "io.containerd.nri.v1.nri",%[7]s
  "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs", "io.containerd.snapshotter.v1.zfs", "io.containerd.differ.v1.erofs",
  "io.containerd.mount-handler.v1.erofs",
  "io.containerd.tracing.processor.v1.otlp", "io.containerd.internal.v1.tracing",
]
[plugins."io.containerd.server.v1.grpc"]
  address = %[3]q
[plugins."io.containerd.server.v1.ttrpc"]
  address = %[4]q
[plugins."io.containerd.internal.v1.opt"]
  path = %[5]q
[plugins."io.containerd.monitor.container.v1.restart"]
  interval = "1s"
[plugins."io.containerd.transfer.v1.local"]
  max_concurrent_unpacks = 4
%[6]s`

// olderConfig is config for 1.6 and 1.7.
const olderConfig = `version = 2
root = %[1]q
state = %[2]q
disabled_plugins = [
  "io.containerd.grpc.v1.cri", "io.containerd.nri.v1.nri", "io.containerd.internal.v1.tracing",
  "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.blockfile", "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper", "io.containerd.snapshotter.v1.zfs", "io.containerd.tracing.processor.v1.otlp",
]
[grpc]
  address = %[3]q
[ttrpc]
  address = %[4]q
[plugins."io.containerd.internal.v1.opt"]
  path = %[5]q
[plugins."io.containerd.internal.v1.restart"]
  interval = "1s"
`

func (d *Daemon) configure() error {
	form, sockets := config, ""
	if d.release != Containerd24 {
		form = olderConfig + "%[6]s%.0[7]s"
	} else if dir := filepath.Join(d.Dir, "s"); len(dir) <= shimSocketDir { // else they go where containerd puts them
		sockets = fmt.Sprintf("[plugins.\"io.containerd.shim.v1.manager\"]\n  socket_dir = %q\n", dir)
	}
	off := ` "io.containerd.image-verifier.v1.bindir",`
	if d.verifiers != "" {
		off = ""
		sockets += fmt.Sprintf("[plugins.\"io.containerd.image-verifier.v1.bindir\"]\n  bin_dir = %q\n  max_verifiers = 10\n  per_verifier_timeout = \"60s\"\n", d.verifiers)
	}
	if d.isolated {
		sockets += "[plugins.\"io.containerd.metadata.v1.bolt\"]\n  content_sharing_policy = \"isolated\"\n"
	}
	text := fmt.Sprintf(form, d.Root, d.State, d.Address, d.Address+".ttrpc", filepath.Join(d.Dir, "opt"), sockets, off)
	return os.WriteFile(filepath.Join(d.Dir, "config.toml"), []byte(text), 0o644)
}
