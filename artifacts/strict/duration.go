package strict

import (
	"strconv"
	"strings"
	"time"
)

// ParseDuration reads a duration as Go writes it, which may begin with days of 24 hours: 90s, 2h30m, 3d, 1d12h.
func ParseDuration(text string) (time.Duration, error) {
	days, rest, ok := strings.Cut(text, "d")
	n, err := strconv.ParseUint(days, 10, 16)
	if !ok || err != nil {
		return time.ParseDuration(text)
	}
	d := time.Duration(n) * 24 * time.Hour
	if rest == "" {
		return d, nil
	}
	more, err := time.ParseDuration(rest)
	if rest == "0" || !strings.ContainsAny(rest[:1], "0123456789") || d+more < 0 {
		return 0, strconv.ErrRange
	}
	return d + more, err
}
