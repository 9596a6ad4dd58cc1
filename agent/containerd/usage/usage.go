// Package usage measures the resource usage of containers. A shim returns figures of its containers' control groups, the kernel those of
// their networks.
package usage

import (
	"bufio"
	"cmp"
	"context"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"

	tasks "github.com/containerd/containerd/api/services/tasks/v1"
	"github.com/containerd/containerd/api/types"
	"github.com/containerd/containerd/api/types/task"
	"github.com/containerd/errdefs/pkg/errgrpc"

	"github.com/longshore-dev/longshore/agent/workload"
)

// maxNetDev bounds what is read of a namespace's interfaces: a line of 150 bytes each.
const maxNetDev = 256 << 10

// Measure returns the usage of the running containers whose ids are in ours, sorted by id.
func Measure(ctx context.Context, c tasks.TasksClient, ours map[string]bool, now time.Time, log *slog.Logger) ([]workload.Usage, error) {
	list, err := c.List(ctx, &tasks.ListTasksRequest{})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	pids := map[string]uint32{}
	for _, t := range list.Tasks {
		if t.Status == task.Status_RUNNING || t.Status == task.Status_PAUSED || t.Status == task.Status_PAUSING {
			pids[t.ID] = t.Pid
		}
	}
	res, err := c.Metrics(ctx, &tasks.MetricsRequest{})
	if err != nil {
		return nil, errgrpc.ToNative(err)
	}
	slices.SortFunc(res.Metrics, func(a, b *types.Metric) int { return cmp.Compare(a.ID, b.ID) })
	var out []workload.Usage
	for _, m := range res.Metrics {
		pid, running := pids[m.ID]
		if !ours[m.ID] || !running || m.Data == nil {
			continue
		}
		u, err := measured(m.Data.TypeUrl, m.Data.Value)
		if err != nil {
			log.Debug("a container's figures cannot be read", "container", m.ID, "error", err)
			continue
		}
		u.ID, u.At = m.ID, now
		if m.Timestamp != nil {
			u.At = m.Timestamp.AsTime()
		}
		countNetwork(&u, "/proc", pid)
		out = append(out, u)
	}
	return out, nil
}

// countNetwork adds up a process's interfaces, unless they are the host's.
func countNetwork(u *workload.Usage, proc string, pid uint32) {
	dir := filepath.Join(proc, strconv.FormatUint(uint64(pid), 10))
	own, err := os.Readlink(filepath.Join(dir, "ns", "net"))
	host, herr := os.Readlink(filepath.Join(proc, "self", "ns", "net"))
	if err != nil || herr != nil || own == host {
		return
	}
	f, err := os.Open(filepath.Join(dir, "net", "dev"))
	if err != nil {
		return // it has ended
	}
	defer f.Close()
	addInterfaces(u, io.LimitReader(f, maxNetDev))
}

// addInterfaces reads the kernel's table: name: received bytes, packets, errors, drops, 4 more, transmitted the same.
func addInterfaces(u *workload.Usage, table io.Reader) {
	lines := bufio.NewScanner(table)
	for lines.Scan() {
		name, row, ok := strings.Cut(lines.Text(), ":")
		f := strings.Fields(row)
		if !ok || len(f) < 16 || strings.TrimSpace(name) == "lo" {
			continue
		}
		number := func(i int) uint64 {
			n, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
		u.NetworkReceived += number(0)
		u.NetworkTransmitted += number(8)
		u.NetworkErrors += number(2) + number(3) + number(10) + number(11)
	}
}
