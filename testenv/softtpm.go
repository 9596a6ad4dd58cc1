package testenv

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"testing"
	"time"
)

// SoftTPM is a TPM 2.0 in software, swtpm, behind a unix socket. It keeps its state over a restart, as a chip does.
type SoftTPM struct {
	Socket string

	process *Process
}

// StartSoftTPM starts a new TPM for one test.
func StartSoftTPM(t testing.TB) *SoftTPM {
	t.Helper()
	if err := InstallDebian(t.Context(), os.Stderr, "swtpm"); err != nil {
		Unavailable(t, "%v", err)
	}
	box := NewBox(t)
	x := &SoftTPM{Socket: filepath.Join(box.Dir(), "tpm.sock")}
	state := filepath.Join(box.Dir(), "tpm")
	if err := os.Mkdir(state, 0o700); err != nil {
		t.Fatal(err)
	}
	process, err := box.Start("swtpm", nil, "swtpm", "socket", "--tpm2", "--tpmstate", "dir="+state,
		"--server", "type=unixio,path="+x.Socket, "--flags", "not-need-init,startup-clear")
	if err != nil {
		t.Fatal(err)
	}
	x.process = process
	x.ready(t)
	return x
}

// Stop switches the TPM off.
func (x *SoftTPM) Stop(t testing.TB) {
	t.Helper()
	if err := x.process.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(x.Socket); err != nil && !os.IsNotExist(err) {
		t.Fatal(err)
	}
}

// Start switches the TPM on again, as a boot does.
func (x *SoftTPM) Start(t testing.TB) {
	t.Helper()
	if err := x.process.Start(); err != nil {
		t.Fatal(err)
	}
	x.ready(t)
}

func (x *SoftTPM) ready(t testing.TB) {
	t.Helper()
	Eventually(t, 30*time.Second, "swtpm takes a connection", func() error {
		if err := x.process.Running(); err != nil {
			return fmt.Errorf("%w\n%s", err, x.process.Log(20))
		}
		c, err := net.Dial("unix", x.Socket)
		if err != nil {
			return err
		}
		return c.Close()
	})
}
