package network

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"time"

	"github.com/containernetworking/cni/libcni"
	cnitypes "github.com/containernetworking/cni/pkg/types"
	cniresult "github.com/containernetworking/cni/pkg/types/100"
	"github.com/vishvananda/netlink"

	"github.com/longshore-dev/longshore/agent/network/ipam"
	"github.com/longshore-dev/longshore/artifacts/bounded"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	maxConflist = 1 << 20          // bytes of a configuration file
	maxConfs    = 256              // files that are read
	cniLimit    = 30 * time.Second // of one call of a network's plugins
	cniCache    = "cni"            // below the data directory: joined networks, so that they can be left after a reboot
)

// CNI is the configuration of the site's own networks (Container Network Interface). The zero value has none.
type CNI struct {
	ConfDir string // of .conflist files
	BinDir  string // of plugins
}

// find reads the configuration of a network; nil: no network has that name. Files that cannot be read are skipped.
func (c CNI) find(name string) (*libcni.NetworkConfigList, error) {
	if c.ConfDir == "" {
		return nil, nil
	}
	entries, err := os.ReadDir(c.ConfDir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("read the site's networks: %w", err)
	}
	for _, e := range entries[:min(len(entries), maxConfs)] { // sorted by name, as in other runtimes
		if filepath.Ext(e.Name()) != ".conflist" {
			continue
		}
		data, err := bounded.File(os.Open, filepath.Join(c.ConfDir, e.Name()), maxConflist)
		if err != nil {
			continue
		}
		if list, err := libcni.NetworkConfFromBytes(data); err == nil && list.Name == name {
			return list, nil
		}
	}
	return nil, nil
}

func (m *Manager) cni() *libcni.CNIConfig {
	return libcni.NewCNIConfigWithCacheDir([]string{m.o.CNI.BinDir}, filepath.Join(m.o.DataDir, cniCache), nil)
}

// ensureCNI joins a container to a network of the site, unless it has joined, and records its assigned addresses.
func (m *Manager) ensureCNI(ctx context.Context, project, id string, index int, in *netlink.Handle) error {
	p := m.state.Projects[project]
	a := p.Attachments[id]
	n, ifName := a.Networks[index], a.Interfaces()[index]
	l, err := linkByName(in, ifName)
	if err != nil {
		return err
	}
	if l != nil && a.Links[n].Assigned != nil {
		return nil
	}
	// An earlier attempt, or one before a reboot, may have joined it without saving that.
	if err := m.detachCNI(ctx, id, ifName); err != nil {
		return err
	}
	if err := removeLink(in, ifName); err != nil {
		return err
	}
	list, err := m.o.CNI.find(p.Networks[n].CNI)
	if err == nil && list == nil {
		err = fmt.Errorf("the site declares it no more: %w", fault.ErrNotFound)
	}
	if err != nil {
		return err
	}
	rt := &libcni.RuntimeConf{ContainerID: id, NetNS: m.netnsPath(id), IfName: ifName, Args: [][2]string{{"IgnoreUnknown", "1"}}, CapabilityArgs: map[string]any{}}
	if mac := a.Links[n].MAC; mac != "" {
		rt.Args = append(rt.Args, [2]string{"MAC", mac})
		rt.CapabilityArgs["mac"] = mac
	}
	if want := a.Links[n].Requested; len(want) > 0 {
		rt.Args = append(rt.Args, [2]string{"IP", want[0].String()})
		rt.CapabilityArgs["ips"] = want
	}
	ctx, cancel := context.WithTimeout(ctx, cniLimit)
	defer cancel()
	var result cnitypes.Result
	err = m.host.do(func() (err error) {
		result, err = m.cni().AddNetworkList(ctx, list, rt)
		return err
	})
	if err != nil {
		err = fmt.Errorf("join the site's network %q: %w: %w", list.Name, fault.ErrTemporary, err)
		return errors.Join(err, m.detachCNI(context.WithoutCancel(ctx), id, ifName))
	}
	given, err := assignedBy(result)
	if err != nil {
		return fmt.Errorf("join the site's network %q: %w", list.Name, err)
	}
	next := m.state.Clone()
	b := next.Projects[project].Attachments[id]
	if b.Links == nil {
		b.Links = map[string]ipam.LinkOptions{}
	}
	x := b.Links[n]
	x.Assigned = given
	b.Links[n] = x
	return m.commit(next)
}

// assignedBy are the addresses in a plugin's answer.
func assignedBy(result cnitypes.Result) ([]netip.Prefix, error) {
	r, err := cniresult.GetResult(result)
	if err != nil {
		return nil, err
	}
	out := []netip.Prefix{} // not nil: joined, also without an address
	for _, ip := range r.IPs {
		a, ok := netip.AddrFromSlice(ip.Address.IP)
		ones, _ := ip.Address.Mask.Size()
		if !ok {
			return nil, fmt.Errorf("address %s: %w", ip.Address.String(), fault.ErrInvalid)
		}
		out = append(out, netip.PrefixFrom(a.Unmap(), ones))
	}
	return out, nil
}

// detachCNI removes a container's interface from its networks of the site, by their configuration at the time of joining. ifName
// "": all its interfaces. The site's files may have been deleted.
func (m *Manager) detachCNI(ctx context.Context, id, ifName string) error {
	joined, err := m.cni().GetCachedAttachments(id)
	if err != nil {
		return fmt.Errorf("leave the site's networks: %w", err)
	}
	ctx, cancel := context.WithTimeout(ctx, cniLimit)
	defer cancel()
	for _, j := range joined {
		if ifName != "" && j.IfName != ifName || j.ContainerID != id {
			continue
		}
		list, err := libcni.NetworkConfFromBytes(j.Config)
		if err != nil {
			return fmt.Errorf("leave the site's network %q: %w", j.Network, err)
		}
		rt := &libcni.RuntimeConf{ContainerID: id, IfName: j.IfName, Args: j.CniArgs, CapabilityArgs: j.CapabilityArgs}
		if ok, err := pinned(m.netnsPath(id)); err != nil {
			return err
		} else if ok {
			rt.NetNS = m.netnsPath(id)
		}
		if err := m.host.do(func() error { return m.cni().DelNetworkList(ctx, list, rt) }); err != nil {
			return fault.WithHint(fmt.Errorf("leave the site's network %q: %w: %w", j.Network, fault.ErrTemporary, err), "its plugins must stay in "+m.o.CNI.BinDir+" until nothing is joined")
		}
	}
	return nil
}

// collectCNI leaves networks of the site for containers that the state does not have.
func (m *Manager) collectCNI(ctx context.Context) error {
	joined, err := m.cni().GetCachedAttachments("")
	if err != nil {
		return fmt.Errorf("list what joined the site's networks: %w", err)
	}
	var errs []error
	for _, j := range joined {
		if name, _ := m.state.Find(j.ContainerID); name == "" && ipam.ValidName(j.ContainerID) {
			m.log.Info("leaving a network of the site for a removed container", "container", j.ContainerID, "network", j.Network)
			errs = append(errs, m.detachCNI(ctx, j.ContainerID, ""))
		}
	}
	return errors.Join(errs...)
}

// cniLink describes a container's link to a network of the site, as far as known.
func (m *Manager) cniLink(p *ipam.Project, id string, index int) veth {
	a := p.Attachments[id]
	w := veth{inner: a.Interfaces()[index]}
	for _, g := range a.Links[a.Networks[index]].Assigned {
		if f := ipam.FamilyOf(g.Addr()); !w.ends[f].address.IsValid() {
			w.ends[f] = end{address: g}
		}
	}
	return w
}
