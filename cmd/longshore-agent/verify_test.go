package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/cmd/internal/outcome"
	"github.com/longshore-dev/longshore/registry"
	"github.com/longshore-dev/longshore/signing"
	"github.com/longshore-dev/longshore/signing/sign"
	"github.com/longshore-dev/longshore/signing/trust"
	"github.com/longshore-dev/longshore/testenv"
)

func TestAsVerifier(t *testing.T) {
	for name, tt := range map[string]struct{ args, want []string }{
		"link":   {[]string{"/opt/bin/longshore-verify-image", "-name", "a"}, []string{"/opt/bin/longshore-verify-image", "verify-image", "--name", "a"}},
		"itself": {[]string{"longshore-agent", "status"}, []string{"longshore-agent", "status"}},
		"nobody": {nil, nil},
	} {
		if diff := cmp.Diff(tt.want, asVerifier(tt.args)); diff != "" {
			t.Errorf("%s:\n%s", name, diff)
		}
	}
}

// What containerd is told: by exit code, and in one line on stdout.
func TestVerifyImage(t *testing.T) {
	_, file := fakeAgent(t)
	d := digest.FromString("image")
	descriptor := fmt.Sprintf(`{"mediaType":"application/vnd.oci.image.index.v1+json","digest":%q,"size":7}`, d)
	for _, tt := range []struct {
		name, image, digest, stdin string
		code                       int
		want                       string
	}{
		{"signed", "harbor.example/plant/web:2", d.String(), descriptor, outcome.OK, "signed by vendor"},
		{"by digest", "harbor.example/plant/web@" + d.String(), d.String(), descriptor, outcome.OK, "signed by vendor"},
		{"rejected", "redis", d.String(), descriptor, outcome.Refused, "rejected docker.io/library/redis@"},
		{"forged", "harbor.example/plant/forged:1", d.String(), descriptor, outcome.Verification, "signature invalid (image-signature-invalid)"},
		{"registry away", "harbor.example/plant/late:1", d.String(), descriptor, outcome.Temporary, "registry away"},
		{"another digest", "harbor.example/plant/web@" + digest.FromString("x").String(), d.String(), descriptor, outcome.Verification, "digest mismatch"},
		{"another descriptor", "harbor.example/plant/web:2", digest.FromString("x").String(), descriptor, outcome.Verification, "digest mismatch"},
		{"no digest", "harbor.example/plant/web:2", "latest", descriptor, outcome.Misused, "--digest"},
		{"no image", "oci-layout:x", d.String(), descriptor, outcome.Misused, "no image in a registry"},
		{"noise", "harbor.example/plant/web:2", d.String(), "x", outcome.Misused, "not JSON"},
		{"endless", "harbor.example/plant/web:2", d.String(), strings.Repeat(" ", maxStdin+1), outcome.Misused, "more than"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var out, errs bytes.Buffer
			args := []string{"longshore-agent", "verify-image", "--config", file, "--name", tt.image, "--digest", tt.digest, "--stdin-media-type", "application/vnd.oci.descriptor.v1+json"}
			code := run(t.Context(), args, strings.NewReader(tt.stdin), &out, &errs)
			if code != tt.code || !strings.Contains(out.String(), tt.want) || strings.Count(out.String(), "\n") != 1 {
				t.Errorf("exit %d, want %d, stdout with %q\n%s--- stderr\n%s", code, tt.code, tt.want, out.String(), errs.String())
			}
		})
	}
	if code, out, _ := command(t, "verify-image", "--config", writeConfig(t), "--name", "redis", "--digest", d.String()); code != outcome.Temporary || !strings.Contains(out, "does not run") {
		t.Errorf("without an agent: exit %d, %s", code, out)
	}
}

// vendored pushes an image and has it signed with key; nil: not.
func vendored(t *testing.T, server *testenv.RegistryServer, name string, key *sign.Signer) {
	t.Helper()
	image, err := testenv.BuildImage(testenv.HostPlatform(), v1.Config{}, []testenv.File{{Path: "app", Data: []byte(name)}})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := server.Push(t.Context(), name, image); err != nil || key == nil {
		if err != nil {
			t.Fatal(err)
		}
		return
	}
	client, err := registry.New(registry.Options{PlainHTTPHosts: []string{server.Host}})
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	path, tag, _ := strings.Cut(name, ":")
	repo, err := client.OpenName(t.Context(), server.Host+"/"+path)
	if err != nil {
		t.Fatal(err)
	}
	d, err := repo.Resolve(t.Context(), tag)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := key.Sign(t.Context(), repo, d); err != nil {
		t.Fatal(err)
	}
}

