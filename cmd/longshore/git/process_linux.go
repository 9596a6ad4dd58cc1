package git

import (
	"errors"
	"os"
	"os/exec"
	"syscall"
)

// attach makes git end with this program, and with its context together with every process that it started. It gets a session of its
// own, not just a group: a group in the background that asks at the terminal, as ssh does for a passphrase, is stopped by the
// kernel and hangs; without a terminal ssh refuses at once.
func attach(cmd *exec.Cmd) {
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Pdeathsig: syscall.SIGKILL}
	cmd.Cancel = func() error {
		err := syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL)
		if errors.Is(err, syscall.ESRCH) {
			return os.ErrProcessDone
		}
		return err
	}
}
