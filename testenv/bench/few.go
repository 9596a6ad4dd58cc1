package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/longshore-dev/longshore/artifacts/delay"
	"github.com/longshore-dev/longshore/testenv"
)

// fewSettle is how long new containers are left alone before their engine is weighed.
const fewSettle = 5 * time.Second

// few weighs nerdctl with as many containers as the smallest device of ours has.
func few(ctx context.Context, out io.Writer) (samples map[string]sample, err error) {
	image, err := testenv.SoftwareImage(ctx, out, "toolbox", testenv.HostPlatform())
	if err != nil {
		return nil, err
	}
	box, err := testenv.OpenBox(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, box.Empty()) }()
	n, err := testenv.StartNerdctl(ctx, testenv.DaemonOptions{Box: box, Out: out}, image)
	if err != nil {
		return nil, err
	}
	for i := range idleServices {
		if _, err := n.Run(ctx, "run", "-d", "--restart", "always", "--name", fmt.Sprint("s", i), n.Image, "sleep"); err != nil {
			return nil, err
		}
	}
	if err := delay.For(ctx, fewSettle); err != nil {
		return nil, err
	}
	total, err := weigh(n.Daemon, n.Daemon.Bin, n.Bin)
	return map[string]sample{"few containers of nerdctl": {"pss-MiB": total / (1 << 20)}}, err
}

// weigh is what a containerd, its shims and the processes that write logs for it hold, each page shared by n processes
// counted as an nth. They run programs of the folders.
func weigh(d *testenv.Daemon, folders ...string) (float64, error) {
	all, err := filepath.Glob("/proc/[0-9]*/exe")
	if err != nil {
		return 0, err
	}
	total := 0.0
	for _, exe := range all {
		program, err := os.Readlink(exe)
		if err != nil || !slices.Contains(folders, filepath.Dir(program)) {
			continue
		}
		environment, err := os.ReadFile(filepath.Join(filepath.Dir(exe), "environ"))
		if err != nil || !bytes.Contains(environment, []byte(d.Dir)) && !bytes.Contains(environment, []byte("CONTAINER_NAMESPACE="+d.Namespace+"\x00")) {
			continue
		}
		fields, err := testenv.Account(filepath.Join(filepath.Dir(exe), "smaps_rollup"))
		if err != nil {
			return 0, err
		}
		total += fields["Pss"] * 1024
	}
	return total, nil
}
