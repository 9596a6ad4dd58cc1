package containerd

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"testing"
	"time"
)

// A profile that could not be loaded, or that was removed, is loaded soon after that is possible, without a restart. Calls soon
// after a failure do not try again.
func TestAppArmorIsTriedAgain(t *testing.T) {
	var told bytes.Buffer
	var trouble error
	supported, tries := true, 0
	r := (&daemon{}).runtime(t)
	r.log = slog.New(slog.NewTextHandler(&told, nil))
	r.host.known = &Features{Degraded: []string{"no seccomp"}}
	r.host.load = func(context.Context) (bool, error) {
		tries++
		return supported, trouble
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	r.o.Now = func() time.Time { return now }
	broken := errors.New("apparmor_parser: no space left on device")
	for _, step := range []struct {
		name      string
		supported bool
		trouble   error
		want      bool
		degraded  int
		log       string // "": nothing
		after     time.Duration
		tries     int
	}{
		{"broken", true, broken, false, 2, "no space left on device", 0, 1},
		{"still broken", true, broken, false, 2, "", loadAgain, 1},
		{"not tried yet", true, nil, false, 2, "", loadAgain - 1, 0},
		{"mended", true, nil, true, 1, "is loaded now", 1, 1},
		{"well", true, nil, true, 1, "", 0, 1},
		{"removed and broken", true, broken, false, 2, "no space left on device", 0, 1},
		{"the clock was set back", true, broken, false, 2, "", -time.Hour, 1},
		{"mended again", true, nil, true, 1, "is loaded now", loadAgain, 1},
		{"a kernel without it", false, nil, false, 1, "", 0, 1},
	} {
		supported, trouble = step.supported, step.trouble
		told.Reset()
		tries, now = 0, now.Add(step.after)
		f, err := r.Features(t.Context())
		if err != nil || f.AppArmor != step.want || len(f.Degraded) != step.degraded || !slices.Contains(f.Degraded, "no seccomp") {
			t.Errorf("%s: AppArmor %v, degraded %q, %v, want %v and %d", step.name, f.AppArmor, f.Degraded, err, step.want, step.degraded)
		}
		if tries != step.tries {
			t.Errorf("%s: tried %d times, want %d", step.name, tries, step.tries)
		}
		if got := told.String(); !strings.Contains(got, step.log) || step.log == "" && got != "" {
			t.Errorf("%s: told %q, want %q", step.name, got, step.log)
		}
	}
}

// Loading that was cut short by its caller says nothing of the next try.
func TestAppArmorOfACallerThatGaveUp(t *testing.T) {
	r := (&daemon{}).runtime(t)
	r.host.known = &Features{}
	ctx, cancel := context.WithCancel(t.Context())
	r.host.load = func(ctx context.Context) (bool, error) {
		cancel()
		return true, ctx.Err()
	}
	if _, err := r.Features(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("Features = %v, want canceled", err)
	}
	r.host.load = func(context.Context) (bool, error) { return true, nil }
	if f, err := r.Features(t.Context()); err != nil || !f.AppArmor || len(f.Degraded) > 0 {
		t.Errorf("the next: AppArmor %v, degraded %q, %v", f.AppArmor, f.Degraded, err)
	}
}
