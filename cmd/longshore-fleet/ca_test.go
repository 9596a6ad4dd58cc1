package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/identity/files"
	"github.com/longshore-dev/longshore/identity/identitytest"
)

// What ca writes is all that serve needs; an authority is never replaced.
func TestAuthority(t *testing.T) {
	dir := t.TempDir()
	var b bytes.Buffer
	do := func(line string) {
		t.Helper()
		code, out, errs := command(t, strings.Fields(strings.ReplaceAll(line, "DIR", dir))...)
		fmt.Fprintf(&b, "$ longshore-fleet %s\n%s--- exit %d\n\n", line, when.ReplaceAllString(strings.ReplaceAll(out+errs, dir, "DIR"), "2026-11-20T12:00:00Z"), code)
	}
	do("ca issue --dir DIR/ca --manager main DIR/main")
	do("ca init --dir DIR/ca --trust-domain plant.acme.example")
	do("ca init --dir DIR/ca --trust-domain plant.acme.example")
	do("ca init --dir DIR/b")
	do("ca init --dir DIR/c --trust-domain Plant/x")
	do("ca issue --dir DIR/ca --manager main DIR/main")
	do("ca issue --dir DIR/ca --manager main --client press-07 DIR/press-07")
	do("ca issue --dir DIR/ca --manager a/b DIR/x")
	do("ca issue --dir DIR/ca --manager main --ttl 1000000h DIR/x")
	do("ca issue --dir DIR/ca --manager main")
	golden(t, "ca.golden", bytes.ReplaceAll(b.Bytes(), []byte("2026-11-20T12:00:00Z"), []byte("TIME")))
	for _, key := range []string{"ca/ca.key", "main.key"} {
		if info, err := os.Stat(filepath.Join(dir, key)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v", key, info, err)
		}
	}
	clients := filepath.Join(dir, "clients.yaml")
	identitytest.Write(t, clients, []byte("accept: [press-07]\n"))
	_, out, _ := serve(t, "--database", filepath.Join(dir, "fleet.db"), "--mtls-listen", "127.0.0.1:0", "--svid-cert", filepath.Join(dir, "main.crt"),
		"--svid-key", filepath.Join(dir, "main.key"), "--trust-bundle", filepath.Join(dir, "ca", "bundle.json"), "--clients", clients)
	if !strings.Contains(out.String(), "id=spiffe://plant.acme.example/margo/wfm/main") {
		t.Errorf("serve:\n%s", out)
	}
	f := files.Files{Cert: filepath.Join(dir, "press-07.crt"), Key: filepath.Join(dir, "press-07.key"), Bundle: filepath.Join(dir, "ca", "bundle.json")}
	if _, err := files.New(f, time.Now, slog.New(slog.DiscardHandler)).Credentials(); err != nil {
		t.Errorf("of the device: %v", err)
	}
}
