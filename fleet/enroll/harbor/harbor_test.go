package harbor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/opencontainers/go-digest"

	"github.com/longshore-dev/longshore/artifacts/fault"
	"github.com/longshore-dev/longshore/fleet/enroll/harbor"
	"github.com/longshore-dev/longshore/fleet/enroll/harbortest"
)

func project(t *testing.T, h *harbortest.Harbor, edit func(*harbor.Options)) *harbor.Project {
	t.Helper()
	o := harbor.Options{URL: h.URL, Host: "harbor.acme.example", Name: harbortest.Project, Username: harbortest.Username, Password: harbortest.Password}
	if edit != nil {
		edit(&o)
	}
	p, err := harbor.New(o)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestAccount(t *testing.T) {
	h := harbortest.Start(t)
	p := project(t, h, nil)
	for i := range 250 { // other accounts, more than a page
		if _, err := p.Give(t.Context(), "other", p.Handle(digest.FromString(fmt.Sprint(i)))); err != nil {
			t.Fatal(err)
		}
	}
	handle := p.Handle(digest.FromString("key"))
	one, err := p.Give(t.Context(), "Press_07", handle)
	if err != nil {
		t.Fatal(err)
	}
	made := h.Robots()[one.Username]
	want := []harbortest.Permission{{Kind: "project", Namespace: "plant", Access: []harbortest.Access{{Resource: "repository", Action: "pull"}}}}
	if diff := cmp.Diff(want, made.Permissions); diff != "" || one.Host != "harbor.acme.example" || one.Password != made.Secret || !strings.Contains(made.Description, "Press_07") {
		t.Errorf("Give = %+v, account %+v (-want +got):\n%s", one, made, diff)
	}
	two, err := p.Give(t.Context(), "Press_07", handle)
	if err != nil || two.Username != one.Username || two.Password == one.Password || two.Password != h.Robots()[two.Username].Secret {
		t.Errorf("Give again = %+v, %v, before %+v", two, err, one)
	}
	for range 2 {
		if err := p.Withdraw(t.Context(), handle); err != nil {
			t.Errorf("Withdraw: %v", err)
		}
	}
	if _, there := h.Robots()[one.Username]; there || len(h.Robots()) != 250 {
		t.Errorf("after Withdraw: %d accounts, ours %v", len(h.Robots()), there)
	}
}

func TestFailures(t *testing.T) {
	h := harbortest.Start(t)
	handle := project(t, h, nil).Handle(digest.FromString("key"))
	for name, tt := range map[string]struct {
		edit func(*harbor.Options)
		down bool
		is   error
	}{
		"wrong password":  {func(o *harbor.Options) { o.Password = "x" }, false, fault.ErrConfig},
		"Harbor is down":  {nil, true, fault.ErrTemporary},
		"nothing listens": {func(o *harbor.Options) { o.URL = "http://127.0.0.1:1" }, false, fault.ErrTemporary},
		"another project": {func(o *harbor.Options) { o.Name = "other" }, false, fault.ErrConfig},
	} {
		h.Down(tt.down)
		p := project(t, h, tt.edit)
		if _, err := p.Give(t.Context(), "press-07", handle); !errors.Is(err, tt.is) || strings.Contains(err.Error(), harbortest.Password) {
			t.Errorf("%s: Give: %v, want %v", name, err, tt.is)
		}
		if err := p.Withdraw(t.Context(), handle); !errors.Is(err, tt.is) {
			t.Errorf("%s: Withdraw: %v, want %v", name, err, tt.is)
		}
	}
	h.Down(false)
	p := project(t, h, func(o *harbor.Options) { o.Username = harbortest.Robot })
	if _, err := p.Give(t.Context(), "press-07", handle); err != nil {
		t.Errorf("a robot account creates one: %v", err)
	}
	if _, err := p.Give(t.Context(), "press-07", handle); !errors.Is(err, fault.ErrConfig) || !strings.Contains(fault.Hint(err), "use a user that administers project plant") {
		t.Errorf("a robot account sets the secret of another one: %v (%s)", err, fault.Hint(err))
	}
	if _, err := harbor.New(harbor.Options{URL: "harbor.acme.example"}); !errors.Is(err, fault.ErrInvalid) {
		t.Errorf("New: %v", err)
	}
}
