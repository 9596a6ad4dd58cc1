package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"syscall"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// NoProgram is the exit code of a command that the container does not have, as shells have it.
const NoProgram = 127

// Streams are the caller's end of a process. nil fields are not there. Stdout and Stderr are written at the same time.
type Streams struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Resize  <-chan agent.Size // neither channel is ever closed
	Signals <-chan syscall.Signal
}

// Exec runs a process in a container and returns its exit code when it has ended. When ctx ends, so does the process. A Read
// of Stdin that is in progress at the end is not waited for. With an error, the code is 0, or [NoProgram] if the container has no such program
// or user.
func (c *Client) Exec(ctx context.Context, r ExecRequest, s Streams) (int, error) {
	r.Stdin = s.Stdin != nil
	body, err := json.Marshal(r)
	if err != nil {
		return 0, fmt.Errorf("ask the agent at %s: %w", c.path, err)
	}
	conn, err := new(net.Dialer).DialContext(ctx, "unix", c.path)
	if err != nil {
		return 0, c.unreachable(err)
	}
	defer conn.Close()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() }) // ends every Read and Write
	defer stop()
	code, err := c.exec(ctx, conn.(*net.UnixConn), body, s)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return code, err
}

func (c *Client) exec(ctx context.Context, conn *net.UnixConn, body []byte, s Streams) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/v1/exec", bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("ask the agent at %s: %w", c.path, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", execProtocol)
	if err := req.Write(conn); err != nil {
		return 0, c.unreachable(err)
	}
	first := make([]byte, 4<<10)
	n, pipes, err := receive(conn, first)
	defer closeAll(pipes)
	if err != nil {
		return 0, c.unreachable(err)
	}
	in := bufio.NewReader(io.MultiReader(bytes.NewReader(first[:n]), conn))
	res, err := http.ReadResponse(in, req)
	if err != nil {
		return 0, c.unreachable(err)
	}
	defer res.Body.Close()
	switch {
	case res.StatusCode != http.StatusSwitchingProtocols:
		return 0, c.refusal(res)
	case len(pipes) != execPipes:
		return 0, fmt.Errorf("the agent at %s sent %d pipes, not %d: %w", c.path, len(pipes), execPipes, fault.ErrUnsupported)
	}
	return c.attend(ctx, conn, in, pipes, s)
}

// attend is at the caller's end of a process until that has ended.
func (c *Client) attend(ctx context.Context, conn net.Conn, in io.Reader, pipes []*os.File, s Streams) (int, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	context.AfterFunc(ctx, func() { // ends every Read and Write
		_ = conn.Close() // first: nothing may say that an input that is cut off has ended
		closeAll(pipes)
	})
	var senders, outputs sync.WaitGroup
	senders.Go(func() { forward(ctx, conn, s) })
	go sendInput(conn, pipes[0], s.Stdin) // ends with its Read; see Exec
	for i, to := range []io.Writer{s.Stdout, s.Stderr} {
		outputs.Go(func() {
			if to == nil {
				to = io.Discard
			}
			if _, err := io.Copy(to, pipes[1+i]); err != nil {
				cancel(fmt.Errorf("write the command's output: %w", err))
			}
		})
	}
	code, err := c.end(in)
	outputs.Wait() // the agent has closed its ends, or is gone
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	cancel(nil)
	senders.Wait()
	return code, err
}

// forward sends what the terminal and the user do.
func forward(ctx context.Context, conn io.Writer, s Streams) {
	for {
		var o execOrder
		select {
		case <-ctx.Done():
			return
		case z := <-s.Resize:
			o.Width, o.Height = z.Width, z.Height
		case n := <-s.Signals:
			o.Signal = uint8(n)
		}
		if tell(conn, o) != nil {
			return // the receiver sees the same end
		}
	}
}

// sendInput writes the input, if there is any, and then says that this is all of it.
func sendInput(conn io.Writer, pipe io.WriteCloser, in io.Reader) {
	defer pipe.Close()
	if in != nil {
		_, _ = io.Copy(pipe, in)                  // what cannot be read any more has ended, too
		_ = tell(conn, execOrder{InputEnd: true}) // the receiver sees the same end
	}
}

// end waits for the agent to say how it ended.
func (c *Client) end(in io.Reader) (int, error) {
	line, err := bufio.NewReader(io.LimitReader(in, maxEnd)).ReadBytes('\n')
	if err != nil {
		return 0, fmt.Errorf("the agent at %s went away while the command ran: %w: %w", c.path, fault.ErrTemporary, err)
	}
	var end execEnd
	switch err := json.Unmarshal(line, &end); {
	case err == nil && end.Error != nil && end.Error.Status == http.StatusBadRequest: // what Exec of the runtime says, not the request's refusal
		return NoProgram, end.Error.asError()
	case err == nil && end.Error != nil:
		return 0, end.Error.asError()
	case err != nil || end.Exit == nil:
		return 0, fmt.Errorf("the agent at %s sent %.100q: %w", c.path, line, fault.ErrInvalid)
	}
	return *end.Exit, nil
}
