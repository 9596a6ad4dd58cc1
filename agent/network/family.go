package network

import (
	"net"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/network/ipam"
)

func socket(f ipam.Family) int {
	if f == ipam.V6 {
		return unix.AF_INET6
	}
	return unix.AF_INET
}

// sysctlDir is the folder of the family's settings.
func sysctlDir(f ipam.Family) string {
	if f == ipam.V6 {
		return "net/ipv6/conf/"
	}
	return "net/ipv4/conf/"
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}
