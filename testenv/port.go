package testenv

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"syscall"
)

// Ports that [FreePort] chooses from: below those that the kernel gives to whoever asks for any (32768 and up). One of these
// would be taken by somebody's connection before long.
const (
	lowestPort  = 20_000
	highestPort = 32_000
)

// FreePort is a port of this machine that nobody listens on now, for a program that cannot choose one itself.
func FreePort() (uint16, error) {
	for range 100 {
		port := lowestPort + rand.N(highestPort-lowestPort)
		l, err := net.Listen("tcp", fmt.Sprintf(":%d", port))
		if errors.Is(err, syscall.EADDRINUSE) {
			continue
		}
		if err != nil {
			return 0, err
		}
		return uint16(port), l.Close()
	}
	return 0, fmt.Errorf("100 ports between %d and %d are taken", lowestPort, highestPort)
}
