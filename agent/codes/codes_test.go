package codes

import (
	"os"
	"regexp"
	"testing"
)

// TestEveryCodeIsExplained holds the constants against the explanations: none without, none twice.
func TestEveryCodeIsExplained(t *testing.T) {
	source, err := os.ReadFile("codes.go")
	if err != nil {
		t.Fatal(err)
	}
	seen := map[Code]int{}
	for _, d := range All() {
		seen[d.Code]++
		if d.Meaning == "" || d.Action == "" {
			t.Errorf("%s: meaning %q, action %q", d.Code, d.Meaning, d.Action)
		}
	}
	n := 0
	for _, m := range regexp.MustCompile(`\w+ +Code = "([a-z0-9-]+)"`).FindAllStringSubmatch(string(source), -1) {
		n++
		if seen[Code(m[1])] != 1 {
			t.Errorf("%s is explained %d times, want once", m[1], seen[Code(m[1])])
		}
	}
	if n < 40 || n != len(seen) {
		t.Errorf("%d constants, %d explanations", n, len(seen))
	}
}
