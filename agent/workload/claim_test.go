package workload_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/agent/workload"
)

func TestClaims(t *testing.T) {
	p := &workload.Project{
		Services: []workload.Service{
			{Name: "web", Ports: []workload.Port{{HostPort: 80, ContainerPort: 8080, Protocol: "tcp"}, {HostIP: netip.MustParseAddr("10.0.0.1"), HostPort: 53, Protocol: "udp"}}},
			{Name: "plc", Devices: []workload.Device{{HostPath: "/dev/null"}, {HostPath: "/dev/ttyS0", At: 1}, {HostPath: "/dev/tty", At: 2}}},
		},
		Networks: []workload.Network{
			{Name: "field", Subnets: []workload.Subnet{{Prefix: netip.MustParsePrefix("10.5.0.0/16")}}},
			{Name: "site", External: "plant", Subnets: []workload.Subnet{{Prefix: netip.MustParsePrefix("10.6.0.0/16")}}},
			{Name: "lan", Driver: workload.Macvlan, Subnets: []workload.Subnet{{Prefix: netip.MustParsePrefix("192.168.1.0/24")}}},
		},
	}
	var got []string
	for _, c := range p.Claims() {
		got = append(got, c.Path+": "+c.What)
	}
	want := []string{"services.web.ports: port 80/tcp", "services.web.ports: port 53/udp", "services.plc.devices[1]: serial port /dev/ttyS0", "networks.field.ipam: addresses of a network"}
	if !cmp.Equal(got, want) {
		t.Errorf("claims %q, want %q", got, want)
	}
}

func TestClashes(t *testing.T) {
	port := func(ip string, n uint16, protocol string) workload.Port {
		p := workload.Port{HostPort: n, Protocol: protocol}
		if ip != "" {
			p.HostIP = netip.MustParseAddr(ip)
		}
		return p
	}
	for _, c := range []struct {
		a, b workload.Port
		want bool
	}{
		{port("", 80, "tcp"), port("", 80, "tcp"), true},
		{port("", 80, "tcp"), port("", 80, "udp"), false},
		{port("", 80, "tcp"), port("", 81, "tcp"), false},
		{port("0.0.0.0", 80, "tcp"), port("10.0.0.1", 80, "tcp"), true},
		{port("::", 80, "tcp"), port("10.0.0.1", 80, "tcp"), true},
		{port("10.0.0.1", 80, "tcp"), port("10.0.0.2", 80, "tcp"), false},
		{port("10.0.0.1", 80, "tcp"), port("10.0.0.1", 80, "tcp"), true},
		{port("::1", 80, "tcp"), port("127.0.0.1", 80, "tcp"), false},
	} {
		if got := c.a.Overlaps(c.b); got != c.want || c.b.Overlaps(c.a) != got {
			t.Errorf("%v and %v: %v, want %v", c.a, c.b, got, c.want)
		}
	}
	net := func(s string) workload.Claim {
		return workload.Claim{What: "addresses", At: netip.MustParsePrefix(s)}
	}
	if !net("10.0.0.0/8").Conflicts(net("10.5.0.0/16")) || net("10.4.0.0/16").Conflicts(net("10.5.0.0/16")) {
		t.Error("ranges of addresses clash when they overlap, and only then")
	}
}
