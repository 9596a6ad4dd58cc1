package testenv

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// Island is a network namespace from which nothing can be reached but one address of this machine. What its programs try to
// reach beside that is counted and dropped: names, and every other address.
type Island struct {
	Address string // of this machine as seen from the island: what is to be reached from there listens here
	Network string // path of the namespace

	pid int
}

// islandTable counts what leaves the island. Only what goes to the machine may pass.
const islandTable = `table inet island {
  counter strays { }
  chain output {
    type filter hook output priority 0; policy drop;
    ip daddr { %s } accept
    meta l4proto { tcp, udp } counter name strays drop
  }
}
`

// NewIsland makes an island for one test. Its programs may use the addresses and networks inside, too. It needs root, nftables
// and iproute2.
func NewIsland(t testing.TB, inside ...string) *Island {
	t.Helper()
	ctx := t.Context()
	if os.Geteuid() != 0 {
		Unavailable(t, "an island needs root")
	}
	if err := InstallDebian(ctx, os.Stderr, "nftables", "iproute2", "util-linux"); err != nil {
		Unavailable(t, "%v", err)
	}
	box := NewBox(t)
	holder, err := box.Start("island", nil, "unshare", "--net", "sleep", "infinity") // the namespace ends with it
	if err != nil {
		t.Fatal(err)
	}
	i := &Island{pid: holder.PID(), Network: fmt.Sprintf("/proc/%d/ns/net", holder.PID())}
	home := namespaceOf(t, os.Getpid())
	Eventually(t, containerdReady, "the island's namespace", func() error {
		if namespaceOf(t, i.pid) == home {
			return fmt.Errorf("process %d is still at home", i.pid)
		}
		return holder.Running()
	})
	if err := i.connect(ctx); err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(box.Dir(), "island.nft")
	if err := os.WriteFile(rules, fmt.Appendf(nil, islandTable, strings.Join(append(inside, i.Address), ", ")), 0o600); err != nil {
		t.Fatal(err)
	}
	i.must(t, "nft", "-f", rules)
	return i
}

func namespaceOf(t testing.TB, pid int) string {
	t.Helper()
	name, err := os.Readlink(fmt.Sprintf("/proc/%d/ns/net", pid))
	if err != nil {
		t.Fatal(err)
	}
	return name
}

// connect lays a cable between machine and island. The island's route to everywhere leads into
// it, so that attempts become packets, which can be counted.
func (i *Island) connect(ctx context.Context) error {
	// A private address: some clients speak to those without TLS, and to no others.
	base := net.IPv4(172, 31, byte(i.pid>>6), byte(i.pid<<2)).To4()
	there := net.IPv4(base[0], base[1], base[2], base[3]|2).String()
	i.Address = net.IPv4(base[0], base[1], base[2], base[3]|1).String()
	cable := fmt.Sprintf("isl%d", i.pid)
	for _, line := range []string{
		fmt.Sprintf("ip link add %s type veth peer name cable netns %d", cable, i.pid),
		fmt.Sprintf("ip addr add %s/30 dev %s", i.Address, cable),
		fmt.Sprintf("ip link set %s up", cable),
	} {
		if err := done(exec.CommandContext(ctx, "sh", "-c", line)); err != nil {
			return err
		}
	}
	for _, line := range []string{
		"ip link set lo up",
		fmt.Sprintf("ip addr add %s/30 dev cable", there),
		"ip link set cable up",
		"ip route add default via " + i.Address,
	} {
		if err := done(i.Command(ctx, "sh", "-c", line)); err != nil {
			return err
		}
	}
	return nil
}

// done runs a command that says nothing when all is well.
func done(cmd *exec.Cmd) error {
	if text, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w\n%s", strings.Join(cmd.Args, " "), err, tail(text, 5))
	}
	return nil
}

// Command is a program that runs on the island.
func (i *Island) Command(ctx context.Context, argv ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "nsenter", append([]string{"--net", "--target", strconv.Itoa(i.pid), "--"}, argv...)...)
}

func (i *Island) must(t testing.TB, argv ...string) string {
	t.Helper()
	out, err := i.Command(t.Context(), argv...).Output()
	if err != nil {
		t.Fatalf("%s: %v", strings.Join(argv, " "), err)
	}
	return string(out)
}

// Strays is how many packets wanted to go elsewhere since the island was made.
func (i *Island) Strays(t testing.TB) int {
	t.Helper()
	var all struct {
		NFTables []struct {
			Counter *struct{ Packets int }
		}
	}
	if err := json.Unmarshal([]byte(i.must(t, "nft", "-j", "list", "counter", "inet", "island", "strays")), &all); err != nil {
		t.Fatal(err)
	}
	for _, o := range all.NFTables {
		if o.Counter != nil {
			return o.Counter.Packets
		}
	}
	t.Fatal("the island counts nothing")
	return 0
}
