package suite

import (
	"bytes"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestCount(t *testing.T) {
	tests := []struct {
		name   string
		events []string
		want   Counts
		says   []string
		silent []string // must not be printed
		failed []string // the lines of the summary
	}{
		{
			name: "pass, fail, skip",
			events: []string{
				`{"Action":"start","Package":"p"}`,
				`{"Action":"run","Package":"p","Test":"TestA"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"=== RUN   TestA\n"}`,
				`{"Action":"output","Package":"p","Test":"TestA","Output":"quiet\n"}`,
				`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}`,
				`{"Action":"output","Package":"p","Test":"TestB/case","Output":"    b_test.go:7: wrong\n"}`,
				`{"Action":"fail","Package":"p","Test":"TestB/case","Elapsed":0.1}`,
				`{"Action":"fail","Package":"p","Test":"TestB","Elapsed":0.1}`,
				`{"Action":"output","Package":"p","Test":"TestC","Output":"    c_test.go:3: needs root\n"}`,
				`{"Action":"output","Package":"p","Test":"TestC","Output":"--- SKIP: TestC (0.00s)\n"}`,
				`{"Action":"skip","Package":"p","Test":"TestC","Elapsed":0}`,
				`{"Action":"output","Package":"p","Output":"FAIL\n"}`,
				`{"Action":"fail","Package":"p","Elapsed":1.5}`,
			},
			want:   Counts{1, 2, 1},
			says:   []string{"FAIL  p", "1.5 s", "failed TestB/case\n          b_test.go:7: wrong\n", "skipped TestC: c_test.go:3: needs root"},
			silent: []string{"quiet", "=== RUN", "failed TestB\n"},
			failed: []string{"p TestB/case: b_test.go:7: wrong"},
		},
		{
			name: "does not build",
			events: []string{
				`{"ImportPath":"p [p.test]","Action":"build-output","Output":"p_test.go:1: undefined: x\n"}`,
				`{"ImportPath":"p [p.test]","Action":"build-fail"}`,
				`{"Action":"start","Package":"p"}`,
				`{"Action":"output","Package":"p","Output":"FAIL\tp [build failed]\n"}`,
				`{"Action":"fail","Package":"p","Elapsed":0,"FailedBuild":"p [p.test]"}`,
			},
			want:   Counts{0, 1, 0},
			says:   []string{"undefined: x", "FAIL  p"},
			failed: []string{"p: FAIL\tp [build failed]"},
		},
		{
			name: "panics, or leaks a goroutine",
			events: []string{
				`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"panic: boom\n"}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"goroutine 1:\n"}`,
				`{"Action":"output","Package":"p","Output":"goleak: found unexpected goroutines\n"}`,
				`{"Action":"fail","Package":"p","Elapsed":0}`,
			},
			want:   Counts{1, 1, 0},
			says:   []string{"failed TestB\n          panic: boom\n", "goroutine 1:", "goleak: found"},
			failed: []string{"p: goleak: found unexpected goroutines", "p TestB: panic: boom"},
		},
		{
			name:   "no tests",
			events: []string{`{"Action":"start","Package":"p"}`, `{"Action":"skip","Package":"p","Elapsed":0}`},
			want:   Counts{},
			silent: []string{"p"},
		},
		{
			name:   "killed",
			events: []string{`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}`},
			want:   Counts{1, 1, 0},
			says:   []string{"did not end"},
			failed: []string{"p: did not end"},
		},
		{
			name:   "not from the tests",
			events: []string{"go: no such module"},
			says:   []string{"go: no such module"},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var out bytes.Buffer
			r := Report{Out: &out}
			if err := r.Read(strings.NewReader(strings.Join(tt.events, "\n"))); err != nil || r.Counts != tt.want {
				t.Errorf("counts %v, %v, want %v", r.Counts, err, tt.want)
			}
			var failed []string
			for _, f := range r.Failed {
				failed = append(failed, f.String())
			}
			if diff := cmp.Diff(tt.failed, failed); diff != "" {
				t.Errorf("summary (-want +got):\n%s", diff)
			}
			for _, text := range tt.says {
				if !strings.Contains(out.String(), text) {
					t.Errorf("output lacks %q:\n%s", text, out.String())
				}
			}
			for _, text := range tt.silent {
				if strings.Contains(out.String(), text) {
					t.Errorf("output has %q:\n%s", text, out.String())
				}
			}
		})
	}
}
