package containerd_test

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// claimant is another process that is the device's agent, with directories of its own, until it is killed.
func claimant(r *rig) (*exec.Cmd, string) {
	r.t.Helper()
	n := rigs.Add(1)
	o := orders{
		Address: r.o.Address, Namespace: r.o.Namespace, DataDir: r.t.TempDir(), RunDir: r.t.TempDir(),
		NetData: r.t.TempDir(), NetRun: r.t.TempDir(), NetTable: fmt.Sprintf("lscl%d_%d", os.Getpid(), n), NetPool: fmt.Sprintf("10.%d.0.0/16", 130+n%60), Claim: true,
	}
	arg, err := json.Marshal(o)
	if err != nil {
		r.t.Fatal(err)
	}
	cmd := exec.CommandContext(r.t.Context(), os.Args[0])
	cmd.Env, cmd.Stderr = append(os.Environ(), victimVariable+"="+string(arg)), os.Stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		r.t.Fatal(err)
	}
	if _, err := cmd.StdinPipe(); err != nil { // it reads from it for as long as it lives
		r.t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		r.t.Fatal(err)
	}
	r.t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || line != "claimed\n" {
		r.t.Fatalf("the other agent says %q, %v", line, err)
	}
	return cmd, o.DataDir
}

// One agent a device and containerd, whatever its directories are: a second one does nothing and says who the first one is. When
// the first one was killed the next one begins at once.
func TestOneAgentADevice(t *testing.T) {
	r := newRig(t)
	first, dir := claimant(r)
	refused := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, fault.ErrConflict) || fault.Hint(err) == "" {
			t.Fatalf("%s = %v, want a conflict with a hint", what, err)
		}
		for _, part := range []string{r.o.Device, dir, fmt.Sprint(first.Process.Pid)} {
			if !strings.Contains(err.Error(), part) {
				t.Errorf("%s = %v, want %q in it", what, err, part)
			}
		}
	}
	refused("Claim", r.Claim(t.Context()))
	_, err := r.Observe(t.Context())
	refused("Observe", err)
	_, err = r.Events(t.Context())
	refused("Events", err)
	refused("Collect", r.Collect(t.Context(), nil))

	other := r.o
	other.Device = "press-08"
	if err := r.reopened(other).Claim(t.Context()); err != nil {
		t.Errorf("another device: %v", err)
	}

	if err := errors.Join(first.Process.Kill(), ignoreExit(first.Wait())); err != nil {
		t.Fatal(err)
	}
	if err := r.Claim(t.Context()); err != nil {
		t.Fatalf("after the first was killed: %v", err)
	}
	if err := r.Claim(t.Context()); err != nil {
		t.Errorf("again: %v", err)
	}
	// Whoever has the directory has its lock, so what claimed before from there is gone: the same, seen by its own successor.
	if err := r.reopened(r.o).Claim(t.Context()); err != nil {
		t.Errorf("the same directory: %v", err)
	}
	o := r.o
	o.DataDir = t.TempDir()
	if err := r.reopened(o).Claim(t.Context()); !errors.Is(err, fault.ErrConflict) {
		t.Errorf("another directory beside it = %v, want a conflict", err)
	}
}

func ignoreExit(err error) error {
	if errors.As(err, new(*exec.ExitError)) {
		return nil
	}
	return err
}
