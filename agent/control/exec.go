package control

import (
	"bufio"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// maxExecRequest bounds the request, which holds a command line and its environment.
const maxExecRequest = 256 << 10

// ExecRequest says what to run where.
type ExecRequest struct {
	Target      string   `json:"target"` // one container, as [status.One] takes it
	Argv        []string `json:"argv"`
	User        string   `json:"user,omitempty"`
	WorkingDir  string   `json:"workingDir,omitempty"`
	Environment []string `json:"environment,omitempty"`
	TTY         bool     `json:"tty,omitempty"`
	Stdin       bool     `json:"stdin,omitempty"` // input follows
	Width       uint16   `json:"width,omitempty"` // of the terminal at the start; 0: unknown
	Height      uint16   `json:"height,omitempty"`
}

// exec upgrades a connection and runs a process on it. calls counts it, so that the server can wait for it.
func exec(d Device, calls *sync.WaitGroup) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		req, err := execRequest(r)
		if err != nil {
			refuse(w, err)
			return
		}
		c, err := status.One(d.Containers(), req.Target)
		if err != nil {
			refuse(w, fmt.Errorf("exec: %w", err))
			return
		}
		calls.Add(1)
		defer calls.Done()
		pipes, callers, err := newPipes()
		defer closeAll(append(pipes, callers...))
		if err != nil {
			refuse(w, fmt.Errorf("exec: %w", err))
			return
		}
		hijacked, _, err := http.NewResponseController(w).Hijack()
		conn, ok := hijacked.(*net.UnixConn)
		if err != nil || !ok {
			refuse(w, fmt.Errorf("exec: this connection cannot be upgraded: %w", fault.ErrUnsupported))
			return
		}
		defer conn.Close()
		if send(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+execProtocol+"\r\n\r\n", callers) != nil {
			return // the caller has hung up
		}
		serveExec(r.Context(), d, c.ID, req, conn, pipes)
	}
}

func execRequest(r *http.Request) (ExecRequest, error) {
	var req ExecRequest
	if r.Header.Get("Upgrade") != execProtocol {
		return req, fault.WithHint(fmt.Errorf("exec: the request must ask for an upgrade to %s: %w", execProtocol, fault.ErrInvalid),
			"use the longshore-agent program that the running agent has, or restart the agent")
	}
	if err := readBody(r, maxExecRequest, &req); err != nil {
		return req, fmt.Errorf("exec: %w", err)
	}
	if req.Target == "" || len(req.Argv) == 0 || req.Argv[0] == "" {
		return req, fmt.Errorf("exec: a container and a command are needed: %w", fault.ErrInvalid)
	}
	return req, nil
}

// serveExec runs the process; it ends with the process, the connection or ctx, whatever comes first.
func serveExec(ctx context.Context, d Device, id string, req ExecRequest, conn *net.UnixConn, pipes []*os.File) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	context.AfterFunc(ctx, func() { // ends every Read and Write; the connection still takes the last line
		closeAll(pipes)
		_ = conn.CloseRead()
	})
	inputEnds, endInput := context.WithCancel(ctx)
	defer endInput()
	s := session{resize: make(chan agent.Size, 1), signals: make(chan syscall.Signal, 16), endInput: endInput}
	o := agent.ExecOptions{
		Argv: req.Argv, User: req.User, WorkingDir: req.WorkingDir, Environment: req.Environment, TTY: req.TTY,
		Stdout: pipes[1], Stderr: pipes[2], Resize: s.resize, Signals: s.signals,
	}
	if req.Stdin {
		o.Stdin = &input{pipes[0], ctx, inputEnds}
	}
	if req.Width > 0 && req.Height > 0 {
		s.resize <- agent.Size{Width: req.Width, Height: req.Height}
	}
	var reader sync.WaitGroup
	defer func() { cancel(); reader.Wait() }()
	reader.Go(func() {
		defer cancel() // the client is gone, or sends something else
		s.receive(conn)
	})
	code, err := d.Exec(ctx, id, o)
	cancel()
	closeAll(pipes) // the caller reads to the end of its output
	end := execEnd{Exit: &code}
	if err != nil {
		end = execEnd{Error: &problem{clip(err.Error()), clip(fault.Hint(err)), statusOf(err)}}
	}
	_ = tell(conn, end) // the caller may have hung up
}

// clip keeps what a process's runtime says within a line: JSON needs up to six bytes for one.
func clip(s string) string { return s[:min(len(s), maxEnd/16)] }

// session is what the caller does with its process.
type session struct {
	resize   chan agent.Size
	signals  chan syscall.Signal
	endInput func()
}

// receive takes lines until the connection ends or something is wrong with it.
func (s session) receive(in io.Reader) {
	lines := bufio.NewScanner(in)
	lines.Buffer(nil, maxOrder)
	for lines.Scan() {
		var o execOrder
		if decode(lines.Bytes(), &o) != nil {
			return
		}
		if o.Width > 0 && o.Height > 0 {
			select { // only the newest size counts
			case <-s.resize:
			default:
			}
			s.resize <- agent.Size{Width: o.Width, Height: o.Height}
		}
		if o.Signal > 0 {
			select {
			case s.signals <- syscall.Signal(o.Signal):
			default: // sixteen wait already
			}
		}
		if o.InputEnd {
			s.endInput()
		}
	}
}

// input is what the process reads. The pipe of a caller that is killed ends, too, and the process must not take a part of its input for
// all of it: the end counts once the caller has said so.
type input struct {
	pipe io.Reader
	ctx  context.Context //nolint:containedctx // a reader has no other way to end
	ends context.Context //nolint:containedctx // done when the caller has said so, or with ctx
}

func (i *input) Read(p []byte) (int, error) {
	n, err := i.pipe.Read(p)
	if errors.Is(err, io.EOF) {
		<-i.ends.Done()
		err = cmp.Or(i.ctx.Err(), err)
	}
	return n, err
}
