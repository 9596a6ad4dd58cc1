package suite

import (
	"bytes"
	"strings"
	"testing"
)

func TestCount(t *testing.T) {
	tests := []struct {
		name   string
		events []string
		want   Counts
		says   []string
		silent []string // must not be printed
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
			says:   []string{"FAIL  p", "1.5 s", "b_test.go:7: wrong", "skipped TestC: c_test.go:3: needs root"},
			silent: []string{"quiet", "=== RUN"},
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
			want: Counts{0, 1, 0},
			says: []string{"undefined: x", "FAIL  p"},
		},
		{
			name: "panics, or leaks a goroutine",
			events: []string{
				`{"Action":"pass","Package":"p","Test":"TestA","Elapsed":0.1}`,
				`{"Action":"output","Package":"p","Test":"TestB","Output":"panic: boom\n"}`,
				`{"Action":"output","Package":"p","Output":"goleak: found unexpected goroutines\n"}`,
				`{"Action":"fail","Package":"p","Elapsed":0}`,
			},
			want: Counts{1, 1, 0},
			says: []string{"panic: boom", "goleak: found"},
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
			got, err := Count(strings.NewReader(strings.Join(tt.events, "\n")), &out)
			if err != nil || got != tt.want {
				t.Errorf("Count = %v, %v, want %v", got, err, tt.want)
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
