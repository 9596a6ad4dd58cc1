package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"runtime/debug"
	"runtime/metrics"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// How much garbage may lie about before it is collected, in percent of what is in use (GOGC; Go's own is 100): a device has little
// memory, and an agent makes little garbage, least of all while it rests.
const (
	garbage        = 50
	garbageResting = 20
)

// An agent rests while it allocates less than restQuiet bytes in restEvery: more than watching containers takes, less than a start or
// a change of an application.
const (
	restEvery = 10 * time.Second
	restQuiet = 8 << 20
)

// rest gives back the memory that a start or a change needed, each time the agent begins to rest, until ctx ends.
func rest(ctx context.Context, log *slog.Logger) {
	allocated := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}}
	before, resting := uint64(0), false
	tick := time.NewTicker(restEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		metrics.Read(allocated)
		now := allocated[0].Value.Uint64()
		quiet := now-before < restQuiet
		switch {
		case resting && !quiet:
			setGarbage(garbage)
		case quiet && !resting:
			setGarbage(garbageResting)
			debug.FreeOSMemory()
			if err := unmapProgram(); err != nil {
				log.Debug("the pages of the program stay mapped", "err", err)
			}
		}
		before, resting = now, quiet
	}
}

// setGarbage leaves what a person set.
func setGarbage(percent int) {
	if os.Getenv("GOGC") == "" {
		debug.SetGCPercent(percent)
	}
}

// unmapProgram takes the pages of the program's file out of the memory of this process: most of them are only used by a start. One that
// is used again comes back from the page cache, at once. Mappings that were written to stay: of a program with C libraries.
func unmapProgram() error {
	program, err := os.Readlink("/proc/self/exe")
	if err != nil {
		return err
	}
	smaps, err := os.ReadFile("/proc/self/smaps")
	if err != nil {
		return err
	}
	var from, to uintptr
	for line := range strings.Lines(string(smaps)) {
		f := strings.Fields(line)
		switch {
		case len(f) < 2:
		case !strings.HasSuffix(f[0], ":"): // the first line of a mapping
			from, to = 0, 0
			if len(f) == 6 && f[5] == program && (f[1] == "r-xp" || f[1] == "r--p") {
				if _, err := fmt.Sscanf(f[0], "%x-%x", &from, &to); err != nil {
					return err
				}
			}
		case f[0] == "Anonymous:" && f[1] == "0" && from < to:
			if _, _, errno := unix.Syscall(unix.SYS_MADVISE, from, to-from, unix.MADV_DONTNEED); errno != 0 {
				return errno
			}
		}
	}
	return nil
}
