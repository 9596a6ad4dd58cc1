package workload

import "time"

// LogOptions choose a part of a container's output.
type LogOptions struct {
	Follow bool
	Tail   int // last lines, 16 KiB each on average at most; 0: all that is kept; NoTail: nothing that is kept
	// Since and Until bound when the output was written; zero: no bound. Times of output are known to within a few seconds:
	// some lines more may come, none less.
	Since, Until time.Time
	// Stamps asks for lines that begin with their time, as far as it is known, in [StampFormat] and a space. A line of more
	// than 16 KiB comes in pieces, each with its time.
	Stamps bool
}

// NoTail chooses only what is written from now on.
const NoTail = -1

// StampFormat is that of times at the beginning of lines; all are in UTC.
const StampFormat = "2006-01-02T15:04:05.000Z"
