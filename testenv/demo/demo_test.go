package demo

import (
	"bytes"
	"context"
	"errors"
	"os"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

// TestDemo is the README's first command. Each step of it fails when it does not show what it says.
func TestDemo(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	var out bytes.Buffer
	if err := Run(t.Context(), Options{Out: &out}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	for _, want := range []string{
		"HTTP answers", "broker and sensor keep process ids", "3 × SIGKILL", "content-digest-mismatch", "signature-missing",
		"generation-rollback", "wrong-device", "the application is removed", "Nothing is left behind",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	t.Log(out.String())
}

func TestCleansUpAfterTrouble(t *testing.T) {
	started := func(w *show) *testenv.Process {
		p, err := w.Box.Start("sleeper", nil, "sleep", "600")
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	boom := errors.New("boom")
	tests := []struct {
		name string
		play func(ctx context.Context, w *show, cancel func()) error
		want string
	}{
		{"error", func(ctx context.Context, w *show, _ func()) error {
			return w.Step(ctx, "step", func(context.Context) (string, error) { return "", boom })
		}, "step: boom"},
		{"interrupted", func(ctx context.Context, w *show, cancel func()) error {
			cancel()
			return w.Step(ctx, "step", func(context.Context) (string, error) { return "", nil })
		}, "context canceled"},
		{"panic", func(context.Context, *show, func()) error { panic(boom) }, "boom"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var p *testenv.Process
			var dir string
			err := func() (err error) {
				defer func() {
					if r := recover(); r != nil {
						err = r.(error)
					}
				}()
				return run(ctx, &bytes.Buffer{}, []scene{{"trouble", func(ctx context.Context, w *show) error {
					p, dir = started(w), w.Box.Dir()
					return tt.play(ctx, w, cancel)
				}}}, nil)
			}()
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("run = %v, want %q in it", err, tt.want)
			}
			if p.PID() != 0 {
				t.Error("a process of the demo still runs")
			}
			if _, err := os.Stat(dir); !os.IsNotExist(err) {
				t.Errorf("%s is still there: %v", dir, err)
			}
		})
	}
}

func TestStaysWithKeep(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	var out bytes.Buffer
	said := false
	if err := run(ctx, &out, nil, func(*show) { said = true }); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil || !said {
		t.Errorf("did not stay:\n%s", out.String())
	}
}
