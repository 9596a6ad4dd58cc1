package containerd

import (
	"bytes"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
)

// A profile that could not be loaded, or that was removed, is loaded as soon as that is possible, without a restart.
func TestAppArmorIsTriedAgain(t *testing.T) {
	var told bytes.Buffer
	var trouble error
	supported := true
	r := (&daemon{}).runtime(t)
	r.log = slog.New(slog.NewTextHandler(&told, nil))
	r.host.known = &Features{Degraded: []string{"no seccomp"}}
	r.host.load = func() (bool, error) { return supported, trouble }
	broken := errors.New("apparmor_parser: no space left on device")
	for _, step := range []struct {
		name      string
		supported bool
		trouble   error
		want      bool
		degraded  int
		log       string // "": nothing
	}{
		{"broken", true, broken, false, 2, "no space left on device"},
		{"still broken", true, broken, false, 2, ""},
		{"mended", true, nil, true, 1, "is loaded now"},
		{"well", true, nil, true, 1, ""},
		{"removed and broken", true, broken, false, 2, "no space left on device"},
		{"mended again", true, nil, true, 1, "is loaded now"},
		{"a kernel without it", false, nil, false, 1, ""},
	} {
		supported, trouble = step.supported, step.trouble
		told.Reset()
		f, err := r.Features(t.Context())
		if err != nil || f.AppArmor != step.want || len(f.Degraded) != step.degraded || !slices.Contains(f.Degraded, "no seccomp") {
			t.Errorf("%s: AppArmor %v, degraded %q, %v, want %v and %d", step.name, f.AppArmor, f.Degraded, err, step.want, step.degraded)
		}
		if got := told.String(); !strings.Contains(got, step.log) || step.log == "" && got != "" {
			t.Errorf("%s: told %q, want %q", step.name, got, step.log)
		}
	}
}
