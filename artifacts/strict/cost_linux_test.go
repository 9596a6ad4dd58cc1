package strict_test

import (
	"fmt"
	"math"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

// TestParserCost looks for input that costs the reader the square of its length: tokens of every kind, repeated, and what
// has been found to do so. 16 times the input may take 96 times the time, which memory for it explains; the square is 256 times.
func TestParserCost(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	shapes := map[string]func(n int) string{
		"keys around keys":            func(n int) string { return strings.Repeat("[", n) + strings.Repeat("]: 1", n) },
		"commented lists around each": func(n int) string { return strings.Repeat("- ", n/2) + "1\n" + strings.Repeat(" #\n#\n", n/2) },
		"directives": func(n int) string {
			var b strings.Builder
			for b.WriteString("a: 1\n...\n"); b.Len() < 4*n; {
				fmt.Fprintf(&b, "%%TAG !%d! x\n", b.Len())
			}
			return b.String()
		},
	}
	for _, atom := range []string{
		"a: b\n", "a:\n", "- ", "-\n", "? ", ": ", "[", "{", "[]", "{},", "\"", "'", "\\", "|", ">\n", "|\n ", "#", "# \n", "&a ", "*a ", "! ", "!!str ", "%", "@",
		"`", "---\n", "...\n", "\t", " ", "\n", "\r", "\r\n", "a", "a ", "a\n", " a\n", "a: |\n  b\n", "a: \"\\n\"\n", "a: 'b\n c'\n", "<<: ", ",", "]", "\\\n", "\"\\\n", "- a: b\n", "{a: b}, ", "'' ", "ä", "- |\n", " \n", "x\n\n\n\n", " x" + strings.Repeat("\n", 200),
	} {
		for _, prefix := range []string{"", "a: \"", "a: [", "a: |\n ", "- "} {
			shapes[fmt.Sprintf("%q and %q", prefix, atom)] = func(n int) string { return prefix + strings.Repeat(atom, n/len(atom)) }
		}
	}
	const small, times, most = 4 << 10, 16, 96
	const least = 250 * time.Millisecond // what takes less is short for any input within the limits, and too short to compare
	for name, shape := range shapes {
		short, long := []byte(shape(small)), []byte(shape(small*times))
		one, many := time.Duration(math.MaxInt64), time.Duration(math.MaxInt64)
		for try := 0; try == 0 || many > max(least, most*one) && try < 20; try++ { // the collector and shared caches slow single runs
			one, many = min(one, cost(short)), min(many, cost(long))
		}
		if many > max(least, most*one) {
			t.Errorf("%s: %d times the input takes %v instead of %v", name, times, many, one)
		}
	}
}

// cost is the processor time of the thread that reads: other programs do not add to it.
func cost(data []byte) time.Duration {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	begin := threadTime()
	if n, err := strict.YAML("f", data); err == nil {
		n.Close()
	}
	return threadTime() - begin
}

func threadTime() time.Duration {
	var t unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t); err != nil {
		panic(err)
	}
	return time.Duration(t.Nano())
}
