package containerd

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

func TestStuckShimsAreEnded(t *testing.T) {
	namespace := fmt.Sprintf("stuck-test-%d", os.Getpid()) // all processes of the machine are looked at
	r := &Runtime{o: Options{Namespace: namespace}, log: slog.New(slog.DiscardHandler)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name      string
		namespace string
		action    string // the last argument
		reader    bool   // somebody opens the other end
		deleted   bool   // the pipe is
		ends      bool
	}{
		{name: "waits for ever", namespace: namespace, deleted: true, ends: true},
		{name: "serves", namespace: namespace, reader: true, deleted: true},
		{name: "will be read", namespace: namespace},
		{name: "of somebody else", namespace: "other", deleted: true},
		{name: "starts another", namespace: namespace, deleted: true, action: "start"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), bundleRoom, tc.namespace, ".web-1")
			if err := os.MkdirAll(dir, 0o700); err != nil {
				t.Fatal(err)
			}
			log := filepath.Join(dir, "log")
			if err := unix.Mkfifo(log, 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(self)
			cmd.Args = []string{"/opt/containerd-shim-runc-v2", "-namespace", tc.namespace, "-id", "web-1", "-address", "/run/sock"}
			if tc.action != "" {
				cmd.Args = append(cmd.Args, tc.action)
			}
			cmd.Env = append(os.Environ(), "LONGSHORE_TEST_SHIM="+log) // see beShim
			stdin, err := cmd.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			lines := bufio.NewScanner(out)
			said := func(word string) {
				t.Helper()
				if !lines.Scan() || strings.TrimSpace(lines.Text()) != word {
					t.Fatalf("the process says %q, %v, want %q", lines.Text(), lines.Err(), word)
				}
			}
			said("placed")
			if tc.reader {
				f, err := os.OpenFile(log, os.O_RDONLY|unix.O_NONBLOCK, 0)
				if err != nil {
					t.Fatal(err)
				}
				defer f.Close()
				said("open")
			}
			if tc.deleted {
				if err := os.Remove(log); err != nil {
					t.Fatal(err)
				}
			}
			want := 0
			if tc.ends {
				want = 1
			}
			err = r.lookingAtShims(func() error { // somebody else looks first
				if got := r.endStuckShims(); got != want {
					t.Errorf("endStuckShims = %d, want %d", got, want)
				}
				return errors.New("no answer")
			})
			if errors.Is(err, errStuckShim) != tc.ends {
				t.Errorf("the task could not be made since %v", err)
			}
			_ = stdin.Close()
			if !tc.ends {
				if err := unix.Kill(cmd.Process.Pid, 0); err != nil {
					t.Errorf("the process is gone: %v", err)
				}
				_ = cmd.Process.Kill() // it may be gone by itself once its input is
			}
			if err := cmd.Wait(); tc.ends && (err == nil || !strings.Contains(err.Error(), "killed")) {
				t.Errorf("the process ended with %v", err)
			}
		})
	}
}

// Of two that listen on one path, the one that nobody is connected to is ended, at the second look.
func TestSpareShimsAreEnded(t *testing.T) {
	namespace := fmt.Sprintf("spare-test-%d", os.Getpid()) // all processes of the machine are looked at
	r := &Runtime{o: Options{Namespace: namespace}, log: slog.New(slog.DiscardHandler)}
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "s")
	listen := func() (*exec.Cmd, *bufio.Scanner) {
		t.Helper()
		cmd := exec.Command(self)
		cmd.Args = []string{"/opt/containerd-shim-runc-v2", "-namespace", namespace, "-id", "web-1", "-address", "/run/sock"}
		cmd.Env = append(os.Environ(), "LONGSHORE_TEST_SHIM_SOCKET="+path) // see beListening
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
		lines := bufio.NewScanner(out)
		if !lines.Scan() || lines.Text() != "listens" {
			t.Fatalf("the process says %q, %v", lines.Text(), lines.Err())
		}
		return cmd, lines
	}
	first, _ := listen()
	if got := r.spareShims("/proc"); len(got) != 0 {
		t.Errorf("alone: spareShims = %v", got)
	}
	second, said := listen()
	for range 2 { // containerd is away: nobody is connected to anyone, and one of them is in use
		if got := r.endSpareShims(r.endSpareShims(nil)); len(got) != 0 {
			t.Errorf("nobody is connected: spareShims = %v", got)
		}
	}
	for _, p := range []*exec.Cmd{first, second} {
		if err := unix.Kill(p.Process.Pid, 0); err != nil {
			t.Fatalf("a process is gone that may be in use: %v", err)
		}
	}
	c, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if !said.Scan() || said.Text() != "connected" {
		t.Fatalf("the process says %q, %v", said.Text(), said.Err())
	}
	spare := r.endSpareShims(nil)
	if _, ok := spare[first.Process.Pid]; !ok || len(spare) != 1 {
		t.Errorf("spare = %v, want process %d alone", spare, first.Process.Pid)
	}
	if err := unix.Kill(first.Process.Pid, 0); err != nil {
		t.Errorf("the process is gone at the first look: %v", err)
	}
	r.endSpareShims(spare)
	if err := first.Wait(); err == nil || !strings.Contains(err.Error(), "killed") {
		t.Errorf("the spare one ended with %v", err)
	}
	if got := r.endSpareShims(spare); len(got) != 0 {
		t.Errorf("afterwards: spareShims = %v", got)
	}
	if err := second.Process.Kill(); err != nil {
		t.Errorf("the one in use is gone: %v", err)
	}
	_ = second.Wait()
}
