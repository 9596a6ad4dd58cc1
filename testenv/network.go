package testenv

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// tablesFile lists, in a box, the nftables tables whose networks end with the box.
const tablesFile = "tables"

// OwnTable makes the network objects of an agent the box's: the nftables table and the interfaces that carry its name
// in their alias. A table that exists already has another owner, which is an error.
func (b *Box) OwnTable(ctx context.Context, out io.Writer, table string) error {
	if err := InstallDebian(ctx, out, "nftables", "iproute2"); err != nil {
		return err
	}
	if exec.CommandContext(ctx, "nft", "list", "table", "ip", table).Run() == nil {
		return fmt.Errorf("this machine has an nftables table %q: an agent seems to run here; stop it first, or delete what an ended one left with: nft delete table ip %s", table, table)
	}
	f, err := os.OpenFile(filepath.Join(b.dir, tablesFile), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.tables = append(b.tables, table)
	b.mu.Unlock()
	_, err = fmt.Fprintln(f, table)
	return errors.Join(err, f.Close())
}

// removeNetworks deletes what OwnTable named for the box in dir.
func removeNetworks(ctx context.Context, dir string) error {
	data, err := os.ReadFile(filepath.Join(dir, tablesFile))
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var errs []error
	for _, table := range strings.Fields(string(data)) {
		if exec.CommandContext(ctx, "nft", "list", "table", "ip", table).Run() == nil {
			errs = append(errs, exec.CommandContext(ctx, "nft", "delete", "table", "ip", table).Run())
		}
		errs = append(errs, removeInterfaces(ctx, table))
	}
	return errors.Join(errs...)
}

// removeInterfaces deletes those that an agent with this table has made, as a group: the kernel takes up to 100 ms for each that it deletes alone.
func removeInterfaces(ctx context.Context, table string) error {
	links, err := interfaces(ctx, table)
	if err != nil || len(links) == 0 {
		return err
	}
	group := fmt.Sprintf("group %d\n", 1<<30+os.Getpid())
	cmd := exec.CommandContext(ctx, "ip", "-force", "-batch", "-")
	cmd.Stdin = strings.NewReader("link set " + strings.Join(links, " "+group+"link set ") + " " + group + "link delete " + group)
	out, _ := cmd.CombinedOutput() // a veth may be gone with its peer
	if links, err = interfaces(ctx, table); err == nil && len(links) > 0 {
		err = fmt.Errorf("interfaces of %s stay: %s: %s", table, strings.Join(links, ", "), out)
	}
	return err
}

// interfaces lists those that an agent with this table has made.
func interfaces(ctx context.Context, table string) ([]string, error) {
	var links []struct{ IfName, IfAlias string }
	text, err := exec.CommandContext(ctx, "ip", "-json", "link", "show").Output()
	if err == nil {
		err = json.Unmarshal(text, &links)
	}
	if err != nil {
		return nil, fmt.Errorf("list interfaces: %w", err)
	}
	var names []string
	for _, l := range links {
		if strings.HasPrefix(l.IfAlias, table+": ") {
			names = append(names, l.IfName)
		}
	}
	return names, nil
}

// Traces lists what is there of a box on this machine besides its folder: processes, mounts, containers' states and
// cgroups, nftables tables and interfaces. An emptied box has none.
func (b *Box) Traces(ctx context.Context) []string {
	var all []string
	for _, pid := range markedProcesses(b.dir, "") {
		name, _, _ := processStat(pid)
		all = append(all, fmt.Sprintf("process %d (%s)", pid, name))
	}
	mounts, err := mountsBelow(b.dir)
	if err != nil {
		all = append(all, err.Error())
	}
	for _, m := range mounts {
		all = append(all, "mount "+m)
	}
	namespaces := filepath.Base(b.dir) + "-*"
	for _, pattern := range []string{
		filepath.Join(runcState, namespaces, "*"),
		filepath.Join("/sys/fs/cgroup/*", namespaces),
		filepath.Join("/sys/fs/cgroup", namespaces),
	} {
		found, _ := filepath.Glob(pattern) // the patterns are well-formed
		all = append(all, found...)
	}
	b.mu.Lock()
	tables := b.tables
	b.mu.Unlock()
	for _, table := range tables {
		if exec.CommandContext(ctx, "nft", "list", "table", "ip", table).Run() == nil {
			all = append(all, "nftables table "+table)
		}
		links, err := interfaces(ctx, table)
		if err != nil {
			all = append(all, err.Error())
		}
		for _, l := range links {
			all = append(all, "interface "+l)
		}
	}
	return all
}
