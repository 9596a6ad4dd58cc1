package network

import (
	"errors"

	"github.com/vishvananda/netlink"
)

// maxDumps is how often a list is asked for that the kernel could not tell whole, since something changed meanwhile. On a
// host where interfaces come and go all the time the last answer is as good as any later one.
const maxDumps = 20

// whole asks for one of the kernel's lists until it is complete. Such a list may lack entries that were there all along, so
// acting on it could take an address that is in use.
func whole[T any](ask func() ([]T, error)) ([]T, error) {
	for n := 1; ; n++ {
		list, err := ask()
		if !errors.Is(err, netlink.ErrDumpInterrupted) || n == maxDumps {
			return list, err
		}
	}
}
