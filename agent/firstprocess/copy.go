package firstprocess

import (
	"errors"
	"fmt"
	"io"
	"os"
)

// File descriptors that the shim passes to a logging program.
const (
	fromTerminal = 3 // output of the container
	readyAt      = 5 // closed: the container may start
)

// copyBuffer is how much is read at a time.
const copyBuffer = 32 << 10

// Copy appends what a terminal prints to a file until it ends. The terminal is always read, also when the file cannot be
// written: a full disk must not stop the container.
func Copy(file string) error {
	return copyTo(os.NewFile(fromTerminal, "terminal"), os.NewFile(readyAt, "ready"), file)
}

func copyTo(from io.Reader, ready io.Closer, file string) error {
	to, err := os.OpenFile(file, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		return errors.Join(fmt.Errorf("open %s: %w", file, err), ready.Close())
	}
	defer to.Close()
	if err := ready.Close(); err != nil {
		return fmt.Errorf("say that output is taken: %w", err)
	}
	buf := make([]byte, copyBuffer)
	for {
		n, err := from.Read(buf)
		_, _ = to.Write(buf[:n]) // what does not fit is lost
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("read the terminal: %w", err)
		}
	}
}
