package strict_test

import (
	"strings"
	"testing"

	"github.com/longshore-dev/longshore/artifacts/strict"
)

func TestShort(t *testing.T) {
	p := strict.Short(`^a+$`, 3)
	for s, want := range map[string]bool{"a": true, "aaa": true, "aaaa": false, "": false, "b": false, strings.Repeat("a", 1000): false} {
		if got := p.MatchString(s); got != want {
			t.Errorf("MatchString(%.10q) = %v, want %v", s, got, want)
		}
	}
}
