package containerd_test

import (
	"bufio"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// shimVariable makes this test binary open its log as a shim does: see beShim.
const shimVariable = "LONGSHORE_TEST_SHIM"

// beShim holds the place of a named pipe and then opens it, which waits for a reader. It ends with its input.
func beShim(log string) error {
	at, err := unix.Open(log, unix.O_PATH|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	fmt.Println("placed")
	f, err := os.OpenFile(fmt.Sprintf("/proc/self/fd/%d", at), os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	fmt.Println("open")
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}

// socketVariable makes this test binary listen on a socket as a shim does: see beListening.
const socketVariable = "LONGSHORE_TEST_SHIM_SOCKET"

// beListening takes a socket, whoever has it, and keeps the connections. It ends with its input.
func beListening(path string) error {
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return err
	}
	l.SetUnlinkOnClose(false)
	fmt.Println("listens")
	go func() {
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			defer c.Close()
			fmt.Println("connected")
		}
	}()
	_, err = bufio.NewReader(os.Stdin).ReadString('\n')
	return err
}
