package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/control"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

func TestExecCarriesEverything(t *testing.T) {
	big := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB: far over the window
	c, _ := serve(t, device{exec: func(ctx context.Context, id string, o agent.ExecOptions) (int, error) {
		if id != "p-web-1-aa" || strings.Join(o.Argv, " ") != "cat -" || o.User != "7:8" || o.WorkingDir != "/w" || o.Environment[0] != "A=1" || !o.TTY {
			return 0, fmt.Errorf("%s: %+v", id, o)
		}
		last := <-o.Resize // the first may have been overtaken
		if last == (agent.Size{Width: 80, Height: 24}) {
			last = <-o.Resize
		}
		if last != (agent.Size{Width: 132, Height: 50}) {
			return 0, fmt.Errorf("size %+v", last)
		}
		if s := <-o.Signals; s != syscall.SIGUSR1 {
			return 0, fmt.Errorf("signal %v", s)
		}
		n, err := io.Copy(o.Stdout, o.Stdin)
		if err != nil {
			return 0, err
		}
		fmt.Fprintf(o.Stderr, "%d bytes", n)
		return 42, nil
	}})
	resize, signals := make(chan agent.Size), make(chan syscall.Signal)
	go func() {
		resize <- agent.Size{Width: 132, Height: 50}
		signals <- syscall.SIGUSR1
	}()
	var out, errs bytes.Buffer
	code, err := c.Exec(t.Context(), control.ExecRequest{
		Target: "app/web", Argv: []string{"cat", "-"}, User: "7:8", WorkingDir: "/w", Environment: []string{"A=1"}, TTY: true, Width: 80, Height: 24,
	}, control.Streams{Stdin: strings.NewReader(big), Stdout: &out, Stderr: &errs, Resize: resize, Signals: signals})
	if code != 42 || err != nil || out.String() != big || errs.String() != fmt.Sprintf("%d bytes", len(big)) {
		t.Errorf("Exec = %d, %v; %d bytes out, stderr %q", code, err, out.Len(), errs.String())
	}
}

func TestExecRefusals(t *testing.T) {
	c, path := serve(t, device{exec: func(context.Context, string, agent.ExecOptions) (int, error) {
		return 0, fault.WithHint(fmt.Errorf("no such program: %w", fault.ErrInvalid), "look")
	}})
	for _, tc := range []struct {
		name, target string
		argv         []string
		want         error
	}{
		{"no such container", "none", []string{"x"}, fault.ErrNotFound},
		{"not running", "job", []string{"x"}, fault.ErrConflict},
		{"several", "app", []string{"x"}, fault.ErrInvalid},
		{"no command", "web", nil, fault.ErrInvalid},
		{"the runtime's", "web", []string{"x"}, fault.ErrInvalid},
		{"too long", "web", []string{strings.Repeat("x", 300<<10)}, fault.ErrInvalid},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.name == "several" {
				tc.want = nil // one of the two runs: it is meant
			}
			_, err := c.Exec(t.Context(), control.ExecRequest{Target: tc.target, Argv: tc.argv}, control.Streams{})
			if tc.want != nil && !errors.Is(err, tc.want) {
				t.Errorf("Exec = %v, want %v", err, tc.want)
			}
			if tc.name == "the runtime's" && (fault.Hint(err) != "look" || err.Error() != "no such program: invalid") {
				t.Errorf("Exec = %v, hint %q", err, fault.Hint(err))
			}
		})
	}
	res, err := (&http.Client{Transport: unixTransport(path)}).Post("http://agent/v1/exec", "application/json", strings.NewReader(`{"target":"web","argv":["x"]}`))
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusBadRequest {
		t.Errorf("exec without an upgrade = %s", res.Status)
	}
}

// Who hangs up takes the process along, also when it does not read its input; so does an agent that ends.
func TestExecEndsWithItsCaller(t *testing.T) {
	for _, who := range []string{"caller", "input too long"} {
		t.Run(who, func(t *testing.T) {
			entered, ended := make(chan bool), make(chan error, 1)
			c, _ := serve(t, device{exec: func(ctx context.Context, _ string, _ agent.ExecOptions) (int, error) {
				close(entered)
				<-ctx.Done()
				ended <- ctx.Err()
				return 0, ctx.Err()
			}})
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			var in io.Reader = strings.NewReader(strings.Repeat("x", 1<<20))
			if who == "caller" {
				in = nil
			}
			done := make(chan error, 1)
			go func() {
				_, err := c.Exec(ctx, control.ExecRequest{Target: "web", Argv: []string{"x"}}, control.Streams{Stdin: in})
				done <- err
			}()
			<-entered
			cancel()
			if err := <-done; !errors.Is(err, context.Canceled) {
				t.Errorf("Exec = %v, want canceled", err)
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the process runs on without its caller")
			}
		})
	}
}

func TestOutputThatNobodyTakesEndsTheCall(t *testing.T) {
	c, _ := serve(t, device{exec: func(_ context.Context, _ string, o agent.ExecOptions) (int, error) {
		for {
			if _, err := o.Stdout.Write(make([]byte, 100<<10)); err != nil {
				return 0, err
			}
		}
	}})
	r, w := io.Pipe()
	_ = r.CloseWithError(errors.New("closed")) // never fails
	if _, err := c.Exec(t.Context(), control.ExecRequest{Target: "web", Argv: []string{"x"}}, control.Streams{Stdout: w}); err == nil {
		t.Error("Exec = nil, want an error")
	}
}
