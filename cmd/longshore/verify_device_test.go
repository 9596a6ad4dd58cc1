package main

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/agent/report"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/artifacts/margo"
	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/registry/release"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/testenv"
)

// reporter is a device that reports to the shell's registry.
type reporter struct {
	s       *shell
	id      artifacts.DeviceID
	private crypto.Signer
	counter uint64
	at      time.Time
}

const reporterEpoch = "0b9c9a4e-5df4-4a34-8a0c-0f5c1f1f8e11"

// reporter makes a device, and the file ID.pub with its key.
func (s *shell) reporter(id string) *reporter {
	s.t.Helper()
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		s.t.Fatal(err)
	}
	der, err := x509.MarshalPKIXPublicKey(private.Public())
	if err != nil {
		s.t.Fatal(err)
	}
	s.write(id+".pub", string(pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})))
	return &reporter{s: s, id: artifacts.DeviceID(id), private: private, at: time.Now().UTC().Truncate(time.Second)}
}

// report reports that the device runs the newest generation under its tag.
func (r *reporter) report(edit func(*artifacts.CurrentState)) {
	t := r.s.t
	t.Helper()
	repo := r.s.repository()
	r.counter++
	c := &artifacts.CurrentState{
		Device: r.id, Epoch: reporterEpoch, Counter: r.counter, Sequence: r.counter, Time: r.at, Every: 3600, Repository: states, Deployments: []artifacts.CurrentDeployment{},
	}
	extra := ""
	if d, err := repo.Resolve(t.Context(), r.id.Tag()); err == nil {
		_, manifest, err := repo.Manifest(t.Context(), d.Digest)
		if err != nil {
			t.Fatal(err)
		}
		x, err := artifacts.OpenState(manifest)
		if err != nil {
			t.Fatal(err)
		}
		g := &artifacts.CurrentGeneration{Generation: x.Generation, Digest: d.Digest}
		c.Accepted, c.Running, c.Committed = g, g, g
		c.Deployments = []artifacts.CurrentDeployment{{
			ID: artifacts.DeploymentID(r.id, "line-monitor"), Name: "line-monitor", Generation: x.Generation, State: margo.StateInstalled, Since: r.at,
			Components: []artifacts.CurrentComponent{{
				Name: "line-monitor", Revision: "1.4.0", Digest: d.Digest, State: margo.StateInstalled, Since: r.at,
				Images: []artifacts.CurrentImage{{Image: host + "/library/caddy@" + d.Digest.String(), Containers: 1}},
			}},
		}}
		data, err := json.Marshal(map[string]any{
			"agentVersion": "1.0.0", "acceptedGeneration": x.Generation, "digest": d.Digest, "runningGeneration": x.Generation, "committedGeneration": x.Generation,
			"insecure": []string{},
		})
		if err != nil {
			t.Fatal(err)
		}
		extra = `,"x-longshore-extensions":` + string(data)
	}
	c.Capabilities = json.RawMessage(`{"properties":{"id":"` + string(r.id) + `","vendor":"v","modelNumber":"m","serialNumber":"s"}` + extra + `}`)
	if edit != nil {
		edit(c)
	}
	statement, err := c.Encode()
	if err != nil {
		t.Fatal(err)
	}
	bundle, err := signing.SignStatement(statement, r.private)
	if err != nil {
		t.Fatal(err)
	}
	a, err := artifacts.PackCurrentState(c, bundle)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := release.Publish(t.Context(), repo, a, release.PublishOptions{Tags: []string{artifacts.CurrentTag(r.id.Tag())}}); err != nil {
		t.Fatal(err)
	}
}

