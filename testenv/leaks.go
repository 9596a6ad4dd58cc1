package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// Holdings are what a device of a box holds on this machine, counted: what must be the same before and after anything
// that leaves the device as it was.
type Holdings map[string]int

// Holdings counts what an agent with a table holds beside its data: interfaces, elements of its firewall, namespaces,
// mounts, leases, shims without a container, and of each process files and threads. processes maps names to process ids.
func (b *Box) Holdings(ctx context.Context, d *Daemon, table, runDir string, processes map[string]int) (Holdings, error) {
	h := Holdings{}
	links, err := interfaces(ctx, table)
	if err != nil {
		return nil, err
	}
	h["interfaces"] = len(links)
	if h["firewall elements"], err = elements(ctx, table); err != nil {
		return nil, err
	}
	names, err := filepath.Glob(filepath.Join(runDir, "netns", "*"))
	if err != nil {
		return nil, err
	}
	h["network namespaces"] = len(names)
	mounts, err := mountsBelow(b.dir)
	if err != nil {
		return nil, err
	}
	h["mounts"] = len(mounts)
	leases, err := d.Ctr(ctx, "--namespace", d.Namespace, "leases", "ls", "-q")
	if err != nil {
		return nil, err
	}
	h["leases"] = len(strings.Fields(leases))
	snapshots, err := d.Ctr(ctx, "--namespace", d.Namespace, "snapshots", "ls")
	if err != nil {
		return nil, err
	}
	h["snapshots"] = strings.Count(snapshots, "\n")
	h["idle shims"] = idle(markedProcesses(b.dir, "containerd-shim-runc-v2"))
	for name, pid := range processes {
		files, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", pid))
		if err != nil {
			return nil, err
		}
		h["files of "+name] = len(files)
	}
	return h, nil
}

// elements counts what is in the sets and maps of an nftables table.
func elements(ctx context.Context, table string) (int, error) {
	text, err := exec.CommandContext(ctx, "nft", "-j", "list", "table", "ip", table).Output()
	if err != nil {
		return 0, fmt.Errorf("list table %s: %w", table, err)
	}
	var all struct {
		NFTables []map[string]struct {
			Elem []json.RawMessage `json:"elem"`
		} `json:"nftables"`
	}
	if err := json.Unmarshal(text, &all); err != nil {
		return 0, fmt.Errorf("list table %s: %w", table, err)
	}
	n := 0
	for _, object := range all.NFTables {
		for _, o := range object {
			n += len(o.Elem)
		}
	}
	return n, nil
}

// idle counts the processes without a child. A project may have more than one shim: containerd starts another one when the first does not
// answer in time.
func idle(pids []int) int {
	n := 0
	for _, pid := range pids {
		var children []byte
		threads, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
		for _, file := range threads {
			list, _ := os.ReadFile(file) // the thread may have ended
			children = append(children, list...)
		}
		if len(children) == 0 {
			n++
		}
	}
	return n
}

// Shims lists the processes of the daemon's shims.
func (d *Daemon) Shims() []int { return markedProcesses(d.Dir, "containerd-shim-runc-v2") }
