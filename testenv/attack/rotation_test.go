package attack

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/testenv"
)

// onRotation has a device sleep through versions of its policy while its containers work on: a signer's key is lost, another
// signer leaves, the key of releases is stolen and revoked, and the thief publishes. It wakes, goes through all of it, and
// ends where it should, without a touch to what runs.
func onRotation(t *testing.T, p *plant, n int) {
	roots := []string{"root-1", "root-2", "root-3"}
	d := newDevice(t, p, n, testenv.Registry(t, testenv.Referrers), setup{
		keys: append(roots, "root-4", "root-5", "release-b"), policy: func(d *device) string { return d.firstPolicy(t, roots) },
	})
	t.Run("device wakes after four versions", func(t *testing.T) {
		d.settled(t, uint64(d.pushed))
		d.begin(t)
		d.agent.Kill()
		honest := d.pushed
		d.rotate(t, "root-1", "root-2", d.known(t, "root-4", "signers: [root-1, root-2, root-3]", "signers: [root-1, root-2, root-4]")...) // root-3 is lost
		d.rotate(t, "root-2", "root-4", d.known(t, "root-5", "signers: [root-1, root-2, root-4]", "signers: [root-5, root-2, root-4]")...) // root-1 leaves
		stolen := strings.TrimSpace(d.must(t, "longshore", "key", "show", "-q", d.path("release.pub")))
		d.rotate(t, "root-4", "root-5", d.known(t, "release-b", "signers: [release]", "signers: [release, release-b]",
			"\ntrust:\n", fmt.Sprintf("\nrevoked: [{key: %q, reason: stolen}]\ntrust:\n", stolen))...)
		d.rotate(t, "root-5", "root-2")
		d.release(t, "line", true) // the thief
		if err := d.agent.Start(); err != nil {
			t.Fatal(err)
		}
		d.decidesBy(t, 5)
		d.alarmed(t, d.tells(t, codes.KeyRevoked).Code)
		if s := d.status(t).Trust; s.Source != status.TrustFromRegistry || len(s.SignedBy) != 2 {
			t.Errorf("the device decides by %+v", s)
		}
		d.untouched(t)
		d.key, d.pushed = "release-b", honest+1
		d.release(t, "line", false, "--generation", strconv.Itoa(honest+2), "--replace")
		d.release(t, "audit", false)
		d.settled(t, uint64(d.pushed))
	})
	t.Run("the lost key counts for nothing", func(t *testing.T) {
		d.begin(t)
		next := strings.Replace(d.must(t, "longshore", "trust", "show", "--document", d.host+"/plant/trust"), "version: 5", "version: 6", 1)
		d.offerAs(t, 6, next, "root-3", "root-5")
		d.tells(t, codes.TrustInvalid)
		d.untouched(t)
		d.proxy.Rest()
		d.settled(t, uint64(d.pushed))
		d.agent.Kill() // what it took is on the disk
		if err := d.agent.Start(); err != nil {
			t.Fatal(err)
		}
		d.decidesBy(t, 5)
		d.settled(t, uint64(d.pushed))
	})
}

// known are changes of a policy that bring a key into it, and more.
func (d *device) known(t *testing.T, name string, more ...string) []string {
	t.Helper()
	pem, err := os.ReadFile(d.path(name + ".pub"))
	if err != nil {
		t.Fatal(err)
	}
	return append([]string{"\nkeys:\n", "\nkeys:\n  - {name: " + name + ", pem: " + strconv.Quote(string(pem)) + "}\n"}, more...)
}
