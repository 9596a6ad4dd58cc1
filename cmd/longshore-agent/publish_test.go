package main

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/codes"
	"github.com/longshore-dev/longshore/agent/config"
	"github.com/longshore-dev/longshore/agent/currentstate"
	"github.com/longshore-dev/longshore/artifacts"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/token"
	"github.com/longshore-dev/longshore/testenv"
)

// reported reads a device's report from the registry as anybody would, and checks it with the device's public key.
func (f *fleet) reported(device string, key signing.Key) (*artifacts.CurrentState, error) {
	f.t.Helper()
	d, err := f.states.Resolve(f.t.Context(), artifacts.CurrentTag(device))
	if err != nil {
		return nil, err
	}
	_, manifest, err := f.states.Manifest(f.t.Context(), d.Digest)
	if err != nil {
		f.t.Fatal(err)
	}
	x, err := artifacts.OpenCurrentState(manifest)
	if err != nil {
		f.t.Fatal(err)
	}
	bundle, err := x.Read(func(d ocispec.Descriptor) ([]byte, error) {
		return f.states.Blob(f.t.Context(), d, artifacts.MaxCurrentState)
	})
	if err != nil {
		f.t.Fatal(err)
	}
	statement, _, err := signing.ReadStatement(f.t.Context(), bundle, []signing.Key{key})
	if err != nil {
		f.t.Fatal(err)
	}
	c, err := artifacts.ParseCurrentState("report", statement)
	if err != nil {
		f.t.Fatal(err)
	}
	if x.Device != string(c.Device) || x.Counter != c.Counter {
		f.t.Errorf("annotations say %s %d, the statement %s %d", x.Device, x.Counter, c.Device, c.Counter)
	}
	return c, nil
}

// A real agent reports through a real registry, with the device's key; its counter goes on after a restart.
func TestCurrentStateReachesTheRegistry(t *testing.T) {
	for _, kind := range []testenv.Kind{testenv.Distribution, testenv.Referrers} {
		t.Run(string(kind), func(t *testing.T) {
			f := newFleet(t, kind)
			d := f.device("press-01", f.document(rules{version: 1, release: "release", roots: []string{"root-1", "root-2"}}))
			file := filepath.Join(d.dir, "agent.yaml")
			if err := os.WriteFile(file, []byte("device: press-01\nstate: oci://"+f.states.Name()+"\nreport: {registry: true}\n"), 0o600); err != nil {
				t.Fatal(err)
			}
			cfg, err := readConfig(file)
			if err != nil {
				t.Fatal(err)
			}
			p := &parts{registry: f.client}
			d.edit = func(o *agent.Options) {
				o.Publisher = p.publisher(cfg, registry.Options{}, slog.New(slog.DiscardHandler))
			}
			f.release(d.name, 5, "release")
			d.wake().sync()
			code, public, errs := command(t, "key", "--config", file)
			if code != 0 {
				t.Fatalf("key = %d\n%s", code, errs)
			}
			key, err := signing.ParsePublicKey("press-01", []byte(public))
			if err != nil {
				t.Fatal(err)
			}
			wait := func(generation uint64) *artifacts.CurrentState {
				t.Helper()
				var c *artifacts.CurrentState
				testenv.Eventually(t, patience, fmt.Sprintf("the report of generation %d", generation), func() (err error) {
					if c, err = f.reported(d.name, key); err == nil && (c.Committed == nil || c.Committed.Generation != generation) {
						err = fmt.Errorf("report %d: %+v; %+v", c.Counter, c.Committed, d.agent.Status().CurrentReport)
					}
					return err
				})
				return c
			}
			first := wait(5)
			if first.Running.Digest != f.current(d.name).Digest || len(first.Deployments) != 1 || len(first.Deployments[0].Components[0].Images) != 1 ||
				first.Deployments[0].Components[0].Digest.Validate() != nil {
				t.Errorf("report %+v", first)
			}
			d.sleep()
			f.release(d.name, 6, "release")
			d.wake().sync()
			if second := wait(6); second.Counter <= first.Counter || second.Epoch != first.Epoch {
				t.Errorf("counter %d of %s after %d of %s", second.Counter, second.Epoch, first.Counter, first.Epoch)
			}
			code, out, errs := command(t, "key", "-o", "json", "--config", file)
			var shown keyResult
			if err := json.Unmarshal([]byte(out), &shown); code != 0 || err != nil || shown.Fingerprint != key.Fingerprint.String() || shown.Algorithm != "ECDSA P-256" {
				t.Errorf("key -o json = %d %+v, %v\n%s", code, shown, err, errs)
			}
		})
	}
}

// A key that cannot be used stops nothing: the agent runs, and its status says why there are no reports.
func TestBadDeviceKeyIsTold(t *testing.T) {
	f := newFleet(t, testenv.Referrers)
	d := f.device("press-01", f.document(rules{version: 1, release: "release", roots: []string{"root-1", "root-2"}}))
	file := filepath.Join(d.dir, "device.key")
	if err := os.WriteFile(file, []byte("no key"), 0o644); err != nil {
		t.Fatal(err)
	}
	p := &parts{registry: f.client}
	cfg := &config.Config{Device: "press-01", Report: config.Report{Registry: true, KeyFile: file, Repository: f.states.Name()}}
	d.edit = func(o *agent.Options) {
		o.Publisher = p.publisher(cfg, registry.Options{}, slog.New(slog.DiscardHandler))
	}
	f.release(d.name, 5, "release")
	d.wake().sync()
	d.at(1, 5)
	testenv.Eventually(t, patience, "the problem in the status", func() error {
		if d.problem(codes.ReportUnpublished) == nil {
			return errors.New("not yet")
		}
		return nil
	})
	if x := d.problem(codes.ReportUnpublished); !strings.Contains(x.Message, file) {
		t.Errorf("problem %+v", x)
	}
	if code, _, errs := command(t, "key", "--config", writeConfig(t)); code != 4 || !strings.Contains(errs, "init") {
		t.Errorf("key without a key = %d\n%s", code, errs)
	}
}

