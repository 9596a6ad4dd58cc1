package bench

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-dev/longshore/testenv"
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
		"BenchmarkAttach":   {"ns/op": 2e6, "±ns/op": 0.5, "requests": 10.5, "±requests": 1.0 / 10.5, "B/op": 100},
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
		{name: "missed", bench: "a.BenchmarkY", peer: "a.BenchmarkX", unit: "ns/op", target: "≤ 1.3", ratio: 1.3, theirs: "its peer"},
		{name: "too big", bench: "size", unit: "MiB", target: "≤ 32 MiB", limit: 32},
		{name: "own peer", bench: "pair", unit: "ours-ms", peerUnit: "floor-ms", target: "≤ 1.3", ratio: 1.3},
		{name: "too few", bench: "rate", unit: "reports/s", target: "≥ 5000", least: 5000},
		{name: "count", bench: "count", unit: "requests/change"},
		{name: "no peer", bench: "a.BenchmarkX", peerUnit: "peer-ms", unit: "ns/op", theirs: "a peer", absent: "5 ms, published", target: "≤ 1.3", ratio: 1.3},
		{name: "unknown", bench: "a.BenchmarkZ", unit: "ns/op", target: "none"},
	}
	samples := map[string]sample{
		"a.BenchmarkX": {"ns/op": 1.5e6, "±ns/op": 0.034}, "a.BenchmarkY": {"ns/op": 3e9}, "size": {"MiB": 33},
		"pair": {"ours-ms": 90, "floor-ms": 80.5}, "rate": {"reports/s": 4000}, "count": {"requests/change": 8},
	}
	var out bytes.Buffer
	errs := errors.Join(table(&out, rows, samples)...)
	if want := "not measured: unknown"; errs == nil || errs.Error() != want {
		t.Errorf("table = %v, want %s", errs, want)
	}
	want := `| what     | ours           | peer                   | ratio   | target   |          |
|---       |---             |---                     |---      |---       |---       |
| met      | 1.50 ms ± 3 %  | 3 s                    | 0.00    | ≤ 1.3    | within   |
| missed   | 3 s            | 1.50 ms ± 3 % its peer | 2000.00 | ≤ 1.3    | **over** |
| too big  | 33 MiB         |                        |         | ≤ 32 MiB | **over** |
| own peer | 90 ms          | 80.5 ms                | 1.12    | ≤ 1.3    | within   |
| too few  | 4000 reports/s |                        |         | ≥ 5000   | **over** |
| count    | 8 requests     |                        |         |          |          |
| no peer  | 1.50 ms ± 3 %  | 5 ms, published        |         | ≤ 1.3    | within   |
| unknown  | not measured   |                        |         | none     |          |
`
	if diff := cmp.Diff(want, out.String()); diff != "" {
		t.Errorf("table (-want +got):\n%s", diff)
	}
}

func TestFigure(t *testing.T) {
	for want, give := range map[string]struct {
		v    float64
		unit string
	}{
		"999 ns": {999, "ns/op"}, "1.50 µs": {1500, "ns/median"}, "0 KiB/h": {0, "written-KiB/h"}, "664 B": {664, "wire-B/poll"},
		"2.50 KiB": {2560, "B/op"}, "-12.3 KiB": {-12.3, "growth-KiB/day"}, "0.07 %": {0.0711, "cpu-%"},
	} {
		if got := figure(give.v, give.unit); got != want {
			t.Errorf("figure(%v, %q) = %q, want %q", give.v, give.unit, got, want)
		}
	}
}

func TestInsert(t *testing.T) {
	page := "# Title\n\n" + beginMarker + "\nold\n" + endMarker + "\n\nMore.\n"
	want := "# Title\n\n" + beginMarker + "\n\n| new |\n\n" + endMarker + "\n\nMore.\n"
	for range 2 { // again is the same
		got, err := insert([]byte(page), []byte("| new |\n\n"))
		if page = string(got); page != want || err != nil {
			t.Fatalf("insert = %q, %v, want %q", got, err, want)
		}
	}
	for name, document := range map[string]string{"empty": "", "no end": beginMarker + "\n", "no begin": endMarker + "\n"} {
		if got, err := insert([]byte(document), nil); err == nil {
			t.Errorf("%s: %q, want an error", name, got)
		}
	}
}

// TestRows finds rows that name no benchmark and nothing that Run measures itself.
func TestRows(t *testing.T) {
	root, err := testenv.Root()
	if err != nil {
		t.Fatal(err)
	}
	for pkg, names := range packages(rows(time.Minute)) {
		files, err := filepath.Glob(filepath.Join(root, pkg, "*_test.go"))
		if err != nil {
			t.Fatal(err)
		}
		var code strings.Builder
		for _, file := range files {
			text, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			code.Write(text)
		}
		for _, name := range names {
			if !strings.Contains(code.String(), "func "+name+"(b *testing.B)") {
				t.Errorf("%s has no %s", pkg, name)
			}
		}
	}
}

func TestChoose(t *testing.T) {
	var got []string
	for _, r := range choose([]row{{name: "a start"}, {name: "the same: memory"}, {name: "a stop"}, {name: "the same: time"}}, regexp.MustCompile("start|time")) {
		got = append(got, r.name)
	}
	if diff := cmp.Diff([]string{"a start", "the same: memory", "the same: time"}, got); diff != "" {
		t.Errorf("choose (-want +got):\n%s", diff)
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
