package control

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"syscall"

	"github.com/longshore-dev/longshore/agent"
	"github.com/longshore-dev/longshore/artifacts/fault"
)

// Streams are the caller's end of a process. nil fields are not there.
type Streams struct {
	Stdin   io.Reader
	Stdout  io.Writer
	Stderr  io.Writer
	Resize  <-chan agent.Size
	Signals <-chan syscall.Signal
}

// Exec runs a process in a container and returns its exit code when it has ended. When ctx ends, so does the process. A Read
// of Stdin that is in progress at the end is not waited for.
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
	code, err := c.exec(ctx, conn, body, s)
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	return code, err
}

func (c *Client) exec(ctx context.Context, conn net.Conn, body []byte, s Streams) (int, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://agent/v1/exec", bytes.NewReader(body))
	if err != nil {
		return 0, fmt.Errorf("ask the agent at %s: %w", c.path, err)
	}
	req.Header.Set("Connection", "Upgrade")
	req.Header.Set("Upgrade", execProtocol)
	if err := req.Write(conn); err != nil {
		return 0, c.unreachable(err)
	}
	in := bufio.NewReaderSize(conn, maxFrame)
	res, err := http.ReadResponse(in, req)
	if err != nil {
		return 0, c.unreachable(err)
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		defer res.Body.Close()
		return 0, c.refusal(res)
	}
	ctx, cancel := context.WithCancel(ctx)
	out, room := &whole{w: conn}, newRoom()
	var senders sync.WaitGroup
	senders.Go(func() { forward(ctx, out, s) })
	if s.Stdin != nil {
		go sendInput(ctx, out, s.Stdin, room) // ends with its Read; see Exec
	}
	code, err := c.receive(in, s, room)
	cancel()
	senders.Wait()
	return code, err
}

// forward sends what the terminal and the user do.
func forward(ctx context.Context, out io.Writer, s Streams) {
	for {
		var err error
		select {
		case <-ctx.Done():
			return
		case z, ok := <-s.Resize:
			if !ok {
				s.Resize = nil
				continue
			}
			err = writeFrame(out, frameResize, binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, z.Width), z.Height))
		case n, ok := <-s.Signals:
			if !ok {
				s.Signals = nil
				continue
			}
			err = writeFrame(out, frameSignal, []byte{byte(n)})
		}
		if err != nil {
			return // the receiver sees the same end
		}
	}
}

// room is how much input may still be sent.
type room struct {
	mu   sync.Mutex
	left int
	more chan struct{}
}

func newRoom() *room { return &room{left: window, more: make(chan struct{}, 1)} }

func (r *room) add(n int) {
	r.mu.Lock()
	r.left += n
	r.mu.Unlock()
	select {
	case r.more <- struct{}{}:
	default:
	}
}

// get takes up to most, at least one, as soon as there is any.
func (r *room) get(ctx context.Context, most int) int {
	for {
		r.mu.Lock()
		n := min(r.left, most)
		r.left -= n
		r.mu.Unlock()
		if n > 0 {
			return n
		}
		select {
		case <-r.more:
		case <-ctx.Done():
			return 0
		}
	}
}

func sendInput(ctx context.Context, out io.Writer, in io.Reader, room *room) {
	buf := make([]byte, maxFrame)
	for ctx.Err() == nil {
		n, err := in.Read(buf)
		for p := buf[:n]; len(p) > 0; {
			k := room.get(ctx, len(p))
			if k == 0 || writeFrame(out, frameStdin, p[:k]) != nil {
				return
			}
			p = p[k:]
		}
		if err != nil {
			_ = writeFrame(out, frameStdinEnd, nil) // the receiver sees the same end
			return
		}
	}
}

// receive writes what the process says, until it has ended.
func (c *Client) receive(in io.Reader, s Streams, room *room) (int, error) {
	buf := make([]byte, maxFrame)
	for {
		kind, content, err := readFrame(in, buf)
		if err != nil {
			return 0, fmt.Errorf("the agent at %s went away while the command ran: %w: %w", c.path, fault.ErrTemporary, err)
		}
		var to io.Writer
		switch kind {
		case frameStdout:
			to = s.Stdout
		case frameStderr:
			to = s.Stderr
		case frameTaken:
			room.add(int(binary.BigEndian.Uint32(content)))
		case frameExit:
			return int(int32(binary.BigEndian.Uint32(content))), nil
		case frameError:
			var p problem
			if err := json.Unmarshal(content, &p); err != nil {
				p.Error = string(content)
			}
			return 0, p.asError()
		default:
			return 0, fmt.Errorf("the agent at %s sent a frame of kind %d: %w", c.path, kind, fault.ErrInvalid)
		}
		if to != nil {
			if _, err := to.Write(content); err != nil {
				return 0, fmt.Errorf("write the command's output: %w", err)
			}
		}
	}
}
