package printable_test

import (
	"math"
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/printable"
)

func TestDigest(t *testing.T) {
	hex := strings.Repeat("0123456789abcdef", 4)
	for in, want := range map[string]string{
		"": "", "press-07": "press-07", "sha256:0123456789ab": "sha256:0123456789ab", "sha256:" + hex: "sha256:0123456789ab…", "sha512:" + hex + hex: "sha512:0123456789ab…",
	} {
		if got := printable.Digest(in); got != want {
			t.Errorf("Digest(%s) = %s, want %s", in, got, want)
		}
	}
}

func TestBytes(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1024: "1.0 KiB", 1536 << 10: "1.5 MiB", 5 << 30: "5.0 GiB", 3 << 50: "3072.0 TiB"} {
		if got := printable.Bytes(n); got != want {
			t.Errorf("Bytes(%d) = %s, want %s", n, got, want)
		}
	}
}

func TestCounted(t *testing.T) {
	for n, want := range map[int]string{0: "0 restarts", 1: "1 restart", 2: "2 restarts", 999: "999 restarts", 2000: "2,000 restarts", 1234567: "1,234,567 restarts", -999: "-999 restarts", -4000: "-4,000 restarts"} {
		if got := printable.Counted(n, "restart"); got != want {
			t.Errorf("Counted(%d) = %s, want %s", n, got, want)
		}
	}
	if got := printable.Number(uint64(math.MaxUint64)); got != "18,446,744,073,709,551,615" {
		t.Errorf("Number of the largest = %s", got)
	}
}
