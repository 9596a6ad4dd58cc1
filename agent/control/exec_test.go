package control_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"path/filepath"
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

// upgraded asks for a process, as a client does, and returns the connection after the answer with the pipes that came along.
func upgraded(t *testing.T, path, body string) (net.Conn, []*os.File) {
	t.Helper()
	conn, err := net.Dial("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(conn, "POST /v1/exec HTTP/1.1\r\nHost: agent\r\nConnection: Upgrade\r\nUpgrade: longshore-exec/2\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
	answer := make([]byte, 1000)
	n, files, err := control.Receive(conn.(*net.UnixConn), answer)
	if err != nil || !strings.HasPrefix(string(answer[:n]), "HTTP/1.1 101 ") || len(files) != 3 {
		t.Fatalf("%q with %d files, %v", answer[:n], len(files), err)
	}
	return conn, files
}

// The input of a caller that is killed, or of an agent that ends, is not all of it: the process must not see its end.
func TestInputIsNotCutShort(t *testing.T) {
	for _, who := range []string{"caller", "agent"} {
		t.Run(who, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.sock")
			l, err := control.Listen(path)
			if err != nil {
				t.Fatal(err)
			}
			ended, done := make(chan error, 1), make(chan error, 1)
			ctx, stop := context.WithCancel(t.Context())
			defer stop()
			go func() {
				done <- control.Serve(ctx, l, device{exec: func(ctx context.Context, _ string, o agent.ExecOptions) (int, error) {
					_, err := io.ReadAll(o.Stdin)
					ended <- err
					<-ctx.Done()
					return 0, ctx.Err()
				}}, slog.New(slog.DiscardHandler))
			}()
			conn, files := upgraded(t, path, `{"target":"web","argv":["x"],"stdin":true}`)
			defer conn.Close()
			if _, err := files[0].WriteString("half"); err != nil {
				t.Error(err)
			}
			if who == "caller" { // the kernel closes its files one by one
				_ = files[0].Close()
				select {
				case err := <-ended:
					t.Errorf("the input ended with %v, want it to last as long as the connection", err)
				case <-time.After(50 * time.Millisecond):
				}
				_ = conn.Close()
			} else {
				stop()
			}
			if err := <-ended; err == nil {
				t.Error("the process read its input to the end, want an error")
			}
			for _, f := range files {
				_ = f.Close()
			}
			stop()
			if err := <-done; err != nil { // also while a caller stays
				t.Error(err)
			}
		})
	}
}

// The session and its process end when the caller sends anything but an order, and when the caller closes the connection.
func TestCallersThatSpeakOtherwise(t *testing.T) {
	for _, line := range []string{"GET / HTTP/1.1", `{"signal":256}`, `{"signal":1}{"signal":2}`, `{"more":1}`, strings.Repeat(" ", 2000), ""} {
		t.Run(line, func(t *testing.T) {
			ended := make(chan bool)
			_, path := serve(t, device{exec: func(ctx context.Context, _ string, o agent.ExecOptions) (int, error) {
				<-ctx.Done()
				close(ended)
				return 0, ctx.Err()
			}})
			conn, files := upgraded(t, path, `{"target":"web","argv":["x"]}`)
			defer conn.Close()
			for _, f := range files {
				defer f.Close()
			}
			if line == "" {
				_ = conn.Close()
			} else {
				fmt.Fprintln(conn, line)
			}
			select {
			case <-ended:
			case <-time.After(time.Minute):
				t.Error("the process runs on")
			}
		})
	}
}

// An agent that goes away, or says something else, does not look like a command that ended well.
func TestAgentsThatSpeakOtherwise(t *testing.T) {
	upgrade := "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: longshore-exec/2\r\n\r\n"
	for _, tc := range []struct {
		name, answer string
		pipes        int
		want         error
	}{
		{"no answer", "", 0, fault.ErrTemporary},
		{"no pipes", upgrade + `{"exit":0}` + "\n", 0, fault.ErrUnsupported},
		{"two pipes", upgrade + `{"exit":0}` + "\n", 2, fault.ErrUnsupported},
		{"four pipes", upgrade + `{"exit":0}` + "\n", 4, fault.ErrUnsupported},
		{"gone", upgrade, 3, fault.ErrTemporary},
		{"gone within the line", upgrade + `{"exit":0}`, 3, fault.ErrTemporary},
		{"a line without an end", upgrade + strings.Repeat(" ", 100<<10), 3, fault.ErrTemporary},
		{"neither", upgrade + "{}\n", 3, fault.ErrInvalid},
		{"no JSON", upgrade + "exit 0\n", 3, fault.ErrInvalid},
		{"an error", upgrade + `{"exit":0,"error":{"error":"no","status":409}}` + "\n", 3, fault.ErrConflict},
		{"an end", upgrade + `{"exit":0}` + "\n", 3, nil},
	} {
		t.Run(tc.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "agent.sock")
			l, err := net.Listen("unix", path)
			if err != nil {
				t.Fatal(err)
			}
			defer l.Close()
			served, files := make(chan error, 1), pipes(t, tc.pipes)
			go func() {
				conn, err := l.Accept()
				if err != nil {
					served <- err
					return
				}
				defer conn.Close()
				_, err = conn.Read(make([]byte, 4096)) // the request
				served <- errors.Join(err, control.Send(conn.(*net.UnixConn), tc.answer, files))
			}()
			code, err := control.NewClient(path).Exec(t.Context(), control.ExecRequest{Target: "web", Argv: []string{"x"}}, control.Streams{})
			if code != 0 || !errors.Is(err, tc.want) {
				t.Errorf("Exec = %d, %v, want %v", code, err, tc.want)
			}
			if err := <-served; err != nil && tc.name != "a line without an end" { // its writer sees that it is not read to the end
				t.Error(err)
			}
		})
	}
}

// pipes are reading ends, whose other ends are closed.
func pipes(t *testing.T, n int) []*os.File {
	t.Helper()
	var out []*os.File
	for range n {
		r, w, err := os.Pipe()
		if err != nil {
			t.Fatal(err)
		}
		_ = w.Close()
		out = append(out, r)
	}
	return out
}

func TestExecLeavesNoFilesOpen(t *testing.T) {
	c, _ := serve(t, device{exec: func(_ context.Context, _ string, o agent.ExecOptions) (int, error) {
		_, err := io.Copy(o.Stdout, o.Stdin)
		return 0, err
	}})
	open := func() int {
		all, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(all)
	}
	before := 0
	for i := range 50 {
		if i == 5 {
			before = open()
		}
		for _, target := range []string{"web", "none"} {
			_, err := c.Exec(t.Context(), control.ExecRequest{Target: target, Argv: []string{"x"}}, control.Streams{Stdin: strings.NewReader("x")})
			if (err == nil) != (target == "web") {
				t.Fatal(err)
			}
		}
	}
	if n := open(); n > before+10 { // some of the last are about to be closed
		t.Errorf("%d files are open after %d", n, before)
	}
}