// A TPM that does not answer, or not yet, delays nothing: workloads start before anything is reported.
func TestTPMDoesNotDelayTheStart(t *testing.T) {
	dir, err := os.MkdirTemp("", "tpm") // the path of a socket is short
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	silent, err := net.Listen("unix", filepath.Join(dir, "tpm"))
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	client, err := registry.New(registry.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	cfg := &config.Config{Device: "press-01", Report: config.Report{
		Registry: true, Repository: "registry.example/plant/state", KeyFile: filepath.Join(dir, "device.key"), TPM: silent.Addr().String(),
	}}
	made := make(chan currentstate.Publisher)
	go func() {
		made <- (&parts{registry: client}).publisher(cfg, registry.Options{}, slog.New(slog.DiscardHandler))
	}()
	select {
	case p := <-made:
		if p == nil {
			t.Error("no publisher")
		}
	case <-time.After(10 * time.Second):
		t.Error("the start waits for the TPM")
		_ = silent.Close() // ends the attempt
		<-made
	}
}

// hardware has the device's key.
type hardware struct {
	place      string // in agent.yaml
	away, back func()
	said       string // in the status while it is away
	other      func(*config.Report)
}

func TestReportSignedInTPM(t *testing.T) {
	chip := testenv.StartSoftTPM(t)
	signedIn(t, hardware{
		"tpm:" + chip.Socket, func() { chip.Stop(t) }, func() { chip.Start(t) }, "there is none",
		func(r *config.Report) { r.TPM = testenv.StartSoftTPM(t).Socket }, // as a cleared one: another owner seed
	})
}

func TestReportSignedInToken(t *testing.T) {
	if !token.Built {
		testenv.Unavailable(t, "this build has no cgo: install gcc")
	}
	soft := testenv.SoftHSM(t)
	pin := filepath.Join(t.TempDir(), "token.pin")
	write := func(text string) {
		if err := os.WriteFile(pin, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(soft.PIN)
	address := soft.URI("agent") + "&pin-source=" + pin
	signedIn(t, hardware{
		address, func() { write("0000") }, func() { write(soft.PIN) }, "PIN",
		func(r *config.Report) {
			key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
			if err != nil {
				t.Fatal(err)
			}
			soft.Import(t, "other", 9, key)
			r.Token = strings.Replace(address, "object=agent", "object=other", 1)
		},
	})
}

// signedIn wants an agent whose key is in hardware to report, also after it was restarted and the hardware was away. With another key it
// reports nothing, and says why.
func signedIn(t *testing.T, h hardware) {
	t.Helper()
	f := newFleet(t, testenv.Distribution)
	d := f.device("press-01", f.document(rules{version: 1, release: "release", roots: []string{"root-1", "root-2"}}))
	dir := t.TempDir()
	code, _, errs := command(t, "init", "--config-dir", dir, "--device", "press-01", "--state", "oci://"+f.states.Name(), "--key", keyFile(t),
		"--report-registry", "--report-key", h.place)
	if code != 0 {
		t.Fatalf("init = %d\n%s", code, errs)
	}
	file := filepath.Join(dir, "agent.yaml")
	if _, err := os.Stat(filepath.Join(dir, "device.key")); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("init made a private key in a file: %v", err)
	}
	cfg, err := readConfig(file)
	if err != nil {
		t.Fatal(err)
	}
	code, public, errs := command(t, "key", "--config", file)
	if code != 0 {
		t.Fatalf("key = %d\n%s", code, errs)
	}
	key, err := signing.ParsePublicKey("press-01", []byte(public))
	if err != nil {
		t.Fatal(err)
	}
	var shown keyResult
	code, out, errs := command(t, "key", "-o", "json", "--config", file)
	if err := json.Unmarshal([]byte(out), &shown); code != 0 || err != nil || !strings.HasSuffix(h.place, shown.TPM+shown.PKCS11) || shown.TPM+shown.PKCS11 == "" || shown.File != "" || shown.Fingerprint != key.Fingerprint.String() {
		t.Errorf("key -o json = %d %+v, %v\n%s", code, shown, err, errs)
	}
	p := &parts{registry: f.client}
	d.edit = func(o *agent.Options) {
		o.Publisher = p.publisher(cfg, registry.Options{}, slog.New(slog.DiscardHandler))
	}
	wait := func(generation uint64) {
		t.Helper()
		testenv.Eventually(t, patience, fmt.Sprintf("the report of generation %d", generation), func() error {
			c, err := f.reported(d.name, key)
			if err == nil && (c.Committed == nil || c.Committed.Generation != generation) {
				err = fmt.Errorf("report %d: %+v; %+v", c.Counter, c.Committed, d.agent.Status().CurrentReport)
			}
			return err
		})
	}
	f.release(d.name, 5, "release")
	d.wake().sync()
	wait(5)
	d.sleep()

	h.away() // as in a boot in which it comes after the agent
	f.release(d.name, 6, "release")
	d.wake().sync()
	told := func(what string) {
		t.Helper()
		testenv.Eventually(t, patience, "the problem in the status", func() error {
			if x := d.problem(codes.ReportUnpublished); x == nil || !strings.Contains(x.Message, what) {
				return fmt.Errorf("problem %+v", x)
			}
			return nil
		})
	}
	told(h.said)
	h.back()
	wait(6)
	d.sleep()

	h.other(&cfg.Report)
	f.release(d.name, 7, "release")
	d.wake().sync()
	told("device.pub")
	wait(6) // nothing newer by another key
}
