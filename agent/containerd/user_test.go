package containerd_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/testenv"
)

// A user has its groups of the image, whose files may be links as in those of Nix; one that is named with a group has that group alone.
func TestGroupsOfAUser(t *testing.T) {
	r := newRig(t)
	img := r.pulled(nil, []testenv.File{
		{Path: "etc/passwd", Link: "/nix/store/passwd"},
		{Path: "nix/store/passwd", Data: []byte("root:x:0:0::/:/bin/sh\napp:x:1000:1000::/:/bin/sh\n")},
		{Path: "etc/group", Data: []byte("root:x:0:\napp:x:1000:\ndialout:x:20:app\n")},
	})
	for user, want := range map[string]string{"1000": "1000 20", "app": "1000 20", "1000:1000": "1000", "app:app": "1000"} {
		s := server(img)
		s.User = user
		got := strings.Fields(of(t, r.seen(r.up(project("groups", s))[0].ID).PID, "Groups"))
		slices.Sort(got)
		if strings.Join(got, " ") != want {
			t.Errorf("user %s has groups %v, want %s", user, got, want)
		}
	}
}

// A user that the image does not have is named, with what to do about it.
func TestAnUnknownUserIsNamed(t *testing.T) {
	r := newRig(t)
	p := project("user", workload.Service{Name: "web", Image: r.pulled(nil), User: "nosuch"})
	if err := r.Prepare(t.Context(), p); err != nil {
		t.Fatal(err)
	}
	err := r.Create(t.Context(), p, p.Containers()[0])
	if !errors.Is(err, fault.ErrInvalid) || !strings.Contains(err.Error(), `user "nosuch" is not in the image`) || !strings.Contains(fault.Hint(err), "/etc/passwd") {
		t.Errorf("error = %v, hint %q, want the user's name", err, fault.Hint(err))
	}
}