func TestVerifyDevice(t *testing.T) {
	golden := goldenDir(t)
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	press, other := s.reporter("press-07"), s.reporter("press-08")
	at := states + ":press-07"
	s.do(outcome.NotFound, "verify", "device", "--key", "press-07.pub", at)
	press.report(nil)
	s.do(outcome.OK, "verify", "device", "--key", "press-07.pub", "--state-key", "release.pub", at)
	s.do(outcome.OK, "verify", "device", "-o", "json", "--key", "press-07.pub", "--seen", "seen.json", at)
	s.do(outcome.OK, "verify", "device", "-q", "--key", "press-07.pub", at+".current")
	s.do(outcome.Verification, "verify", "device", "--key", "press-07.pub", "--state-key", "other.pub", at)
	s.do(outcome.Verification, "verify", "device", "--key", "press-08.pub", at)
	s.do(outcome.Refused, "verify", "device", "--key", "press-07.pub", "--after", "2", at)
	press.report(func(c *artifacts.CurrentState) { // a number that the state with that digest does not have
		g := *c.Running
		g.Generation = 9
		c.Accepted, c.Running, c.Committed = &g, &g, &g
	})
	s.do(outcome.Verification, "verify", "device", "--key", "press-07.pub", "--state-key", "release.pub", at)
	press.counter--
	press.report(nil)

	repo := s.repository()
	was, err := repo.Resolve(t.Context(), "press-07.current")
	if err != nil {
		t.Fatal(err)
	}
	if err := repo.Tag(t.Context(), was, "old"); err != nil {
		t.Fatal(err)
	}
	press.counter = 5
	press.report(nil)
	s.do(outcome.OK, "verify", "device", "--key", "press-07.pub", "--seen", "seen.json", at) // 2 to 5 were not seen
	s.move("press-07.current", "old")                                                        // somebody moves the tag back
	s.do(outcome.Refused, "verify", "device", "--key", "press-07.pub", "--seen", "seen.json", at)

	// The report of another device under the tag of this one, signed by a key that counts.
	other.report(nil)
	s.move("press-07.current", "press-08.current")
	s.do(outcome.Verification, "verify", "device", "--key", "press-07.pub", "--key", "press-08.pub", at)

	press.at = time.Now().Add(-48 * time.Hour).UTC().Truncate(time.Second)
	press.report(nil)
	s.do(outcome.OK, "verify", "device", "--key", "press-07.pub", at)
	s.do(outcome.Refused, "verify", "device", "--key", "press-07.pub", "--max-age", "24h", at)
	s.do(outcome.Misused, "verify", "device", at)
	s.do(outcome.Misused, "verify", "device", "--key", "press-07.pub", "--attestation", "spdxjson", at)
	s.do(outcome.Misused, "verify", "--key", "press-07.pub", "--max-age", "24h", at)
	s.do(outcome.Misused, "verify", "--key", "press-07.pub", at, at)
	s.do(outcome.Misused, "verify", "device", "--key", "press-07.pub", states+"@"+was.Digest.String())
	s.do(outcome.Misused, "verify", "device", "--key", "press-07.pub", "--state-key", "release.pub", "--policy", "reject.yaml", at)
	s.mask(
		`sha256:[0-9a-f]{12,64}`, "sha256:NEW",
		`([0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z)`, "TIME",
		`("ageSeconds": )[0-9]+`, "${1}0", `[0-9hms]+ (ago|old)`, "AGE ${1}", `[0-9]+h[0-9]+m[0-9]+s`, "AGE",
	)
	s.golden(golden)
}

// Two runs with one file of reports that were seen do not lose what the other has written: the second waits for the first.
func TestSeenByTwo(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	press := s.reporter("press-07")
	press.report(nil)
	verify := []string{"verify", "device", "-q", "--key", "press-07.pub", "--seen", "seen.json", states + ":press-07"}
	s.do(outcome.OK, verify...)
	lock, err := os.OpenFile("seen.json.lock", os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer lock.Close()
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX); err != nil { // as the other run does
		t.Fatal(err)
	}
	done := make(chan int, 1)
	go func() {
		code, _ := s.process(verify...)
		done <- code
	}()
	select {
	case code := <-done:
		t.Fatalf("exit %d while another run writes the file", code)
	case <-time.After(3 * time.Second): // as long as the whole command takes many times
	}
	s.write("seen.json", strings.Replace(string(mustRead(t, "seen.json")), `"counter": 1`, `"counter": 9`, 1))
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_UN); err != nil {
		t.Fatal(err)
	}
	if code := <-done; code != outcome.Refused {
		t.Errorf("exit %d, want %d: report 1 is older than the one that the other run has seen", code, outcome.Refused)
	}
}

// Offline: from a layout, with nothing but it and the keys.
func TestVerifyDeviceFromALayout(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	s.reporter("press-07").report(nil)
	c, err := registry.New(registry.Options{Getenv: func(string) string { return "" }})
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	ref, err := registry.ParseReference("oci-layout:carried:press-07")
	if err != nil {
		t.Fatal(err)
	}
	to, err := c.Open(t.Context(), ref)
	if err != nil {
		t.Fatal(err)
	}
	from := s.repository()
	for _, tag := range []string{"press-07", "press-07.current"} {
		d, err := from.Resolve(t.Context(), tag)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := to.CopyFrom(t.Context(), from, d.Digest, tag); err != nil {
			t.Fatal(err)
		}
	}
	s.write("certs.d/"+host+"/hosts.toml", "server = \"http://127.0.0.1:1\"\n") // nobody answers
	s.do(outcome.OK, "verify", "device", "--key", "press-07.pub", "--state-key", "release.pub", "oci-layout:carried:press-07")
	s.do(outcome.Verification, "verify", "device", "--key", "press-07.pub", "--state-key", "other.pub", "oci-layout:carried:press-07")
	s.do(outcome.Misused, "verify", "device", "--key", "press-07.pub", "--policy", "reject.yaml", "oci-layout:carried:press-07")
}

// A report that was signed in a TPM verifies like any other.
func TestVerifyDeviceWithTPM(t *testing.T) {
	s := newShell(t, testenv.Distribution)
	s.do(outcome.OK, "component", "push", "-q", "./line-monitor", monitor+":1.4.0")
	s.do(outcome.OK, "state", "push", "-q", "-d", "press-07", "--key", "release.key", "--component", monitor+":1.4.0", states)
	press := s.reporter("press-07") // with a key of its own in press-07.pub
	key, _, err := report.Place{File: filepath.Join(t.TempDir(), "device.key"), TPM: testenv.StartSoftTPM(t).Socket}.Make()
	if err != nil {
		t.Fatal(err)
	}
	s.write("tpm.pub", string(key.PublicPEM))
	press.private = key
	press.report(nil)
	s.do(outcome.OK, "verify", "device", "-q", "--key", "tpm.pub", states+":press-07")
	s.do(outcome.Verification, "verify", "device", "-q", "--key", "press-07.pub", states+":press-07")
}
