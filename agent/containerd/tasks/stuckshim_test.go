package tasks

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/testenv"
)

func TestStuckShimsAreEnded(t *testing.T) {
	namespace := fmt.Sprintf("stuck-test-%d", os.Getpid()) // all processes of the machine are looked at
	tasks := New(nil, namespace, t.TempDir(), slog.New(slog.DiscardHandler))
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		namespace string
		action    string // the last argument
		reader    bool   // the other end is open
		ends      bool
	}{
		{name: "waits forever", namespace: namespace, ends: true},
		{name: "serves", namespace: namespace, reader: true},
		{name: "another namespace", namespace: "other"},
		{name: "starts another", namespace: namespace, action: "start"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			log := filepath.Join(t.TempDir(), "log")
			if err := unix.Mkfifo(log, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			cmd.Args = []string{"/opt/containerd-shim-runc-v2", "-namespace", tc.namespace, "-id", "web-1", "-address", "/run/sock"}
			if tc.action != "" {
				cmd.Args = append(cmd.Args, tc.action)
			}
			cmd.Env = append(os.Environ(), shimVariable+"="+log) // see beShim
			if _, err := cmd.StdinPipe(); err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			ended := make(chan error, 1)
			lines := bufio.NewScanner(out)
			lines.Scan() // "opens"
			if tc.reader {
				f, err := os.OpenFile(log, os.O_RDONLY, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				lines.Scan() // "open"
			} else {
				testenv.Eventually(t, time.Minute, "the shim waits for a reader", func() error {
					if !opensPipe(cmd.Process.Pid) {
						return errors.New("it does not")
					}
					return nil
				})
			}
			go func() { ended <- cmd.Wait() }()
			if got := tasks.endStuckShims(); got != tc.ends {
				t.Errorf("endStuckShims = %v, want %v", got, tc.ends)
			}
			if !tc.ends {
				if err := unix.Kill(cmd.Process.Pid, 0); err != nil {
					t.Errorf("the process is gone: %v", err)
				}
				if err := cmd.Process.Kill(); err != nil {
					t.Error(err)
				}
			}
			<-ended
		})
	}
}