// A real containerd asks a real agent before its transfer service pulls: what the policy's rule for images lets pass comes,
// what nobody signed, or somebody else, does not, and nothing comes while the agent does not run.
func TestContainerdAsksBeforeItPulls(t *testing.T) {
	server := testenv.Registry(t, testenv.Distribution)
	box := testenv.NewBox(t)
	table := fmt.Sprintf("lsverify%d", os.Getpid())
	if err := box.OwnTable(t.Context(), os.Stderr, table); err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	dir := box.Dir()
	bin := filepath.Join(dir, "verifiers")
	daemon, err := testenv.StartContainerd(t.Context(), testenv.DaemonOptions{Box: box, Verifiers: bin})
	if err != nil {
		testenv.Unavailable(t, "%v", err)
	}
	private, public, err := sign.GenerateKey([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	vendor, err := sign.NewSigner(private, []byte("secret"), sign.Options{})
	if err != nil {
		t.Fatal(err)
	}
	other, _, err := sign.GenerateKey([]byte("secret"))
	if err != nil {
		t.Fatal(err)
	}
	stranger, err := sign.NewSigner(other, []byte("secret"), sign.Options{})
	if err != nil {
		t.Fatal(err)
	}
	vendored(t, server, "plant/signed:1", vendor)
	vendored(t, server, "plant/unsigned:1", nil)
	vendored(t, server, "plant/foreign:1", stranger)
	vendored(t, server, "elsewhere/signed:1", vendor)

	config := filepath.Join(dir, "agent.yaml")
	for name, text := range map[string]string{
		config: fmt.Sprintf("device: press-07\nstate: %s/plant/state\ndataDir: %s\nrunDir: %s\ntrust: trust.yaml\ncontainerd: {address: %s, namespace: %s}\nregistry: {plainHTTP: [%q]}\nnetwork: {table: %s}\n",
			server.Host, filepath.Join(dir, "data"), filepath.Join(dir, "run"), daemon.Address, daemon.Namespace, server.Host, table),
		filepath.Join(dir, "trust.yaml"): fmt.Sprintf("rules:\n  - {scope: %[1]s/plant/**, artifacts: [image], keys: [{name: vendor, file: vendor.pub}]}\n  - {scope: %[1]s/plant/state, keys: [{name: vendor, file: vendor.pub}]}\n", server.Host),
		filepath.Join(dir, "vendor.pub"): string(public),
	} {
		if err := os.WriteFile(name, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	program := filepath.Join(dir, "longshore-agent")
	if err := testenv.BuildOwn(t.Context(), dir, "longshore-agent"); err != nil {
		t.Fatal(err)
	}
	pull := func(name string) (string, error) {
		cmd := exec.CommandContext(t.Context(), filepath.Join(daemon.Bin, "ctr"), "--address", daemon.Address, "--namespace", "default", "images", "pull", "--plain-http", server.Reference(name))
		out, err := cmd.CombinedOutput()
		return string(out), err
	}
	if out, err := pull("plant/unsigned:1"); err != nil { // off by default: no folder, no verifier
		t.Fatalf("pull without a verifier: %v\n%s", err, out)
	}
	// What a person does: a link in the folder. The agent's configuration is not where it usually is, so a script names it.
	if err := errors.Join(
		os.MkdirAll(bin, 0o755), os.Symlink(program, filepath.Join(dir, verifierName)),
		os.WriteFile(filepath.Join(bin, "longshore"), fmt.Appendf(nil, "#!/bin/sh\nLONGSHORE_CONFIG=%s exec %s \"$@\"\n", config, filepath.Join(dir, verifierName)), 0o755),
	); err != nil {
		t.Fatal(err)
	}
	if out, err := pull("plant/signed:1"); err == nil || !strings.Contains(out, "does not run") {
		t.Errorf("pull without an agent: %v\n%s", err, out)
	}

	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan int, 1)
	var log bytes.Buffer
	go func() {
		ended <- run(ctx, []string{"longshore-agent", "run", "--config", config}, strings.NewReader(""), &log, &log)
	}()
	defer func() {
		stop()
		if code := <-ended; code != 0 {
			t.Errorf("agent: exit %d\n%s", code, log.String())
		}
	}()
	socket := filepath.Join(dir, "run", "agent.sock")
	testenv.Eventually(t, time.Minute, "the socket of the agent", func() error {
		select {
		case code := <-ended:
			ended <- code
			t.Fatalf("agent: exit %d\n%s", code, log.String())
		default:
		}
		c, err := (&net.Dialer{}).DialContext(t.Context(), "unix", socket)
		if err == nil {
			err = c.Close()
		}
		return err
	})
	server.Faults.Forget()
	for _, tt := range []struct{ image, refused string }{
		{"plant/signed:1", ""},
		{"plant/unsigned:1", "image-signature-missing"},
		{"plant/foreign:1", "image-signature-invalid"},
		{"elsewhere/signed:1", "image-"},
	} {
		out, err := pull(tt.image)
		switch {
		case tt.refused == "" && err != nil:
			t.Errorf("pull %s: %v\n%s", tt.image, err, out)
		case tt.refused != "" && (err == nil || !strings.Contains(out, "verifier longshore rejected image") || !strings.Contains(out, tt.refused)):
			t.Errorf("pull %s = %v, want a refusal with %s\n%s", tt.image, err, tt.refused, out)
		}
	}
	blobs := server.Faults.Requests("GET", `/plant/unsigned/blobs/`)
	if len(blobs) > 0 {
		t.Errorf("%d blobs of a refused image were fetched", len(blobs))
	}
	if images, err := exec.CommandContext(t.Context(), filepath.Join(daemon.Bin, "ctr"), "--address", daemon.Address, "--namespace", "default", "images", "list", "-q").Output(); err != nil ||
		!slices.Contains(strings.Fields(string(images)), server.Reference("plant/signed:1")) || strings.Contains(string(images), "foreign") {
		t.Errorf("images of containerd: %v\n%s", err, images)
	}
}

// The earliest time is what all of those who signed agree on.
func TestVerdictTellsTheEarliestTime(t *testing.T) {
	at := time.Date(2026, 11, 20, 12, 0, 0, 0, time.UTC)
	by := func(name string, state trust.State, claimed, proven time.Time) trust.SignerResult {
		s := signing.Signature{By: name, Time: claimed}
		s.Proven = proven
		return trust.SignerResult{Name: name, State: state, Signatures: []signing.Signature{s}}
	}
	for _, tt := range []struct {
		name string
		by   []trust.SignerResult
		want time.Time
	}{
		{"one", []trust.SignerResult{by("a", trust.StateCounted, at, time.Time{})}, at},
		{"one with a wrong date", []trust.SignerResult{
			by("a", trust.StateCounted, at.AddDate(8, 0, 0), time.Time{}), by("b", trust.StateCounted, at, time.Time{}),
		}, at},
		{"a log knows better", []trust.SignerResult{by("a", trust.StateCounted, at.AddDate(8, 0, 0), at)}, at},
		{"one that tells none", []trust.SignerResult{
			by("a", trust.StateCounted, at, time.Time{}), by("b", trust.StateCounted, time.Time{}, time.Time{}),
		}, time.Time{}},
		{"one that does not count", []trust.SignerResult{
			by("a", trust.StateExpired, at.AddDate(-8, 0, 0), time.Time{}), by("b", trust.StateCounted, at, time.Time{}),
		}, at},
	} {
		if got := verdict(&trust.Decision{Signatures: &trust.Tally{Signers: tt.by}}, time.Time{}); !got.SignedAt.Equal(tt.want) {
			t.Errorf("%s: signed at %v, want %v", tt.name, got.SignedAt, tt.want)
		}
	}
}

func TestSignersThatCount(t *testing.T) {
	f := newFleet(t, testenv.Referrers)
	document := f.document(rules{version: 1, release: "release", roots: []string{"root-1", "root-2", "root-3"}, revoked: []string{"root-3"}})
	b := f.device("press-01", document)
	b.wake()
	defer b.sleep()
	p := trustPort{policy: followPolicy(filepath.Join(b.dir, "trust.yaml"), b.store, f.client, time.Now)}
	if got := p.Signers(); !slices.Equal(got, []string{"release", "root-1", "root-2"}) {
		t.Errorf("Signers = %q", got)
	}
	b.write("rules: {")
	_, _ = p.policy.Policy() // looks at the file
	if got := p.Signers(); got != nil {
		t.Errorf("Signers of a broken policy = %q", got)
	}
}
