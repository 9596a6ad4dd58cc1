package control

import (
	"encoding/json"
	"errors"
	"io"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// execProtocol is what a connection is upgraded to. With its answer, the agent sends the ends of three pipes: to the process's input, from its
// output, from its errors. On the connection follow lines of JSON: [execOrder] from the caller, one [execEnd] from the agent.
const execProtocol = "longshore-exec/2"

const (
	execPipes = 3
	maxOrder  = 1 << 10  // of a line from the caller
	maxEnd    = 64 << 10 // of the line from the agent
)

// execOrder is what the caller wants of its process.
type execOrder struct {
	Width    uint16 `json:"width,omitempty"` // of the terminal
	Height   uint16 `json:"height,omitempty"`
	Signal   uint8  `json:"signal,omitempty"`
	InputEnd bool   `json:"inputEnd,omitempty"` // said before the pipe is closed: the pipe of a caller that was killed ends as well
}

// execEnd is how the process ended, or why it has no exit code.
type execEnd struct {
	Exit  *int     `json:"exit,omitempty"`
	Error *problem `json:"error,omitempty"`
}

// tell writes a line in one call.
func tell(w io.Writer, v any) error { return json.NewEncoder(w).Encode(v) }

// newPipes makes the pipes of a process: the agent's ends and the caller's. The caller of newPipes closes them, also after an error.
func newPipes() (near, far []*os.File, err error) {
	for range execPipes {
		r, w, failed := os.Pipe()
		near, far, err = append(near, w), append(far, r), errors.Join(err, failed)
	}
	near[0], far[0] = far[0], near[0] // input goes the other way
	return near, far, err
}

// send writes text and passes on files with it, which it closes.
func send(conn *net.UnixConn, text string, files []*os.File) error {
	defer closeAll(files)
	var fds []int
	for _, f := range files {
		fds = append(fds, int(f.Fd()))
	}
	_, _, err := conn.WriteMsgUnix([]byte(text), unix.UnixRights(fds...), nil)
	return err
}

// receive reads into b, and the files that came with it.
func receive(conn *net.UnixConn, b []byte) (n int, files []*os.File, err error) {
	rights := make([]byte, unix.CmsgSpace(execPipes*4))
	n, rn, _, _, err := conn.ReadMsgUnix(b, rights)
	if err != nil {
		return 0, nil, err
	}
	messages, err := unix.ParseSocketControlMessage(rights[:rn])
	for _, m := range messages {
		fds, _ := unix.ParseUnixRights(&m) // none, if it is something else
		for _, fd := range fds {
			_ = unix.SetNonblock(fd, true) // its Close ends a Read or a Write
			files = append(files, os.NewFile(uintptr(fd), "pipe"))
		}
	}
	return n, files, err
}

func closeAll(files []*os.File) {
	for _, f := range files {
		_ = f.Close() // a pipe has nothing to say; it may be closed already
	}
}
