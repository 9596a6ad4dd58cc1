package printable

import (
	"fmt"
	"strconv"
	"strings"
)

// Digest abbreviates a digest to what people compare. Other text stays as it is.
func Digest[D ~string](d D) string {
	algorithm, hex, ok := strings.Cut(string(d), ":")
	if !ok || len(hex) <= 12 {
		return string(d)
	}
	return algorithm + ":" + hex[:12] + "…"
}

// Counted is a number of things: "1 restart", "2,000 restarts".
func Counted[N int | int64 | uint64](n N, what string) string {
	if n != 1 {
		what += "s"
	}
	return Number(n) + " " + what
}

// Number is a number for people, with commas: "2,000".
func Number[N int | int64 | uint64](n N) string {
	s := strconv.FormatInt(int64(n), 10)
	if n > 0 {
		s = strconv.FormatUint(uint64(n), 10)
	}
	sign := len(s) - len(strings.TrimPrefix(s, "-"))
	for i := len(s) - 3; i > sign; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// Bytes is a number of bytes for people.
func Bytes[N int64 | uint64](n N) string {
	f, unit := float64(n), 0
	for f >= 1024 && unit < 4 {
		f, unit = f/1024, unit+1
	}
	if unit == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %ciB", f, " KMGT"[unit])
}
