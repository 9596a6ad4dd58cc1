package network

import (
	"errors"
	"fmt"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/longshore-dev/longshore/artifacts/fault"
)

const (
	// maxDumps bounds the requests for a list that changes while the kernel sends it.
	maxDumps     = 30
	dumpPause    = 100 * time.Microsecond // doubles; a list takes a few milliseconds at most
	dumpPauseMax = 20 * time.Millisecond
)

// completeList requests one of the kernel's lists until it is complete. An interrupted list may lack entries that existed all along,
// and acting on it could assign an address that is in use.
func completeList[T any](ask func() ([]T, error)) ([]T, error) {
	for n, pause := 1, dumpPause; ; n, pause = n+1, min(2*pause, dumpPauseMax) {
		list, err := ask()
		if !errors.Is(err, netlink.ErrDumpInterrupted) {
			return list, err
		}
		if n == maxDumps {
			return list, fmt.Errorf("%w: %w", fault.ErrTemporary, err)
		}
		time.Sleep(pause)
	}
}
