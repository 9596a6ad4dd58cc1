package containerd_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/agent/workload"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

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
