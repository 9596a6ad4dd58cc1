package demo

import (
	"bytes"
	"context"
	"errors"
	"image"
	"image/png"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/longshore-dev/longshore/testenv"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m, testenv.LeakOptions()...) }

// TestDemo is the README's first command. Each step of it fails when it does not show what it says. Its recording has every line of it.
func TestDemo(t *testing.T) {
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	var out bytes.Buffer
	rec := newRecorder(&out, "demo")
	if err := Run(t.Context(), Options{Out: rec}); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	svg := string(rec.svg())
	told, _, _ := strings.Cut(out.String(), "\nShown\n") // the table after it is not recorded
	for line := range strings.Lines(told) {
		if first := wrap(strings.TrimRight(line, " \n"))[0]; first != "" && !strings.Contains(svg, marked(first)+"</text>") {
			t.Errorf("the recording lacks %q", first)
		}
	}
	for _, want := range []string{
		"HTTP answers", "broker and sensor keep process ids", "3 × SIGKILL", "state-digest-mismatch", "signature-missing",
		"generation-rollback", "wrong-device", "the application is removed", "Nothing is left behind",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("output lacks %q:\n%s", want, out.String())
		}
	}
	t.Log(out.String())
}

// The recording in docs is one of this demo: it has the title of every scene.
func TestRecordingInDocs(t *testing.T) {
	svg, err := os.ReadFile("../../docs/demo.svg")
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range scenes() {
		if !strings.Contains(string(svg), marked(s.title)+"</text>") {
			t.Errorf("docs/demo.svg lacks %q: make it again, see docs/development.md", s.title)
		}
	}
}

// The picture in docs: a real page, drawn by a real browser.
func TestPicture(t *testing.T) {
	if !testenv.Nightly() {
		t.Skip("four devices take a minute: LONGSHORE_NIGHTLY=1 draws them")
	}
	if os.Geteuid() != 0 {
		testenv.Unavailable(t, "needs root")
	}
	file := filepath.Join(t.TempDir(), "fleet.png")
	var out bytes.Buffer
	if err := Picture(t.Context(), &out, file); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	size := func(file string) image.Config {
		data, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		c, err := png.DecodeConfig(bytes.NewReader(data))
		if err != nil || len(data) < 20<<10 { // less is an empty page
			t.Errorf("%s: %d bytes, %v", file, len(data), err)
		}
		return c
	}
	if got, want := size(file), size("../../docs/fleet.png"); got.Width != want.Width || got.Height != want.Height {
		t.Errorf("the picture is %d × %d, that in docs %d × %d: make it again, see docs/development.md", got.Width, got.Height, want.Width, want.Height)
	}
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
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var out bytes.Buffer
	said := false
	if err := run(ctx, &out, nil, func(*show) { said = true; time.AfterFunc(200*time.Millisecond, cancel) }); err != nil {
		t.Fatal(err)
	}
	if ctx.Err() == nil || !said {
		t.Errorf("did not stay:\n%s", out.String())
	}
}
