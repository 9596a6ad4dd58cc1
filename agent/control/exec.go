package control

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/agent/status"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// execProtocol is what a connection is upgraded to.
const execProtocol = "longshore-exec/1"

// maxExecRequest bounds the request, which holds a command line and its environment.
const maxExecRequest = 256 << 10

// ExecRequest says what to run where.
type ExecRequest struct {
	Target      string   `json:"target"` // one container, as [agent.One] takes it
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
		conn, rw, err := http.NewResponseController(w).Hijack()
		if err != nil {
			refuse(w, fmt.Errorf("exec: this connection cannot be upgraded: %w", fault.ErrUnsupported))
			return
		}
		defer conn.Close()
		if _, err := io.WriteString(conn, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: "+execProtocol+"\r\n\r\n"); err != nil {
			return // the caller has hung up
		}
		serveExec(r.Context(), d, c.ID, req, conn, rw)
	}
}

func execRequest(r *http.Request) (ExecRequest, error) {
	var req ExecRequest
	if r.Header.Get("Upgrade") != execProtocol {
		return req, fmt.Errorf("exec: the request must ask for an upgrade to %s: %w", execProtocol, fault.ErrInvalid)
	}
	data, err := io.ReadAll(io.LimitReader(r.Body, maxExecRequest+1))
	if err != nil {
		return req, fmt.Errorf("exec: read the request: %w: %w", fault.ErrInvalid, err)
	}
	if len(data) > maxExecRequest {
		return req, fmt.Errorf("exec: request of more than %d bytes: %w", maxExecRequest, fault.ErrTooLarge)
	}
	dec := json.NewDecoder(bytes.NewReader(data))
	dec.DisallowUnknownFields()
	if err := dec.Decode(&req); err != nil {
		return req, fmt.Errorf("exec: read the request: %w: %w", fault.ErrInvalid, err)
	}
	if req.Target == "" || len(req.Argv) == 0 || req.Argv[0] == "" {
		return req, fmt.Errorf("exec: a container and a command are needed: %w", fault.ErrInvalid)
	}
	return req, nil
}

// serveExec runs the process; it ends with the process, the connection or ctx, whatever comes first.
func serveExec(ctx context.Context, d Device, id string, req ExecRequest, conn net.Conn, in io.Reader) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	out := &whole{w: conn}
	s := newSession(ctx, out)
	o := agent.ExecOptions{
		Argv: req.Argv, User: req.User, WorkingDir: req.WorkingDir, Environment: req.Environment, TTY: req.TTY,
		Stdout: frameWriter{out, frameStdout}, Stderr: frameWriter{out, frameStderr}, Resize: s.resize, Signals: s.signals,
	}
	if req.Stdin {
		o.Stdin = s
	}
	if req.Width > 0 && req.Height > 0 {
		s.resize <- agent.Size{Width: req.Width, Height: req.Height}
	}
	var reader sync.WaitGroup
	reader.Go(func() {
		defer cancel() // the client is gone, or sends something else
		s.receive(in)
	})
	code, err := d.Exec(ctx, id, o)
	if err != nil {
		b, _ := json.Marshal(problem{clip(err.Error()), clip(fault.Hint(err)), statusOf(err)}) // only text and a number
		_ = writeFrame(out, frameError, b)                                                     // the caller may have hung up
	} else {
		_ = writeFrame(out, frameExit, number(uint32(code)))
	}
	cancel()
	_ = conn.Close() // ends the reader
	reader.Wait()
}

// clip keeps what a process's runtime says within a frame.
func clip(s string) string { return s[:min(len(s), maxFrame/4)] }

// whole lets several goroutines write frames.
type whole struct {
	mu sync.Mutex
	w  io.Writer
}

func (w *whole) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.w.Write(p)
}

// session is the input of one process. It is its standard input, too.
type session struct {
	out     io.Writer // of frames
	resize  chan agent.Size
	signals chan syscall.Signal
	ctx     context.Context //nolint:containedctx // a reader has no other way to end

	mu    sync.Mutex
	queue []byte // input that was not taken yet, window bytes at most
	ended bool
	more  chan struct{} // holds one token when the queue has changed
}

func newSession(ctx context.Context, out io.Writer) *session {
	return &session{
		out: out, resize: make(chan agent.Size, 1), signals: make(chan syscall.Signal, 16), more: make(chan struct{}, 1), ctx: ctx,
	}
}

// receive takes frames until the connection ends or something is wrong with it.
func (s *session) receive(in io.Reader) {
	buf := make([]byte, maxFrame)
	for {
		kind, content, err := readFrame(in, buf)
		if err != nil || !s.take(kind, content) {
			return
		}
	}
}

// take does what one frame says; false: it may not come here.
func (s *session) take(kind frameKind, content []byte) bool {
	switch kind {
	case frameStdin, frameStdinEnd:
		s.mu.Lock()
		ok := !s.ended && len(s.queue)+len(content) <= window
		s.queue = append(s.queue, content...)
		s.ended = kind == frameStdinEnd
		s.mu.Unlock()
		select {
		case s.more <- struct{}{}:
		default:
		}
		return ok
	case frameResize:
		size := agent.Size{Width: binary.BigEndian.Uint16(content), Height: binary.BigEndian.Uint16(content[2:])}
		select { // only the newest size counts
		case <-s.resize:
		default:
		}
		s.resize <- size
	case frameSignal:
		select {
		case s.signals <- syscall.Signal(content[0]):
		default: // sixteen wait already
		}
	default:
		return false
	}
	return true
}

// Read implements [io.Reader] for the process.
func (s *session) Read(p []byte) (int, error) {
	for {
		s.mu.Lock()
		n := copy(p, s.queue)
		s.queue = append(s.queue[:0], s.queue[n:]...)
		ended := s.ended
		s.mu.Unlock()
		switch {
		case n > 0:
			_ = writeFrame(s.out, frameTaken, number(uint32(n))) // the caller may have hung up
			return n, nil
		case ended, len(p) == 0:
			return 0, io.EOF
		}
		select {
		case <-s.more:
		case <-s.ctx.Done():
			return 0, errors.Join(io.ErrClosedPipe, s.ctx.Err())
		}
	}
}
