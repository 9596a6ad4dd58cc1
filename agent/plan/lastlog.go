package plan

import (
	"fmt"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/longshore-dev/longshore/agent/workload"
)

// Limits of the last log lines of a container in an error message.
const (
	LogLines = 10
	logBytes = 2 << 10
)

const outputLabel = workload.OutputLabel

// Quote makes the end of an output fit for a message: few lines, few bytes, nothing that moves a cursor.
func Quote(out string) string {
	clean := func(r rune) rune {
		switch {
		case r == utf8.RuneError, r == '\t':
			return ' '
		case unicode.IsControl(r), unicode.Is(unicode.Cf, r):
			return -1
		}
		return r
	}
	var lines []string
	for line := range strings.Lines(strings.ToValidUTF8(out, " ")) {
		if line = strings.TrimRight(strings.Map(clean, line), " "); line != "" {
			lines = append(lines, line)
		}
	}
	left, from := logBytes, len(lines)
	for from > 0 && len(lines)-from < LogLines && left > 0 {
		from--
		if n := len(lines[from]); n > left {
			cut := lines[from][n-left:]
			for len(cut) > 0 && !utf8.RuneStart(cut[0]) {
				cut = cut[1:]
			}
			lines[from] = "…" + cut
		}
		left -= len(lines[from]) + 1
	}
	if from == len(lines) {
		return ""
	}
	return outputLabel + strings.Join(lines[from:], "\n  ")
}

// lacked is the part of a message about the resource that a container lacked when it ended, and what to do; "": none.
func lacked(s *workload.Service, lack workload.Lack) string {
	switch {
	case lack == workload.LackProcesses:
		return fmt.Sprintf(": it had as many processes as its limit of %d allows; raise pids_limit or deploy.resources.limits.pids", s.Resources.PIDs)
	case lack == workload.LackMemory && s.Resources.MemoryBytes > 0:
		return fmt.Sprintf(": it ran out of memory, its limit is %d MiB; raise mem_limit or deploy.resources.limits.memory", s.Resources.MemoryBytes>>20)
	case lack == workload.LackMemory:
		return ": the device ran out of memory; give its services limits of memory, or run fewer"
	}
	return ""
}
