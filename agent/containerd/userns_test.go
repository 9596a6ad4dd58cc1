package containerd_test

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

func TestUsersOfItsOwn(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil, []testenv.File{{Path: "data/seed.txt", Data: []byte("seed\n"), UID: 33, Mode: 0o640}})
	s := server(img)
	s.Namespaces.User = workload.PrivateNamespace
	s.Mounts = []workload.Mount{{Kind: workload.MountVolume, Source: "data", Target: "/data"}}
	s.Files = []workload.File{{Name: "key", Target: "/run/key", Content: []byte("k"), UID: 33, Mode: 0o400}}
	s.Command = []string{"serve", "80", "low"}
	p := project("users", s)
	if r.release != testenv.Containerd24 { // its snapshotter cannot: refused before anything is stopped
		err := r.Admit(t.Context(), []*workload.Project{p})
		if !errors.Is(err, fault.ErrUnfit) || !strings.Contains(err.Error(), "services.web.userns_mode: snapshotter overlayfs of containerd") {
			t.Errorf("Admit = %v", err)
		}
		return
	}
	c := r.up(p)[0]
	pid := r.seen(c.ID).PID
	if m, err := os.ReadFile(fmt.Sprintf("/proc/%d/uid_map", pid)); err != nil || !strings.Contains(string(m), "700000000") {
		t.Errorf("uid_map = %q, %v", m, err)
	}
	if got := of(t, pid, "Uid"); !strings.HasPrefix(got, "700000000") {
		t.Errorf("outside its root is %q", got)
	}
	if got := r.inside(c.ID, "stat", "/toolbox", "/data/seed.txt", "/run/key"); got != "0 0 -rwxr-xr-x\n33 33 -rw-r-----\n33 0 -r--------\n" {
		t.Errorf("inside, owners are %q", got)
	}
	r.inside(c.ID, "write", "/data/new", "by its root")
	if info, err := os.Stat(r.o.DataDir + "/volumes/users/data/_data/new"); err != nil {
		t.Error(err)
	} else if got := fmt.Sprintf("%+v", info.Sys()); !strings.Contains(got, "Uid:0 ") {
		t.Errorf("in the volume the file is of %s", got)
	}
	testenv.Eventually(t, time.Minute, "a port below 1024 is no privilege", func() error {
		return r.Probe(t.Context(), c.ID, workload.Probe{TCP: 80})
	})
}
