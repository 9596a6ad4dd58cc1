package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
)

// Ports that [FreePort] chooses from: below those that the kernel chooses (32768 and up). One of these would soon be taken by a connection or
// by a server of another test. If a container published it, that server's clients would reach the container: the kernel translates the
// address although something else listens there.
const (
	lowestPort  = 20_000
	highestPort = 32_000
)

// given are the ports that [FreePort] has given: the program that is to listen on one may not have begun to.
var given struct {
	sync.Mutex
	ports map[int]bool
}

// FreePort is a port of this machine where nothing listens now, for a program that cannot choose one itself. One process
// gets each port once.
func FreePort() (uint16, error) {
	given.Lock()
	defer given.Unlock()
	for range 100 {
		port := lowestPort + rand.N(highestPort-lowestPort)
		if given.ports[port] {
			continue
		}
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err == nil {
			err = l.Close()
		}
		if err != nil {
			return 0, err
		}
		if c, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", port)); err == nil {
			_ = c.Close() // a container's: a rule of the firewall takes its connections, nothing listens
			continue
		}
		if given.ports == nil {
			given.ports = map[int]bool{}
		}
		given.ports[port] = true
		return uint16(port), nil
	}
	return 0, fmt.Errorf("100 ports between %d and %d are taken or were given before", lowestPort, highestPort)
}

// FreeAddress is 127.0.0.1 with a port of [FreePort].
func FreeAddress() (string, error) {
	port, err := FreePort()
	return fmt.Sprintf("127.0.0.1:%d", port), err
}
