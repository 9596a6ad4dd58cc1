package bench

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParse(t *testing.T) {
	got, err := parse(strings.NewReader(`goos: linux
BenchmarkAttach-2   	     100	   3000000 ns/op	     10.5 requests	  100 B/op
BenchmarkAttach-2   	     100	   1000000 ns/op	     10.5 requests	  100 B/op
BenchmarkAttach-2   	     100	   2000000 ns/op	     11.5 requests	  100 B/op
BenchmarkX/case-a-2 	       1	   7 ns/op
PASS
`))
	want := map[string]sample{
		"BenchmarkAttach":   {"ns/op": 2e6, "requests": 10.5, "B/op": 100},
		"BenchmarkX/case-a": {"ns/op": 7},
	}
	if diff := cmp.Diff(want, got); diff != "" || err != nil {
		t.Errorf("parse (-want +got), %v:\n%s", err, diff)
	}
	if _, err := parse(strings.NewReader("BenchmarkX 1 seven ns/op\n")); err == nil {
		t.Error("a line that is no figure: no error")
	}
}

func TestTable(t *testing.T) {
	rows := []row{
		{name: "met", bench: "a.BenchmarkX", peer: "a.BenchmarkY", unit: "ns/op", target: "≤ 1.3", ratio: 1.3},
		{name: "missed", bench: "a.BenchmarkY", peer: "a.BenchmarkX", unit: "ns/op", target: "≤ 1.3", ratio: 1.3, theirs: "elsewhere"},
		{name: "too big", bench: "size", unit: "MiB", target: "≤ 32 MiB", limit: 32},
		{name: "own peer", bench: "pair", unit: "ours-ms", peerUnit: "floor-ms", target: "≤ 1.3", ratio: 1.3},
		{name: "too few", bench: "rate", unit: "reports/s", target: "≥ 5000", least: 5000},
		{name: "unknown", bench: "a.BenchmarkZ", unit: "ns/op", target: "none"},
	}
	samples := map[string]sample{
		"a.BenchmarkX": {"ns/op": 1.5e6}, "a.BenchmarkY": {"ns/op": 3e9}, "size": {"MiB": 33},
		"pair": {"ours-ms": 90, "floor-ms": 80}, "rate": {"reports/s": 4000},
	}
	var out bytes.Buffer
	table(&out, rows, samples)
	want := `| what     | ours           | peer                | ratio   | target              |
|---       |---             |---                  |---      |---                  |
| met      | 1.50 ms        | 3.00 s              | 0.00    | ≤ 1.3               |
| missed   | 3.00 s         | 1.50 ms (elsewhere) | 2000.00 | ≤ 1.3 **missed**    |
| too big  | 33.0 MiB       |                     |         | ≤ 32 MiB **missed** |
| own peer | 90.0 ms        | 80.0 ms             | 1.12    | ≤ 1.3               |
| too few  | 4000 reports/s |                     |         | ≥ 5000 **missed**   |
| unknown  | not measured   |                     |         | none                |
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestPackages(t *testing.T) {
	got := packages([]row{
		{bench: "agent/network.BenchmarkAttach/one", peer: "agent/network.BenchmarkCNI"},
		{bench: "agent/network.BenchmarkAttach/two"},
		{bench: "size of longshore"},
	})
	want := map[string][]string{"agent/network": {"BenchmarkAttach", "BenchmarkCNI"}}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
}
