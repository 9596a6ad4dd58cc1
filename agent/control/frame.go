package control

import (
	"encoding/binary"
	"fmt"
	"io"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

// frameKind says what a frame of an exec stream carries.
type frameKind byte

// Kinds of frames: a byte of kind, four of length (big-endian), then the content.
const (
	frameStdin    frameKind = iota + 1 // to the process
	frameStdinEnd                      // nothing more comes
	frameResize                        // width and height, two bytes each
	frameSignal                        // number, one byte
	frameStdout                        // of the process
	frameStderr
	frameTaken // four bytes: that much input was taken and may be sent again
	frameExit  // four bytes: exit code; the last frame
	frameError // a problem as JSON; the last frame
)

const (
	// maxFrame bounds a frame's content.
	maxFrame = 32 << 10
	// window is how much input may be on its way before the process has taken it, so that signals are not stuck behind it.
	window      = 256 << 10
	frameHeader = 5
)

// sizes are the lengths that a frame's content may have.
func (k frameKind) sizes() (least, most int, ok bool) {
	switch k {
	case frameStdin, frameStdout, frameStderr, frameError:
		return 1, maxFrame, true
	case frameStdinEnd:
		return 0, 0, true
	case frameResize, frameTaken, frameExit:
		return 4, 4, true
	case frameSignal:
		return 1, 1, true
	}
	return 0, 0, false
}

// readFrame reads one frame into buf, which has room for the largest. The content is valid until the next call. io.EOF comes
// only between frames.
func readFrame(r io.Reader, buf []byte) (frameKind, []byte, error) {
	var head [frameHeader]byte
	if _, err := io.ReadFull(r, head[:]); err != nil {
		return 0, nil, err
	}
	kind, n := frameKind(head[0]), binary.BigEndian.Uint32(head[1:])
	least, most, ok := kind.sizes()
	if !ok || n < uint32(least) || n > uint32(most) {
		return 0, nil, fmt.Errorf("frame of kind %d with %d bytes: %w", kind, n, fault.ErrInvalid)
	}
	if _, err := io.ReadFull(r, buf[:n]); err != nil {
		return 0, nil, fmt.Errorf("frame of kind %d: %w", kind, io.ErrUnexpectedEOF)
	}
	return kind, buf[:n], nil
}

// writeFrame writes one frame in one call. Content that may be long goes through a frameWriter.
func writeFrame(w io.Writer, kind frameKind, content []byte) error {
	b := make([]byte, frameHeader, frameHeader+len(content))
	b[0] = byte(kind)
	binary.BigEndian.PutUint32(b[1:], uint32(len(content)))
	_, err := w.Write(append(b, content...))
	return err
}

// frameWriter makes frames of one kind of what is written to it.
type frameWriter struct {
	w    io.Writer // of whole frames
	kind frameKind
}

func (f frameWriter) Write(p []byte) (int, error) {
	done := 0
	for done < len(p) {
		n := min(len(p)-done, maxFrame)
		if err := writeFrame(f.w, f.kind, p[done:done+n]); err != nil {
			return done, err
		}
		done += n
	}
	return done, nil
}

func number(n uint32) []byte { return binary.BigEndian.AppendUint32(nil, n) }
